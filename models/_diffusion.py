"""What the files of diffusion language models share: a config is that of the autoregressive model they grew from, and
a few entries more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgedec.models._common import ConfigReader


def base_config(config: Mapping[str, Any], *own: str) -> dict[str, Any]:
    """The config without the entries `own`; CheckpointError if its rows do not see the whole text."""
    r = ConfigReader(config)
    if r.flag("use_sliding_window", False):
        raise r.fail("use_sliding_window", "is true: a diffusion model's rows see all that is before them")
    return {key: value for key, value in config.items() if key not in own}


def only(r: ConfigReader, key: str, wanted: Any, default: Any) -> None:
    """Refuse an entry that is not `wanted`; default: what the authors' code assumes without it."""
    found = r.value(key, default)
    if found != wanted or type(found) is not type(wanted):
        said = "is missing" if key not in r.values else f"is {found!r:.40}"
        raise r.fail(key, f"{said}; supported is {wanted!r} only")
