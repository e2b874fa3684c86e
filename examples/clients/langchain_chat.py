"""LangChain: a chain, a stream, an answer as an object."""

from __future__ import annotations

import os
from typing import Literal

from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field, SecretStr

URL, MODEL = os.environ.get("EDGEDEC_URL", "http://127.0.0.1:8080"), os.environ.get("EDGEDEC_MODEL", "nano")


class Animal(BaseModel):
    """An animal of a story."""

    kind: Literal["cat", "dog", "fox"]
    age: int = Field(ge=0, le=20)


model = ChatOpenAI(model=MODEL, base_url=f"{URL}/v1", api_key=SecretStr("none"), max_completion_tokens=40, seed=1)
chain = ChatPromptTemplate.from_messages([("user", "Tell me a story about a {animal}.")]) | model
print("chain:", chain.invoke({"animal": "fox"}).content)
print("stream:", "".join(str(chunk.content) for chunk in model.stream("Once upon a time")))
print("object:", repr(model.with_structured_output(Animal, method="json_schema").invoke("Which animal?")))
