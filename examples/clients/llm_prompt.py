"""llm, Simon Willison's tool: a model of a server, as its file extra-openai-models.yaml names it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

URL, MODEL = os.environ.get("EDGEDEC_URL", "http://127.0.0.1:8080"), os.environ.get("EDGEDEC_MODEL", "nano")

with tempfile.TemporaryDirectory() as folder:
    # `llm` itself reads the file in the folder that `llm logs path` shows; then: llm -m edgedec "Once upon a time"
    os.environ["LLM_USER_PATH"] = folder
    settings = f"- model_id: edgedec\n  model_name: {MODEL}\n  api_base: {URL}/v1\n  api_key_name: edgedec\n"
    Path(folder, "extra-openai-models.yaml").write_text(settings)
    import llm

    model = llm.get_model("edgedec")
    print("prompt:", model.prompt("Tell me a story.", key="none", max_tokens=30, seed=1).text())
