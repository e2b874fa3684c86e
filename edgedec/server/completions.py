"""Requests to completions: tokens, generation config and constraint of each text to generate.

Runs in a thread beside the event loop: tokenizing, templates and compiling a schema take time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from edgedec.constraints.compiling import ManyGrammars
from edgedec.constraints.given import GivenConstraint, compiled
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.logits import LogitsProcessor
from edgedec.diffusion.decoding import DiffusionDecoding, check_canvas, check_form, check_ids, check_scores
from edgedec.errors import EdgedecError, UsageError
from edgedec.fusion import make_shaping
from edgedec.runtime import Adapter
from edgedec.server import thinking, tools
from edgedec.server.api import Prompt, TextRequest
from edgedec.server.errors import APIError
from edgedec.server.infill import infill
from edgedec.server.searching import of_choice

if TYPE_CHECKING:
    from edgedec.constraints import Constraint
    from edgedec.model import Model


# Seconds after which one of the grammars that take long is compiled or refused.
_LARGE_WAIT = 2


@dataclass(frozen=True)
class Completion:
    """One text to generate after `ids`. `echo`: text that is returned in front of it; `scores`: the prompt's
    log-probabilities are returned as well; `thinks`: the text begins inside a thought; `diffusion`: how a diffusion
    model decodes it, None: as the server says."""

    ids: tuple[int, ...]
    config: GenerationConfig
    echo: str = ""
    scores: bool = False
    thinks: bool = False
    adapter: Adapter | None = None
    diffusion: str | None = None


class _Prompt(NamedTuple):
    ids: tuple[int, ...]
    echo: str = ""
    thinks: bool = False


def completions(
    model: Model, request: TextRequest, context: int, most: int, adapter: Adapter | None = None, room: int = 0
) -> list[Completion]:
    """All texts of a request; APIError 400 for unsupported requests. `most`: the most tokens of a text; room: tokens
    of all caches, 0: any."""
    limit = request.options.get("max_tokens", most)
    if limit > most:
        raise APIError(400, f"max_tokens: this server allows {most} at most", "max_tokens", "invalid_value")
    try:
        config = _config(model, request)
        prompts = _read_prompts(model, request, context)
        constraints = _constraints(model, request, prompts)
        _check_diffusion(model, request, prompts, replace(config, constraint=constraints[0]), context, limit)
    except EdgedecError as error:
        raise APIError(400, str(error), code="invalid_value") from None
    scores = request.echo and request.logprobs is not None
    found: list[Completion] = []
    for ids, echo, thinks in prompts:
        longest = replace(config, max_tokens=min(limit, _room(ids, context)))
        if scores and longest.max_tokens == 1:
            # An evaluation harness requests one token and removes it again: it must exist, even if it is an end token.
            longest = replace(longest, ignore_eos=True)
        for choice in range(request.texts):
            processors = _processors(model, request)
            own = replace(longest, constraint=constraints.pop(), processors=processors)
            seed = config.sampling.seed
            own = own if seed is None else own.override({"seed": seed + choice})
            own = of_choice(model, own, choice, len(ids), room)
            found.append(Completion(ids, own, echo, scores, thinks, adapter, request.diffusion))
    return found


def tokens_of(model: Model, prompts: Sequence[Prompt], context: int) -> list[tuple[int, ...]]:
    """Tokens of each text to embed."""
    try:
        found = [_ids(model, prompt, context, "input") for prompt in prompts]
    except EdgedecError as error:
        raise APIError(400, str(error), "input", "invalid_value") from None
    for ids in found:
        _room(ids, context, "input")
    return found


def _config(model: Model, request: TextRequest) -> GenerationConfig:
    """The model's default sampling settings, replaced by the options of the request."""
    ranks = request.texts > request.n
    logprobs = 0 if ranks and request.logprobs is None else request.logprobs
    config = GenerationConfig(model.sampling, logprobs=logprobs).override(request.options)
    tokens = {"logit_bias": dict(config.sampling.logit_bias), "stop_tokens": config.stop_tokens}
    for name, named in tokens.items():
        outside = [token for token in named if not 0 <= token < model.spec.vocab_size]
        if outside:
            message = f"{name}: token {outside[0]} is outside the vocabulary of {model.spec.vocab_size}"
            raise APIError(400, message, name, "invalid_value")
    return config


def _read_prompts(model: Model, request: TextRequest, context: int) -> list[_Prompt]:
    """Tokens of each prompt, and its text if it is to be echoed."""
    tokenizer = model.tokenizer
    if request.messages:
        text = tools.prompt(model, request.messages, request.tools, request.variables)
        _check_length(model, text, context)
        ids = _joined(model, request.before, tuple(tokenizer.encode(text, around=False)))
        return [_Prompt(ids, thinks=thinking.begins_thinking(text))]
    found = []
    for prompt in request.prompts:
        ids = _joined(model, request.before, _ids(model, prompt, context))
        if request.suffix:
            _check_length(model, request.suffix, context, "suffix")
            ids = infill(tokenizer, ids, request.suffix)
        before = prompt if isinstance(prompt, str) else tokenizer.decode(ids)
        found.append(_Prompt(ids, before if request.echo else ""))
    return found


