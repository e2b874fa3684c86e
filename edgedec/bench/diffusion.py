"""Ways to decode a diffusion model, on the same texts in turns: passes, rows, time, and how good the texts are.

`off`: the model as an autoregressive one, a token a pass. Of tasks with an answer it counts how many are right; of
stories it measures how likely that autoregressive model finds them, and the share of different trigrams, as repetition
is likely too.
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
from edgedec.decoding.context import Context
from edgedec.decoding.scoring import score
from edgedec.diffusion.words import OFF
from edgedec.errors import UsageError
from edgedec.model import Model
from edgedec.sampling import Sampling

SEED, STORY = 3, "story"
_OPENINGS = (
    *("Once upon a time, there was a little", "One day, a girl named", "Tom and his dog went to"),
    *("There was a big tree in", "The old cat could not", "Lily found a shiny"),
)


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


@dataclass(frozen=True)
class StoryTask:
    """An opening; no answer is right."""

    prompt: str
    kind: str = STORY

    def right(self, text: str) -> bool:
        return False


@dataclass
class DecodingCost:
    """What texts of one task took, decoded in one way. tokens: of the texts, without what follows their end. nats: of
    stories, by the model read as an autoregressive one; trigrams, different: of stories."""

    texts: int = 0
    right: int = 0
    tokens: int = 0
    passes: int = 0
    rows: int = 0
    seconds: float = 0.0
    nats: float = 0.0
    trigrams: int = 0
    different: int = 0

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {key: getattr(self, key) for key in ("texts", "right", "tokens", "passes", "rows")}
        found |= {
            "seconds": self.seconds,
            "ms_per_text": round(1000 * self.seconds / max(1, self.texts), 2),
            "tokens_per_pass": round(self.tokens / max(1, self.passes), 3),
            "tokens_per_s": round(self.tokens / self.seconds, 1) if self.seconds else 0.0,
        }
        if self.trigrams:
            found["nats"] = round(self.nats / max(1, self.tokens), 4) if self.nats else None
            found["distinct_3"] = round(self.different / self.trigrams, 3)
        return found


def list_tasks(kinds: Sequence[str], count: int) -> list[AnsweredTask]:
    """`count` questions about lists for each kind, always the same."""
    for kind in kinds:
        if kind not in (*OPERATIONS, STORY):
            raise UsageError(f"--tasks {kind}: no such task; there are {', '.join((*OPERATIONS, STORY))}")
    rng = random.Random(SEED)
    return [
        StoryTask(_OPENINGS[i % len(_OPENINGS)]) if kind == STORY else list_task(kind, rng)
        for kind in kinds
        for i in range(count)
    ]


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
    if task.kind == STORY:
        _add_story(cost, model, session.ids, stats.prompt)


def _add_story(cost: DecodingCost, model: Model, ids: Sequence[int], given: int) -> None:
    told = list(ids[given:])
    trigrams = list(zip(told, told[1:], told[2:], strict=False))
    cost.trigrams, cost.different = cost.trigrams + len(trigrams), cost.different + len(set(trigrams))
    facts = model.bundle.manifest.diffusion
    if facts is None or (facts.context == "causal" and facts.shift):
        context = Context(list(ids[:given]), given, model.runtime.new_cache(len(ids)))
        cost.nats -= sum(score(model.runtime, context, told))
