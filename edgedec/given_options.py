"""The options of a generation as Python programs give them: plug-ins as words or as objects."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgedec.constraints.given import made
from edgedec.decoding.config import GenerationConfig
from edgedec.fusion import make_fusion
from edgedec.opened import OpenedModel
from edgedec.processors import make_processors


def with_options(model: OpenedModel, config: GenerationConfig | None, options: Mapping[str, Any]) -> GenerationConfig:
    """The config with these options; processors, constraint and search may be given in words, fusions are."""
    given = dict(options)
    fuse, words = given.pop("fuse", ()), given.get("processors", ())
    if any(isinstance(item, str | Mapping) for item in (words, *words)):
        given["processors"] = make_processors(model, words)
    if isinstance(given.get("constraint"), str):
        given["constraint"] = made(model, given["constraint"])
    if isinstance(given.get("search"), Mapping):
        given["search"] = json.dumps(given["search"])
    config = (config or GenerationConfig()).override(given)
    return replace(config, processors=(*make_fusion(model, fuse), *config.processors)) if fuse else config
