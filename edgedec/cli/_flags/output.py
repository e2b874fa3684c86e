"""Flags for what a verb prints."""

from __future__ import annotations

from typing import Annotated

from edgedec.cli._flags.option import option

Json = Annotated[bool, option("--json", help="Print one JSON object on stdout.")]
Verbose = Annotated[bool, option("--verbose", "-v", help="Print on stderr how long each part took, and --stats.")]
ShowStats = Annotated[bool, option("--stats", help="Print token counts and speed on stderr.")]
Logprobs = Annotated[
    int | None,
    option(
        "--logprobs",
        min=0,
        max=100,
        metavar="N",
        help="With --json: the log-probability of each token, and of the N likeliest in its place.",
    ),
]
