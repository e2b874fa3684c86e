"""Results of the runs of `edgedec.bench.speculation`: speed ratios, tokens a call, acceptance by depth."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from math import exp, log
from typing import Any

import numpy as np

from edgedec.bench.speculation import PLAIN, Measured, Run, Runs, Task
from edgedec.errors import UsageError

_RESAMPLES = 2000
# Categories whose answers copy the prompt; `random` repeats in a loop.
COPIES = ("edit", "quotes", "code", "random")


def results(measured: Measured, tasks: Sequence[Task]) -> dict[str, Any]:
    """{"plain_tok_s", "counted", "drafters": {name: …}}, fit for JSON. Tasks with nothing to measure are left out.

    All figures but those by category are of tasks that the model did not read in training, if there is one."""
    plain = measured.runs[PLAIN]
    usable = [i for i in range(len(tasks)) if all(rep[i].tokens for runs in measured.runs.values() for rep in runs)]
    if not usable:
        raise UsageError("every answer ended at once: ask for more tokens, or pass --ignore-eos")
    short = len(tasks) - len(usable)
    notes = [
        *measured.notes,
        *([f"left out {short} of {len(tasks)} tasks: nothing came after the first call"] if short else []),
    ]
    counted = [i for i in usable if tasks[i].seen != "seen"] or usable
    return {
        "plain_tok_s": _speed(plain, counted),
        "seen": dict(Counter(tasks[i].seen for i in usable)),
        "counted": sorted({tasks[i].seen for i in counted}),
        "drafters": {
            name: _drafter(plain, runs, tasks, usable, counted) for name, runs in measured.runs.items() if name != PLAIN
        },
        "skipped": measured.skipped,
        "notes": notes,
    }


def _drafter(
    plain: Runs, runs: Runs, tasks: Sequence[Task], usable: Sequence[int], counted: Sequence[int]
) -> dict[str, Any]:
    ratios = {i: _ratio(plain, runs, i) for i in usable}
    low, high = interval([ratios[i] for i in counted])
    categories = dict.fromkeys(tasks[i].category for i in usable)
    differ = [i for i in range(len(tasks)) if any(a[i].ids != b[i].ids for a, b in zip(plain, runs, strict=True))]
    some = _all(runs, counted)
    return {
        **_summary(runs, ratios, counted),
        "speed_ratio_interval": [low, high],
        "not_copied": _not_copied([ratios[i] for i in counted if tasks[i].category not in COPIES]),
        "tok_s": _speed(runs, counted),
        "identical": not differ,
        "differ": differ,
        "by_category": {
            category: _summary(runs, ratios, [i for i in usable if tasks[i].category == category])
            for category in categories
        },
        "proposed": sum(run.proposed for run in some),
        "accepted": sum(run.accepted for run in some),
        "accepted_by": {name: n for name, n in sum((run.by for run in some), Counter[str]()).items() if name},
        "outside_calls": 1 - sum(run.forward_s for run in some) / sum(run.seconds for run in some),
        "between_calls": sum(run.between_s for run in some) / sum(run.seconds for run in some),
        **_depths(some),
        "speed_ratios": [ratios.get(i) for i in range(len(tasks))],
    }


def _summary(runs: Runs, ratios: Mapping[int, float], tasks: Sequence[int]) -> dict[str, Any]:
    some = _all(runs, tasks)
    return {
        "prompts": len(tasks),
        "speed_ratio_mean": statistics.fmean(ratios[i] for i in tasks),
        "speed_ratio_geometric": exp(statistics.fmean(log(ratios[i]) for i in tasks)),
        "speed_ratio_min": min(ratios[i] for i in tasks),
        "tokens_per_call": sum(run.tokens for run in some) / sum(run.calls for run in some),
    }


def _not_copied(ratios: Sequence[float]) -> dict[str, Any]:
    """Of prompts whose answers are new: how many, the geometric mean of their ratios, and where it lies."""
    if not ratios:
        return {"prompts": 0, "speed_ratio_geometric": None, "interval": None}
    low, high = interval([log(ratio) for ratio in ratios])
    mean = exp(statistics.fmean(map(log, ratios)))
    return {"prompts": len(ratios), "speed_ratio_geometric": mean, "interval": [exp(low), exp(high)]}


def _ratio(plain: Runs, runs: Runs, task: int) -> float:
    """How much faster than plain decoding beside it: median over the repetitions."""
    pairs = [(a[task], b[task]) for a, b in zip(plain, runs, strict=True)]
    return statistics.median(a.seconds / a.tokens / (b.seconds / b.tokens) for a, b in pairs)


def _speed(runs: Runs, tasks: Sequence[int]) -> float:
    """Tokens a second, each task at its median."""
    each = [statistics.median(rep[i].seconds / rep[i].tokens for rep in runs) for i in tasks]
    tokens = [runs[0][i].tokens for i in tasks]
    return sum(tokens) / sum(n * s for n, s in zip(tokens, each, strict=True))


def _depths(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """Of the drafts that went as deep as 1, 2, 3 …: how many there were, and what share was accepted so far."""
    drafted = sum((run.drafted_at for run in runs), Counter[int]())
    accepted = sum((run.accepted_at for run in runs), Counter[int]())
    depths = range(1, max(drafted, default=0) + 1)
    return {
        "drafts_by_depth": [drafted[d] for d in depths],
        "acceptance_by_depth": [accepted[d] / drafted[d] for d in depths],
    }


def _all(runs: Runs, tasks: Sequence[int]) -> list[Run]:
    return [repetition[i] for repetition in runs for i in tasks]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95% bootstrap interval of the mean."""
    found = np.asarray(values)
    means = np.random.default_rng(0).choice(found, (_RESAMPLES, len(found))).mean(axis=1)
    low, high = np.quantile(means, (0.025, 0.975))
    return float(low), float(high)
