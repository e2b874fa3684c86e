"""Ways to decode a diffusion model, on the same texts in turns: passes, rows, time, and how often the answer is right.

`off`: the model as an autoregressive one, a token a pass.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

from edgedec.bench.list_tasks import OPERATIONS, list_task
from edgedec.diffusion.words import OFF
from edgedec.errors import UsageError
from edgedec.model import Model
from edgedec.sampling import Sampling

SEED = 3


class AnsweredTask(Protocol):
    """A prompt, and whether a text answers it."""

    @property
    def kind(self) -> str: ...
    @property
    def prompt(self) -> str: ...
    def right(self, text: str) -> bool: ...


@dataclass(frozen=True)
class GivenTask:
    """A task of a file: one answer is right."""

    kind: str
    prompt: str
    answer: str

    def right(self, text: str) -> bool:
        return text.strip() == self.answer.strip()


@dataclass
class DecodingCost:
    """What texts of one task took, decoded in one way. tokens: of the texts, without what follows their end."""

    texts: int = 0
    right: int = 0
    tokens: int = 0
    passes: int = 0
    rows: int = 0
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            **vars(self),
            "tokens_per_pass": round(self.tokens / max(1, self.passes), 3),
            "tokens_per_s": round(self.tokens / self.seconds, 1) if self.seconds else 0.0,
        }


def list_tasks(kinds: Sequence[str], count: int) -> list[AnsweredTask]:
    """`count` questions about lists for each kind, always the same."""
    for kind in kinds:
        if kind not in OPERATIONS:
            raise UsageError(f"--tasks {kind}: no such task; there are {', '.join(OPERATIONS)}")
    rng = random.Random(SEED)
    return [list_task(kind, rng) for kind in kinds for _ in range(count)]


def tasks_of(path: Path) -> list[AnsweredTask]:
    """The tasks of a file: a JSON object with `prompt`, `answer` and, if it likes, `task` on each line."""
    found: list[AnsweredTask] = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        try:
            row = json.loads(line)
            found.append(GivenTask(str(row.get("task", path.stem)), str(row["prompt"]), str(row["answer"])))
        except (ValueError, KeyError, AttributeError):
            raise UsageError(f'{path}: line {number} is no object with "prompt" and "answer"') from None
    if not found:
        raise UsageError(f"{path}: no tasks")
    return found


def compare(
    model: Model, ways: Sequence[str], tasks: Sequence[AnsweredTask], longest: int, progress: Callable[[int, int], None]
) -> dict[str, dict[str, DecodingCost]]:
    """{way: {task: cost}}; each text is decoded in every way before the next."""
    found: dict[str, dict[str, DecodingCost]] = {way: {} for way in ways}
    for done, task in enumerate(tasks):
        progress(done, len(tasks))
        for way in ways:
            _add(found[way].setdefault(task.kind, DecodingCost()), model, way, task, longest)
    progress(len(tasks), len(tasks))
    return found


def _add(cost: DecodingCost, model: Model, way: str, task: AnsweredTask, longest: int) -> None:
    session = model.session(diffusion=way, speculate="off" if way == OFF else "auto")
    start = perf_counter()
    text = "".join(session.generate(task.prompt, max_tokens=longest, sampling=Sampling(temperature=0)))
    cost.seconds += perf_counter() - start
    report, stats = session.diffusion_report(), session.stats
    cost.texts, cost.right = cost.texts + 1, cost.right + task.right(text)
    cost.tokens += stats.generated
    cost.passes += report["passes"] if report else stats.generated
    cost.rows += report["rows"] if report else stats.generated + stats.prompt
