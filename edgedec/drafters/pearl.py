"""Drafts with a smaller model while the target runs (PEARL).

*Post-verify*: while a draft is verified, the draft model goes on after it, as if all of it were accepted; if it is, the
next draft is there at once. *Pre-verify*: after a refusal the target goes on without a draft, which verifies the first
token that is being drafted meanwhile. So neither waits for the other; the length of a draft is what was ready.

With acceptance p, a step of the draft model in d seconds and a call in T, and S(k) = p + p^2 + … + p^k, n tokens ready:

    wait for k tokens           (1 + S(k)) / (T + (k - n) d)       tokens a second, k >= n
    none ready, do not wait     (2 + p S(T / d)) / 2T              of this call and the next

Whichever is most is done. Whether drafting meanwhile pays is measured as well: where cores are busy, or shared with
other sequences, both models become slower. So tokens a second are compared with those of drafting in turns (the
drafter `model`), in windows of calls, and the better of the two is used until the next trial.
"""

from __future__ import annotations

from math import inf
from time import perf_counter
from typing import Annotated, Any, Literal
from weakref import finalize

from edgedec.decoding.context import Context
from edgedec.decoding.messages import StepResult
from edgedec.drafters import BaseDrafter, Draft, DrafterContext, DrafterFacts, Proposal
from edgedec.drafters._models.ahead import Ahead
from edgedec.drafters._models.opening import open_draft
from edgedec.drafters._options import Bundle, KVFormat, Length
from edgedec.drafters.model import ModelDrafter
from edgedec.errors import UsageError
from edgedec.plugins import Opt
from edgedec.runtime import Runtime, available_cores
from edgedec.runtime.devices import CPU
from edgedec.trees.calibration import Calibration, kind_of

# Others are pruned by its probabilities (`edgedec.speculation.guide`).
_PACE, _SURE = 0.05, 0.97

FACTS = DrafterFacts(guides=True, paper="PEARL")


def make(
    host: DrafterContext,
    path: Bundle = "",
    length: Length = 8,
    threads: Annotated[int, Opt("CPU threads of the draft model; 0: one beside the target's.", 0, 1024)] = 0,
    overlap: Annotated[Literal["auto", "always", "never"], Opt("Draft while the target runs; auto: if it pays.")] = (
        "auto"
    ),
    kv: KVFormat = "",
    device: Annotated[str, Opt("Device of the draft model; by default the CPU where a GPU runs the target.")] = "",
) -> Pearl:
    beside = host.runtime.capabilities.device != CPU
    device = device or (CPU if beside else "")
    runtime, translator = open_draft(host, path, threads or (0 if beside else 1), kv, device)
    if translator is not None:
        raise UsageError("drafter pearl: needs a draft model of the same tokenizer; use model")
    return Pearl(runtime, host.runtime.spec.vocab_size, length, overlap)


