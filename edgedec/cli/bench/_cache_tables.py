"""The tables of `edgedec bench cache`."""

from __future__ import annotations

from typing import Any

from edgedec.cli._output import duration, print_table
from edgedec.cli.bench._about import runs_on, show_host


def show_report(r: dict[str, Any]) -> None:
    """Quality by task, costs, other engines."""
    show_host(r)
    print(f"{r['model']}: {runs_on(r)}. Lossy: {r['lossy']}")
    quality = r.get("quality", {})
    for task, found in quality.items():
        _show_task(task, found)
    if costs := _costs(r.get("policies", {}), ("memory_mb",), quality):
        title = "Costs; ratios: whole cache over policy; times: median (least to most)"
        print_table(costs, ("policy", *_COSTS, "memory MB", *quality), title)
    if costs := _costs(r.get("peers", {}), (), {}):
        title = "Other engines on the same weights; ratios: theirs over our whole cache"
        print_table(costs, ("engine", *_COSTS), title)


_COSTS = ("context", "prefill ratio", "step ratio", "prefill", "step ms")


def _show_task(task: str, found: dict[str, Any]) -> None:
    """A line for each policy, a column for each budget."""
    whole, policies = found["full"]["1"], {name: values for name, values in found.items() if name != "full"}
    budgets = sorted({budget for values in policies.values() for budget in values}, key=float)
    rows = [(name, *(f"{values[b]:.3f}" if b in values else "" for b in budgets)) for name, values in policies.items()]
    unit = "perplexity, lower is better" if task == "story" else "share that is right"
    header = ("policy", *("no budget" if b == "1" else f"{float(b):.0%}" for b in budgets))
    print_table(rows, header, f"{task}: {unit}; whole cache {whole:.3f}")


def _quality(words: str, quality: dict[str, Any]) -> list[str]:
    """What a policy, by its words, is worth in each task; "" if that was not measured."""
    from edgedec.bench.cache_quality import at_budgets

    found = []
    for policies in quality.values():
        by_words = {
            given: values[key]
            for name, values in policies.items()
            for key in values
            for given in at_budgets([name], [float(key)])
        }
        found.append(f"{by_words[words]:.3f}" if words in by_words else "")
    return found


def _time(f: dict[str, Any], key: str) -> str:
    """The median, and the spread where there is one."""
    if key not in f:
        return ""
    shown = duration if key == "prefill_s" else "{:.2f}".format
    least, most = (f.get(f"{key}_{end}", f[key]) for end in ("least", "most"))
    return shown(f[key]) if least == most else f"{shown(f[key])} ({shown(least)} to {shown(most)})"


def _costs(found: dict[str, Any], more: tuple[str, ...], quality: dict[str, Any]) -> list[tuple[str, ...]]:
    """A line for each name and context."""
    return [
        (
            name,
            context,
            f"{f['prefill_ratio']:.2f}" if "prefill_ratio" in f else "",
            f"{f['step_ratio']:.2f}",
            _time(f, "prefill_s"),
            _time(f, "step_ms"),
            *(f"{f[key]:.1f}" for key in more),
            *_quality(name, quality),
        )
        for name, contexts in found.items()
        for context, f in contexts.items()
    ]
