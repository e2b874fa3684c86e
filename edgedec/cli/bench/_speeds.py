"""The tables of `edgedec bench` and `edgedec bench targets`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edgedec.cli._output import print_table, size
from edgedec.cli.bench._about import show_host

if TYPE_CHECKING:
    from edgedec.bench.timing import Ratio, Spread, TimingResult

_HEADER = ("engine", "kv", "threads", "prefill tokens/s", "decode tokens/s", "with drafts", "load", "peak memory")


def show_speeds(about: dict[str, Any], results: list[TimingResult], ratios: list[Ratio]) -> None:
    """What was measured how, a line for each configuration, and the first over the others."""
    show_host(about)
    body = about["quantization"].get("body", "")
    print(
        f"{about['model']}: {body} body, {about['bits_per_weight']:.2f} bits a weight; "
        f"{about['prompt']} tokens read, {about['generate']} generated, "
        f"{about['repetitions']} times after a warm-up"
    )
    print_table(list(map(_row, results)), _HEADER, "Median (min to max)")
    if ratios:
        first = results[0].config.label
        pairs = [(f"{first} / {r.over}", _ratio(r.prefill), _ratio(r.decode)) for r in ratios]
        print_table(pairs, ("speed ratio", "prefill", "decode"), "Side by side, median (min to max)")


def _row(r: TimingResult) -> tuple[object, ...]:
    drafted = _speed(r.drafted) if r.drafted else ""
    speeds = _speed(r.prefill), _speed(r.decode), drafted
    return (r.config.label, r.facts["kv"], r.facts["threads"], *speeds, f"{r.load_s:.2f} s", size(r.peak_bytes))


def _speed(s: Spread) -> str:
    return f"{s.median:.1f} ({s.min:.1f} to {s.max:.1f}, spread {s.spread:.0%})"


def _ratio(s: Spread) -> str:
    return f"{s.median:.2f} ({s.min:.2f} to {s.max:.2f})"
