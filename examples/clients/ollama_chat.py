"""Ollama's package: a streamed chat, an answer that follows a JSON schema, embeddings, the list of models."""

from __future__ import annotations

import os
from typing import Any

from ollama import Client

URL, MODEL = os.environ.get("EDGEDEC_URL", "http://127.0.0.1:8080"), os.environ.get("EDGEDEC_MODEL", "nano")
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"animal": {"enum": ["cat", "dog", "fox"]}},
    "required": ["animal"],
    "additionalProperties": False,
}

client = Client(host=URL)
question = [{"role": "user", "content": "Tell me a story."}]

print("models:", [model.model for model in client.list().models])
print("chat: ", end="")
for part in client.chat(model=MODEL, messages=question, options={"num_predict": 30, "seed": 1}, stream=True):
    print(part.message.content, end="", flush=True)
print()
print("json:", client.chat(model=MODEL, messages=question, format=SCHEMA, options={"seed": 1}).message.content)
print("embedding:", len(client.embed(model=MODEL, input="A cat sat.").embeddings[0]))
