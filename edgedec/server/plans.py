"""From what is asked to what the engine does: tokens, settings, constraint; one plan for each choice.

Runs beside the event loop: tokenizing, templates and compiling a schema take their time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from edgedec.errors import EdgedecError, UsageError
from edgedec.server import tools
from edgedec.server.api import Asked, Prompt
from edgedec.server.problems import Problem

if TYPE_CHECKING:
    from edgedec.constraints.matcher import GrammarConstraint
    from edgedec.model import Model
    from edgedec.sampling import Sampling


@dataclass(frozen=True)
class Plan:
    """One text to write. `before`: what is told ahead of it (echo)."""

    index: int
    ids: tuple[int, ...]
    max_tokens: int
    sampling: Sampling
    stop: tuple[str, ...]
    ignore_eos: bool
    logprobs: int | None
    constraint: GrammarConstraint | None
    before: str = ""


def plans(model: Model, asked: Asked, context: int, most: int) -> list[Plan]:
    """All choices of a request; Problem 400 for what cannot be done. `most`: tokens that a text may get."""
    if asked.max_tokens is not None and asked.max_tokens > most:
        raise Problem(400, f"max_tokens: this server allows {most} at most", "max_tokens", "invalid_value")
    try:
        sampling = _sampling(model, asked)
        texts = _texts(model, asked)
        held = _constraint(model, asked)
    except Problem:
        raise
    except EdgedecError as error:
        raise Problem(400, str(error), code="invalid_value") from None
    limit = most if asked.max_tokens is None else asked.max_tokens
    found: list[Plan] = []
    for ids, before in texts:
        room = min(limit, _room(model, ids, context))
        for choice in range(asked.n):
            seed = None if sampling.seed is None else sampling.seed + choice
            found.append(
                Plan(
                    index=len(found),
                    ids=ids,
                    max_tokens=room,
                    sampling=replace(sampling, seed=seed),
                    stop=asked.stop,
                    ignore_eos=asked.ignore_eos,
                    logprobs=asked.logprobs,
                    constraint=held and held.fork(),
                    before=before,
                )
            )
    return found


def tokens_of(model: Model, prompts: Sequence[Prompt], context: int) -> list[tuple[int, ...]]:
    """What is to be embedded."""
    try:
        found = [_ids(model, prompt) for prompt in prompts]
    except EdgedecError as error:
        raise Problem(400, str(error), "input", "invalid_value") from None
    for ids in found:
        _room(model, ids, context, "input")
    return found


def _sampling(model: Model, asked: Asked) -> Sampling:
    """What the model's makers suggest, with what is asked in its place."""
    given = dict(asked.sampling)
    outside = [token for token, _ in given.get("logit_bias", ()) if not 0 <= token < model.spec.vocab_size]
    if outside:
        raise Problem(
            400,
            f"logit_bias: token {outside[0]} is outside the vocabulary of {model.spec.vocab_size}",
            "logit_bias",
            "invalid_value",
        )
    return replace(model.sampling, **given)


def _texts(model: Model, asked: Asked) -> list[tuple[tuple[int, ...], str]]:
    """Tokens of each prompt, and its text where it is to be echoed."""
    if asked.messages:
        text = tools.prompt(model, asked.messages, asked.tools)
        return [(tuple(model.tokenizer.encode(text, around=False)), "")]
    found = []
    for prompt in asked.prompts:
        ids = _ids(model, prompt)
        before = prompt if isinstance(prompt, str) else model.tokenizer.decode(ids)
        found.append((ids, before if asked.echo else ""))
    return found


def _ids(model: Model, prompt: Prompt) -> tuple[int, ...]:
    ids = tuple(model.tokenizer.encode(prompt)) if isinstance(prompt, str) else prompt
    outside = next((token for token in ids if not 0 <= token < model.spec.vocab_size), None)
    if outside is not None:
        raise UsageError(f"prompt: token {outside} is outside the vocabulary of {model.spec.vocab_size}")
    return ids


def _room(model: Model, ids: tuple[int, ...], context: int, name: str = "prompt") -> int:
    if not ids:
        raise Problem(400, f"{name}: is empty; give at least one token", name, "invalid_value")
    if len(ids) >= context:
        raise Problem(
            400,
            f"{name}: {len(ids)} tokens do not fit a context of {context}; shorten it",
            name,
            "context_length_exceeded",
        )
    return context - len(ids)


def _constraint(model: Model, asked: Asked) -> GrammarConstraint | None:
    from edgedec import constraints

    name = "response_format" if asked.tools is None else "tools"
    try:
        if asked.tools is not None:
            return tools.constraint(model, asked.tools)
        return None if asked.schema is None else constraints.json_schema(model, asked.schema)
    except UsageError as error:
        raise Problem(400, f"{name}: {error}", name, "invalid_value") from None
