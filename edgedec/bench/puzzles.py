"""ParallelBench's two puzzles (its rules and sizes): a Latin square of four symbols, and a sudoku of 4 x 4 of
which 12 cells are given."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import permutations

SIZE, GIVEN = 4, 12
SYMBOLS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


@dataclass(frozen=True)
class LatinTask:
    """Any square is right in which each symbol is once in every row and column."""

    symbols: tuple[str, ...]
    kind: str = "latin_square_n4"

    @property
    def prompt(self) -> str:
        return (
            f"Generate a Latin square of size {SIZE} with the symbols [{', '.join(self.symbols)}]. "
            "Only output the final result as CSV without header.\n"
        )

    def right(self, text: str) -> bool:
        rows = [[cell.strip() for cell in line.split(",")] for line in text.strip().split("\n")]
        if len(rows) != SIZE or any(len(row) != SIZE for row in rows):
            return False
        return all(set(line) == set(self.symbols) for line in [*rows, *zip(*rows, strict=True)])


@dataclass(frozen=True)
class SudokuTask:
    """The one solution is right."""

    given: str
    answer: str
    kind: str = "sudoku_n4_12"

    @property
    def prompt(self) -> str:
        return (
            "Solve this 4x4 sudoku, in which 0 is an empty cell. Every row, column and 2x2 box has the digits 1 to 4 "
            f"once. Only output the solved grid.\n{self.given}\n\n"
        )

    def right(self, text: str) -> bool:
        return text.strip() == self.answer


def latin_task(rng: random.Random) -> LatinTask:
    return LatinTask(tuple(rng.sample(SYMBOLS, SIZE)))


def sudoku_task(rng: random.Random) -> SudokuTask:
    """A grid with one solution."""
    grids = solutions(["0" * SIZE] * SIZE)
    while True:
        cells = list("".join(rng.choice(grids)))
        whole = _lines(cells)
        for at in rng.sample(range(SIZE * SIZE), SIZE * SIZE - GIVEN):
            cells[at] = "0"
        if solutions(_lines(cells)) == [whole]:
            return SudokuTask("\n".join(_lines(cells)), "\n".join(whole))


def solutions(given: list[str]) -> list[list[str]]:
    """Every grid that a sudoku may become."""
    found: list[list[str]] = [[]]
    rows = ["".join(p) for p in permutations("1234")]
    for line in given:
        fits = [row for row in rows if all(a in ("0", b) for a, b in zip(line, row, strict=True))]
        found = [[*grid, row] for grid in found for row in fits if _allowed(grid, row)]
    return found


def _allowed(grid: list[str], row: str) -> bool:
    """Whether a row may follow: no digit twice in a column or in a box."""
    if any(row[c] == above[c] for above in grid for c in range(SIZE)):
        return False
    above = grid[-1] if len(grid) % 2 else ""
    return not any(set(above[c : c + 2]) & set(row[c : c + 2]) for c in (0, 2))


def _lines(cells: list[str]) -> list[str]:
    return ["".join(cells[at : at + SIZE]) for at in range(0, SIZE * SIZE, SIZE)]
