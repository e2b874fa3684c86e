"""A memory that is written while questions are answered: Dynamic Cheatsheet (Suzgun et al., arXiv:2504.07952).

Rests on the authors' code (github suzgunmirac/dynamic-cheatsheet); the words of the prompts are ours.

- Cumulative: the question is answered with the sheet before it. Then a curator, the same model, is shown question,
  answer and sheet, and writes the next sheet between <cheatsheet> and </cheatsheet>; without marks the old one stays.
- By retrieval: first the k nearest of the pairs so far, the nearest last, and the old sheet are given to the curator,
  whose sheet then goes before the question; without marks the pairs themselves do.
- A program in an answer that ends with RUN is run, and its output shown, at most `rounds` times.

The file is whole at every moment. A sheet has at most `most` characters: later lines go first (our own choice).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from edgedec.errors import UsageError
from edgedec.prompting.asking import Ask
from edgedec.storage.files import replacing

Embed = Callable[[str], Any]
RUN = "RUN THE PROGRAM"
ANSWER = "Notes from earlier questions:\n{sheet}\n\nQuestion: {question}\nAnswer:"
CURATE = (
    "Notes so far:\n{sheet}\n\n{pairs}\n\nWrite the notes anew: keep what helps with further questions, in few words, "
    "programs included.\n<cheatsheet>\n"
)
PAIR = "Question: {0}\nAnswer: {1}"
_SHEET = re.compile(r"(?:<cheatsheet>)?(.*)</cheatsheet>", re.DOTALL)
_PROGRAM = re.compile(r"```(?:python)?\n(.*?)```\s*" + RUN, re.DOTALL)


@dataclass
class Cheatsheet:
    """ask: the model; path: where the notes are kept, None: nowhere; most: characters of the sheet; embed(text): a
    vector, for retrieval, with `nearest` pairs; None: cumulative. run(program): its output, None: programs are text."""

    ask: Ask
    path: Path | None = None
    most: int = 8192
    embed: Embed | None = None
    nearest: int = 3
    run: Callable[[str], str] | None = None
    rounds: int = 3
    sheet: str = ""
    pairs: list[tuple[str, str]] = field(default_factory=list)
    _vectors: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.path is not None and self.path.exists():
            self._load(self.path)

    def answer(self, question: str) -> str:
        """The answer to a question; the notes are then those of the next one."""
        if self.embed is None:
            found = self._answered(self.sheet, question)
            self.sheet = self._curated(PAIR.format(question, found), self.sheet)
        else:
            vector = np.asarray(self.embed(question), np.float64)
            shown = "\n\n".join(PAIR.format(*self.pairs[i]) for i in self._nearest(vector))
            self.sheet = self._curated(shown, shown) if shown else self.sheet
            found = self._answered(self.sheet, question)
            self._vectors.append(vector)
        self.pairs.append((question, found))
        self._save()
        return found

    def _answered(self, sheet: str, question: str) -> str:
        prompt = ANSWER.format(sheet=sheet or "(none)", question=question)
        text = latest = self.ask(prompt)
        for _ in range(self.rounds):
            programs = _PROGRAM.findall(latest)
            if self.run is None or not programs:
                break
            text += f"\nOutput:\n{self.run(programs[-1])}\n"
            latest = self.ask(prompt + text)
            text += latest
        return text.strip()

    def _curated(self, pairs: str, otherwise: str) -> str:
        """The curator's notes; `otherwise` where it writes none."""
        found = _SHEET.match(self.ask(CURATE.format(sheet=self.sheet or "(none)", pairs=pairs)))
        return self._cut(found[1].strip() if found else otherwise)

    def _cut(self, sheet: str) -> str:
        """Whole lines from the beginning, as many as fit."""
        if len(sheet) <= self.most:
            return sheet
        return sheet[: self.most + 1].rpartition("\n")[0]

    def _nearest(self, vector: Any) -> Sequence[int]:
        """The nearest earlier questions by cosine, the nearest last, later ones of equals."""
        if not self._vectors:
            return []
        known = np.array(self._vectors, np.float64)
        cosines = known @ vector / np.maximum(np.linalg.norm(known, axis=1) * np.linalg.norm(vector), 1e-12)
        return [int(i) for i in np.argsort(cosines, kind="stable")[-self.nearest :]]

    def _load(self, path: Path) -> None:
        try:
            kept = json.loads(path.read_text("utf-8"))
            self.sheet, self.pairs = str(kept["sheet"]), [(str(a), str(b)) for a, b in kept["pairs"]]
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{path}: is no file of a cheatsheet ({error}); name another place") from None
        if self.embed is not None:
            self._vectors = [np.asarray(self.embed(question), np.float64) for question, _ in self.pairs]

    def _save(self) -> None:
        if self.path is None:
            return
        with replacing(self.path) as file:
            file.write(json.dumps({"sheet": self.sheet, "pairs": self.pairs}, ensure_ascii=False).encode())
