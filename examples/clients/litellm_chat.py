"""LiteLLM: the same server by OpenAI's protocol and by Ollama's."""

from __future__ import annotations

import os

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # its table of prices, without the network

import litellm

URL, MODEL = os.environ.get("EDGEDEC_URL", "http://127.0.0.1:8080"), os.environ.get("EDGEDEC_MODEL", "nano")
QUESTION = [{"role": "user", "content": "Tell me a story."}]

answer = litellm.completion(
    model=f"openai/{MODEL}", api_base=f"{URL}/v1", api_key="none", messages=QUESTION, max_tokens=20, seed=1
)
print("openai:", answer.choices[0].message.content)
chunks = litellm.completion(
    model=f"openai/{MODEL}", api_base=f"{URL}/v1", api_key="none", messages=QUESTION, max_tokens=20, seed=1, stream=True
)
print("stream:", "".join(chunk.choices[0].delta.content or "" for chunk in chunks))
answer = litellm.completion(model=f"ollama_chat/{MODEL}", api_base=URL, messages=QUESTION, max_tokens=20, seed=1)
print("ollama:", answer.choices[0].message.content)
