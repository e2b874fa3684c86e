"""The governor: what to draft next, so that decoding is never slower than without (S41, S30, S40).

Every proposal of its drafters is a tree of guesses. The governor learns what each kind of guess is worth
(`calibration`), merges the trees (`fusion`), and cuts the result where one more row would cost more than it
brings on this host (`costs`): the n likeliest tokens give 1 + sum of their paths' chances in cost(n + 1) seconds,
and the n with the most tokens a second wins, 0 among them. A wide tree, a chain and no draft are one decision.

Guesses not worth a row are still tested against what the model then says: to learn that drafting does not pay
costs no forward call. It does cost the drafters' own time, and for that there is an account. Each second of
forward calls pays in a little; a draft pays in what it saved, or takes out what it lost; while nothing is left
nothing is drafted. So whatever the text, the loss stays near one percent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

from edgedec.decoding.context import Context
from edgedec.drafters import Draft, Drafter, StepResult, State
from edgedec.runtime import Outputs
from edgedec.speculation.calibration import Calibration
from edgedec.speculation.costs import Costs
from edgedec.speculation.merger import Fusion

# What a second of decoding pays in; the most that may be saved up, and what a new text starts with at most,
# both in calls of one row.
_ALLOWANCE, _SAVINGS, _START = 0.008, 3.0, 1.0
# What a draft must promise when the account is empty, over plain decoding.
_SURELY = 1.5
# The likeliest that any guess can be taken for when the largest useful tree is worked out.
_SURE = 0.98
# A drafter that does not earn its time rests for so many calls, twice as many each time, and is then tried again;
# a share of a call that is too little to matter.
_REST, _LONGEST_REST, _TRIAL, _SMOOTH, _UNNOTICED = 16, 256, 8, 0.05, 0.002
# Calls until the largest useful tree is worked out anew, and until a chain that never pays is tried again.
_AGAIN, _RETRY = 256, 64
# A drafter is dear whose proposal takes such a share of a call; it is judged apart where those before it let expect
# up to so many tokens, up to so many, and more.
_DEAR, _STEPS = 0.02, (0.5, 1.5)
_LEVELS = len(_STEPS) + 1
_SILENT, _HEARING, _ACTIVE = range(3)
_NONE, _QUIET = Draft(why="silent, drafting has not paid lately"), Outputs()


class Member:
    """One drafter under the governor, and what is known of it. Times are in seconds a proposal."""

    def __init__(self, name: str, drafter: Drafter) -> None:
        self.name, self.drafter = name, drafter
        self.calibration = Calibration()
        self.proposals = self.proposed = self.accepted = 0
        self.seconds = self.takes = self.hears = 0.0
        # By how much was expected of the others already: little, some, much.
        self._trials = [Trial() for _ in range(_LEVELS)]
        self._asked: Trial | None = None
        # Does its time matter; and was it shown the last call?
        self.dear, self.heard = False, True

    @property
    def rests(self) -> bool:
        """Is it not worth a hearing, whatever the others say? One call before it speaks it has to hear again."""
        return all(trial.resting > 1 for trial in self._trials[: _LEVELS if self.dear else 1])

    def speaks(self, level: int) -> bool:
        """Shall it propose, so much being expected of the others?"""
        trial = self._trials[level]
        if trial.resting:
            trial.resting -= 1
            return self.passes()
        self._asked = trial
        return True

    def passes(self) -> bool:
        """It is not asked."""
        self._asked = None
        return False

    def took(self, seconds: float) -> None:
        self.seconds += seconds
        self.proposals += 1
        self.takes += (seconds - self.takes) * max(_SMOOTH, 1 / self.proposals)

    def earned(self, seconds: float, free: float) -> None:
        """What its last proposal brought that no other's did; who does not earn its time rests, but for so much
        of it that nobody would notice."""
        if self._asked is not None:
            self._asked.earned(seconds, self.takes + self.hears - free)

    def wake(self) -> None:
        """Another text: what did not pay for the last one may for this."""
        for trial in self._trials:
            trial.wake()


class Trial:
    """What a drafter earns a proposal in one kind of situation."""

    def __init__(self) -> None:
        self.earns, self.resting = 0.0, 0
        self._rest, self._tried = _REST, 0

    def earned(self, seconds: float, costs: float) -> None:
        self._tried += 1
        self.earns += (seconds - self.earns) * max(_SMOOTH, 1 / self._tried)
        if self._tried >= _TRIAL and self.earns < costs:
            self.resting, self._tried = self._rest, _TRIAL - 2
            self._rest = min(2 * self._rest, _LONGEST_REST)
        elif self._tried > 4 * _TRIAL:
            self._rest = _REST

    def wake(self) -> None:
        self.resting, self._rest = 0, _REST


class Governor:
    """A drafter made of drafters. `fixed`: so many tokens at each call, whatever it costs; 0: what pays."""

    def __init__(self, drafters: Sequence[tuple[str, Drafter]], costs: Callable[[], Costs], fixed: int = 0) -> None:
        self.members = [Member(name, drafter) for name, drafter in drafters]
        self._names = [member.name for member in self.members]
        self._calibrations = [member.calibration for member in self.members]
        self._measure, self._fixed = costs, fixed
        self._costs: Costs | None = None
        self._account, self._phase, self._silent = 0.0, _ACTIVE, 0
        self._limit, self._floor, self._calls, self._fed = fixed, 0.0, 0, True
        # How often a drawn token stands: of drafts that may be neither cut nor merged it sets the length.
        self._stands = _SURE
        self._sizes: dict[int, int] = {}
        self._forget()

    def _forget(self) -> None:
        """The last proposal."""
        self._fusion: Fusion | None = None
        self._drawn = 0
        self._drawer: Member | None = None
        self._kept: list[int] = []
        self._spent = 0.0

    @property
    def outputs(self) -> Outputs:
        wants = _QUIET
        if self._phase != _SILENT:
            for member in self.members:
                if self._listens(member):
                    wants |= member.drafter.outputs
        return wants

    def _listens(self, member: Member) -> bool:
        """Is it shown the next call? With an empty account nobody who wants more of it than the loop does."""
        return not member.rests and (self._fed or member.drafter.outputs == _QUIET)

    @property
    def costs(self) -> Costs:
        """Measured when first needed."""
        if self._costs is None:
            self._costs = self._measure()
            self._account = _START * self._costs.seconds[1]
        return self._costs

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Draft:
        self._forget()
        self._fed = bool(self._fixed) or self._account > 0 or self._costs is None
        if self._phase != _ACTIVE or nodes < 1:
            return _NONE
        began = perf_counter()
        if not self._fixed and self._calls % _AGAIN == 0:
            self._limit, self._floor = useful(self.costs)
            began = perf_counter()  # the first time costs were measured
        self._calls += 1
        limit = min(nodes, self._limit)
        if self._stands < _SURE and not self._fixed and self._calls % _RETRY:
            limit = min(limit, chain_length(self._stands, self.costs)) if self._account > 0 else 0
        draft = self._merged(context, limit, max(min_path_prob, self._floor)) if limit else _NONE
        self._spent = perf_counter() - began
        return draft

    def _merged(self, context: Context, nodes: int, min_path_prob: float) -> Draft:
        fusion, pending = Fusion(), len(context.ids) - context.cache.length
        begun = None
        begun_places: list[int] = []
        for number, member in enumerate(self.members):
            if not self._fixed and not self._hears(member, fusion, nodes, context):
                continue
            since = perf_counter()
            draft = member.drafter.propose(context, nodes, min_path_prob)
            member.took(perf_counter() - since)
            if draft.sampled is not None and context.sampling.temperature > 0:
                self._drawn, self._drawer = len(draft.tokens), member
                return draft  # for a verifier of its own: neither cut nor merged
            places = fusion.add(number, draft, member.calibration.estimates)
            if draft.begun is not None:
                # The last to write is the one whose rows the cache has.
                begun, begun_places = draft.begun, places
        self._fusion, order = fusion, fusion.best_first()[:nodes]
        count, why = (len(order), "fixed") if self._fixed else self._best(fusion, order, context.company)
        self._kept = order[:count]
        self._sizes[count] = self._sizes.get(count, 0) + 1
        return fusion.cut(self._kept, self._names, why)

    def _hears(self, member: Member, fusion: Fusion, nodes: int, context: Context) -> bool:
        """Shall this drafter propose? One whose time matters is judged by how much those before it let expect,
        and not asked at all while the account could not pay for it."""
        member.dear = member.takes > _DEAR * self.costs.seconds[1]
        if not member.heard or (member.dear and not (self._fed and self._account > 2 * member.takes)):
            return member.passes()
        if not member.dear:
            return member.speaks(0)
        order = fusion.best_first()[:nodes]
        size, _ = self._best(fusion, order, context.company)
        tokens = sum(fusion.chances[node] for node in order[:size])
        return member.speaks(sum(tokens > step for step in _STEPS))

    def _best(self, fusion: Fusion, order: Sequence[int], company: int) -> tuple[int, str]:
        """How many of the likeliest nodes give the most tokens a second, of all texts in the call together."""
        seconds, chances = self.costs.seconds, fusion.chances
        others = min(company, len(seconds) - 2)
        tokens = 1.0 + others
        best, size = tokens / seconds[1 + others], 0
        plain = best
        # With nothing left in the account only what is sure to bring something is tried.
        best *= 1.0 if self._account > 0 else _SURELY
        for rows, node in enumerate(order[: len(seconds) - 2 - others], 2):
            tokens += chances[node]
            rate = tokens / seconds[rows + others]
            if rate > best:
                best, size = rate, rows - 1
        return size, f"{size} of {len(fusion)} guesses, {best / plain if size else 1.0:.2f}x expected"

    def observe(self, step: StepResult) -> None:
        began = perf_counter()
        costs = self.costs
        if self._phase == _SILENT:
            # The quick way through: what silence costs must be far below what it earns.
            self._account += _ALLOWANCE * _share(costs, seen.total - 1) * len(seen.picked)
            self._phase += self._account > 0
            self._silent += 1
            if self._silent % 8 == 0 and seen.root == 0:
                costs.saw(seen.total, seen.seconds)
            return
        if seen.root == 0:
            costs.saw(seen.total, seen.seconds)
        if self._fusion is not None:
            self._judge(seen, self._fusion.test(seen.picked, self._calibrations))
        elif self._drawn:
            self._judge_drawn(len(seen.path) - 1)
        for member in self.members:
            member.heard = self._listens(member)
            if member.heard:
                since = perf_counter()
                member.drafter.observe(seen)
                member.hears += (perf_counter() - since - member.hears) * _SMOOTH
        if not self._fixed:
            self._settle(seen, self._spent + perf_counter() - began)

    def _judge(self, step: StepResult, path: Sequence[int]) -> None:
        """Who brought what: a node counts for the first of its drafters."""
        assert self._fusion is not None
        kept, guesses, seconds = set(self._kept), self._fusion.guesses, self.costs.seconds
        row = (seconds[len(kept) + 1] - seconds[1]) / len(kept) if 0 < len(kept) < self.costs.most else 0.0
        earned = dict.fromkeys(range(len(self.members)), 0.0)
        for node in kept:
            for number, _ in guesses[node]:
                self.members[number].proposed += 1
            earned[guesses[node][0][0]] -= row
        for node in path:
            if node in kept:
                for number, _ in guesses[node]:
                    self.members[number].accepted += 1
                earned[guesses[node][0][0]] += seconds[1]
        if not self._fixed:
            for number, member in enumerate(self.members):
                member.earned(earned[number], _UNNOTICED * seconds[1])

    def _judge_drawn(self, accepted: int) -> None:
        """A draft that could be neither cut nor merged: how long shall the next one be?"""
        assert self._drawer is not None
        self._drawer.proposed += self._drawn
        self._drawer.accepted += accepted
        rate = accepted / min(self._drawn, accepted + 1)
        self._stands += (min(rate, 0.97) - self._stands) * _SMOOTH

    def _settle(self, step: StepResult, spent: float) -> None:
        """Pay in and out, and say whether drafters may speak at the next call."""
        seconds, most = self.costs.seconds, self.costs.most
        drafted = len(seen.rows) - seen.root - 1
        # What a token costs without drafts, beside the same other texts; and what the drafted rows did cost.
        others = max(seen.total - drafted - 1, 0) if seen.root == 0 else 0
        plain = _share(self.costs, others)
        self._account += _ALLOWANCE * plain * len(seen.picked) - spent
        if seen.root == 0 and drafted:
            with_drafts, without = min(others + 1 + drafted, most), min(others + 1, most)
            self._account += plain * (len(seen.picked) - 1) - (seconds[with_drafts] - seconds[without])
        self._account = min(self._account, _SAVINGS * plain)
        # With nothing left they only guess for practice, if that costs next to nothing, and else are silent. Who was
        # silent has to hear a call before it speaks.
        chatter = sum(member.takes + member.hears for member in self.members if not member.dear)
        quiet = self._account <= 0 and chatter > _ALLOWANCE * plain
        self._phase = _SILENT if quiet else min(self._phase + 1, _ACTIVE)

    def reset(self) -> None:
        for member in self.members:
            member.drafter.reset()
            member.heard = True
            member.wake()
        if self._costs is not None:
            self._account = min(max(self._account, 0.0), _START * self._costs.seconds[1])
        self._forget()

    def state(self) -> State:
        return {
            f"{member.name}.{key}": array for member in self.members for key, array in member.drafter.state().items()
        }

    def restore(self, state: State) -> None:
        parts: dict[str, State] = {}
        for key, array in state.items():
            name, _, rest = key.partition(".")
            parts.setdefault(name, {})[rest] = array
        for member in self.members:
            if member.name in parts:
                member.drafter.restore(parts[member.name])

    def report(self) -> dict[str, Any]:
        return {
            "silent": self._silent,
            "sizes": {str(size): calls for size, calls in sorted(self._sizes.items())},
            "drafters": {
                member.name: {
                    "proposed": member.proposed,
                    "accepted": member.accepted,
                    "seconds": member.seconds,
                    **member.drafter.report(),
                }
                for member in self.members
            },
        }


def _share(costs: Costs, others: int) -> float:
    """What a call of one row a text costs each text, beside so many others."""
    rows = min(max(others, 0) + 1, costs.most)
    return costs.seconds[rows] / rows


def chain_length(sure: float, costs: Costs) -> int:
    """How long a chain should be, each of whose tokens comes true with this chance if the one before does."""
    seconds = costs.seconds
    best, length, tokens = 1 / seconds[1], 0, 1.0
    for rows in range(2, costs.most + 1):
        tokens += sure ** (rows - 1)
        if tokens / seconds[rows] > best:
            best, length = tokens / seconds[rows], rows - 1
    return length


def useful(costs: Costs) -> tuple[int, float]:
    """The most drafted tokens that could ever pay here, and the chance below which none does."""
    seconds, limit = costs.seconds, chain_length(_SURE, costs)
    # By what a row adds on the best stretch of the curve; half of it, as claims are yet to be weighed.
    cheapest = min(((seconds[rows] - seconds[1]) / (rows - 1) for rows in range(2, limit + 2)), default=0.0)
    return limit, max(0.005, cheapest / seconds[1] / 2)
