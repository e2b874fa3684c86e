"""Texts that a model writes itself, for trainings that need its own (dParallel)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from hashlib import sha256
from itertools import chain, islice
from pathlib import Path

import numpy as np

from edgedec.export.exporter import ExportOptions, export
from edgedec.export.lessons import Lesson, lessons
from edgedec.export.row_training import content_of
from edgedec.model import Model
from edgedec.model import open as open_model
from edgedec.sampling import Sampling
from edgedec.storage.files import replacing

_SHORTEST, _LONGEST, _MOST = 2, 17, 300  # tokens of an opening, of a continuation


def own_texts(
    folder: Path, files: list[Path], n: int, seed: int, room: Path, threads: int, show: Callable[[str, int, int], None]
) -> Path:
    """The file in `room` of `n` texts that the checkpoint wrote; one of an earlier run is used again."""
    said = sha256(f"{n} {seed} ".encode())
    content_of([*sorted(folder.glob("*.safetensors")), *files], said)
    path = room / f"own-{said.hexdigest()[:16]}.jsonl"
    if not path.exists():
        export(str(folder), room / "own", ExportOptions(weights="int8", check=False, runtimes=(), force=True), show)
        model = open_model(room / "own", threads=threads)
        write_own(model, chain.from_iterable(map(lessons, files)), n, seed, path, show)
    return path


def write_own(
    model: Model, given: Iterable[Lesson], n: int, seed: int, path: Path, show: Callable[[str, int, int], None]
) -> None:
    """A .jsonl file of `n` texts: answers to the lessons' prompts, continuations of the openings of the others."""
    lines = [json.dumps(one) + "\n" for one in _written(model, list(islice(given, n)), n, seed, show)]
    with replacing(path) as file:
        file.write("".join(lines).encode())


def _written(
    model: Model, given: list[Lesson], n: int, seed: int, show: Callable[[str, int, int], None]
) -> Iterator[dict[str, str]]:
    rng, session = np.random.default_rng(seed), model.session(speculate="off")
    facts = model.bundle.manifest.diffusion
    canvas = model.runtime.capabilities.largest_call if facts and facts.context == "full" else session.capacity
    for i in range(n if given else 0):
        lesson = given[i % len(given)]
        ids = model.tokenizer.encode(lesson.prompt or "".join(lesson.parts))
        if not lesson.prompt:
            ids = ids[: int(rng.integers(_SHORTEST, _LONGEST))]
        how = replace(model.sampling, seed=seed + i) if i % 2 else Sampling(temperature=0)
        room = max(1, min(_MOST, session.capacity - len(ids), canvas - len(ids)))
        told = list(map(int, session.tokens(ids, max_tokens=room, sampling=how)))
        if lesson.prompt:
            yield {"prompt": lesson.prompt, "answer": model.tokenizer.decode(told)}
        else:
            yield {"text": model.tokenizer.decode([*ids, *told])}
        show("write", i + 1, n)
