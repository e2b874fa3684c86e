"""`edgedec train-heads` for draft models with attention: the texts are streamed, the result is imported."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha256
from itertools import islice
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgedec.cli._output import print_json
from edgedec.cli._own_texts import opening_length, said_after, work_folder
from edgedec.errors import UsageError
from edgedec.storage.files import replacing, replacing_folder

if TYPE_CHECKING:
    import edgedec

Progress = Callable[[str, int, int], None]
_OPENINGS = 4096  # documents whose openings the model may continue


def distill(
    model: edgedec.Model,
    data: list[Path],
    plan: Any,
    self_distill: int,
    work: Path | None,
    keep: Path | None,
    target: Path | None,
    force: bool,
    show: Progress,
) -> dict[str, Any]:
    """Train, write the checkpoint folder, import it into the bundle (a copy at `target`) -> the report."""
    from edgedec.export import heads_distill, training_loop
    from edgedec.export.exits_data import documents
    from edgedec.export.read_record import add_read

    if keep is not None and keep.exists() and not force:
        raise UsageError(f"{keep}: exists already; choose another place with --checkpoint, or pass --force")
    with work_folder(work) as room:
        files = list(data)
        if self_distill:
            files.insert(0, _written(model, data, self_distill, plan.seed, room, show))  # read even if time is short
        trainer = heads_distill.Distiller(model.bundle, model.runtime, files, model.tokenizer.encode, plan)
        key = heads_distill.key_of(model.bundle, model.runtime, files, plan)
        path = None if work is None else work / f"{plan.kind}.checkpoint.safetensors"
        loss = training_loop.train(trainer, path, key, show)
        with replacing_folder(keep or room / f"{plan.kind}-checkpoint", force=force or keep is None) as folder:
            trainer.write(folder, model.bundle.manifest.name)
        bundle, kind = heads_distill.imported(model.bundle, keep or room / f"{plan.kind}-checkpoint", target, force)
    bundle = add_read(bundle, (kind,), (text for path in data for text in documents(path)))
    quality = trainer.measure()
    return {
        "bundle": str(bundle.path),
        "digest": bundle.digest,
        "kind": kind,
        "checkpoint": None if keep is None else str(keep),
        "parameters": sum(w.numel() for w in trainer.weights.values()),
        "steps": trainer.steps,
        "loss": loss,
        "accuracy": list(quality.accuracy),
        "run": quality.run,
        "vocab": trainer.shape.kept,
        "covered": quality.covered,
    }


def _written(model: edgedec.Model, data: list[Path], n: int, seed: int, room: Path, show: Progress) -> Path:
    """A file of `n` texts that the model generated from openings of the data; existing texts are used again."""
    from edgedec.export.exits_data import documents

    weights = model.bundle.manifest.files[model.bundle.manifest.weights].sha256
    said = sha256(dumps([weights, model.runtime.name, n, seed]).encode())
    found = list(islice((text for path in data for text in documents(path)), _OPENINGS))
    for text in found:
        said.update(text.encode())
    kept = room / f"written-{said.hexdigest()[:16]}.jsonl"
    if not kept.exists():
        ids = continued(model, [model.tokenizer.encode(text) for text in found], n, seed, show)
        lines = [dumps({"text": model.tokenizer.decode(one)}) + "\n" for one in ids]
        with replacing(kept) as file:
            file.write("".join(lines).encode())
    return kept


def continued(model: edgedec.Model, texts: list[list[int]], n: int, seed: int, show: Progress) -> Iterator[list[int]]:
    """Openings from places in the data, continued by the model, greedily and sampled by turns."""
    import numpy as np

    rng, session = np.random.default_rng(seed), model.session(speculate="off")
    openings = [text for text in texts if text]
    for i in range(n):
        text = openings[i % len(openings)]
        length = opening_length(rng)
        # If a text is used several times, later places of it; each begins with the tokens before every text.
        at = 0 if i < len(openings) else int(rng.integers(0, max(1, len(text) - length)))
        begin = text[:1] if at and model.bundle.manifest.text.bos == text[0] else []
        opening = [*begin, *text[at : at + length]]
        yield [*opening, *said_after(model, session, opening, seed, i)]
        show("write", i + 1, n)


def plan_of(training: Any, **options: Any) -> Any:
    """The plan of the options that were given."""
    plan = training.DistillPlan(**{name: value for name, value in options.items() if value is not None})
    facts = training.facts_of(plan.kind)
    if facts.trimmed:
        return plan
    width = plan.width if facts.wide else 0
    return replace(plan, keep=0, width=width, depth=plan.depth if not plan.layer else 1)


def report(found: dict[str, Any], json: bool) -> None:
    if json:
        print_json(found)
        return
    right = ", ".join(f"{share:.1%}" for share in found["accuracy"])
    print(f"{found['bundle']}: {found['kind']}, {found['parameters']:,} weights, {found['steps']} steps")
    print(f"right on text held back: {right}; {found['run']:.2f} guesses in a row")
    if found["covered"] < 1:
        print(f"its {found['vocab']} tokens cover {found['covered']:.1%}")
    if found["checkpoint"]:
        print(f"checkpoint: {found['checkpoint']}")
