"""LiteLLM: messages sent back as it dumps them, by OpenAI's protocol, by Ollama's and by Responses."""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # its table of prices, without the network

import litellm
from cases import FIRST, MODEL, SECOND, TOOL, URL, run, user

openai: dict[str, Any] = {"model": f"openai/{MODEL}", "api_base": f"{URL}/v1", "api_key": "none", "num_retries": 0}
hosted = {**openai, "model": f"hosted_vllm/{MODEL}"}
ollama: dict[str, Any] = {"model": f"ollama_chat/{MODEL}", "api_base": URL, "num_retries": 0}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "animal", "schema": TOOL["function"]["parameters"]}}


def _two(server: dict[str, Any], **more: Any) -> None:
    asked: dict[str, Any] = {"max_tokens": 60, "seed": 1, **server, **more}
    message = litellm.completion(messages=[user(FIRST)], **asked).choices[0].message
    for sent in (message, message.model_dump()):
        turns = [user(FIRST), sent, user(SECOND)]
        assert litellm.completion(messages=turns, **asked).choices[0].message.content
    chunks = list(litellm.completion(messages=[user(FIRST)], stream=True, **asked))
    built = litellm.stream_chunk_builder(chunks)
    assert built is not None
    turns = [user(FIRST), built.choices[0].message.model_dump(), user(SECOND)]
    assert litellm.completion(messages=turns, **asked).choices[0].message.content


def _called(server: dict[str, Any]) -> None:
    asked: dict[str, Any] = {"max_tokens": 100, "seed": 1, "tools": [TOOL], **server}
    first = litellm.completion(messages=[user(FIRST)], tool_choice="required", **asked).choices[0].message
    results = [{"role": "tool", "tool_call_id": call.id, "content": "Tom"} for call in first.tool_calls]
    for sent in (first, first.model_dump()):
        assert litellm.completion(messages=[user(FIRST), sent, *results], **asked).choices


def chat() -> None:
    _two(openai)
    _two(openai, response_format=SCHEMA)


def tools() -> None:
    _called(openai)


def vllm() -> None:
    _two(hosted)
    _called(hosted)


def ollama_chat() -> None:
    _two(ollama)
    _two(ollama, response_format=SCHEMA)


def responses() -> None:
    asked: dict[str, Any] = {**openai, "max_output_tokens": 20}
    first = litellm.responses(input=FIRST, **asked)
    for output in (first.output, [item.model_dump() for item in first.output]):
        assert litellm.responses(input=[user(FIRST), *output, user(SECOND)], **asked).output
    assert litellm.responses(input=SECOND, previous_response_id=first.id, **asked).output


if __name__ == "__main__":
    run(chat, tools, vllm, ollama_chat, responses)
