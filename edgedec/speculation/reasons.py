"""Why a call has no draft, and the state of each drafter: the codes and texts of `--stats`, `trace`, `--json` and
`/metrics`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Of a drafter: its proposals run; it does not pay and is tried again after a wait; its guesses do not run (`REFUSED`);
# it would not pay with all guesses right; it has not proposed yet.
USED, WAITS, HOPELESS, UNOPENED = "used", "waits", "hopeless", "unopened"

# Of a call without drafts.
BANK = "bank"  # a draft that is all wrong would cost more than may be lost
MEASURING = "measuring"  # the cost of a call is not known yet
PROMPT = "prompt"  # the call reads a prompt: no first token waits for a draft
NO_ROOM = "no_room"  # the text or the context ends here
WAITING = "waiting"  # every drafter waits
NO_GUESS = "no_guess"  # the drafters that proposed had no guess
REFUSED = "refused"  # the guesses are not worth their rows
CONSTRAINT = "constraint"  # the constraint forbids them, or its masks take too long
ENGINE = "engine"  # logits depend on the number of rows in a call: a draft could change the text

TEXTS = {
    BANK: "a wrong draft would cost more than may be lost now",
    MEASURING: "the cost of a call is not measured yet",
    PROMPT: "no first token waits for a draft",
    NO_ROOM: "no room for a draft",
    WAITING: "drafting has not paid lately",
    NO_GUESS: "no drafter had a guess",
    REFUSED: "the guesses are not worth their rows",
    CONSTRAINT: "forbidden by the constraint",
    ENGINE: "off, because a draft could change the text on this engine",
}
_HOPELESS = "even with all guesses right it takes longer than plain decoding"
# Without a proposal that ran a drafter counts as refused after so many; its last guesses are not older than that.
_LATELY, _RECENT = 8, 32


def resting(text: str) -> str:
    """The reason of the calls for which a drafter rests after a call with this one.

    >>> resting(TEXTS[NO_GUESS]) == TEXTS[WAITING]
    True
    """
    return text if text in ("", TEXTS[BANK], TEXTS[ENGINE]) else TEXTS[WAITING]


@dataclass
class Runs:
    """Which proposals of a drafter ran. `proposals`: their number; `guessed`: those with guesses; `idle`: those since
    one ran; `refused_at`: the last of these with guesses, 0 for none. Of this one: `why` it did not run (a code), and
    `expected`: what its tokens would have brought, relative to what its rows cost."""

    proposals: int = 0
    guessed: int = 0
    idle: int = 0
    refused_at: int = 0
    why: str = REFUSED
    expected: float | None = None

    def add(self, guesses: bool, ran: bool, why: str = REFUSED, expected: float | None = None) -> None:
        """Count a proposal."""
        self.proposals += 1
        self.guessed += guesses
        self.idle = 0 if ran else self.idle + 1
        if ran:
            self.refused_at = 0
        elif guesses:
            self.refused_at, self.why, self.expected = self.idle, why, expected

    def add_steps(self, ran: int, refused: int, none: int, expected: float | None) -> None:
        """Count the proposals of several steps: those that ran, those that did not, and those without a guess."""
        for _ in range(ran):
            self.add(True, True)
        for _ in range(refused):
            self.add(True, False, REFUSED, expected)
        for _ in range(none):
            self.add(False, False)

    @property
    def refused(self) -> bool:
        """Whether it had guesses lately, and none of them ran."""
        recent = self.refused_at > 0 and self.idle - self.refused_at < _RECENT
        return recent and (self.idle >= _LATELY or self.idle == self.proposals)

    def facts(self, needed: float) -> dict[str, Any]:
        """Why it is refused, as JSON values; needed: the least `expected` that runs."""
        return {"state": REFUSED, "why": self.why, "expected": self.expected, "needed": needed}


def state_text(facts: Mapping[str, Any]) -> str:
    """The state of a drafter in one line.

    >>> state_text({"state": "waits", "wait": 64, "takes_s": 2.1e-4, "gain_s": 5e-5})
    'waits 64 calls: a try takes 0.21 ms and brings 0.05 ms'
    """
    state, wait = facts.get("state", USED), facts.get("wait", 0)
    waits = f"waits {wait} calls" if wait else ""
    if state == HOPELESS:
        return f"{HOPELESS}: {_HOPELESS}"
    if state == UNOPENED:
        return f"{UNOPENED}: not tried yet{_balance(facts)}"
    if state == REFUSED:
        return "; ".join(filter(None, (f"{REFUSED}: {_refusal(facts)}", waits)))
    if state == WAITS:
        return f"{waits}: {_tries(facts)}"
    return "; ".join(filter(None, (f"{USED}: {_accepted(facts)}", _tries(facts), _spent(facts))))


def calls_text(report: Mapping[str, Any]) -> str:
    """The calls without drafts by reason, in one line.

    >>> calls_text({"silent": 91, "sizes": {"3": 4}, "calls": {"no_guess": 11, "waiting": 80}})
    'silent 91 of 95 calls: waiting 80, no_guess 11'
    """
    silent = report.get("silent", 0)
    ranked = sorted(report.get("calls", {}).items(), key=lambda item: -item[1])
    codes = ", ".join(f"{code} {calls}" for code, calls in ranked)
    return f"silent {silent} of {silent + sum(report['sizes'].values())} calls{': ' if codes else ''}{codes}"


def _accepted(facts: Mapping[str, Any]) -> str:
    """The guesses that ran, and how many of them were right."""
    proposed, asked = facts.get("proposed", 0), facts.get("asked", 0)
    if proposed:
        return f"{facts.get('accepted', 0)} of {proposed} guesses accepted"
    if facts.get("guessed", 1):
        return "none of its guesses ran yet"
    return "no guess in 1 try" if asked == 1 else f"no guess in {asked} tries"


def _refusal(facts: Mapping[str, Any]) -> str:
    """Why guesses did not run."""
    expected, needed = facts["expected"], facts["needed"]
    if facts["why"] != REFUSED:
        return TEXTS[facts["why"]]
    if expected is None or expected >= needed:
        return "other guesses came first"
    return f"{expected:.2f}x expected, needs {needed:g}x"


def _tries(facts: Mapping[str, Any]) -> str:
    """What a proposal takes and brings; "" while unknown."""
    if "gain_s" not in facts or not facts.get("takes_s"):
        return ""
    text = f"a try takes {_ms(facts['takes_s'])} and brings {_ms(facts['gain_s'])}"
    return text if facts.get("guessed", 1) or facts.get("state") == USED else f"{text}, no guess yet"


def _spent(facts: Mapping[str, Any]) -> str:
    """A note if nothing may be lost now."""
    return "paused while the balance is used up" if facts.get("bank_s", 1.0) <= 0 else ""


def _balance(facts: Mapping[str, Any]) -> str:
    """The cost of a first proposal if it is more than may be lost."""
    needs, left = facts.get("needs_s"), facts.get("bank_s")
    if not needs or left is None or needs <= left:
        return ""
    return f", a try takes {_ms(needs)} and {_ms(max(left, 0.0))} may be lost now"


def _ms(seconds: float) -> str:
    """0.00021 -> "0.21 ms"."""
    if not seconds:
        return "0 ms"
    return f"{seconds * 1000:.{2 if abs(seconds) >= 1e-5 else 4}f} ms"
