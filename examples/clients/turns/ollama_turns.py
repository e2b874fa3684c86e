"""Ollama's package: the second turn sends back the first one's message, and options as the package dumps them."""

from __future__ import annotations

from typing import Any

from cases import FIRST, MODEL, SECOND, TOOL, URL, run, user
from ollama import Client, Options

client = Client(host=URL)
short = Options(num_predict=12, seed=1)


def chat() -> None:
    message = client.chat(model=MODEL, messages=[user(FIRST)], options=short).message
    for sent in (message, message.model_dump()):
        answer = client.chat(model=MODEL, messages=[user(FIRST), sent, user(SECOND)], options=short.model_dump())
        assert answer.message.content


def stream() -> None:
    parts = list(client.chat(model=MODEL, messages=[user(FIRST)], options=short, stream=True))
    assert parts[-1].done
    # Programs that send every part back as it came.
    sent = [part.message.model_dump() for part in parts]
    assert client.chat(model=MODEL, messages=[user(FIRST), *sent, user(SECOND)], options=short).message.content


def tools() -> None:
    told = client.chat(model=MODEL, messages=[user(FIRST)], tools=[TOOL], options=short).message
    call: dict[str, Any] = {"function": {"name": "find", "arguments": {"animal": "cat"}}}
    message = {**told.model_dump(), "tool_calls": [call]}
    result = {"role": "tool", "content": "Tom", "tool_name": "find"}
    assert client.chat(model=MODEL, messages=[user(FIRST), message, result], tools=[TOOL], options=short).done


def python_function() -> None:
    def find(animal: str) -> str:
        """Finds an animal.

        Args:
            animal: its name
        """
        return animal

    assert client.chat(model=MODEL, messages=[user(FIRST)], tools=[find], options=short).done


def generate() -> None:
    first = client.generate(model=MODEL, prompt=FIRST, options=short)
    assert client.generate(model=MODEL, prompt=SECOND, context=first.context, options=short.model_dump()).response


def json_format() -> None:
    schema = TOOL["function"]["parameters"]
    message = client.chat(model=MODEL, messages=[user(FIRST)], format=schema, options={"num_predict": 100}).message
    again = [user(FIRST), message.model_dump(), user(SECOND)]
    assert client.chat(model=MODEL, messages=again, format=schema, options={"num_predict": 100}).message.content


if __name__ == "__main__":
    run(chat, stream, tools, python_function, generate, json_format)
