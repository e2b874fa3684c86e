"""What cache policies save, and what they lose."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgedec.cli import _flags as o
from edgedec.cli._output import progress_bar
from edgedec.cli.bench._about import end_if_interrupted, expect, names_in, parse_rows, spec_list
from edgedec.cli.bench._cache_tables import show_report
from edgedec.cli.bench._flags import OutputFlags, RuntimeFlags, SubjectFlags
from edgedec.cli.bench._plot_cache import plot_cache

if TYPE_CHECKING:
    from edgedec.model import Model

_NAME = "bench cache"
app = typer.Typer(add_completion=False, rich_markup_mode=None)


@dataclass(frozen=True)
class QualityFlags:
    """The policies, and the tasks that show what they lose."""

    policies: Annotated[str, o.option(metavar="NAME,…", help="As --cache takes them; default: all.")] = ""
    budgets: Annotated[str, typer.Option(metavar="X,X,…", help="Shares of the tokens, of quality and costs.")] = (
        "0.1,0.2,0.5"
    )
    tasks: Annotated[
        str,
        o.option(
            metavar="NAME,…",
            help="Of quality: story,copy,needle,pairs,keys; default: all, with --as none. With --as they are done by "
            "the model itself.",
        ),
    ] = ""
    text: Annotated[Path | None, o.option(metavar="FILE", help="Stories; default: the model's own.")] = None
    limit: Annotated[int, typer.Option(min=1, help="Cases of a task.")] = 4

    def shares(self) -> list[float]:
        try:
            found = [float(part) for part in self.budgets.split(",")]
        except ValueError:
            found = []
        if not found or not all(0 < share <= 1 for share in found):
            raise typer.BadParameter(f"--budgets {self.budgets}: must be numbers above 0, up to 1, with commas between")
        return found

    def chosen(self, geometry: str | None) -> list[str]:
        """The tasks."""
        from edgedec.bench.cache_quality import TASKS

        if not self.tasks:
            return [] if geometry else list(TASKS)
        found = [part.strip() for part in self.tasks.split(",")]
        for task in found:
            if task not in TASKS:
                raise typer.BadParameter(f"--tasks {self.tasks}: no task {task!r}; there are: {', '.join(TASKS)}")
        return found

    def measure(self, model: Model, tasks: list[str], names: Sequence[str], show: Any) -> dict[str, Any]:
        """The part of the report on quality."""
        from edgedec.bench.cache_quality import QualityBench

        text, shares = "" if self.text is None else o.read_text(self.text), self.shares()
        bench = QualityBench(model, tasks, model.spec.context_length, self.limit, text)
        began = perf_counter()
        one = bench.measure([], [], lambda done, total: None)
        if not one.interrupted:
            expect(_NAME)((perf_counter() - began) * len(names) * len(shares))
            one = bench.measure(names, shares, partial(show, "quality"))
        return {"quality": one.report(), "interrupted": one.interrupted}


@dataclass(frozen=True)
class CostFlags:
    """How costs are measured, and beside what."""

    steps: Annotated[
        bool, typer.Option("--steps", help="Costs of steps only: long prompts are filled in, not read.")
    ] = False
    repetitions: Annotated[int, typer.Option("--repetitions", "-r", min=1, help="Rounds of costs.")] = 5
    peers: Annotated[str, o.option(metavar="NAME,…", help="Other engines beside costs: llama.cpp.")] = ""

    def beside(self) -> list[str]:
        """The other engines."""
        from edgedec.bench.llama_weights import LLAMA

        found = names_in(self.peers)
        for name in found:
            if name != LLAMA:
                raise typer.BadParameter(
                    f"--peers {self.peers}: no engine {name!r} to compare with; there are: {LLAMA}"
                )
        return found

    def measure(self, model: Model, path: str, contexts: Sequence[int], names: list[str], show: Any) -> dict[str, Any]:
        """The part of the report on costs."""
        from edgedec.bench.cache_cost import STEPS, CostBench
        from edgedec.bench.cache_peers import Peer, opened_peers

        threads = model.runtime.capabilities.threads
        none: AbstractContextManager[tuple[dict[str, Peer], dict[str, str]]] = nullcontext(({}, {}))
        others = opened_peers(model, path, threads, STEPS, self.steps) if self.beside() else none
        with others as (engines, skipped):
            _say_left_out(skipped)
            bench = CostBench(model, contexts, names, self.steps, engines)
            result = bench.measure(self.repetitions, partial(show, "costs"), expect(_NAME))
        _say_left_out(result.peers.left_out)
        skipped |= result.peers.left_out
        return {
            "rounds": self.repetitions,
            "policies": result.report(),
            "interrupted": result.interrupted,
            **({"peers": result.peer_report()} if engines else {}),
            **({"skipped": skipped} if skipped else {}),
        }


@app.command()
@o.grouped
def cache(
    *,
    subject: SubjectFlags,
    context: Annotated[str, o.option("--context", metavar="N,N,…", help="Costs after so many tokens.")] = "",
    quality: QualityFlags,
    costs: CostFlags,
    machine: RuntimeFlags,
    output: OutputFlags,
) -> None:
    """Measure what cache policies save and what they lose, beside the whole cache.

    Quality is measured on the model itself; with --context or --as also reading time, step time and memory after
    prompts of so many tokens, all in one table. Ratios are of the whole cache over the policy: below 1 it is slower. It
    says first how long it may take; Ctrl-C ends it with what was measured so far.

    \b
    Examples:
      edgedec bench cache
      edgedec bench cache --tasks copy --policies snapkv,h2o --limit 1
      edgedec bench cache --as smollm-135m --context 8192,32768 --kv int8 --tasks keys,copy,story
      edgedec bench cache --as smollm-135m --context 8192,32768 --policies lserve,quest,sentencekv --steps
      edgedec bench cache --as smollm-135m --context 8192 --kv int8 --policies fastkv --peers llama.cpp
    """
    output.check()
    contexts = parse_rows(context, "--context") if context else ()
    if subject.geometry and not contexts:
        contexts = (2048, 8192)
    from edgedec.bench.cache_quality import at_budgets

    names = spec_list(quality.policies)
    shares, tasks, _ = quality.shares(), quality.chosen(subject.geometry), costs.beside()  # invalid options fail here
    with progress_bar() as show:
        path = subject.path(show, max(contexts, default=0) + 128)
        opened = machine.open(path)
        for name in names:
            opened.policy(name)  # the same
        names = names or _usable(opened)
        report = _begun(opened, subject.geometry)
        if tasks:
            own = machine.open(subject.model) if subject.geometry else opened
            report |= quality.measure(own, tasks, names, show)
        if contexts and not report["interrupted"]:
            report |= costs.measure(opened, path, contexts, list(at_budgets(names, shares)), show)
    output.write(report, show_report, plot_cache)
    end_if_interrupted(report["interrupted"])


def _begun(model: Model, geometry: str | None) -> dict[str, Any]:
    """The report before anything is measured."""
    from edgedec.bench.report import describe_opened

    return {
        **describe_opened(model, model.runtime.capabilities.threads),
        "as": geometry,
        "lossy": "every policy: another text than with the whole cache",
        "interrupted": False,
    }


def _usable(model: Model) -> list[str]:
    """The policies that model and engine support; the others are reported with the reason."""
    from edgedec.errors import UsageError
    from edgedec.policies import FAMILY

    found = []
    for name in FAMILY.names():
        if name == "vision":
            continue  # drops rows of images, of which these texts have none
        try:
            model.policy(name)
            found.append(name)
        except UsageError as error:
            print(f"edgedec {_NAME}: left out: {error}", file=sys.stderr)
    return found


def _say_left_out(reasons: dict[str, str]) -> None:
    for name, reason in reasons.items():
        print(f"edgedec {_NAME}: left out: {name}: {reason}", file=sys.stderr)
