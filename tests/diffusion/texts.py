"""Diffusion decoding of runtimes without a bundle, and small bundles with a mask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from bundles import random_weights, write_bundle

from edgedec.bundle import Bundle
from edgedec.bundle.manifest import DiffusionFacts
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.decoding.messages import Stats, Token
from edgedec.decoding.runner import run_loop
from edgedec.diffusion.host import DiffusionHost
from edgedec.diffusion.loop import PassCounts, diffusion_loop
from edgedec.diffusion.words import parse_diffusion
from edgedec.spec import Attention, Mlp, ModelSpec, Rope
from edgedec.text.token_bytes import TokenBytes

MASK, VOCAB, EOS = 30, 32, 29


def decode(
    runtime: Any,
    facts: DiffusionFacts,
    ids: Sequence[int],
    words: str = "",
    eos: frozenset[int] = frozenset(),
    seed: int = 0,
    capacity: int = 64,
    known: TokenBytes | None = None,
    **options: Any,
) -> tuple[list[Token], PassCounts, Context]:
    """The tokens of a text, what its passes did, and its context. known: the bytes of the tokens, if they have any."""
    context = Context(list(ids), len(ids), runtime.new_cache(capacity))
    context.rng = np.random.default_rng(seed)
    counts = PassCounts()
    host = DiffusionHost(facts, runtime.capabilities, ends=eos)
    if known is not None:
        host = replace(host, encode=lambda text: known.spell(text.encode()) or [], token_bytes=lambda: known)
    methods = parse_diffusion(words, facts.context).make(host)
    config = GenerationConfig().override({"temperature": 0.0, **options})
    loop = diffusion_loop(context, config, methods, facts, Stats(), counts, eos, runtime.capabilities)
    return list(run_loop(runtime, loop)), counts, context


def tiny_spec(**changes: Any) -> ModelSpec:
    """Two small layers."""
    layer = Attention(n_heads=4, n_kv_heads=2, head_dim=8, scale=8**-0.5), Mlp(48)
    spec = ModelSpec("llama", VOCAB, 32, 128, (layer, layer), 1e-5, False, (Rope((1.0, 0.3, 0.1, 0.03)),))
    return replace(spec, **changes).check()


def tiny_bundle(folder: Path, facts: DiffusionFacts | None, seed: int = 0, eos: tuple[int, ...] = ()) -> Bundle:
    """A bundle of random weights, without a tokenizer."""
    spec = tiny_spec()
    bundle = write_bundle(folder, spec, random_weights(spec, seed))
    text = replace(bundle.manifest.text, eos=eos)
    return replace(bundle, manifest=replace(bundle.manifest, diffusion=facts, text=text))
