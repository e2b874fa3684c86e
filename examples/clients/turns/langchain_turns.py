"""LangChain: conversations that hold the model's own messages, by OpenAI's chat, by Responses and by Ollama's API."""

from __future__ import annotations

from typing import Any, Literal

from cases import FIRST, MODEL, SECOND, TOOL, URL, run
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage, message_to_dict
from langchain_core.messages import messages_from_dict as from_dict
from langchain_ollama import ChatOllama
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, ConfigDict, SecretStr


class Animal(BaseModel):
    """An animal of a story."""

    model_config = ConfigDict(extra="forbid")
    animal: Literal["cat", "dog"]


def model(most: int = 12, **more: Any) -> ChatOpenAI:
    known: dict[str, Any] = {"model": MODEL, "base_url": f"{URL}/v1", "api_key": SecretStr("none"), "seed": 1}
    if more.get("use_responses_api"):
        del known["seed"]
    return ChatOpenAI(max_completion_tokens=max(most, 16), max_retries=0, **known, **more)


def _two(chat: Any) -> None:
    first = chat.invoke([SystemMessage("Be kind."), HumanMessage(FIRST)])
    kept = from_dict([message_to_dict(first)])  # as a store of messages writes and reads them
    assert isinstance(kept[0], AIMessage)
    assert chat.invoke([HumanMessage(FIRST), *kept, HumanMessage(SECOND)]).content


def _streamed(chat: Any) -> None:
    chunks = list(chat.stream([HumanMessage(FIRST)]))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole = whole + chunk
    assert chat.invoke([HumanMessage(FIRST), whole, HumanMessage(SECOND)]).content


def _called(chat: Any, choice: Any = "required", last: Any = None) -> None:
    bound = chat.bind_tools([TOOL], tool_choice=choice)
    first = bound.invoke([HumanMessage(FIRST)])
    assert first.tool_calls
    results = [ToolMessage("Tom", tool_call_id=call["id"]) for call in first.tool_calls]
    assert chat.bind_tools([TOOL]).invoke([HumanMessage(FIRST), first, *results]) is not None


def chat() -> None:
    _two(model())


def stream() -> None:
    _streamed(model(stream_usage=True))


def tools() -> None:
    _called(model(100))


def json_schema() -> None:
    chat = model(100).with_structured_output(Animal, method="json_schema", include_raw=True)
    first: Any = chat.invoke([HumanMessage(FIRST)])
    assert isinstance(first["parsed"], Animal)
    assert chat.invoke([HumanMessage(FIRST), first["raw"], HumanMessage(SECOND)])["parsed"]  # type: ignore[index]


def function_calling() -> None:
    chat = model(100).with_structured_output(Animal, method="function_calling", include_raw=True)
    first: Any = chat.invoke([HumanMessage(FIRST)])
    assert isinstance(first["parsed"], Animal)
    results = [ToolMessage("Tom", tool_call_id=call["id"]) for call in first["raw"].tool_calls]
    assert chat.invoke([HumanMessage(FIRST), first["raw"], *results])["parsed"]  # type: ignore[index]


def responses() -> None:
    _two(model(use_responses_api=True))


def responses_stream() -> None:
    _streamed(model(use_responses_api=True))


def responses_tools() -> None:
    _called(model(100, use_responses_api=True))


def responses_kept() -> None:
    _two(model(use_responses_api=True, use_previous_response_id=True))


def ollama() -> None:
    _two(ChatOllama(model=MODEL, base_url=URL, num_predict=12, seed=1))


def ollama_tools() -> None:
    chat = ChatOllama(model=MODEL, base_url=URL, num_predict=12, seed=1)
    call = {"name": "find", "args": {"animal": "cat"}, "id": "1"}
    first = AIMessage("", tool_calls=[call])
    assert chat.bind_tools([TOOL]).invoke([HumanMessage(FIRST), first, ToolMessage("Tom", tool_call_id="1")])


def ollama_json() -> None:
    chat = ChatOllama(model=MODEL, base_url=URL, num_predict=100, seed=1).with_structured_output(Animal)
    assert isinstance(chat.invoke([HumanMessage(FIRST)]), Animal)


if __name__ == "__main__":
    run(
        chat,
        stream,
        tools,
        json_schema,
        function_calling,
        responses,
        responses_stream,
        responses_tools,
        responses_kept,
        ollama,
        ollama_tools,
        ollama_json,
    )
