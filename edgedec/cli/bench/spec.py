"""The speed of each drafter, beside plain decoding."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgedec.cli import _flags as o
from edgedec.cli._output import print_table, progress_bar
from edgedec.cli.bench import _sweep
from edgedec.cli.bench._about import end_if_interrupted, expect, names_in, plural, show_header, spec_list
from edgedec.cli.bench._flags import OutputFlags, Prompts, Rounds, RuntimeFlags, SubjectFlags
from edgedec.cli.bench._plot import plot_spec
from edgedec.cli.bench._sweep import SweepFlags

if TYPE_CHECKING:
    from edgedec.bench.prompts import Prompt
    from edgedec.bench.speculation import Task
    from edgedec.bundle.folder import Bundle

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@dataclass(frozen=True)
class TaskFlags:
    """What is generated, by which drafters, how often."""

    prompts: Prompts = "own"
    drafters: Annotated[str, o.option(metavar="NAME,…", help="As --spec takes them; default: auto, and all.")] = ""
    categories: Annotated[str, o.option(metavar="NAME,…", help="Of these only.")] = ""
    limit: Annotated[int, typer.Option(min=0, help="Prompts of a category; 0 takes all.")] = 0
    sample: Annotated[int, typer.Option(min=0, help="Draw so many of these prompts by --seed; 0 takes all.")] = 0
    generate: Annotated[int, typer.Option("--generate", "-n", min=2, help="Tokens to generate a prompt.")] = 128
    repetitions: Rounds = 3
    temp: Annotated[float, typer.Option("--temp", "--temperature", min=0, help="0 is greedy.")] = 0.0
    seed: Annotated[int, typer.Option(min=0, help="Sampling seed, reset for each prompt.")] = 0
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on after the model's end token.")] = False

    def chosen(self) -> list[Prompt]:
        from edgedec.bench.prompts import choose_prompts, prompts_named

        found = prompts_named(self.prompts)
        return choose_prompts(found, names_in(self.categories), self.limit, self.sample, self.seed)

    def tasks(self, prompts: Sequence[Prompt], bundle: Bundle) -> list[Task]:
        from edgedec.bench.speculation import tasks_of
        from edgedec.sampling import Sampling

        return tasks_of(prompts, Sampling(temperature=self.temp, seed=self.seed), self.seed, bundle)

    def facts(self) -> dict[str, Any]:
        """For the report."""
        return {
            "prompt_set": self.prompts,
            "generate": self.generate,
            "repetitions": self.repetitions,
            "temperature": self.temp,
            "seed": self.seed,
        }


@app.command()
@o.grouped
def spec(
    *,
    subject: SubjectFlags,
    runs: TaskFlags,
    machine: RuntimeFlags,
    sweep: SweepFlags,
    output: OutputFlags,
) -> None:
    """Measure what each drafter gains, prompt by prompt.

    It says first how long it may take; Ctrl-C ends it with what was measured so far.
    Plain decoding and all drafters take turns on the same prompts; their answers must be the same. With --as
    the model is padded to the sizes of a larger one: its own text, at that one's cost (kept in the cache folder).
    Prompts that the model or its heads read in training (the bundle has a record) are marked and not counted.

    \b
    Examples:
      edgedec bench spec
      edgedec bench spec --as smollm-135m --drafters auto --limit 1 -n 64 -r 1
      edgedec bench spec -m ./smol --prompts specbench=question.jsonl --sample 20 --drafters auto,copy --json
      edgedec bench spec --sweep exit --exits 2,4,6 --lengths 1,2,4 --categories story --plot sweep.png
    """
    from edgedec.bench.report import describe_opened
    from edgedec.bench.speculation import Bench
    from edgedec.bench.speculation_results import results

    sweep.check(runs.drafters)
    prompts = runs.chosen()
    output.check()
    with progress_bar() as show:
        opened = machine.open(subject.path(show))
        tasks = runs.tasks(prompts, opened.bundle)
        bench = Bench(opened, tasks, runs.generate, runs.ignore_eos)
        grid = sweep.pairs(opened.spec.n_layers)
        names = _sweep.names_of(grid) if grid else _drafters(runs.drafters) or _every_drafter()
        may_lack = not (runs.drafters or grid)
        measured = bench.measure(names, runs.repetitions, may_lack, partial(show, "runs"), expect("bench spec"))
        tasks = tasks[: measured.tasks]
    report = {
        **describe_opened(opened, machine.used),
        "as": subject.geometry,
        **runs.facts(),
        "prompts": len(prompts),
        "tasks": [{"category": t.category, "begins": t.prompt.turns[0][:40], "seen": t.seen} for t in tasks],
        **results(measured, tasks),
    }
    for note in report["notes"]:
        print(f"edgedec bench spec: {note}", file=sys.stderr)
    if grid is not None:
        report["sweep"] = _sweep.swept(grid, report)
        output.write(report, _sweep.show, _sweep.plot_sweep)
    else:
        output.write(report, _show, plot_spec)
    end_if_interrupted(measured.interrupted)


def _drafters(text: str) -> list[str]:
    """Plain decoding takes part anyway."""
    return [name for name in spec_list(text) if name != "off"]


def _every_drafter() -> list[str]:
    from edgedec.drafters import FAMILY

    return ["auto", *(name for name in FAMILY.names() if name != "off")]


def _show(r: dict[str, Any]) -> None:
    sampled = f"temperature {r['temperature']:g}" if r["temperature"] else "greedy"
    show_header(
        r,
        f"{plural(r['prompts'], 'prompt')}, {r['generate']} tokens each, {sampled}, "
        f"{plural(r['repetitions'], 'round')} after a warm-up",
    )
    print(f"plain decoding: {r['plain_tok_s']:.1f} tokens/s")
    print(_counted(r["seen"]))
    drafters = r["drafters"]
    title = "Speed over plain decoding beside it: mean and geometric mean, that without copies (95% intervals)"
    print_table([(name, *_cells(d)) for name, d in drafters.items()], _HEADER, title)
    if drafters:
        categories = list(next(iter(drafters.values()))["by_category"])
        table = [(name, *(_pair(d["by_category"][c]) for c in categories)) for name, d in drafters.items()]
        title = "By category, of all prompts: mean speed ratio (least), tokens a call"
        print_table(table, ("drafter", *categories), title)
    for name, reason in r["skipped"].items():
        print(f"\nleft out {name}: {reason}")


_HEADER = (
    *("drafter", "speed ratio", "geometric", "not copies", "least", "tokens/call", "tokens/s"),
    *("between calls", "accepted", "by depth", "same text"),
)


def _cells(d: dict[str, Any]) -> tuple[str, ...]:
    """The line of one drafter."""
    low, high = d["speed_ratio_interval"]
    return (
        f"{d['speed_ratio_mean']:.2f} ({low:.2f} to {high:.2f})",
        f"{d['speed_ratio_geometric']:.2f}",
        _geometric(d["not_copied"]),
        f"{d['speed_ratio_min']:.2f}",
        f"{d['tokens_per_call']:.2f}",
        f"{d['tok_s']:.1f}",
        f"{d['between_calls']:.1%}",
        _percent(d["accepted"], d["proposed"]),
        " ".join(f"{share:.2f}" for share in d["acceptance_by_depth"][:6]),
        "yes" if d["identical"] else f"no ({len(d['differ'])} differ)",
    )


def _counted(seen: dict[str, int]) -> str:
    """Which prompts the figures are of."""
    parts = ", ".join(f"{seen[word]} {word}" for word in ("seen", "unseen", "unknown") if word in seen)
    if set(seen) == {"seen"}:
        return f"read in training: {parts}; no other is left, so the figures are of these"
    note = "; unknown (no record of what the model or a head has read) count as unseen" if "unknown" in seen else ""
    return f"read in training: {parts}{note}" + ("; the figures leave out those seen" if "seen" in seen else "")


def _geometric(found: dict[str, Any]) -> str:
    if not found["prompts"]:
        return ""
    return f"{found['speed_ratio_geometric']:.2f} ({found['interval'][0]:.2f} to {found['interval'][1]:.2f})"


def _pair(numbers: dict[str, float]) -> str:
    return f"{numbers['speed_ratio_mean']:.2f} ({numbers['speed_ratio_min']:.2f}) {numbers['tokens_per_call']:.2f}"


def _percent(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else ""
