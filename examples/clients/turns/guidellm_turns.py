"""GuideLLM: a benchmark of conversations of two turns, streamed, at each endpoint. EDGEDEC_TOKENIZER: a folder with the
model's tokenizer.json, by which it counts the tokens of its prompts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from cases import MODEL, URL, run

NANO = Path(__file__).parents[3] / "models" / "nano" / "bundle"
TOKENIZER = os.environ.get("EDGEDEC_TOKENIZER", str(NANO))


def _benchmark(path: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        options = {
            "backend": f"kind=openai_http,target={URL},model={MODEL},request_format={path}",
            "profile": "kind=synchronous",
            "constraint": "kind=max_requests,count=2",
            "tokenizer": f"kind=hf_auto,model={TOKENIZER}",
            "data": "kind=synthetic_text,prompt_tokens=20,output_tokens=16,turns=2",
            "output": f"kind=json,path={folder}/report.json",
        }
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        command = [sys.executable, "-m", "guidellm", "run", "--disable-console", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-2000:]
        (found,) = json.loads(Path(folder, "report.json").read_text("utf-8"))["benchmarks"]
        requests = found["requests"]
        assert requests["successful"], requests
        assert not requests["errored"], requests["errored"]


def chat() -> None:
    _benchmark("/v1/chat/completions")


def completions() -> None:
    _benchmark("/v1/completions")


def responses() -> None:
    _benchmark("/v1/responses")


if __name__ == "__main__":
    run(chat, completions, responses)
