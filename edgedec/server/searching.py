"""The search of a request: its field, vLLM's names for it, what this server allows, and the text of each choice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from edgedec.decoding.config import GenerationConfig
from edgedec.errors import EdgedecError, UsageError
from edgedec.search import FAMILY, parse_search
from edgedec.search.choices import ranked
from edgedec.search.host import SearchHost
from edgedec.search.making import make_search, needs_operator
from edgedec.server.errors import APIError

if TYPE_CHECKING:
    from edgedec.model import Model


def with_beams(body: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with vLLM's `use_beam_search`, `length_penalty` as a search: as many beams as `best_of`, else `n`."""
    if not body.get("use_beam_search"):
        if body.get("length_penalty") is not None:
            raise _wrong("length_penalty", "needs use_beam_search: true")
        return dict(options)
    if "search" in options:
        raise _wrong("use_beam_search", "cannot be combined with search")
    width = int(body.get("best_of") or body.get("n") or 1)
    penalty = body.get("length_penalty")
    return {**options, "search": f"beam:width={width},length_penalty={1.0 if penalty is None else penalty}"}


def check_search(options: Mapping[str, Any], stream: bool, allowed: bool) -> None:
    """APIError 400 for a search that there is none of, that cannot be streamed, or that runs what the operator has not
    allowed."""
    words = options.get("search")
    if not words:
        return
    try:
        name = parse_search(words).name
        runs = needs_operator(words)
    except UsageError as error:
        raise _wrong("search", str(error)) from None
    if runs and not allowed:
        raise _wrong("search", f"{runs}: this server runs no scorers of requests (--allow-scorers)")
    if stream and FAMILY.facts(name).streams == "end":
        raise _wrong("search", f"{name} has its text at the end: leave stream out")


def of_choice(model: Model, config: GenerationConfig, choice: int, prompt: int, room: int) -> GenerationConfig:
    """The config of one of the texts of a request: a search without randomness gives each the next of its texts. room:
    tokens of all caches, 0: any. APIError 400 for a search that does not fit."""
    if not config.search:
        return config
    config = ranked(config, choice)
    host = SearchHost(model.runtime.capabilities, lambda: model.tokenizer, model.eos, config, model=model)
    try:
        width = make_search(host, config.search).width
    except EdgedecError as error:
        raise _wrong("search", str(error)) from None
    need = prompt + width * (config.max_tokens or 0)
    if room and need > room:
        raise _wrong(
            "search", f"{width} texts may take {need} tokens of cache, and this server has {room}: search less"
        )
    return config


def _wrong(field: str, why: str) -> APIError:
    return APIError(400, f"{field}: {why}" if not why.startswith("--search") else why, field, "invalid_value")