class Pearl(BaseDrafter):
    def __init__(self, runtime: Runtime, vocab: int, gamma: int = 8, overlap: str = "auto") -> None:
        self._turns, self._gamma = ModelDrafter(runtime, vocab, gamma), gamma
        self._calibration = Calibration()
        self._ahead = Ahead(runtime, vocab, self._calibration.estimates)
        self._pace = Pace(overlap if available_cores() > 1 else "never")
        self._started = self._overlapping = self._asked = False
        self._call_s, self._accepted = 0.0, 0.7
        self._sent: list[int] = []  # kinds of claim
        self._at = 0.0
        self.waited = self.ready = 0

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Proposal:
        """Propose at once when drafting overlaps, except for a wait that pays; in a batch it never waits."""
        if nodes < 1 or not context.ids:
            return Draft()
        self._asked = True
        overlapping = self._pace.overlap and not context.concurrent
        if overlapping != self._overlapping:
            self._overlapping, self._at = overlapping, 0.0
            self._ahead.pause()
        if not overlapping:
            return self._turns.propose(context, nodes, min_path_prob)
        if not self._started:
            self._started = True
            self._ahead.start()
            finalize(self, self._ahead.stop)
        return self._ready(context, min(nodes, self._gamma))

    def _ready(self, context: Context, nodes: int) -> Draft:
        ahead = self._ahead
        ahead.follow(context.ids, nodes + self._gamma, context.sampling)
        chain = ahead.chain(0, 0.0)[:nodes]
        wanted = self._worth_waiting(len(chain), nodes)
        if wanted > len(chain):
            self.waited += 1
            chain = ahead.chain(wanted, 2 * (wanted - len(chain)) * ahead.step_seconds)[:nodes]
        elif chain:
            self.ready += 1
        chain = [guess for guess in chain if guess[0] >= 0]
        self._sent = [kind_of(p) for _, p in chain]
        return Draft.chain(
            [token for token, _ in chain], [self._calibration.estimates.item(kind) for kind in self._sent]
        )

    def _worth_waiting(self, n: int, most: int) -> int:
        """Of how many tokens to wait for the one with the most tokens a second, n being ready (see above)."""
        step, call = self._ahead.step_seconds, self._call_s
        return length(n, most, self._accepted, step, call) if step and call else n

    def observe(self, step: StepResult) -> None:
        now = perf_counter()
        if not self._overlapping:
            self._turns.observe(step)
        elif self._sent:
            for at, kind in enumerate(self._sent[: len(step.path)], 1):
                hit = at < len(step.path)
                self._calibration.add(kind, hit)
                self._accepted += (min(float(hit), _SURE) - self._accepted) * _PACE
        if not step.root:
            self._call_s += (step.seconds - self._call_s) * (_PACE if self._call_s else 1.0)
            if self._at and self._asked:
                self._pace.add(len(step.picked), now - self._at, self._overlapping)
        # The time between two calls counts if there was a proposal for both.
        self._at, self._sent, self._asked = now * self._asked, [], False

    def reset(self) -> None:
        self._ahead.forget()
        self._turns.reset()
        self._at, self._sent = 0.0, []

    def report(self) -> dict[str, Any]:
        return {
            "overlap": self._pace.overlap,
            "ready": self.ready,
            "waited": self.waited,
            "steps": self._ahead.steps,
            "speed": {name: round(rate, 1) for name, rate in self._pace.rates.items() if rate},
            **({"trouble": self._ahead.trouble} if self._ahead.trouble else {}),
            "turns": self._turns.report(),
        }


def length(n: int, most: int, p: float, step: float, call: float) -> int:
    """How many tokens to wait for, n being ready; 0: none, and do not wait.

    >>> length(0, 8, 0.9, 2, 10), length(0, 8, 0.6, 1, 10), length(3, 8, 0.9, 1, 3)
    (0, 3, 3)
    """
    best, at = -inf, n
    if not n:
        meanwhile = sum(p**i for i in range(1, min(int(call / step), most) + 1))
        best = (2 + p * meanwhile) / (2 * call)
    for k in range(n or 1, most + 1):
        rate = (1 + sum(p**i for i in range(1, k + 1))) / (call + (k - n) * step)
        if rate > best:
            best, at = rate, k
    return at


class Pace:
    """The choice between two ways of drafting by tokens per second, with trials of each at intervals."""

    FIRST, TRIAL, BETWEEN = 40, 20, 320  # calls

    def __init__(self, overlap: str = "auto") -> None:
        self.overlap = overlap != "never"
        self._fixed = overlap != "auto"
        self.rates = {"overlap": 0.0, "turns": 0.0}
        self._left, self._trying = self.FIRST, True
        self._tokens, self._seconds, self._calls = 0, 0.0, 0

    def add(self, tokens: int, seconds: float, overlapping: bool) -> None:
        """A call is over: so many tokens in so many seconds, drafting included."""
        if overlapping != self.overlap:  # a batch does not overlap, so it is not counted
            return
        self._calls += 1
        if self._calls > 2:  # the first ones read what the other way left unread
            self._tokens, self._seconds = self._tokens + tokens, self._seconds + seconds
        self._left -= 1
        if self._left <= 0:
            self.rates["overlap" if self.overlap else "turns"] = self._tokens / self._seconds if self._seconds else 0.0
            self._next()
            self._tokens, self._seconds, self._calls = 0, 0.0, 0

    def _next(self) -> None:
        if self._fixed:
            self._left = self.BETWEEN
            return
        better = self.rates["overlap"] >= self.rates["turns"] and self.rates["overlap"] > 0
        if self._trying and 0.0 not in self.rates.values():
            self.overlap, self._left, self._trying = better, self.BETWEEN, False
        else:
            self.overlap, self._left, self._trying = not self.overlap, self.TRIAL, True
