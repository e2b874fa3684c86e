"""Why a call has the draft that it has, and the state of each drafter: the codes of `--stats`, `trace`, `--json` and
`/metrics`."""

from __future__ import annotations

# Of a drafter: its proposals run; it does not pay and is tried again after a wait; it would not pay with all guesses
# right; it was not asked yet.
USED, WAITS, HOPELESS, UNOPENED = "used", "waits", "hopeless", "unopened"

# Of a call without drafts.
BANK = "bank"  # a draft that is all wrong would cost more than may be lost
MEASURING = "measuring"  # the cost of a call is not known yet
NO_ROOM = "no_room"  # the text or the context ends here
WAITING = "waiting"  # no drafter is to be asked yet
NO_GUESS = "no_guess"  # the drafters that were asked had none
REFUSED = "refused"  # their guesses are not worth their rows
CONSTRAINT = "constraint"  # the constraint forbids them, or its masks take too long
ENGINE = "engine"  # logits depend on the number of rows in a call: a draft could change the text

TEXTS = {
    BANK: "a wrong draft would cost more than may be lost now",
    MEASURING: "the cost of a call is not measured yet",
    NO_ROOM: "no room for a draft",
    WAITING: "drafting has not paid lately",
    NO_GUESS: "no drafter had a guess",
    REFUSED: "the guesses are not worth their rows",
    CONSTRAINT: "forbidden by the constraint",
    ENGINE: "off, because a draft could change the text on this engine",
}
