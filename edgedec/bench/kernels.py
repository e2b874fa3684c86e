"""The cost of a call by number of rows beside this host's limits, and of MoE blocks by distinct experts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from edgedec.bench.ceilings import Ceilings
from edgedec.bench.experts import alone, expert_costs
from edgedec.bench.row_costs import Work, row_costs
from edgedec.bench.timing import Spread

if TYPE_CHECKING:
    from edgedec.model import Model

# Rows of the calls by number of experts.
_EXPERT_ROWS = 16


def kernel_costs(
    model: Model,
    counts: Sequence[int],
    context: int,
    repetitions: int,
    threads: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """What calls of so many rows after `context` tokens cost, as JSON: keys are numbers of rows."""
    work = Work.of(model.bundle.manifest)
    ceilings = Ceilings(threads, work.weight_bytes)

    def after(done: int) -> None:
        ceilings.probe()
        progress(done, repetitions + 1)

    seconds = row_costs(model.runtime, counts, context, repetitions, after)
    by_experts = _by_experts(model, repetitions)
    costs = {k: Spread.of([1000 * s for s in seconds[k]]) for k in counts}
    return {
        **_rates({k: cost.median for k, cost in costs.items()}, work, ceilings),
        "spread": {str(k): asdict(cost) for k, cost in costs.items()},
        "experts": by_experts,
    }


def _by_experts(model: Model, repetitions: int) -> dict[str, Any] | None:
    """ms of a call through the mixture-of-experts blocks by number of distinct experts; None without such blocks."""
    blocks = alone(model.bundle)
    if not blocks:
        return None
    most = max(block.n_experts for block in blocks.values())
    wanted = [2**i for i in range(most.bit_length()) if 2**i <= most]
    seconds = expert_costs(model.runtime, model.bundle, wanted, _EXPERT_ROWS, repetitions)
    costs = {str(n): asdict(Spread.of([1000 * s for s in each])) for n, each in seconds.items()}
    return {"rows": _EXPERT_ROWS, "blocks": len(blocks), "ms": costs}


def _rates(ms: dict[int, float], work: Work, ceilings: Ceilings) -> dict[str, Any]:
    """Everything that follows from the medians."""
    read, int8 = ceilings.read_gb_s, ceilings.int8_gmac_s
    return {
        "rows": {str(k): cost for k, cost in ms.items()},
        "ratio": {str(k): cost / ms[1] for k, cost in ms.items()} if 1 in ms else None,
        "gb_s": {str(k): work.weight_bytes / cost / 1e6 for k, cost in ms.items()},
        "gmac_s": {str(k): work.macs * k / cost / 1e6 for k, cost in ms.items()},
        "weight_bytes_per_call": work.weight_bytes,
        "macs_per_row": work.macs,
        "ceilings": ceilings.to_json(),
        "floor_ms": {
            "read": read and {str(k): work.weight_bytes / read / 1e6 for k in ms},
            "int8": int8 and {str(k): work.macs * k / int8 / 1e6 for k in ms},
        },
    }
