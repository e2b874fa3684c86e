"""Texts that a model writes itself, for trainings that need its own, and the folder where they are kept."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgedec.cli._exporting import export_module
from edgedec.storage.files import replacing

if TYPE_CHECKING:
    import numpy as np

    import edgedec

_SHORTEST, _LONGEST, _MOST = 2, 17, 300  # tokens of an opening, of a continuation


@contextmanager
def work_folder(work: Path | None) -> Iterator[Path]:
    """The work folder, else one that is gone afterwards."""
    if work is not None:
        work.mkdir(parents=True, exist_ok=True)
        yield work
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def opening_length(rng: np.random.Generator) -> int:
    """How many tokens of a text are given."""
    return int(rng.integers(_SHORTEST, _LONGEST))


def said_after(
    model: edgedec.Model, session: edgedec.Session, ids: list[int], seed: int, i: int, most: int = sys.maxsize
) -> list[int]:
    """What the model says after an opening, greedily and sampled by turns. i: the number of the text; most: tokens of
    opening and answer."""
    from edgedec.sampling import Sampling

    how = replace(model.sampling, seed=seed + i) if i % 2 else Sampling()
    room = max(1, min(_MOST, min(session.capacity, most) - len(ids)))
    return list(map(int, session.tokens(ids, max_tokens=room, sampling=how)))


def own_texts(
    folder: Path, files: list[Path], n: int, seed: int, room: Path, threads: int, show: Callable[[str, int, int], None]
) -> Path:
    """The .jsonl file in `room` of `n` texts that the checkpoint wrote, answers to prompts and continuations of the
    openings of other texts; one of an earlier run is used again."""
    import edgedec

    modules = ("row_training", "exporter", "lessons")
    training, exporter, data = (export_module(name, "train-diffusion", "train") for name in modules)
    said = sha256(f"{n} {seed} ".encode())
    training.content_of([*sorted(folder.glob("*.safetensors")), *files], said)
    path = room / f"own-{said.hexdigest()[:16]}.jsonl"
    if not path.exists():
        options = exporter.ExportOptions(weights="int8", check=False, runtimes=(), force=True)
        exporter.export(str(folder), room / "own", options, show)
        model, found = edgedec.open(room / "own", threads=threads), chain.from_iterable(map(data.lessons, files))
        lines = [json.dumps(one) + "\n" for one in _written(model, list(islice(found, n)), n, seed, show)]
        with replacing(path) as file:
            file.write("".join(lines).encode())
    return path


def _written(
    model: edgedec.Model, given: list[Any], n: int, seed: int, show: Callable[[str, int, int], None]
) -> Iterator[dict[str, str]]:
    import numpy as np

    rng, session = np.random.default_rng(seed), model.session(speculate="off")
    facts = model.bundle.manifest.diffusion
    canvas = model.runtime.capabilities.largest_call if facts and facts.context == "full" else session.capacity
    for i in range(n if given else 0):
        lesson = given[i % len(given)]
        ids = model.tokenizer.encode(lesson.prompt or "".join(lesson.parts))
        if not lesson.prompt:
            ids = ids[: opening_length(rng)]
        told = said_after(model, session, ids, seed, i, canvas)
        if lesson.prompt:
            yield {"prompt": lesson.prompt, "answer": model.tokenizer.decode(told)}
        else:
            yield {"text": model.tokenizer.decode([*ids, *told])}
        show("write", i + 1, n)
