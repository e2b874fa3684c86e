"""Requests to completions: tokens, generation config and constraint of each text to generate.

Runs in a thread beside the event loop: tokenizing, templates and compiling a schema take time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from edgedec.errors import EdgedecError, UsageError
from edgedec.generation import GenerationConfig
from edgedec.server import tools
from edgedec.server.api import Prompt, TextRequest
from edgedec.server.errors import APIError

if TYPE_CHECKING:
    from edgedec.constraints.matcher import GrammarConstraint
    from edgedec.model import Model


@dataclass(frozen=True)
class Completion:
    """One text to generate after `ids`. `echo`: text that is returned in front of it."""

    ids: tuple[int, ...]
    config: GenerationConfig
    echo: str = ""


def completions(model: Model, request: TextRequest, context: int, most: int) -> list[Completion]:
    """All texts of a request; APIError 400 for what cannot be done. `most`: tokens that a text may get."""
    limit = request.options.get("max_tokens", most)
    if limit > most:
        raise APIError(400, f"max_tokens: this server allows {most} at most", "max_tokens", "invalid_value")
    try:
        config = _config(model, request)
        texts = _texts(model, request)
        constraint = _constraint(model, request)
    except EdgedecError as error:
        raise APIError(400, str(error), code="invalid_value") from None
    found: list[Completion] = []
    for ids, echo in texts:
        longest = replace(config, max_tokens=min(limit, _room(model, ids, context)))
        for choice in range(request.n):
            own = replace(longest, constraint=constraint and constraint.fork())
            seed = config.sampling.seed
            found.append(Completion(ids, own if seed is None else own.override({"seed": seed + choice}), echo))
    return found


def tokens_of(model: Model, prompts: Sequence[Prompt], context: int) -> list[tuple[int, ...]]:
    """Tokens of each text to embed."""
    try:
        found = [_ids(model, prompt) for prompt in prompts]
    except EdgedecError as error:
        raise APIError(400, str(error), "input", "invalid_value") from None
    for ids in found:
        _room(model, ids, context, "input")
    return found


def _config(model: Model, request: TextRequest) -> GenerationConfig:
    """What the model's makers suggest, with the options of the request in its place."""
    config = GenerationConfig(model.sampling, logprobs=request.logprobs).override(request.options)
    tokens = {"logit_bias": dict(config.sampling.logit_bias), "stop_tokens": config.stop_tokens}
    for name, named in tokens.items():
        outside = [token for token in named if not 0 <= token < model.spec.vocab_size]
        if outside:
            message = f"{name}: token {outside[0]} is outside the vocabulary of {model.spec.vocab_size}"
            raise APIError(400, message, name, "invalid_value")
    return config


def _texts(model: Model, request: TextRequest) -> list[tuple[tuple[int, ...], str]]:
    """Tokens of each prompt, and its text if it is to be echoed."""
    if request.messages:
        text = tools.prompt(model, request.messages, request.tools)
        return [(tuple(model.tokenizer.encode(text, around=False)), "")]
    found = []
    for prompt in request.prompts:
        ids = _ids(model, prompt)
        before = prompt if isinstance(prompt, str) else model.tokenizer.decode(ids)
        found.append((ids, before if request.echo else ""))
    return found


def _ids(model: Model, prompt: Prompt) -> tuple[int, ...]:
    ids = tuple(model.tokenizer.encode(prompt)) if isinstance(prompt, str) else prompt
    outside = next((token for token in ids if not 0 <= token < model.spec.vocab_size), None)
    if outside is not None:
        raise UsageError(f"prompt: token {outside} is outside the vocabulary of {model.spec.vocab_size}")
    return ids


def _room(model: Model, ids: tuple[int, ...], context: int, name: str = "prompt") -> int:
    if not ids:
        raise APIError(400, f"{name}: is empty; give at least one token", name, "invalid_value")
    if len(ids) >= context:
        raise APIError(
            400,
            f"{name}: {len(ids)} tokens do not fit a context of {context}; shorten it",
            name,
            "context_length_exceeded",
        )
    return context - len(ids)


def _constraint(model: Model, request: TextRequest) -> GrammarConstraint | None:
    from edgedec import constraints

    name = "response_format" if request.tools is None else "tools"
    try:
        if request.tools is not None:
            return tools.constraint(model, request.tools)
        return None if request.schema is None else constraints.json_schema(model, request.schema)
    except UsageError as error:
        raise APIError(400, f"{name}: {error}", name, "invalid_value") from None
