"""A small bundle with every kind of block and a tokenizer, and what the fuzzers of libedgedec begin with."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clibrary import builder

from edgedec.bundle import Bundle
from edgedec.bundle.adapter import LowRank, save_adapter
from edgedec.bundle.packed import pack
from edgedec.spec import Attention, Mlp, ModelSpec, Moe, Rope, Ssm
from edgedec.testing.conformance.bundles import random_weights, write_bundle

FOLDER = Path(__file__).parent / "library" / "fuzz"
SOURCES = [FOLDER / f"{name}.cpp" for name in ("input", "calls", "targets")]
TARGETS = ("json", "pattern", "tokenizer", "text", "manifest", "index", "session", "adapter", "calls")
VOCAB, CONTEXT = 300, 96
_HEADS = Attention(n_heads=2, n_kv_heads=1, head_dim=16, scale=0.25)
SPEC = ModelSpec(
    "toy",
    VOCAB,
    32,
    CONTEXT,
    (
        (replace(_HEADS, qk_norm="head", qkv_bias=True), Mlp(32)),
        (Ssm(n_heads=2, head_dim=16, state_size=16, n_groups=1, norm_groups=1),),
        (replace(_HEADS, window=7, sinks=1), Moe(n_experts=3, top_k=2, inner_size=16)),
    ),
    1e-5,
    False,
    (Rope(tuple(1e4 ** (-j / 8) for j in range(8)), 1.0),),
)
PATTERNS = [
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+(?!\S)|\s+",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{M}]+(?i:'s|'t)?|(?:ab|a(?=b))*+x{2,5}?",
]


def tokenizer_json() -> dict[str, Any]:
    """Byte-level BPE with some merges, special tokens, and words of several bytes."""
    from vocabularies import alphabet

    letters = alphabet()
    merges = [("h", "e"), ("Ġ", "t"), ("Ġt", "he"), ("i", "n"), ("e", "r"), ("o", "n"), ("Ã", "©"), ("1", "2")]
    special = ["<s>", "<|endoftext|>"]
    pieces = [*special, *letters, *(a + b for a, b in merges)]
    bytewise = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": i, "content": text, "single_word": False, "lstrip": i == 1, "rstrip": False, "normalized": False,
             "special": True} for i, text in enumerate(special)
        ],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": bytewise,
        "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                                                                    {"Sequence": {"id": "A", "type_id": 0}}],
                           "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}},
        "decoder": bytewise,
        "model": {"type": "BPE", "vocab": {piece: i for i, piece in enumerate(pieces)},
                  "merges": [" ".join(pair) for pair in merges]},
    }  # fmt: skip


def write_toy(folder: Path) -> Path:
    """The bundle, packed, under `folder`."""
    write_bundle(folder / "toy", SPEC, random_weights(SPEC), "int4")
    tokenizer = json.dumps(tokenizer_json()).encode()
    (folder / "toy" / "tokenizer.json").write_bytes(tokenizer)
    manifest = json.loads((folder / "toy" / "edgedec.json").read_text())
    manifest["files"]["tokenizer.json"] = {"size": len(tokenizer), "sha256": hashlib.sha256(tokenizer).hexdigest()}
    manifest["text"] = {"tokenizer": "tokenizer.json", "bos": 0, "eos": [1], "eos_token": "<|endoftext|>"}
    (folder / "toy" / "edgedec.json").write_text(json.dumps(manifest))
    pack(Bundle.open(folder / "toy"), folder / "toy.edb")
    return folder / "toy.edb"


def build(out: Path, **options: Any) -> Path:
    """A program of the targets and of driver.cpp."""
    made: Path = builder().build(out, mains=[*SOURCES, FOLDER / "driver.cpp"], jobs=2, **options)
    return made


def environment(toy: Path, target: str) -> dict[str, str]:
    return {"EDGEDEC_FUZZ_BUNDLE": str(toy), "EDGEDEC_FUZZ_TARGET": target, "TMPDIR": str(toy.parent)}


def write_seeds(program: Path, toy: Path) -> dict[str, list[Path]]:
    """Files that each target accepts, or may."""
    folder = toy.parent / "seeds"
    folder.mkdir(exist_ok=True)
    subprocess.run([program, "seeds", folder], env=environment(toy, "json"), check=True)
    rng = np.random.default_rng(0)
    low = {
        name: LowRank(
            *(rng.standard_normal(shape).astype(np.float32) for shape in ((2, 32), (SPEC.tensors()[name][0], 2)))
        )
        for name in ("blocks.0.qkv", "blocks.1.up", "blocks.2.in_proj")
        if name in SPEC.tensors()
    }
    save_adapter(folder / "adapter.lora", "a", SPEC, low)
    (folder / "adapter").write_bytes(_text_of((folder / "adapter.lora").read_bytes()))
    seeds = {name: [folder / name] for name in ("json", "manifest", "tokenizer", "index", "session", "adapter")}
    for target, values in {"pattern": [f"{p}\0 It's 12 o\u0308 \u65e5x" for p in PATTERNS], "text": PATTERNS}.items():
        seeds[target] = [folder / f"{target}-{i}" for i in range(len(values))]
        for path, value in zip(seeds[target], values, strict=True):
            path.write_text(value, "utf-8")
    seeds["calls"] = [folder / "calls"]
    seeds["calls"][0].write_bytes(rng.bytes(600))
    return seeds


def _text_of(raw: bytes) -> bytes:
    """A file of arrays as the targets take it: its header, a zero byte, its arrays."""
    length = int.from_bytes(raw[40:48], "little")
    return raw[48 : 48 + length] + b"\0" + raw[48 + length :]


def build_fuzzer(out: Path) -> Path:
    """The targets under libFuzzer, with sanitizers; skips where no clang has it. The kernels of the instruction sets go
    without: a compiler takes half an hour to instrument them, and tests/native/test_engine.py has them instrumented."""
    clang = next((name for name in ("clang++", "clang++-19", "clang++-14") if shutil.which(name)), None)
    if clang is None:
        pytest.skip("no clang here")
    library = builder()
    checked, plain = library.CPU["compiler"](clang, None, "address,undefined,fuzzer-no-link"), library.CPU["compiler"]()
    with tempfile.TemporaryDirectory() as temporary:
        folders = [Path(temporary) / "checked", Path(temporary) / "plain"]
        for folder in folders:
            folder.mkdir()
        kernels = [part for part in library._engine(plain, folders[1]) if part[1].name.startswith("unit_")]
        rest = [part for part in library._engine(checked, folders[0]) if not part[1].name.startswith("unit_")]
        parts = [*kernels, *rest, *library._own(checked, folders[0], SOURCES, None)]
        try:
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(lambda part: part[0].compile(*part[1:], None), parts))
            linked = checked.link([part[3] for part in parts], out, shared=False)
            library.CPU["run"]([*linked, "-fsanitize=fuzzer"], None)
        except library.BuildFailed as error:
            pytest.skip(f"no libFuzzer here: {error}")
    return out
