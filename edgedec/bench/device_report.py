"""All figures that the CUDA engine's goals name, from one command on a machine with a GPU, in under eight minutes.

    python -m edgedec.bench.device_report --out report.json

First what is right: golden cases of every kernel, by which a wrong one is named; a story of nano in every cache format,
as hashes beside the native engine's or, where that is not compiled, beside each other; what cache policies keep; many
rows at once against one by one, which holds the tensor cores to the dot products.
Then what it costs: a model of 1.24 billion int4 weights (random ones: the figures are those of any), steps of 1 to 64
rows, prefill of 4,096 tokens. It needs the driver, the kernels (`python -m edgedec.kernels.cuda.build`) and no network.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

import edgedec
from edgedec.bench.device import StepCost, measure
from edgedec.bundle import Bundle
from edgedec.bundle.locate import find
from edgedec.bundle.manifest import Tensor
from edgedec.errors import EdgedecError, RuntimeUnavailable, UsageError
from edgedec.runtime import DeviceName, Rows, Runtime, RuntimeOptions, logits_of, open_runtime, unavailable_reason
from edgedec.spec import KV_FORMATS, Attention, Mlp, ModelSpec, Rope

_PROMPT = "Once upon a time"
_STORY = 30
# Of attention sums, and of views.
_EVICTING, _SEARCHING = "h2o:budget=16,every=8,observe=5", "quest:budget=128,recent=64,dense=1"
# The goals of the CUDA engine on an H100: milliseconds of a step of one row, how many times that 8 rows may take, the
# share of the tensor cores' rate that a prefill reaches.
GOALS = {
    "one row, ms": 0.35,
    "8 rows / 1 row": 1.2,
    "prefill, share of int8 peak": 0.30,
    "one row, share of memory": 0.60,
}


def llama_1b() -> ModelSpec:
    """The shape of Llama-3.2-1B."""
    rope = Rope(tuple(5e5 ** (-j / 32) for j in range(32)))
    layer = (Attention(32, 8, 64, 64**-0.5), Mlp(8192))
    return ModelSpec("llama", 128256, 2048, 8192, (layer,) * 16, 1e-5, True, (rope,))


class RandomBundle:
    """A bundle of random int4 weights that are made when they are read: the parts of `Bundle` that a runtime uses."""

    path = Path("random")

    def __init__(self, spec: ModelSpec, block: int = 32) -> None:
        self.spec = spec
        tensors, at = dict[str, Tensor](), 64
        for name, shape in spec.tensors().items():
            quantized = name in spec.matrices
            data, scales = at, at + 64
            tensors[name] = Tensor(
                "int4" if quantized else "f32", shape, data, scales if quantized else 0, block if quantized else 0,
                "interleave16" if quantized else "rows",
            )  # fmt: skip
            at += 128
        ropes = tuple((at + 64 * (2 * i), at + 64 * (2 * i + 1)) for i in range(len(spec.ropes)))
        self.manifest: Any = SimpleNamespace(tensors=tensors, ropes=ropes, kv_formats=("int8",), heads={})

    @cached_property
    def _pool(self) -> NDArray[np.uint32]:
        return np.random.default_rng(0).integers(0, 1 << 32, 1 << 22, dtype=np.uint32)

    def array(self, offset: int, dtype: Any, shape: tuple[int, ...]) -> NDArray[Any]:
        """Weights, scales (float16 numbers of about 0.01) or floats of about one."""
        size = int(np.prod(shape))
        if dtype == np.uint32:
            return np.resize(self._pool, size).reshape(shape)
        if dtype == np.uint16:
            return np.full(shape, np.float16(0.004).view(np.uint16), np.uint16)
        return np.full(shape, 0.7, dtype)

    @property
    def weight_bytes(self) -> int:
        return sum(t.stored_bytes for t in self.manifest.tensors.values())


# ---- right -----------------------------------------------------------------------------------------


def story(engine: str, kv: str) -> str:
    """The hash of nano's logits of a prompt and of the greedy tokens after it."""
    model = edgedec.open("nano", engine=engine, kv=kv)
    ids = model.tokenizer.encode(_PROMPT)
    logits = logits_of(model.runtime, Rows.chain(ids, 0), model.runtime.new_cache(len(ids)))
    told = [int(token) for token in model.session(speculate="off").tokens(ids, max_tokens=_STORY)]
    return hashlib.sha256(logits.astype("<f4").tobytes() + np.array(told, "<i4").tobytes()).hexdigest()


