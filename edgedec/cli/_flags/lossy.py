"""Lossy flags: skipped layers, caches that drop tokens."""

from __future__ import annotations

from typing import Annotated

import typer

from edgedec.cli._flags.completing import plugins_of

CacheWords = Annotated[
    str,
    typer.Option(
        "--cache",
        metavar="POLICY",
        autocompletion=plugins_of("policies"),
        envvar="EDGEDEC_CACHE_POLICY",  # EDGEDEC_CACHE is the cache folder
        show_envvar=False,
        show_default=False,
        help="Lossy: what the KV cache keeps: full (default: everything), or a policy with its budget, as in "
        "snapkv:budget=0.2 (docs/long-context.md names them).",
    ),
]
SkipSpeed = Annotated[
    float,
    typer.Option(
        "--skip-speed",
        min=1.0,
        metavar="X",
        show_default=False,
        help="Lossy: skip layers until a token is X times as fast; another, worse text. 1 (default): none.",
    ),
]
