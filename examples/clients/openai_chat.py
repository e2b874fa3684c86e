"""OpenAI's package: a streamed chat, a response continued, an answer that follows a JSON schema."""

from __future__ import annotations

import os
from typing import Any

from openai import OpenAI

URL, MODEL = os.environ.get("EDGEDEC_URL", "http://127.0.0.1:8080"), os.environ.get("EDGEDEC_MODEL", "nano")
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"animal": {"enum": ["cat", "dog", "fox"]}, "age": {"type": "integer", "minimum": 0, "maximum": 20}},
    "required": ["animal", "age"],
    "additionalProperties": False,
}

client = OpenAI(base_url=f"{URL}/v1", api_key="none")

print("chat: ", end="")
chunks = client.chat.completions.create(
    model=MODEL, messages=[{"role": "user", "content": "Tell me a story."}], max_tokens=30, seed=1, stream=True
)
for chunk in chunks:
    print(chunk.choices[0].delta.content or "", end="", flush=True)
print()

first = client.responses.create(model=MODEL, input="Once upon a time", max_output_tokens=20)
second = client.responses.create(model=MODEL, input="And then?", previous_response_id=first.id, max_output_tokens=20)
print("response:", second.output_text)

answer = client.chat.completions.create(
    model=MODEL,
    messages=[{"role": "user", "content": "Which animal?"}],
    response_format={"type": "json_schema", "json_schema": {"name": "animal", "schema": SCHEMA}},
    seed=1,
)
print("json:", answer.choices[0].message.content)
