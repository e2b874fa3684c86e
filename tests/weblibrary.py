"""The JavaScript library for tests: compiled once from this checkout, driven in node."""

from __future__ import annotations

import atexit
import hashlib
import importlib.util
import json
import os
import random
import runpy
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgedec
from edgedec.bundle.adapter import LowRank, save_adapter
from edgedec.storage.files import cache_folder

ROOT = Path(__file__).parents[1]
WEB = ROOT / "runtimes" / "web"
NODE = shutil.which("node")
WHY_NOT = (
    "no node here"
    if NODE is None
    else ""
    if importlib.util.find_spec("ziglang")
    else "no zig here: pip install ziglang"
)
needs_web = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)


@cache
def library_folder() -> Path:
    """The library with its modules, compiled from this checkout; objects that are at hand are used again."""
    if WHY_NOT:
        pytest.skip(WHY_NOT)
    folder = Path(tempfile.mkdtemp(prefix="edgedec-web-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for path in WEB.iterdir():
        if path.suffix in (".js", ".json"):
            shutil.copyfile(path, folder / path.name)
    runpy.run_path(str(ROOT / "kernels" / "wasm" / "build.py"))["build"](folder, 2)
    return folder


@cache
def constraints_module() -> Path:
    """edgedec-constraints.wasm: that of an earlier run of the same sources, or, in the slow tests, made now."""
    tools = runpy.run_path(str(ROOT / "kernels" / "wasm" / "constraints.py"))
    sources = [tools["CRATE"] / name for name in ("Cargo.toml", "Cargo.lock", "src/lib.rs")]
    digest = hashlib.sha256(b"\0".join(path.read_bytes() for path in sources)).hexdigest()
    made: Path = cache_folder() / "wasm" / digest[:16] / tools["NAME"]
    if made.is_file():
        return made
    if not os.environ.get("EDGEDEC_SLOW_TESTS"):
        pytest.skip(f"no {tools['NAME']} yet, which takes minutes: asks for EDGEDEC_SLOW_TESTS=1")
    if why := tools["why_not"]():
        pytest.skip(why)
    built: Path = tools["build"](made.parent, 2)
    return built


class Failed(Exception):
    """What the library refused; `code` is its name."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Driver:
    """The library in a node process."""

    def __init__(self, folder: Path | None = None) -> None:
        assert NODE is not None
        script = Path(__file__).parent / "web" / "drive.mjs"
        self._node = subprocess.Popen(
            [NODE, script, folder or library_folder()], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __call__(self, act: str, **given: Any) -> Any:
        """What an act of drive.mjs returns."""
        assert self._node.stdin is not None
        assert self._node.stdout is not None
        self._node.stdin.write(json.dumps({"act": act} | given) + "\n")
        self._node.stdin.flush()
        answer = json.loads(self._node.stdout.readline())
        if "code" in answer:
            raise Failed(answer["code"], answer["message"])
        return answer["value"]

    def close(self) -> None:
        self._node.communicate(timeout=20)


def options_of(r: random.Random, vocab: int) -> dict[str, Any]:
    """Any settings, as Python takes them."""
    found: dict[str, Any] = {
        "temperature": r.choice([0.0, 0.5, 0.8, 1.0, 1.5, 30.0]),
        "top_k": r.choice([0, 0, 1, 5, 40, 5 * vocab]),
        "top_p": r.choice([1.0, 0.95, 0.5, 0.01]),
        "min_p": r.choice([0.0, 0.0, 0.05, 0.5]),
        "typical_p": r.choice([1.0, 1.0, 0.9]),
        "repetition_penalty": r.choice([1.0, 1.1, 0.8]),
        "presence_penalty": r.choice([0.0, 0.5, -2.0]),
        "frequency_penalty": r.choice([0.0, 0.3, -0.4]),
        "seed": r.randrange(1 << 63),
        "max_tokens": r.choice([0, 1, 24, 40]),
        "min_tokens": r.choice([0, 0, 20]),
        "ignore_eos": r.random() < 0.2,
        "stop_tokens": frozenset(r.randrange(vocab) for _ in range(r.choice([0, 0, vocab // 8]))),
    }
    if r.random() < 0.3:
        found["logit_bias"] = {r.randrange(vocab): r.choice([-5.0, 3.0, float("-inf")]) for _ in range(5)}
    return found


def camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.title() for part in rest)


def for_js(options: dict[str, Any]) -> dict[str, Any]:
    made = {camel(name): value for name, value in options.items()}
    made["stopTokens"] = sorted(made.get("stopTokens", ()))
    if "logitBias" in made:
        made["logitBias"] = {token: None if np.isinf(bias) else bias for token, bias in made["logitBias"].items()}
    return made | ({"seed": str(made["seed"])} if "seed" in made else {})


def write_adapter(path: Path, model: edgedec.Model) -> None:
    """A LoRA adapter of random weights that changes what the model says."""
    low, rng = {}, np.random.default_rng(3)
    for name in [name for name in sorted(model.spec.matrices) if name.endswith((".qkv", ".down"))][:6]:
        out, inner = model.spec.tensors()[name]
        low[name] = LowRank(*(0.05 * rng.standard_normal(s).astype(np.float32) for s in ((4, inner), (out, 4))))
    save_adapter(path, "a", model.spec, low)
