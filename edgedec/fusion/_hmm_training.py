"""Hidden Markov models of what a model writes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.decoding.loop import decode_loop
from edgedec.decoding.runner import run_loop
from edgedec.drafters.off import Off
from edgedec.errors import UsageError
from edgedec.fusion._hmm import likelihood, train
from edgedec.sampling import Sampling

if TYPE_CHECKING:
    from edgedec.opened import OpenedModel


def train_hmm(
    model: OpenedModel,
    path: str | os.PathLike[str],
    prompts: Sequence[str],
    texts: int = 200,
    tokens: int = 64,
    states: int = 32,
    rounds: int = 20,
    seed: int = 0,
) -> float:
    """Train a hidden Markov model on texts that the model writes after these prompts, in turns, at temperature 1, and
    write it to a file. Returns the mean log-probability of the tokens."""
    if not prompts:
        raise UsageError("train_hmm: needs a prompt")
    ids = [model.tokenizer.encode(prompt) for prompt in prompts]
    written = [_text(model, ids[i % len(ids)], tokens, seed + i) for i in range(texts)]
    found = train(written, model.spec.vocab_size, states, rounds, seed)
    found.save(path)
    return likelihood(found, written)


def _text(model: OpenedModel, prompt: Sequence[int], tokens: int, seed: int) -> list[int]:
    """A prompt and what the model writes after it, with the end token if it ends."""
    cache = model.runtime.new_cache(len(prompt) + tokens)
    context = Context(list(prompt), len(prompt), cache, rng=np.random.default_rng(seed))
    config = GenerationConfig(Sampling(temperature=1.0), max_tokens=tokens, ignore_eos=True)
    for token in run_loop(model.runtime, decode_loop(context, config, Off(), capabilities=model.runtime.capabilities)):
        if token in model.eos:
            break
    return context.ids