def rows_agree(runtime: Runtime, n: int = 64) -> bool:
    """Whether n rows at once, on the tensor cores, give the same bytes as rows one by one."""
    ids = np.arange(n) * 7 % runtime.spec.vocab_size
    together = logits_of(runtime, Rows.chain(ids, 0), runtime.new_cache(n))
    cache, apart = runtime.new_cache(n), []
    for i in range(n):
        apart.append(logits_of(runtime, Rows.chain(ids[i : i + 1], i), cache))
        cache.commit([0])
    return together.tobytes() == np.concatenate(apart).tobytes()


def kept(engine: str, policy: str, tokens: int) -> str:
    """The hash of nano's tokens after a text of so many, with a cache policy, and of what its cache holds then."""
    model = edgedec.open("nano", engine=engine, kv="int8")
    session = model.session(speculate="off", cache=policy)
    ids = model.tokenizer.encode(_PROMPT + " there was a little dog." * tokens)[:tokens]
    told = [int(token) for token in session.tokens(ids, max_tokens=12, ignore_eos=True)]
    state = session._context.cache.save()["state"]
    return hashlib.sha256(np.array(told, "<i4").tobytes() + state.tobytes()).hexdigest()


def correctness(engine: str, formats: Sequence[str], policies: Mapping[str, int]) -> dict[str, Any]:
    """The checks of the engine's output bytes. policies: cache policies, each with the tokens of a text."""
    found: dict[str, Any] = {}
    for kv in formats:
        found[f"story {kv}"] = story(engine, kv)
        found[f"story {kv} as native"] = _as_native(found[f"story {kv}"], partial(story, "native", kv))
    for policy, n in policies.items():
        native = partial(kept, "native", policy, n)
        found[f"{policy.partition(':')[0]} as native"] = _as_native(kept(engine, policy, n), native)
    found["64 rows as one by one"] = rows_agree(edgedec.open("nano", engine=engine).runtime)
    return found


def _as_native(found: str, native: Callable[[], str]) -> bool | str:
    """Whether a hash equals the native engine's; the reason if that is not compiled."""
    try:
        return found == native()
    except EdgedecError as error:
        return f"unknown: {error}"


# ---- what it costs ---------------------------------------------------------------------------------


def goals(steps: Sequence[StepCost]) -> dict[str, dict[str, float]]:
    """The goal table: the target and the measured value of each goal."""
    texts = {step.rows: step for step in steps if step.what == "texts"}
    prefill = next((step for step in steps if step.what == "prefill"), None)
    found: dict[str, float] = {}
    if 1 in texts:
        found["one row, ms"] = texts[1].seconds * 1e3
        found["one row, share of memory"] = texts[1].share
    if 1 in texts and 8 in texts:
        found["8 rows / 1 row"] = texts[8].seconds / texts[1].seconds
    if prefill:
        found["prefill, share of int8 peak"] = prefill.share
    return {name: {"goal": GOALS[name], "found": value} for name, value in found.items()}


def kernels(engine: str, small: bool) -> dict[str, str]:
    """What is wrong of each golden case on the device, and with which kernel; nothing of those that are right. No model
    is opened: that one is refused with the first kernel that it needs. small: only the first case."""
    from edgedec.runtimes import cuda, opencl
    from edgedec.runtimes._selftest.cases import CASES
    from edgedec.runtimes._selftest.check import examine

    tested = {"cuda": cuda, "opencl": opencl}
    if engine not in tested:
        raise UsageError(f"engine {engine}: golden cases are of {' and '.join(tested)}")
    findings = examine(tested[engine].open_device(DeviceName()), CASES[:1] if small else CASES)
    return {found.case: f"{found.kernel}: {found.problem}" for found in findings if found.kernel}


