"""Random small models whose matrices are whole blocks of every format, and llama.cpp as the other reader of a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import ggufs
import llama_cpp_process
import numpy as np
import pytest
import zoo
from numpy.typing import NDArray

from edgedec.bench.timing import Config
from edgedec.bundle import Bundle
from edgedec.export.opening import open_source
from edgedec.kernels.cpu import loader
from edgedec.runtime import Rows, Runtime, logits_of
from edgedec.runtimes.native import NativeRuntime
from edgedec.runtimes.reference import Reference

Floats = NDArray[np.float32]
# Rows of 256: whole blocks of every type of ggml.
WIDE: dict[str, Any] = {
    "hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
    "num_hidden_layers": 2, "max_position_embeddings": 128,
}  # fmt: skip
# What a GGUF cannot say is left out: windows of Llama's kin, Gemma's query scale; and Phi-3's, which llama.cpp ignores.
CONFIGS: dict[str, dict[str, Any]] = {
    "Llama": WIDE | {"rms_norm_eps": 1e-5, "rope_parameters": zoo.LLAMA3},
    "Qwen3": WIDE | {"tie_word_embeddings": False},
    "Gemma3": zoo.GEMMA | WIDE | {
        "num_hidden_layers": 6, "query_pre_attn_scalar": 64, "sliding_window": 24, "rope_parameters": zoo.GEMMA3_ROPES,
        "tie_word_embeddings": False,
    },
    "Phi3": {k: v for k, v in WIDE.items() if k != "head_dim"} | {"rope_parameters": {"rope_type": "default"}},
    "Mixtral": WIDE | {"num_local_experts": 5, "num_experts_per_tok": 2},
}  # fmt: skip


def make(name: str, seed: int = 0) -> Any:
    """A random model, its blocks less wild than the zoo's: sharp attention would turn a rounding into another text."""
    config = "Gemma3Text" if name == "Gemma3" else name
    sizes = zoo.SIZES | {"sliding_window": None} | CONFIGS[name]
    model = zoo._random(config, f"{name}ForCausalLM", sizes, seed)
    with zoo.torch.no_grad():
        for weight in (weight for key, weight in model.named_parameters() if ".layers." in key and weight.ndim > 1):
            weight.mul_(0.5)
    return model


MODELS: dict[str, Callable[[], Any]] = {name: partial(make, name) for name in CONFIGS}
# llama.cpp opens no file without names of tokens.
NAMES: dict[str, Any] = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": [f"<{i}>" for i in range(zoo.SIZES["vocab_size"])],
}


def write(model: Any, path: Path, kind: str = "F32") -> Path:
    """The GGUF file of a model, with a vocabulary that llama.cpp takes."""
    return ggufs.write(model, path, kind, **NAMES)


def of_file(path: Path) -> Reference:
    """The float model straight from a file."""
    source = open_source(path)
    spec = source.spec()
    parts = source.weights(spec)
    whole = {name: source.read(part, 0, source.shape(part)[0]) for name, part in parts.items()}
    return Reference(spec, lambda name, start, stop: whole[name][start:stop])


def all_logits(runtime: Runtime, ids: Sequence[int]) -> Floats:
    """[n, vocab_size]"""
    return logits_of(runtime, Rows.chain(ids, 0), runtime.new_cache(len(ids)))


def same_bytes_everywhere(bundle: Bundle, ids: Sequence[int]) -> None:
    """Logits by every instruction set that this machine has; of a row alone, and with others."""
    expected = all_logits(NativeRuntime(bundle, "f16", 1, isa="scalar"), ids)
    assert expected.std() > 0.05
    for isa in (name for name, runs in loader.isas().items() if runs):
        engine = NativeRuntime(bundle, "f16", 1, isa=isa)
        assert all_logits(engine, ids).tobytes() == expected.tobytes()
        for n in (1, 2, 5, 7):
            cache, parts = engine.new_cache(len(ids)), []
            for at in range(0, len(ids), n):
                rows = Rows.chain(ids[at : at + n], at)
                parts.append(logits_of(engine, rows, cache))
                cache.commit(range(len(rows)))
            assert np.concatenate(parts).tobytes() == expected.tobytes()


def greedy(runtime: Runtime, ids: Sequence[int], n: int) -> list[int]:
    """The n likeliest tokens, one after another."""
    cache, at, found = runtime.new_cache(len(ids) + n), 0, list[int]()
    rows = list(ids)
    for _ in range(n):
        logits = logits_of(runtime, Rows.chain(rows, at), cache)
        cache.commit(range(len(rows)))
        at += len(rows)
        rows = [int(logits[-1].argmax())]
        found += rows
    return found


def llama_cpp(path: Path, capacity: int, kv: str = "f32") -> Any:
    """llama.cpp with the file: `feed(ids, all_logits)` -> logits. Of "f32" nothing is rounded to 16 bits: its flash
    attention would."""
    library = pytest.importorskip("llama_cpp", reason="comparing with llama.cpp needs the package llama_cpp")
    from edgedec.bench.engines import LlamaCpp
    from edgedec.bench.llama_context import LlamaContext

    engine = LlamaCpp(Config("llama.cpp", str(path.parent), capacity, 1, gguf=str(path)), 1)
    context = LlamaContext(library, engine._model, capacity, 1, kv, flash=False)
    context.engine = engine  # type: ignore[attr-defined]  # kept as long as its context is used
    return context


def llama_cpp_logits(path: Path, ids: Sequence[int], kv: str = "f32") -> Floats:
    """llama.cpp's [n, vocab_size]"""
    return np.array(llama_cpp(path, len(ids), kv).feed(list(ids), all_logits=True))


def llama_cpp_greedy(path: Path, ids: Sequence[int], n: int) -> list[int]:
    """The n likeliest tokens by llama.cpp, one after another."""
    context, rows, found = llama_cpp(path, len(ids) + n), list(ids), list[int]()
    for _ in range(n):
        rows = [int(context.feed(rows, all_logits=False)[-1].argmax())]
        found += rows
    return found


def quantized_by_llama_cpp(kind: str, source: Path, target: Path, pure: bool = False) -> Path:
    """A file that llama.cpp makes of another; types mixed as it mixes them unless `pure`."""
    assert llama_cpp_process.asked("quantized", kind, pure, source, target) == 0
    return target


def floats_by_llama_cpp(source: Path) -> Path:
    """The file's values as llama.cpp reads them, in a file of floats, with which it computes without rounding."""
    return quantized_by_llama_cpp("ALL_F32", source, source.with_suffix(".f32.gguf"))


def kl(p: Floats, other: Floats) -> float:
    """Mean nats a row from the distribution of logits p to that of the others."""
    a, b = (log_softmax(x.astype(np.float64)) for x in (p, other))
    return float((np.exp(a) * (a - b)).sum(-1).mean())


def log_softmax(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Logarithms of the distribution of each row."""
    shifted: NDArray[np.float64] = x - x.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def rms(values: Floats) -> float:
    """The root of the mean square."""
    return float(np.sqrt((values.astype(np.float64) ** 2).mean()))
