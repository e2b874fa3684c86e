"""`edgedec train-experts`: split a dense checkpoint into experts by domains of text."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from edgedec.cli import _flags as o
from edgedec.cli._exporting import encoder_of, export_module
from edgedec.cli._output import print_json, progress_bar
from edgedec.cli._own_texts import work_folder
from edgedec.errors import UsageError
from edgedec.storage.files import replacing_folder

app = typer.Typer(add_completion=False, rich_markup_mode=None)
_FEWEST = 2


@dataclass(frozen=True)
class ExpertFlags:
    """The split, the router and the rounds."""

    split_tokens: Annotated[int, typer.Option(min=1, help="Tokens of each domain that choose its neurons.")] = 65536
    router_size: Annotated[int, typer.Option(min=2, help="Values of the router's stream.")] = 64
    router_heads: Annotated[int, typer.Option(min=1, help="Heads of the router's attention.")] = 2
    rounds: Annotated[int, typer.Option(min=0, help="Of training, router and model by turns.")] = 5
    router_steps: Annotated[int, typer.Option(min=1, help="Updates of the router in a round.")] = 100
    model_steps: Annotated[int, typer.Option(min=0, help="Updates of the model in a round; 0: the router alone.")] = 200
    router_rate: Annotated[float, typer.Option(min=0.0, help="Highest learning rate of the router.")] = 1e-3
    rate: Annotated[float, typer.Option(min=0.0, help="Highest learning rate of the model.")] = 5e-5
    batch: Annotated[int, typer.Option(min=1, help="Rows of an update.")] = 8
    length: Annotated[int, typer.Option(min=8, help="Tokens of a row.")] = 256
    work: Annotated[
        Path | None,
        o.option(metavar="FOLDER", help="Keep checkpoints there; an interrupted run continues from them."),
    ] = None
    seed: Annotated[int, typer.Option(min=0, help="Of the router's first weights and the batches.")] = 0
    threads: o.Threads = 0


@app.command()
@o.grouped
def train_experts(
    *,
    checkpoint: Annotated[str, typer.Argument(metavar="PATH", help="Hugging Face folder of the model, or a bundle.")],
    domains: Annotated[
        list[Path],
        typer.Argument(metavar="DOMAIN", help='Texts, a file for each domain: .txt, or .jsonl with "text".'),
    ],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FOLDER", help="Where the trained checkpoint goes.")],
    how: ExpertFlags,
    force: Annotated[bool, typer.Option("--force", help="Replace FOLDER if it exists.")] = False,
    json: o.Json = False,
) -> None:
    """Split a dense model into experts by domains.

    Each domain keeps half of every feed-forward; a small router reads the tokens and chooses the expert of each for all
    layers. `edgedec export FOLDER` makes a bundle of what is written.

    \b
    Examples:
      edgedec train-experts ./smol-hf stories.txt code.txt wiki.txt -o ./smol-experts --work build/experts
      edgedec train-experts ./smol-hf stories.txt code.txt -o ./smol-two --rounds 3 --router-size 32
    """
    start, training, rows = (
        export_module(name, "train-experts", "train") for name in ("diffusion_start", "experts_train", "row_training")
    )
    if out.exists() and not force:
        raise UsageError(f"{out}: exists already; choose another place or pass --force")
    if len(domains) < _FEWEST or len({path.stem for path in domains}) < len(domains):
        raise UsageError("train-experts: give two domains or more, in files of different names")
    with progress_bar(quiet=json) as show, work_folder(how.work) as room:
        folder = start.checkpoint_folder(checkpoint, room)
        net, encode = training.DomainNet(folder), encoder_of(folder, "train-experts")
        if how.length > net.spec.context_length:
            raise UsageError(f"--length {how.length}: the model reads at most {net.spec.context_length} tokens")
        sizes, how_long = (how.router_size, how.router_heads), (how.split_tokens, how.length, how.seed)
        made = training.split(net, domains, encode, *how_long, sizes)
        quality = partial(training.measure, made, domains, encode, how.length, how.seed)
        before = quality()
        key = rows.key_of(sorted(folder.glob("*.safetensors")), domains, how_said(how))
        _rounds(made, domains, encode, how, key, show)
        with replacing_folder(out, force=force) as to:
            made.write(to)
        after = quality()
    _report(out, before, after, json)


def how_said(how: ExpertFlags) -> Any:
    """The flags that a checkpoint depends on."""
    from dataclasses import replace

    return replace(how, work=None, threads=0)


def _rounds(made: Any, domains: list[Path], encode: Any, how: ExpertFlags, key: str, show: Any) -> None:
    """The router and the model by turns; each goes on in the texts where the one before it ended."""
    from edgedec.runtime import available_cores

    training, loop = (export_module(name, "train-experts", "train") for name in ("experts_train", "training_loop"))
    place, threads = training.Place(), how.threads or available_cores()
    stages = [("router", training.RouterTrainer, how.router_steps, how.router_rate)]
    if how.model_steps:
        stages.append(("model", training.ModelTrainer, how.model_steps, how.rate))
    for number in range(how.rounds):
        for name, trainer, steps, rate in stages:
            highest = rate * training.ROUND_FACTOR**number
            plan = training.StagePlan(steps, highest, how.batch, how.length, how.seed, threads)
            stage = trainer(made, domains, encode, plan, place)
            file = None if how.work is None else how.work / f"{name}-{number}.safetensors"
            loop.train(stage, file, f"{key} {name} {number}", partial(_as_stage, show, f"{name} {number + 1}"))
            place = stage.place


def _as_stage(show: Any, name: str, stage: str, done: int, total: int) -> None:
    """Progress of a stage, a bar for each."""
    show(name, done, total)


def _report(out: Path, before: dict[str, Any], after: dict[str, Any], json: bool) -> None:
    if json:
        found = {name: asdict(one) | {"before": asdict(before[name])} for name, one in after.items()}
        print_json({"path": str(out), "domains": found})
        return
    print(f"{out}: nats a token on texts held back, and how often a token's expert is the domain's own")
    for name, one in after.items():
        print(
            f"  {name}: dense {before[name].dense:.3f}; experts {before[name].routed:.3f} before training, "
            f"{one.routed:.3f} after, {one.random:.3f} at random; {one.own:.0%}"
        )
