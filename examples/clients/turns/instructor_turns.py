"""Instructor: objects by every mode, conversations that hold the raw answers, and a retry."""

from __future__ import annotations

from typing import Any, Literal

import instructor
from cases import FIRST, MODEL, SECOND, URL, run, user
from openai import OpenAI
from pydantic import BaseModel, ConfigDict, field_validator

openai = OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)


class Animal(BaseModel):
    """An animal of a story."""

    model_config = ConfigDict(extra="forbid")
    animal: Literal["cat", "dog"]


class Picky(Animal):
    """One whose first value is refused, so that the package sends it back with the reason."""

    @field_validator("animal")
    @classmethod
    def refuse_once(cls, value: str) -> str:
        if refused.pop() if refused else False:
            raise ValueError("not this one")
        return value


refused: list[bool] = []


def _turns(mode: Any) -> None:
    client = instructor.from_openai(openai, mode=mode)
    asked: dict[str, Any] = {"model": MODEL, "max_tokens": 100, "seed": 1}
    found, raw = client.chat.completions.create_with_completion(
        messages=[user(FIRST)], response_model=Animal, max_retries=0, **asked
    )
    assert isinstance(found, Animal)
    message = raw.choices[0].message
    results = [{"role": "tool", "tool_call_id": call.id, "content": "Tom"} for call in message.tool_calls or ()]
    turns = [user(FIRST), message.model_dump(), *results, user(SECOND)]
    assert client.chat.completions.create(messages=turns, response_model=Animal, max_retries=0, **asked)
    refused[:] = [True]
    assert client.chat.completions.create(messages=[user(FIRST)], response_model=Picky, max_retries=2, **asked)
    assert not refused, "the first answer was not refused"


def tools() -> None:
    _turns(instructor.Mode.TOOLS)


def tools_strict() -> None:
    _turns(instructor.Mode.TOOLS_STRICT)


def json_schema() -> None:
    _turns(instructor.Mode.JSON_SCHEMA)


def responses_tools() -> None:
    client = instructor.from_openai(openai, mode=instructor.Mode.RESPONSES_TOOLS)
    refused[:] = [True]
    found = client.responses.create(
        model=MODEL, input=FIRST, response_model=Picky, max_retries=2, max_output_tokens=100
    )
    assert isinstance(found, Animal)


if __name__ == "__main__":
    run(tools, tools_strict, json_schema, responses_tools)
