"""What each drafter of a generation did, as lines of `--stats` and `trace`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from edgedec.drafters import FAMILY
from edgedec.speculation.reasons import TEXTS, USED, calls_text, state_text


def drafting_lines(stats: Mapping[str, Any]) -> list[str]:
    """The drafts, the calls without, and each drafter's state; empty for `--spec off`."""
    report = stats["speculation"]
    if not report:
        return []
    found = [] if "why" in report else [_drafts(stats, report["sizes"])]
    found += [calls_text(report)] if "calls" in report else []
    return found + [f"{name}: {text}" for name, text in state_texts(report).items()]


def state_texts(report: Mapping[str, Any]) -> dict[str, str]:
    """The state of each drafter in one line, by name; of `auto` if the engine has none of them."""
    if "why" in report:
        return {"auto": TEXTS[report["why"]]}
    return {name: state_text(facts) for name, facts in report.get("drafters", {}).items()}


def warn_unused(speculate: str, stats: Mapping[str, Any]) -> None:
    """Print a line on stderr for each drafter that was named and of which no guess ran."""
    report = stats["speculation"]
    drafters = report.get("drafters", {})
    for name in names(speculate):
        if name in drafters and stats["calls"] and not drafters[name].get("proposed"):
            reason = state_text(drafters[name]).removeprefix(f"{USED}: ")
            silent = f"; {calls_text(report)}" if report.get("calls") else ""
            print(f"edgedec: no guess of --spec {name} ran: {reason}{silent}", file=sys.stderr)


def names(speculate: str) -> list[str]:
    """The drafters that the value of `--spec` names, without `auto` and `off`."""
    if speculate == "off":
        return []
    return [name for name, _ in FAMILY.parse(speculate) if name != "auto"]


def _drafts(stats: Mapping[str, Any], sizes: Mapping[str, int]) -> str:
    """The drafted tokens, and the sizes of the drafts."""
    drafts = ", ".join(f"{size} tokens {calls}x" for size, calls in sizes.items())
    share = f"; {stats['forward_s'] / stats['decode_s']:.0%} of the time in calls" if stats["decode_s"] else ""
    return (
        f"drafted {stats['proposed']}, accepted {stats['accepted']}, {stats['tokens_per_call']:.2f} tokens a call"
        f"{share}; session so far: drafts of {drafts or 'nothing'}"
    )
