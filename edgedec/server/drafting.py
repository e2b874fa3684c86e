"""Counters of drafting over the texts that ended: the codes are those of `edgedec.speculation.reasons`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Rows = list[tuple[str, float]]


@dataclass
class DraftCounts:
    """`silent`: calls without drafts, by reason; `proposed`, `accepted`: guesses that ran, by drafter; `states`: texts
    by drafter and by its state at their end."""

    silent: Counter[str] = field(default_factory=Counter)
    proposed: Counter[str] = field(default_factory=Counter)
    accepted: Counter[str] = field(default_factory=Counter)
    states: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, report: Mapping[str, Any]) -> None:
        """Add a text with this report of its session."""
        self.silent.update(report.get("calls", {}))
        for name, facts in report.get("drafters", {}).items():
            self.proposed[name] += facts.get("proposed", 0)
            self.accepted[name] += facts.get("accepted", 0)
            if "state" in facts:
                self.states[name, facts["state"]] += 1

    @classmethod
    def of(cls, parts: Iterable[DraftCounts]) -> DraftCounts:
        """The sum of these; drafters that proposed nothing stay in it."""
        found = cls()
        for part in parts:
            found.silent.update(part.silent.copy())
            found.proposed.update(part.proposed.copy())
            found.accepted.update(part.accepted.copy())
            found.states.update(part.states.copy())
        return found

    def families(self) -> list[tuple[str, str, Rows]]:
        """Name, description and values of each metric."""
        return [
            ("calls_without_draft_total", "Calls without drafts, by reason.", _rows("reason", self.silent)),
            ("drafter_proposed_tokens_total", "Guesses that ran, by drafter.", _rows("drafter", self.proposed)),
            ("drafter_accepted_tokens_total", "Guesses that were accepted.", _rows("drafter", self.accepted)),
            (
                "drafter_texts_total",
                "Texts that ended, by the state of each drafter.",
                [(f'drafter="{name}",state="{state}"', n) for (name, state), n in self.states.items()],
            ),
        ]


def _rows(label: str, counts: Counter[str]) -> Rows:
    return [(f'{label}="{value}"', n) for value, n in counts.items()]