def _check_diffusion(
    model: Model, request: TextRequest, prompts: Sequence[_Prompt], config: GenerationConfig, context: int, limit: int
) -> None:
    """UsageError or ContextFull for what a diffusion model cannot continue."""
    facts = model.bundle.manifest.diffusion
    if facts is None and request.diffusion is None:
        return
    decoding = DiffusionDecoding.of(model, model.diffusion if request.diffusion is None else request.diffusion)
    if facts is None:
        return
    form = 0 if decoding is None else check_form(decoding, config)
    if request.echo and request.logprobs is not None:
        check_scores(decoding)
    for ids, *_ in prompts:
        check_ids(facts, ids)
        if decoding is not None:
            room = min(limit, _room(ids, context))
            if form > room:
                raise UsageError(f"diffusion: a form of {form} tokens; {room} may be generated")
            check_canvas(facts, len(ids), form or room, context, decoding.host)


def _joined(model: Model, before: tuple[int, ...], ids: tuple[int, ...]) -> tuple[int, ...]:
    """A prompt after the tokens of an earlier text, without a second BOS token."""
    if before and ids and before[0] == ids[0] and ids[0] in model.tokenizer.hidden:
        ids = ids[1:]
    return *_inside(model, before), *ids


def _ids(model: Model, prompt: Prompt, context: int, name: str = "prompt") -> tuple[int, ...]:
    """The tokens of a prompt; APIError 400 for a text of more than fit, before all of it is read."""
    if isinstance(prompt, str):
        _check_length(model, prompt, context, name)
        return tuple(model.tokenizer.encode(prompt))
    return _inside(model, prompt)


def _check_length(model: Model, text: str, context: int, name: str = "prompt") -> None:
    if count := model.tokenizer.at_least(text, context):
        raise _too_long(f"at least {count}", context, name)


def _inside(model: Model, ids: tuple[int, ...]) -> tuple[int, ...]:
    """The tokens, which the vocabulary must have."""
    outside = next((token for token in ids if not 0 <= token < model.spec.vocab_size), None)
    if outside is not None:
        raise UsageError(f"prompt: token {outside} is outside the vocabulary of {model.spec.vocab_size}")
    return ids


def _room(ids: tuple[int, ...], context: int, name: str = "prompt") -> int:
    if not ids:
        raise APIError(400, f"{name}: is empty; give at least one token", name, "invalid_value")
    if len(ids) >= context:
        raise _too_long(str(len(ids)), context, name)
    return context - len(ids)


def _too_long(count: str, context: int, name: str) -> APIError:
    message = f"{name}: {count} tokens do not fit a context of {context}; shorten it"
    return APIError(400, message, name, "context_length_exceeded")


def _processors(model: Model, request: TextRequest) -> tuple[LogitsProcessor, ...]:
    """New fusions and logits processors for a text."""
    try:
        return make_shaping(model, model.fuse if request.fuse is None else request.fuse, request.processors)
    except EdgedecError as error:
        name = "fuse" if str(error).startswith("fuse") else "processors"
        raise APIError(400, str(error), name, "invalid_value") from None


def _constraints(model: Model, request: TextRequest, prompts: Sequence[_Prompt]) -> list[Constraint | None]:
    """A constraint for each text."""
    for left in (1, 0):
        one = _constraint(model, request, prompts)
        try:
            return [one and one.fork() for _ in range(len(prompts) * request.texts)]
        except UsageError as error:
            # Texts of others follow an equal grammar in the same process, which has ended just now.
            if not left:
                raise APIError(503, str(error), code="failed", wait=1) from None
    raise AssertionError


def _constraint(model: Model, request: TextRequest, prompts: Sequence[_Prompt]) -> Constraint | None:
    wanted = request.constraint
    name = "tools" if wanted is None else wanted.field
    try:
        if request.tools is not None:
            found: Constraint = tools.constraint(model, request.tools, _answer(wanted))
        elif wanted is not None:
            found = compiled(model, wanted.kind, wanted.text)
        else:
            return None
    except ManyGrammars as error:
        raise APIError(429, f"{name}: {error}", name, "queue_full", wait=_LARGE_WAIT) from None
    except UsageError as error:
        raise APIError(400, f"{name}: {error}", name, "invalid_value") from None
    close = model.tokenizer.id(thinking.CLOSE) if prompts[0].thinks else None
    return found if close is None else thinking.AfterThought(found, close, model.spec.vocab_size)


def _answer(wanted: GivenConstraint | None) -> str:
    """The schema of a text that calls no function; "" for any text."""
    if wanted is None:
        return ""
    return wanted.text or '{"type": "object"}'
