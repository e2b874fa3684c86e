"""Texts that a model learns to fill, as rows of tokens: stories and pages whole, answers after prompts that are given.

A line of a .jsonl file is {"text": …}, or {"prompt": …, "answer": …}, of which the answer alone is masked and learned;
it may have "parts" before it ({"prompt": …, "parts": ["…", …], "answer": …}), which are numbered. Each token of a
row is one number: its id, and above 32 bits the number of its part (0: given).
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgedec.errors import UsageError
from edgedec.export.exits_data import TokenStream, documents

_BITS, _LONGEST, _SHORTEST = 32, 4096, 2048
_BREAKS = "\n\n", "\n", ". ", " "


@dataclass(frozen=True)
class Lesson:
    """prompt: given; parts: what is learned; ends: whether the text is over after them."""

    prompt: str
    parts: tuple[str, ...]
    ends: bool = True


@dataclass(frozen=True)
class LessonEncoder:
    """text(text, begins) -> ids, with the tokens that begin a text if it does; end: the token that ends one."""

    text: Callable[[str, bool], list[int]]
    end: int | None

    def __call__(self, lesson: Lesson) -> list[int]:
        found = self.text(lesson.prompt, True) if lesson.prompt else []
        for number, part in enumerate(lesson.parts, 1):
            found += [packed(i, number) for i in self.text(part, not found)]
        # Where one token begins and ends texts, the next text brings it.
        if lesson.ends and self.end is not None and found[:1] != [packed(self.end, 1)]:
            found.append(packed(self.end, len(lesson.parts)))
        return found


def packed(token: int, part: int) -> int:
    return token | part << _BITS


def unpacked(row: Sequence[int]) -> tuple[list[int], list[int]]:
    """The ids and the parts of a row."""
    return [code & ((1 << _BITS) - 1) for code in row], [code >> _BITS for code in row]


def lessons(path: Path) -> Iterator[Lesson]:
    """The lessons in a file, a few at a time. A long text is cut into pieces."""
    if path.suffix != ".jsonl":
        for text in documents(path):
            yield from _pieces(text)
        return
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield from _of_line(line, f"{path}: line {number}")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: is not UTF-8 text ({error.reason} at byte {error.start})") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from None


def _of_line(line: str, where: str) -> Iterator[Lesson]:
    try:
        row = json.loads(line)
        if "answer" in row:
            told = [row["prompt"], *row.get("parts", ()), row["answer"]]
        else:
            told = [row["text"]]
    except (ValueError, TypeError, KeyError):
        told = [None]
    if not all(isinstance(text, str) for text in told):
        raise UsageError(f'{where} is no JSON object with a "text", or with a "prompt" and an "answer"')
    if len(told) == 1:
        yield from _pieces(told[0])
        return
    prompt, *parts = told
    yield Lesson(prompt, (*(f"{part}\n" for part in parts[:-1]), parts[-1]))


def _pieces(text: str) -> Iterator[Lesson]:
    """A text, cut where a paragraph, a line or a sentence ends if it is long."""
    while len(text) > _LONGEST:
        at = next((n + len(b) for b in _BREAKS if (n := text.rfind(b, _SHORTEST, _LONGEST)) > 0), _LONGEST)
        yield Lesson("", (text[:at],), False)
        text = text[at:]
    if text.strip():
        yield Lesson("", (text,))


class LessonStream(TokenStream):
    """Rows that are filled with whole lessons, the last one cut."""

    read = staticmethod(lessons)


class CanvasStream(LessonStream):
    """Rows of a lesson each. After its end come end tokens, which are learned, up to a random length."""

    end: int | None = None

    def _joined(self, block: list[Lesson]) -> Iterator[list[int]]:
        draw, self.end = random.Random(f"{self._seed} {self.place.turn} {self.place.block} ends"), self._encode.end
        for row in map(self._encode, self._shuffled(block)):
            if row[-1] >> _BITS and len(row) > 1:
                yield self._canvas(row[: self._length + 1], draw)

    def _canvas(self, row: list[int], draw: random.Random) -> list[int]:
        if self.end is None:
            return row
        return row + [packed(self.end, row[-1] >> _BITS)] * (draw.randint(len(row), self._length + 1) - len(row))
