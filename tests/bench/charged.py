"""Speed over plain decoding where each call is charged what it costs at another geometry: the same on any machine.

    python tests/bench/charged.py --drafters auto,auto+exit,exit:layer=4 --categories story -n 96
    python tests/bench/charged.py --sweep 1,2,3,4,6 --categories story,dialogue --plot sweep.png
    python tests/bench/charged.py --as nano --call 1.6e-4 --row 0.225 --drafters auto --categories "" -r 3

The drafts are nano's own. A call of nano's blocks, of its head, of a draft layer takes the seconds that its
multiply-adds are of a call of the geometry `--as`, `--call`, and `--row` of that for each row more; everything else
that is done, drafting in Python too, takes the processor time of its thread, times `--python`. Clocks are set
accordingly, so that the governor decides by these seconds; what calls of the model itself cost here is not looked up.
A draft's readout is charged as one of 8,192 tokens.
Layers that nano lacks stand at the end and change nothing, so that an exit looks better than it is.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from time import thread_time
from typing import Any

import edgedec
from edgedec.bench.prompts import choose_prompts, read_prompts
from edgedec.bench.speculation import PLAIN, Bench, tasks_of
from edgedec.bench.speculation_results import results
from edgedec.bench.sweep import GAMMAS, ExitSweep
from edgedec.cli.bench._about import spec_list
from edgedec.cli.bench._sweep import names_of, plot_sweep, show, swept
from edgedec.export.geometry import GEOMETRIES, Geometry
from edgedec.runtime import Call, CallResult
from edgedec.runtimes.native import NativeRuntime
from edgedec.sampling import Sampling

SMALL = 8192
SIZES = GEOMETRIES | {
    "llama-7b": Geometry(32000, 4096, 11008, 32, 32, 32, 128),
    "nano": Geometry(4096, 128, 384, 14, 4, 2, 32),
}


def _new(found: dict[str, Any]) -> str:
    if not found["prompts"]:
        return ""
    low, high = found["interval"]
    return f", {found['speed_ratio_geometric']:.2f} ({low:.2f} to {high:.2f}) of answers that are no copies"


class Clock:
    """Seconds: the thread's own, without those of forward calls, and what calls were charged."""

    def __init__(self, g: Geometry, call: float, row: float, python: float) -> None:
        layer = g.hidden_size * ((2 * g.n_heads + 2 * g.n_kv_heads) * g.head_dim + 3 * g.intermediate_size)
        head = g.hidden_size * g.vocab_size
        whole = g.n_layers * layer + head
        self.layer, self.head, self.vocab, self.n_layers = layer / whole, head / whole, g.vocab_size, g.n_layers
        self._call, self._row, self._python = call, row, python
        self._charged = self._hidden = 0.0

    def __call__(self) -> float:
        return self._python * (thread_time() - self._hidden) + self._charged

    def charge(self, n_layers: int, calls: Sequence[Call]) -> float:
        """Seconds of one forward: the dearest of its calls, and a share for each row more."""
        shares = [self._share(n_layers, call) for call in calls]
        rows = sum(call.rows.count for call in calls)
        return self._call * max(shares) * (1 + self._row * (rows - 1))

    def _share(self, n_layers: int, call: Call) -> float:
        blocks = range(2 * n_layers) if call.blocks is None else call.blocks
        share, whole = 0.5 * len(blocks) * self.layer, n_layers > 1 and 2 * n_layers - 1 in blocks
        if whole:  # the target has more layers than nano
            share += (self.n_layers - n_layers) * self.layer
        if not call.outputs.head:
            return share
        return share + self.head * (1.0 if whole else min(1.0, SMALL / self.vocab))  # a draft's readout is trimmed

    def run(self, forward: Callable[..., list[CallResult]]) -> Callable[..., list[CallResult]]:
        """A runtime's forward, charged."""

        def charged(runtime: NativeRuntime, calls: Sequence[Call]) -> list[CallResult]:
            began = thread_time()
            found = forward(runtime, calls)
            self._hidden += thread_time() - began
            self._charged += self.charge(runtime.spec.n_layers, calls)
            return found

        return charged

    def set(self) -> None:
        """Make it the clock of everything that is loaded."""
        NativeRuntime.forward = self.run(NativeRuntime.forward)  # type: ignore[method-assign]
        for name, module in list(sys.modules.items()):
            for clock in ("perf_counter", "thread_time") if name.startswith("edgedec.") else ():
                if hasattr(module, clock):
                    setattr(module, clock, self)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", default="nano")
    parser.add_argument("--as", dest="geometry", default="llama-1b", choices=sorted(SIZES))
    parser.add_argument("--drafters", default="auto,exit")
    parser.add_argument("--categories", default="story")
    parser.add_argument("--limit", type=int, default=0)
    parser.add_argument("-n", type=int, default=96)
    parser.add_argument("--sweep", default="", help="exits: each with every length, beside what DEL chooses")
    parser.add_argument("--plot", type=Path, help="of the sweep")
    parser.add_argument("-r", type=int, default=1, help="rounds, each of new sessions")
    parser.add_argument("--call", type=float, default=0.035, help="seconds of a call of one row")
    parser.add_argument("--python", type=float, default=1.0, help="what the processor time of Python counts for")
    parser.add_argument("--temp", type=float, default=0.0, help="temperature, with seed 0; 0: greedy")
    parser.add_argument("--row", type=float, default=0.025, help="what a row more costs, in calls")
    args = parser.parse_args()
    prompts = choose_prompts(read_prompts(None), args.categories.split(",") if args.categories else [], args.limit)
    sweep = ExitSweep([int(part) for part in args.sweep.split(",")], GAMMAS[:4]) if args.sweep else None
    tasks = tasks_of(prompts, Sampling(temperature=args.temp, seed=0 if args.temp else None), 0)
    names = names_of(sweep) if sweep else spec_list(args.drafters)
    if args.geometry != "nano":
        os.environ["EDGEDEC_CACHE"] = tempfile.mkdtemp()
    bench = Bench(edgedec.open(args.model, engine="native", threads=1), tasks, args.n)
    runtime: Any = bench.model.runtime
    runtime.capabilities = replace(runtime.capabilities, steps=None)  # every call is a forward
    for name in (*names, PLAIN):
        bench.model.session(speculate=name)  # loads their modules
    Clock(SIZES[args.geometry], args.call, args.row, args.python).set()
    report: dict[str, Any] = results(bench.measure(names, args.r), tasks)
    found: dict[str, Any] = report["drafters"]
    for name, drafter in found.items():
        ratios = [ratio for ratio in drafter["speed_ratios"] if ratio is not None]
        by = ", ".join(f"{k} {v['speed_ratio_mean']:.2f}" for k, v in drafter["by_category"].items())
        print(
            f"{name}: {drafter['speed_ratio_mean']:.2f} in the mean, "
            f"{statistics.geometric_mean(ratios):.2f} geometric{_new(drafter['not_copied'])}, "
            f"{min(ratios):.2f} at least, "
            f"{drafter['tokens_per_call']:.2f} tokens a call, {drafter['between_calls']:.1%} between calls, "
            f"{'the same text' if drafter['identical'] else 'ANOTHER TEXT'}; {by}",
            flush=True,
        )
    if sweep:
        host = {"cpu": f"charged as {args.geometry}"}
        report |= {"model": args.model, "threads": 1, "host": host, "sweep": swept(sweep, report)}
        show(report)
        if args.plot:
            plot_sweep(report, args.plot)


if __name__ == "__main__":
    main()
