"""Instructor: an answer as an object of a pydantic class, by JSON schema and by a function call."""

from __future__ import annotations

import os
from typing import Literal

import instructor
from openai import OpenAI
from pydantic import BaseModel, ConfigDict, Field

URL, MODEL = os.environ.get("EDGEDEC_URL", "http://127.0.0.1:8080"), os.environ.get("EDGEDEC_MODEL", "nano")


class Person(BaseModel):
    """Somebody in a story."""

    # Without it the schema allows any further member, and a small model writes some.
    model_config = ConfigDict(extra="forbid")

    name: Literal["Tom", "Lily", "Sue"]
    age: int = Field(ge=0, le=99)


openai = OpenAI(base_url=f"{URL}/v1", api_key="none")
for mode in (instructor.Mode.JSON_SCHEMA, instructor.Mode.TOOLS):
    client = instructor.from_openai(openai, mode=mode)
    person = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Who was it?"}],
        response_model=Person,
        max_tokens=80,
        max_retries=0,
        seed=1,
    )
    print(f"{mode.value}:", repr(person))
