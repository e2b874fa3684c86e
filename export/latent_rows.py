"""What a model that reasons in latent rows reads and learns, as lists of tokens: without torch.

    question  (Thinking speed: r)  ###  r tokens of the steps, r tokens, …  ###  answer  end

A group of tokens is one row: the sum of their embeddings over the root of their number, which has the size of one. The
separators are groups of their own. Of a group one token, drawn evenly, is what the row before it is to predict.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from edgedec.errors import UsageError
from edgedec.export.lessons import Lesson, LessonStream, unpacked

IGNORED = -100


@dataclass(frozen=True)
class Problem:
    """The tokens of a question, of its steps, and of the answer with its end."""

    question: list[int]
    steps: list[int]
    answer: list[int]


@dataclass(frozen=True)
class Reasoning:
    """groups: the tokens of each row; labels: the token that the row before is to predict, IGNORED of the question;
    latent: the rows [first, last) after which a latent row, or the separator after these, comes."""

    groups: list[list[int]]
    labels: list[int]
    latent: tuple[int, int]


class ProblemStream(LessonStream):
    """A lesson a row; those that are too long are left out."""

    def _joined(self, block: list[Lesson]) -> Iterator[list[int]]:
        yield from (row for row in map(self._encode, self._shuffled(block)) if len(row) <= self._length + 1)


def problem_of(row: Sequence[int]) -> Problem:
    """The parts of a lesson's row: the prompt is the question, the last part the answer, the others are the steps."""
    ids, parts = unpacked(row)
    last = max(parts)
    by = {0: list[int](), 1: list[int](), 2: list[int]()}
    for token, part in zip(ids, parts, strict=True):
        by[0 if part == 0 else 2 if part == last else 1].append(token)
    return Problem(by[0], by[1], by[2])


def grouped(tokens: Sequence[int], r: int) -> list[list[int]]:
    """In groups of r, the last one as it is. [1, 2, 3, 4, 5], 2: [[1, 2], [3, 4], [5]]."""
    return [list(tokens[at : at + r]) for at in range(0, len(tokens), r)]


def reasoning(
    problem: Problem, r: int, opening: Callable[[int], list[int]], separator: int, draw: random.Random
) -> Reasoning:
    """A problem whose steps are read r tokens at a time; r 0: without steps, and without the opening that names r."""
    if not problem.question or not problem.answer or (r and not problem.steps):
        raise UsageError('train-latent: a problem is a line with "prompt" and "parts", its steps and then its answer')
    question = [*problem.question, *(opening(r) if r else [])]
    thought = [[separator], *grouped(problem.steps, r)] if r else []
    answer = [separator, *problem.answer]
    groups = [[token] for token in question] + thought + [[token] for token in answer]
    labels = [IGNORED] * len(question) + [draw.choice(group) for group in thought] + answer
    return Reasoning(groups, labels, (len(question), len(question) + len(thought)))
