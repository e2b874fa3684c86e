"""Experts that rows chose are read ahead from a mapped file: these and no others, and results stay the same bytes."""

from __future__ import annotations

import json
import mmap
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from native.watched_reads import TOKENS, bundle_of

from edgedec.bench.experts import chosen_experts, given_experts, moe_blocks
from edgedec.bundle import Bundle
from edgedec.bundle.manifest import Tensor
from edgedec.kernels.cpu.loader import why_not
from edgedec.runtime import Outputs, Rows, RuntimeOptions, open_runtime
from edgedec.testing.conformance.compare import run, tokens

HERE = Path(__file__).parent
KERNELS = HERE.parents[1] / "kernels" / "cpu"
GIVEN, ORDINARY = "experts chosen before the layers", "experts"
AT_ONCE = 128 << 10
linux = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("g++") is None, reason="replaces functions of Linux by a library of g++"
)


def compiled(out: Path, *words: str | Path) -> Path:
    done = subprocess.run(["g++", "-std=c++17", "-Wall", "-Wextra", *words, "-o", out], capture_output=True, text=True)
    if done.returncode and "san" in done.stderr:
        pytest.skip("no such sanitizer here")
    assert done.returncode == 0, done.stderr
    return out


@linux
@pytest.mark.parametrize("sanitize", ["", "address,undefined", "thread"])
def test_parts_of_a_file_that_begin_and_end_anywhere(tmp_path: Path, sanitize: str) -> None:
    flags = ["-O1", "-g", f"-fsanitize={sanitize}", "-fno-sanitize-recover=all"] if sanitize else ["-O2"]
    sources = [HERE / "read_ahead_test.cpp", KERNELS / "mapped_file.cpp"]
    program = compiled(tmp_path / "test", *flags, f"-I{KERNELS}", *sources)
    done = subprocess.run([program, tmp_path / "file"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "wrong: 0\n"), done.stdout + done.stderr


@pytest.fixture(scope="module")
def watch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that stands for the system's functions."""
    if why_not() is not None:
        pytest.skip(f"native engine: {why_not()}")
    out = tmp_path_factory.mktemp("watch") / "watch.so"
    return compiled(out, "-O1", "-shared", "-fPIC", HERE / "watched_reads.cpp")


def watched(watch: Path, folder: Path, model: str, inner: int, fmt: str, chunk: int, in_memory: bool = False) -> Any:
    """What a text's calls want to be read, each a list of (offset, bytes), and a digest of their logits."""
    words = [HERE / "watched_reads.py", folder, model, inner, fmt, chunk, int(in_memory)]
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(command, env={**os.environ, "LD_PRELOAD": str(watch)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def chosen(bundle: Bundle) -> dict[int, Any]:
    """The experts [tokens, k] of the text's tokens by block, as the reference chooses them."""
    ids, blocks = tokens(bundle.spec, TOKENS), moe_blocks(bundle)
    given = given_experts(bundle, ids)
    runtime = open_runtime("reference", bundle, RuntimeOptions(kv="f32"))
    before = tuple(b - 1 for b in blocks)
    states = run(runtime, Rows.chain(ids, 0), runtime.new_cache(TOKENS), Outputs(hidden=before)).hidden
    return {b: given[m.given_by] if m.given else chosen_experts(bundle, b, states[b - 1]) for b, m in blocks.items()}


def requests(bundle: Bundle, block: int, experts: set[int]) -> Iterator[tuple[int, int]]:
    """Those for some experts of a block: of each tensor whole pages from the one on in which the expert begins."""
    facts = moe_blocks(bundle)[block]
    for tensor in (facts.up, "down"):
        for e in sorted(experts):
            for at, size in stored(bundle.manifest.tensors[f"blocks.{block}.{tensor}"]):
                begin, end = at + e * size // facts.n_experts, at + (e + 1) * size // facts.n_experts
                pages = range(begin // mmap.PAGESIZE * mmap.PAGESIZE, end, AT_ONCE)
                yield from ((each, min(AT_ONCE, end - each)) for each in pages)


def stored(tensor: Tensor) -> list[tuple[int, int]]:
    """(offset, bytes) of the weights, the scales and the zero points."""
    found = [(tensor.data, tensor.data_bytes)]
    if tensor.block:
        found.append((tensor.scales, tensor.scale_bytes))
    return [*found, (tensor.zeros, tensor.zero_bytes)] if tensor.zeros else found


def expected(bundle: Bundle, order: list[int], chunk: int) -> list[list[list[int]]]:
    """Requests of each call, of its mixtures in this order."""
    blocks, experts = sorted(moe_blocks(bundle)), chosen(bundle)
    calls = []
    for at in range(0, TOKENS, chunk):
        of = {b: set(experts[b][at : at + chunk].flat) - {-1} for b in blocks}
        calls.append([list(each) for i in order for each in requests(bundle, blocks[i], of[blocks[i]])])
    return calls


# Experts of a row begin to be read for all layers after the pre-router, and what is not there yet in each one's turn;
# those of many rows, 48 MiB a layer, a layer before their turn.
@linux
@pytest.mark.parametrize(
    ("model", "inner", "fmt", "chunk", "order"),
    [
        (GIVEN, 2048, "f32", 1, [0, 1, 2, 0, 1, 2]),
        (GIVEN, 2080, "int8+zeros", 4, [0, 1, 2, 0, 1, 2]),
        (GIVEN, 21856, "f32", 12, [0, 1, 0, 2, 1, 2]),
        (ORDINARY, 2056, "f16", 1, [0, 1, 2, 3, 4]),
        (ORDINARY, 2048, "f32", 12, [0, 1, 2, 3, 4]),
    ],
)
def test_experts_that_rows_chose_and_no_others_are_read(
    watch: Path, tmp_path: Path, model: str, inner: int, fmt: str, chunk: int, order: list[int]
) -> None:
    found = watched(watch, tmp_path / "b", model, inner, fmt, chunk)
    bundle = bundle_of(tmp_path / "b", model, inner, fmt)
    assert found["reads"] == expected(bundle, order, chunk)
    if fmt != "f32":
        last = stored(bundle.manifest.tensors[f"blocks.{max(moe_blocks(bundle))}.down"])[0]
        assert (last[0] + last[1]) % mmap.PAGESIZE, "experts begin within pages"


@linux
@pytest.mark.parametrize("model", [GIVEN, ORDINARY])
def test_nothing_is_read_that_is_in_memory_or_that_a_page_fault_reads(watch: Path, tmp_path: Path, model: str) -> None:
    cold = watched(watch, tmp_path / "b", model, 2048, "f32", 4)
    warm = watched(watch, tmp_path / "b", model, 2048, "f32", 4, in_memory=True)
    assert all(cold["reads"])
    assert not any(warm["reads"])
    assert cold["logits"] == warm["logits"]
    assert not any(watched(watch, tmp_path / "b", model, 96, "f32", 4)["reads"])