def is_well(found: Mapping[str, Any]) -> bool:
    """Whether no part of a report failed, and no byte is wrong."""
    return not found["failed"] and not found["wrong kernels"] and False not in found["correctness"].values()


def report(engine: str, small: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """All of it; a part that fails is named in "failed", and the others go on. small: a model of two layers and few
    steps, for tests of the report itself."""
    reason = unavailable_reason(engine, Bundle.open(find("nano")))
    if reason is not None:
        raise RuntimeUnavailable(f"engine {engine}: {reason}")
    start, found, failed = time.perf_counter(), dict[str, Any](engine=engine), dict[str, str]()
    formats, policies = (KV_FORMATS[2:3], {_EVICTING: 40}) if small else (KV_FORMATS, {_EVICTING: 300, _SEARCHING: 300})
    parts: dict[str, Callable[[], Any]] = {
        "wrong kernels": lambda: kernels(engine, small),
        "correctness": lambda: correctness(engine, formats, policies),
        "costs": lambda: costs(engine, small, say),
    }
    for name, make in parts.items():
        try:
            found[name] = made = make()
            say(f"{name}: {json.dumps(made)}")
        except (EdgedecError, OSError, MemoryError) as error:
            failed[name] = str(error) or type(error).__name__
            say(f"{name} failed: {failed[name]}")
    found["goals"] = goals([StepCost(**step) for step in found.get("costs", {}).get("steps", ())])
    return found | {"failed": failed, "seconds": time.perf_counter() - start}


def costs(engine: str, small: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """The times of steps of the model of random weights."""
    start = time.perf_counter()
    spec = llama_1b()
    if small:
        spec = ModelSpec("llama", 512, 64, 512, ((Attention(4, 2, 16, 0.25), Mlp(64)),) * 2, 1e-5, True, spec.ropes[:0])
        spec = ModelSpec(**{**spec.__dict__, "ropes": (Rope((1.0, 0.5)),)})
    bundle = RandomBundle(spec)
    runtime = open_runtime(engine, bundle, RuntimeOptions())  # type: ignore[arg-type]
    runtime.load()
    say(f"{bundle.weight_bytes / 1e6:.0f} MB of weights brought, {time.perf_counter() - start:.0f} s so far")
    rows, context, prefill = ((1, 2), 20, 40) if small else ((1, 2, 4, 8, 16, 32, 64), 256, 4096)

    def progress(step: StepCost) -> None:
        say(f"{step.what} {step.rows}: {step.seconds * 1e3:.3f} ms, share {step.share:.1%}, {step.launches} launches")

    return measure(runtime, bundle.weight_bytes, rows, context, prefill, 2 if small else 20, progress).to_json()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Measure the CUDA engine on this machine's GPU.")
    parser.add_argument("--out", type=Path, help="write the report there, as JSON")
    parser.add_argument("--engine", default="cuda")
    parser.add_argument("--small", action="store_true", help="a tiny model: a test of this command, not of a GPU")
    told = parser.parse_args(arguments)
    try:
        found = report(told.engine, told.small, lambda said: print(said, file=sys.stderr, flush=True))
    except EdgedecError as error:
        print(f"edgedec: {error}", file=sys.stderr)
        return 1
    text = json.dumps(found, indent=1)
    if told.out:
        partial = told.out.with_name(f"{told.out.name}.partial-{os.getpid()}")
        partial.write_text(text + "\n", "utf-8")
        os.replace(partial, told.out)
    print(text)
    return 0 if is_well(found) else 1


if __name__ == "__main__":
    sys.exit(main())
