"""Many streams at once for minutes through every door, to several models of which not all fit into memory, and to an
adapter: is every text what it is alone, does memory stay flat?

    python tests/bench/serve_mixed.py --streams 200 --seconds 180

The models are copies of one bundle under three names, with room for two, so they are loaded and unloaded all the time.
Streams go to completions, chats, Responses (each continued once) and Ollama's API in turns; some clients leave early.
Prints one JSON object as `serve_load.py` does. Exits with 1 if a text differed or was lost.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from serve_load import PROMPTS, Tally, keep_asking
from serving import metrics

import edgedec
from edgedec.bundle.adapter import LowRank, save_adapter
from edgedec.bundle.locate import find
from edgedec.cache import kv_bytes_per_token
from edgedec.sampling import Sampling

NAMES = ("one", "two", "three")
TASKS = 24
OPTIONS: dict[str, Any] = {"top_p": 1.0, "repetition_penalty": 1.0}
Key = tuple[str, bool, int]


def settings(i: int) -> tuple[str, int, dict[str, Any]]:
    """Prompt, tokens and sampling of task i."""
    return PROMPTS[i % len(PROMPTS)], 20 + 4 * i, {"temperature": 0.8 if i % 2 else 0.0, "seed": i, **OPTIONS}


def alone(model: edgedec.Model, adapter: Any) -> dict[Key, str]:
    """Every text, by adapter, whether it is a chat, and task."""
    found = {}
    for name, low in (("", None), ("loud", adapter)):
        for i in range(TASKS):
            prompt, most, asked = settings(i)
            for chat in (False, True):
                ids = model.chat_ids(talk(prompt)) if chat else model.tokenizer.encode(prompt)
                session = model.session(context=512, speculate="off", adapter=low)
                found[name, chat, i] = "".join(session.generate(ids, max_tokens=most, sampling=Sampling(**asked)))
    return found


def talk(prompt: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}]


def request(i: int) -> tuple[str, dict[str, Any], Key]:
    """Path, body and which text comes back, of stream i."""
    task, door, model = i * 7 % TASKS, i % 4, NAMES[i // 4 % 3]
    adapter = "one/loud" if i % 5 == 4 else ""
    name, (prompt, most, asked) = adapter or model, settings(task)
    key = ("loud" if adapter else "", door in (1, 2), task)
    if door == 0:
        return "/v1/completions", {"model": name, "prompt": prompt, "max_tokens": most, "stream": True, **asked}, key
    if door == 1:
        body = {"model": name, "messages": talk(prompt), "max_tokens": most, "stream": True, **asked}
        return "/v1/chat/completions", body, key
    if door == 2:
        return (
            "/v1/responses",
            {"model": name, "input": prompt, "max_output_tokens": most, "stream": True, **asked},
            key,
        )
    options = {"repeat_penalty" if name == "repetition_penalty" else name: value for name, value in asked.items()}
    body = {"model": name, "prompt": prompt, "raw": True, "options": {**options, "num_predict": most}}
    return "/api/generate", body, key


def piece(path: str, line: str) -> tuple[str, bool]:
    """(text of a line of a stream, whether it is the last)."""
    if path.startswith("/api/"):
        part = json.loads(line)
        return part.get("response", ""), part["done"]
    if not line.startswith("data: {"):
        return "", line == "data: [DONE]"
    part = json.loads(line[6:])
    if path == "/v1/responses":
        ended = part["type"] in ("response.completed", "response.incomplete")
        return (part["delta"] if part["type"] == "response.output_text.delta" else ""), ended
    texts = (choice.get("text", "") or choice.get("delta", {}).get("content", "") for choice in part["choices"])
    return "".join(text or "" for text in texts), False


async def lines(answer: httpx.Response) -> AsyncIterator[str]:
    async for line in answer.aiter_lines():
        if line and not line.startswith("event: "):
            yield line


async def stream(ask: httpx.AsyncClient, i: int, expected: dict[Key, str], tally: Tally) -> None:
    path, body, key = request(i)
    began, text, done = time.perf_counter(), "", False
    async with ask.stream("POST", path, json=body) as answer:
        if answer.status_code != 200:
            tally.why[f"{path} {answer.status_code}"] += 1
            return
        async for line in lines(answer):
            if not text:
                tally.first.append(time.perf_counter() - began)
            more, done = piece(path, line)
            text += more
            if i % 17 == 16 and len(text) > 20:
                tally.left += 1
                return
    tally.ended += 1
    tally.tokens += settings(key[2])[1]
    tally.wrong += not done or text != expected[key]


async def load(place: str, pid: int, expected: dict[Key, str], streams: int, seconds: float) -> Tally:
    numbers = count()

    async def one(ask: httpx.AsyncClient, tally: Tally) -> None:
        await stream(ask, next(numbers), expected, tally)

    return await keep_asking(place, pid, streams, seconds, one)


def prepare(folder: Path) -> tuple[dict[Key, str], Path]:
    """Three bundles and an adapter in a folder; the texts of all tasks."""
    for name in NAMES:
        shutil.copytree(find("nano"), folder / "models" / name)
        manifest = folder / "models" / name / "edgedec.json"
        manifest.write_text(json.dumps({**json.loads(manifest.read_text("utf-8")), "name": name}), "utf-8")
    model, file = edgedec.open("nano", threads=1), folder / "loud.lora"
    down = next(name for name in sorted(model.spec.matrices) if name.endswith(".down"))
    narrow, wide = model.spec.tensors()[down]
    rng = np.random.default_rng(0)
    parts = LowRank(rng.standard_normal((4, wide), np.float32) / 4, rng.standard_normal((narrow, 4), np.float32) / 4)
    save_adapter(file, "loud", model.spec, {down: parts})
    return alone(model, model.adapter(file)), file


def quarters(memory: list[float]) -> list[float]:
    """The median of each quarter of the samples."""
    size = len(memory) // 4
    return [round(statistics.median(memory[i * size : (i + 1) * size]), 1) for i in range(4)]


def room(slots: int) -> str:
    """GiB in which two of the models fit, and not three."""
    manifest = edgedec.open("nano").bundle.manifest
    caches = slots * 512 * kv_bytes_per_token(manifest.spec, manifest.kv_formats[0])
    return str(2.5 * (caches + sum(file.size for file in manifest.files.values())) / 2**30)


def main() -> int:
    ask = argparse.ArgumentParser(description=__doc__)
    ask.add_argument("--streams", type=int, default=200)
    ask.add_argument("--seconds", type=float, default=60)
    ask.add_argument("--slots", type=int, default=16)
    given = ask.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        expected, file = prepare(folder)
        sizes = ["--slots", str(given.slots), "--queue", str(given.streams), "--models-memory", room(given.slots)]
        options = [
            "--models",
            str(folder / "models"),
            "--lora",
            f"one/loud={file}",
            "--port",
            "0",
            "-c",
            "512",
            "-t",
            "1",
        ]
        command = [sys.executable, "-m", "edgedec", "serve", *options, *sizes]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ) as server:
            assert server.stderr is not None
            place = server.stderr.readline().partition(" at ")[2].split()[0].removesuffix("/v1")
            tally = asyncio.run(load(place, server.pid, expected, given.streams, given.seconds))
            time.sleep(0.5)
            loads = metrics(place)["edgedec_model_loads_total"]
            health = httpx.get(f"{place}/health").json()
            server.terminate()
    memory = tally.memory
    report = {
        **vars(given),
        "ended": tally.ended,
        "left": tally.left,
        "wrong": tally.wrong,
        "failed": tally.why,
        "tokens_per_s": round(tally.tokens / given.seconds),
        "first_line_s_median_p99": [round(q, 3) for q in statistics.quantiles(tally.first, n=100)[49:99:49]],
        "loads": loads,
        "memory_mib": [round(mib) for mib in memory[::15]],
        # Memory goes up and down as models come and go: what counts is the median of each quarter of the time.
        "memory_quarters": quarters(memory),
        "after": health,
    }
    print(json.dumps(report))
    return int(bool(tally.wrong or tally.why or health["running"] or health["waiting"] or not tally.ended))


if __name__ == "__main__":
    sys.exit(main())
