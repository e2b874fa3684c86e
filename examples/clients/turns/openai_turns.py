"""OpenAI's package: the second turn sends back what the first one answered, as objects and as it dumps them."""

from __future__ import annotations

import json
from typing import Any, Literal

import openai
from cases import FIRST, FUNCTION, MODEL, SECOND, TOOL, URL, run, user
from openai import OpenAI
from pydantic import BaseModel, ConfigDict

client = OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
chats, responses = client.chat.completions, client.responses
short: dict[str, Any] = {"model": MODEL, "max_tokens": 12, "seed": 1}
long: dict[str, Any] = {"model": MODEL, "max_tokens": 100, "seed": 1}
brief: dict[str, Any] = {"model": MODEL, "max_output_tokens": 16}


class Animal(BaseModel):
    """An animal of a story."""

    model_config = ConfigDict(extra="forbid")
    animal: Literal["cat", "dog"]


def chat() -> None:
    message = chats.create(messages=[user(FIRST)], **short).choices[0].message
    for sent in (message, message.model_dump(), message.to_dict()):
        assert chats.create(messages=[user(FIRST), sent, user(SECOND)], **short).choices[0].message.content


def stream() -> None:
    usage = {"include_usage": True, "include_obfuscation": False}
    chunks = list(chats.create(messages=[user(FIRST)], stream=True, stream_options=usage, **short))
    assert chunks[-1].usage.completion_tokens
    # Programs that join deltas send every field of them.
    joined: dict[str, Any] = {}
    for chunk in chunks[:-1]:
        for key, value in chunk.choices[0].delta.model_dump().items():
            known = joined.get(key)
            joined[key] = known + value if isinstance(known, str) and isinstance(value, str) else known or value
    assert chats.create(messages=[user(FIRST), joined, user(SECOND)], **short).choices


def stream_helper() -> None:
    # The helper refuses an answer that was cut.
    asked = {**long, "stop": ["."]}
    with chats.stream(messages=[user(FIRST)], **asked) as events:
        for _ in events:
            pass
        message = events.get_final_completion().choices[0].message
    assert chats.create(messages=[user(FIRST), message.model_dump(), user(SECOND)], **short).choices
    with chats.stream(messages=[user(FIRST), message, user(SECOND)], **asked) as events:
        assert events.get_final_completion().choices[0].message.content


def tools() -> None:
    message = chats.create(messages=[user(FIRST)], tools=[TOOL], tool_choice="required", **long).choices[0].message
    results = [{"role": "tool", "tool_call_id": call.id, "content": "Tom"} for call in message.tool_calls]
    for sent in (message, message.model_dump()):
        assert chats.create(messages=[user(FIRST), sent, *results], tools=[TOOL], **short).choices


def parse() -> None:
    message = chats.parse(messages=[user(FIRST)], response_format=Animal, **long).choices[0].message
    assert isinstance(message.parsed, Animal)
    for sent in (message, message.model_dump(), message.to_dict()):
        again = chats.parse(messages=[user(FIRST), sent, user(SECOND)], response_format=Animal, **long)
        assert again.choices[0].message.parsed


def parse_tools() -> None:
    tool = openai.pydantic_function_tool(Animal)
    asked: dict[str, Any] = {"tools": [tool], "tool_choice": "required", "parallel_tool_calls": False, **long}
    message = chats.parse(messages=[user(FIRST)], **asked).choices[0].message
    assert isinstance(message.tool_calls[0].function.parsed_arguments, Animal)
    results = [{"role": "tool", "tool_call_id": call.id, "content": "Tom"} for call in message.tool_calls]
    for sent in (message, message.model_dump(), message.to_dict()):
        assert chats.parse(messages=[user(FIRST), sent, *results], **asked).choices
    with chats.stream(messages=[user(FIRST)], **asked) as events:
        streamed = events.get_final_completion().choices[0].message
    results = [{"role": "tool", "tool_call_id": call.id, "content": "Tom"} for call in streamed.tool_calls]
    assert chats.create(messages=[user(FIRST), streamed.model_dump(), *results], tools=[tool], **short).choices


def response() -> None:
    first = responses.create(input=FIRST, **brief)
    ask = {"role": "user", "content": [{"type": "input_text", "text": SECOND}]}
    for output in (first.output, [item.model_dump() for item in first.output], first.to_dict()["output"]):
        assert responses.create(input=[user(FIRST), *output, ask], **brief).output_text
    assert responses.create(input=[ask], previous_response_id=first.id, **brief).output_text


def response_stream() -> None:
    # The helper waits for an answer that is complete.
    asked: dict[str, Any] = {"model": MODEL, "max_output_tokens": 100, "extra_body": {"stop": ["."], "seed": 1}}
    with responses.stream(input=FIRST, **asked) as events:
        first = events.get_final_response()
    for output in (first.output, [item.model_dump() for item in first.output]):
        with responses.stream(input=[user(FIRST), *output, user(SECOND)], **asked) as events:
            assert events.get_final_response().output_text


def response_tools() -> None:
    asked: dict[str, Any] = {"model": MODEL, "max_output_tokens": 100, "tools": [{"type": "function", **FUNCTION}]}
    first = responses.create(input=FIRST, tool_choice="required", **asked)
    calls = [item for item in first.output if item.type == "function_call"]
    results = [{"type": "function_call_output", "call_id": call.call_id, "output": "Tom"} for call in calls]
    for output in (first.output, [item.model_dump() for item in first.output]):
        second = responses.create(input=[user(FIRST), *output, *results], **asked)
        listed = responses.input_items.list(second.id).data
        assert len(listed) == 1 + len(output) + len(results)
        # What the list of a response's input holds may be sent again.
        assert responses.create(input=[item.model_dump() for item in reversed(listed)], **asked).output


def response_parse() -> None:
    first = responses.parse(input=FIRST, text_format=Animal, model=MODEL, max_output_tokens=100)
    assert isinstance(first.output_parsed, Animal)
    for output in (first.output, [item.model_dump() for item in first.output]):
        asked = [user(FIRST), *output, user(SECOND)]
        assert responses.parse(input=asked, text_format=Animal, model=MODEL, max_output_tokens=100).output_parsed


def response_parse_tools() -> None:
    tool = openai.pydantic_function_tool(Animal)["function"]
    asked: dict[str, Any] = {"model": MODEL, "max_output_tokens": 100, "tools": [{"type": "function", **tool}]}
    asked["parallel_tool_calls"] = False
    first = responses.parse(input=FIRST, tool_choice="required", **asked)
    calls = [item for item in first.output if item.type == "function_call"]
    assert json.loads(calls[0].arguments)
    results = [{"type": "function_call_output", "call_id": call.call_id, "output": "Tom"} for call in calls]
    for output in (first.output, [item.model_dump() for item in first.output]):
        assert responses.parse(input=[user(FIRST), *output, *results], **asked).output


if __name__ == "__main__":
    run(
        chat,
        stream,
        stream_helper,
        tools,
        parse,
        parse_tools,
        response,
        response_stream,
        response_tools,
        response_parse,
        response_parse_tools,
    )
