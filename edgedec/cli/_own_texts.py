"""Texts that a model writes itself, for trainings that need its own (dParallel)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha256
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgedec.cli._exporting import export_module
from edgedec.storage.files import replacing

if TYPE_CHECKING:
    import edgedec

_SHORTEST, _LONGEST, _MOST = 2, 17, 300  # tokens of an opening, of a continuation


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

    from edgedec.sampling import Sampling

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
