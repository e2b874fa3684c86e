"""The record of a generation: each call as plain numbers and strings, and the page that shows them.

The loop reports a `StepTrace` a call. It holds the result of the call (logits among it), so the tape takes the
numbers out of it at once and drops it: a long generation costs memory for its draft trees only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, TypedDict, TypeVar

from edgedec.decoding.draft import Draft
from edgedec.decoding.loop import StepTrace
from edgedec.decoding.pieces import TextPiece
from edgedec.errors import TextError
from edgedec.speculation.reasons import resting
from edgedec.text.tokenizer import Tokenizer

T = TypeVar("T")
DATA = "@@DATA@@"  # where the data go in the page; no resource is loaded from anywhere


class CallRecord(TypedDict):
    """One forward call. Drafted tokens are numbered from 0; parent -1 is the last known token.

    path: the accepted tokens, from the root on; picked: the model's token at the root and after
    each of them; emitted: how many of these became text (fewer if the text ended there).
    """

    tokens: list[int]
    parents: list[int]
    p: list[float | None]
    by: list[str]
    why: str
    path: list[int]
    picked: list[int]
    emitted: int
    seconds: float
    forward_s: float


def record(step: StepTrace, name: str = "draft") -> CallRecord:
    """A step as plain numbers and strings; `name`: of a drafter whose drafts have no names."""
    draft, result = step.draft, step.step
    n = len(draft.tokens)
    claims: list[float | None] = [round(float(p), 4) if math.isfinite(p) else None for p in draft.p]
    return {
        "tokens": [int(token) for token in draft.tokens],
        "parents": [int(parent) for parent in draft.parents],
        "p": claims or [None] * n,
        "by": [by or name for by in draft.by] or [name] * n,
        "why": draft.why,
        "path": [int(row) - 1 for row in result.path[1:]],
        "picked": [int(token) for token in result.picked],
        "emitted": 0,
        "seconds": step.seconds,
        "forward_s": result.seconds,
    }


@dataclass
class Tape:
    """Give `steps` to the generation as its `trace`, and every piece it yields to `push`; `close` at the end.

    texts: what each token added to the text, none where more was needed to be sure of it;
    tail: what came after the last token.
    """

    name: str = "draft"
    steps: list[StepTrace] = field(default_factory=list)
    calls: list[CallRecord] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    tail: str = ""
    _last: Draft | None = None

    def run(self, pieces: Iterable[TextPiece]) -> Tape:
        """Take all of a generation."""
        for piece in pieces:
            self.push(piece)
        self.close()
        return self

    def push(self, piece: TextPiece) -> None:
        """A token belongs to the last call made before it."""
        self.close()
        if piece.token is None:
            self.tail += piece.text
            return
        self.texts.append(piece.text)
        self.calls[-1]["emitted"] += 1

    def close(self) -> None:
        """Record the new calls; the last may have given no token, but the end."""
        for step in self.steps:
            call, rests = record(step, self.name), step.draft is self._last and step.draft.rest > 0
            self.calls.append(call | {"why": resting(call["why"])} if rests else call)
            self._last = step.draft
        self.steps.clear()


class Spelling:
    """The text of single tokens, with the space they begin with, which `decode` drops at the start of a text."""

    def __init__(self, tokenizer: Tokenizer, anchor: int) -> None:
        self._tokenizer, self._anchor = tokenizer, anchor
        self._before = tokenizer.decode([anchor], special=True)
        self._known: dict[int, str] = {}

    def __call__(self, token: int) -> str:
        if token not in self._known:
            self._known[token] = self._spell(token)
        return self._known[token]

    def _spell(self, token: int) -> str:
        """The text that a token adds after the anchor; for a part of a character, the vocabulary's spelling."""
        text = self._tokenizer.decode([self._anchor, token], special=True)
        whole = text.startswith(self._before) and len(text) > len(self._before) and "\ufffd" not in text
        if whole:
            return text[len(self._before) :]
        try:
            return self._tokenizer.token(token)
        except TextError:
            return f"#{token}"


def page(
    tape: Tape,
    about: Mapping[str, Any],
    prompt: str,
    spell: Callable[[int], str],
    drafters: Mapping[str, str] | None = None,
) -> str:
    """One HTML file without any outside resource. `about`: for its header; `drafters`: the state of each."""
    template = files("edgedec.bench").joinpath("trace.html").read_text("utf-8")
    before, _, after = template.partition(DATA)
    data = {"about": dict(about), "prompt": prompt, "texts": tape.texts, "tail": tape.tail, **_pack(tape.calls, spell)}
    data["drafters"] = [*(drafters or {}).items()]
    return before + embed(data) + after


def embed(data: Any) -> str:
    """JSON that may stand in a script element: all ASCII, and nothing that an HTML parser would look at."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _pack(calls: Iterable[CallRecord], spell: Callable[[int], str]) -> dict[str, Any]:
    """Calls as rows of numbers: token, drafter and reason are places in the lists `vocab`, `names` and `whys`.

    A row: emitted, µs, µs of the forward call, why, picked, path, tokens, parents, p, by.
    """
    vocab, names, whys = _Numbers[int](), _Numbers[str](), _Numbers[str]()
    rows = [
        [
            call["emitted"],
            round(call["seconds"] * 1e6),
            round(call["forward_s"] * 1e6),
            whys(call["why"]),
            [vocab(token) for token in call["picked"]],
            call["path"],
            [vocab(token) for token in call["tokens"]],
            call["parents"],
            call["p"],
            [names(by) for by in call["by"]],
        ]
        for call in calls
    ]
    return {"calls": rows, "vocab": [spell(token) for token in vocab], "names": [*names], "whys": [*whys]}


class _Numbers(dict[T, int]):
    """Values by the order in which they came."""

    def __call__(self, value: T) -> int:
        return self.setdefault(value, len(self))
