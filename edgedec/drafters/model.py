"""Drafts with a smaller model (speculative decoding; Leviathan et al. 2023).

The draft model reads the same text with a cache of its own, one forward of it for each token further; those of all
sequences that share it run together. Under `match` it proposes its likeliest chain, with the runners-up at each place
as side branches (they cost no forward of it; DySpec), and stops where nothing further is likely enough to pay
(SpecDec++). Under a verifier that knows the draft's distribution (token, block, spectr, recursive, multipath) the
tokens are drawn, in a tree whose shape is settled before the first draw. A draft model with other tokens drafts text:
`_models/retokenize.py`.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from itertools import accumulate
from operator import mul
from typing import Annotated, Any, Literal

from edgedec.decoding.context import Context
from edgedec.decoding.messages import Completed, Request, StepResult
from edgedec.drafters import BaseDrafter, Draft, DrafterContext, DrafterFacts, Proposal, Sampled, State
from edgedec.drafters._heads.foreseen import upcoming
from edgedec.drafters._models.acceptance import AcceptanceHead, Floats
from edgedec.drafters._models.beam import beam_draft, level_draft
from edgedec.drafters._models.opening import KIND, open_draft
from edgedec.drafters._models.options import bushy_places, check, check_likeliest, children_for
from edgedec.drafters._models.reader import ALL, BEST, DraftReader, Reading, foreseen, shape, shares
from edgedec.drafters._models.retokenize import Retokenizer
from edgedec.drafters._options import TRIM, WIDEST, Bundle, KVFormat, Length, Threads, Trim, Verify
from edgedec.drafters._usage import Usage, usage_of
from edgedec.plugins import Opt
from edgedec.runtime import CallResult, Outputs, Runtime
from edgedec.sampling import Sampling
from edgedec.trees.calibration import BINS, Calibration, kind_of

# Others are pruned by its probabilities (`edgedec.speculation.guide`).
# The prior acceptance of the first, second … drawn child; and its learning rate.
_TAKEN, _SMOOTH = (0.7, 0.25, 0.15, 0.1), 0.03
_PACE = 0.1
# Its rank in `auto`: of the drafters that need a head or a draft only the first that the bundle has is used.
DRAFT = KIND

FACTS = DrafterFacts(auto=11, draft=KIND, guides=True, paper="Speculative Decoding; SpecDec++; SpecTr; Recursive SD")


def make(
    host: DrafterContext,
    path: Bundle = "",
    threads: Threads = 0,
    length: Length = 8,
    width: Annotated[
        int, Opt("Children at the first places, for spectr, recursive and multipath; 0: as they need.", 0, WIDEST)
    ] = 0,
    verify: Verify = "match",
    kv: KVFormat = "",
    beam: Annotated[int, Opt("Sequences of stochastic beam search, for recursive.", 0, WIDEST)] = 0,
    accept: Annotated[
        Literal["claims", "head"], Opt("What predicts acceptance; head: a head trained while it drafts.")
    ] = "claims",
    stop: Annotated[
        float,
        Opt("Drafting ends when a refusal is this likely; 0: when a token costs more than it brings.", 0, below=1),
    ] = 0.0,
    trim: Trim = TRIM,
) -> ModelDrafter:
    width = children_for(verify, width, beam)
    runtime, translator = open_draft(host, path, threads, kv)
    check_likeliest(verify, translator is None, accept=(accept, "claims"), trim=(trim, TRIM))
    vocab = host.runtime.spec.vocab_size
    drafter = ModelDrafter(runtime, vocab, length, width, verify, translator, beam, accept, stop)
    drafter.usage = usage_of(host, trim) if translator is None and runtime.spec.vocab_size >= vocab else None
    return drafter


class ModelDrafter(BaseDrafter):
    """vocab: the target's. translator: None if both models have the same tokens."""

    def __init__(
        self,
        runtime: Runtime,
        vocab: int,
        gamma: int = 8,
        width: int = 1,
        verify: str = "match",
        translator: Retokenizer | None = None,
        beam: int = 0,
        accept: str = "claims",
        stop: float = 0.0,
    ) -> None:
        check(verify, beam, translator is None)
        self._reader, self._vocab, self._translator = DraftReader(runtime), vocab, translator
        self._gamma, self._verify = min(gamma, self._reader.room), verify
        self._bushy = bushy_places(verify)
        self._width, self._beam = width if self._bushy else 1, beam
        self._first, self._side = Calibration(), Calibration()
        self._head = AcceptanceHead(runtime.spec.hidden_size) if accept == "head" else None
        self._stop, self._best_of = stop, BEST
        self.usage: Usage | None = None
        if self._head is not None:
            self._best_of = BEST._replace(hidden=(runtime.spec.n_blocks - 1,))
        self._taken = [*_TAKEN]
        self._step_s = self._call_s = 0.0
        # Below each node of the last draft (-1: the root): (token, node, kind of claim).
        self._below: dict[int, list[tuple[int, int, int]]] = {}
        self._drawn = False

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Proposal:
        self._below, self._drawn = {}, False
        nodes = min(nodes, self._reader.room)
        if nodes < 1 or not context.ids:
            return Draft()
        if self._verify != "match" and context.sampling.temperature > 0:
            self._drawn = True
            return self._draw(context, nodes, min_path_prob)
        if self._translator is not None:
            return self._translate(self._translator, context, nodes, min_path_prob)
        if self.usage is not None:
            self._best_of = self._best_of._replace(readout=self.usage.readout)
        return self._likely(context, nodes, min_path_prob)

    def observe(self, step: StepResult) -> None:
        """Learn the acceptance of all guesses whose parent was accepted."""
        if self.usage is not None:
            self.usage.add(step.picked)
        if not step.root:  # a call that read no prompt
            own = step.seconds * step.rows.count / max(step.total, 1)
            self._call_s += (own - self._call_s) * (_PACE if self._call_s else 1.0)
        node, rows = -1, len(step.rows) - step.root - 1
        for token in step.picked:
            hit = -1
            for guess, child, kind in self._below.get(node, ()):
                if self._drawn and child >= rows:  # what was cut off was not verified
                    continue
                right = guess == token and hit < 0
                self._learn(kind, right)
                if self._head is not None:
                    self._head.learn(child, right)
                hit = child if right else hit
            if hit < 0:
                break
            node = hit
        self._below = {}

    def reset(self) -> None:
        self._reader.reset()
        if self._translator is not None:
            self._translator.reset()
        self._below = {}

    def state(self) -> State:
        return {} if self._head is None else self._head.state()

    def restore(self, state: State) -> None:
        if self._head is not None and state:
            self._head.restore(state)

    def report(self) -> dict[str, Any]:
        return {
            "verify": self._verify,
            **({"examples": self._head.examples} if self._head is not None else {}),
            "tokens": "same" if self._translator is None else "other",
            "steps": self._reader.calls,
            "step_ms": round(1e3 * self._step_s, 3),
        }

    def _learn(self, kind: int, right: bool) -> None:
        if self._drawn:
            self._taken[kind] += _SMOOTH * (right - self._taken[kind])
        elif kind < BINS:
            self._first.add(kind, right)
        else:
            self._side.add(kind - BINS, right)

    def _pays(self, worth: float, min_path_prob: float) -> bool:
        """Whether a path is likely enough for another step of the draft model, which costs a part of a call."""
        if self._stop:
            return worth >= 1.0 - self._stop
        own = self._step_s / self._call_s if self._call_s and min_path_prob > 0 else 0.0
        return worth >= min_path_prob + min(own, 0.9)

    def _likely(self, context: Context, nodes: int, min_path_prob: float) -> Generator[Request, Completed, Draft]:
        """The likeliest chain and its side branches, the likeliest paths of all of these."""
        sampling, reader, first, side = context.sampling, self._reader, self._first.estimates, self._side.estimates
        # (chance of the path, parent, token, chance, kind); parents are numbers in this list
        found: list[tuple[float, int, int, float, int]] = []
        worth, parent, limit = 1.0, -1, min(self._gamma, nodes)
        seen: dict[int, tuple[Floats, float]] = {}
        # The random numbers of the target's draws predict its tokens better than the likeliest ones.
        numbers = upcoming(context, limit) if sampling.temperature > 0 and self._head is None else []
        outputs = ALL if numbers else self._best_of
        result = yield from reader.read(context.ids, outputs, limit)
        for depth in range(limit):
            if depth:
                result = yield from self._step(found[parent][2], depth - 2, outputs)
            chain, above = -1, parent
            ahead = numbers[depth : depth + 1]
            for token, claim in (foreseen if ahead else shares)(result, sampling, self._vocab, *ahead):
                kind = kind_of(claim)
                chance = first[kind] if chain < 0 else side[kind]
                kind += 0 if chain < 0 else BINS
                if chain < 0:
                    chain = len(found)
                    if self._head is not None:
                        seen[chain] = self._head.inputs(result, depth), chance
                        chance = self._head.chance(*seen[chain])
                if worth * chance >= min_path_prob:
                    found.append((worth * chance, above, token, chance, kind))
                elif chain == len(found):
                    return self._best(found, nodes, seen)
            if chain < 0:
                break
            worth, parent = found[chain][0], chain
            if not self._pays(worth, min_path_prob) or sum(guess[0] > worth for guess in found) >= nodes:
                break
        return self._best(found, nodes, seen)

    def _best(
        self, found: Sequence[tuple[float, int, int, float, int]], nodes: int, seen: Mapping[int, tuple[Floats, float]]
    ) -> Draft:
        """The likeliest `nodes` of them; a path is never likelier than its parent's, and comes after it."""
        kept = list(range(len(found)))
        if len(found) > nodes:
            kept = sorted(sorted(kept, key=lambda i: -found[i][0])[:nodes])
        place = {-1: -1} | {old: new for new, old in enumerate(kept)}
        guesses = [found[i] for i in kept]
        if self._head is not None:
            self._head.hold({place[i]: example for i, example in seen.items() if i in place})
        parents = [place[guess[1]] for guess in guesses]
        self._hold([guess[2] for guess in guesses], parents, [guess[4] for guess in guesses])
        return Draft([guess[2] for guess in guesses], parents, [guess[3] for guess in guesses])

    def _hold(self, tokens: Sequence[int], parents: Sequence[int], kinds: Sequence[int]) -> None:
        for node, (token, parent, kind) in enumerate(zip(tokens, parents, kinds, strict=True)):
            self._below.setdefault(parent, []).append((token, node, kind))

    def _step(self, token: int, parent: int, outputs: Outputs) -> Reading:
        """One token further below `parent`, a number in the chain of steps (-1: the text)."""
        result = yield from self._reader.grow([token], [parent], outputs)
        self._step_s += (self._reader.step_seconds - self._step_s) * (_PACE if self._step_s else 1.0)
        return result

    def _translate(
        self, translator: Retokenizer, context: Context, nodes: int, min_path_prob: float
    ) -> Generator[Request, Completed, Draft]:
        """A draft in the draft model's own tokens, written in the target's."""
        followed = translator.follow(context.ids)
        if followed is None:
            return Draft()
        ids, settled = followed
        result = yield from self._reader.read(ids, BEST, self._gamma, settled)
        # The last of the target's tokens may yet grow, so one more is drafted.
        limit = min(self._gamma, (nodes + 1) * len(ids) // len(context.ids)) + 1
        drafted, claims = yield from self._chain(result, context.sampling, limit, min_path_prob)
        tokens, shared = translator.say(drafted, claims)
        kinds = [kind_of(claim) for claim in shared]
        chances = [self._first.estimates[kind] for kind in kinds]
        worths = list(accumulate(chances, mul))
        n = min(nodes, sum(worth >= min_path_prob for worth in worths))
        draft = Draft.chain(tokens[:n], chances[:n])
        self._hold(draft.tokens, draft.parents, kinds[:n])
        return draft

    def _chain(
        self, result: CallResult, sampling: Sampling, limit: int, min_path_prob: float
    ) -> Generator[Request, Completed, tuple[list[int], list[float]]]:
        """The draft model's likeliest chain, and its claims."""
        drafted: list[int] = []
        claims: list[float] = []
        worth = 1.0
        while guesses := shares(result, sampling, self._reader.vocab):
            drafted.append(guesses[0][0])
            claims.append(guesses[0][1])
            worth *= claims[-1]
            # Even one that is unlikely shows where the word before it ends.
            if len(drafted) >= limit or not self._pays(worth, min_path_prob):
                break
            result = yield from self._step(drafted[-1], len(drafted) - 2, self._best_of)
        return drafted, claims

    def _draw(self, context: Context, nodes: int, min_path_prob: float) -> Generator[Request, Completed, Draft]:
        """Tokens drawn from the draft model's distributions, place by place; each with what it was drawn from."""
        depth = self._depth(nodes, min_path_prob)
        if self._beam:
            width = min(self._beam, nodes)
            drawn = yield from beam_draft(self._reader, context, self._vocab, width, min(depth, nodes // width))
        else:
            branching = shape(depth, self._width, self._bushy, nodes)
            drawn = yield from level_draft(self._reader, context, self._vocab, branching, self._verify != "recursive")
        kinds = [min(rank, len(_TAKEN) - 1) for rank in drawn.ranks]
        self._hold(drawn.tokens, drawn.parents, kinds)
        claims = [self._taken[kind] for kind in kinds]
        return Draft(drawn.tokens, drawn.parents, claims, sampled=Sampled(self._verify, drawn.sources))

    def _depth(self, nodes: int, min_path_prob: float) -> int:
        """How far to draw; settled before anything is drawn, or what is drawn would not have its distribution."""
        depth, worth = 1, self._taken[0] ** 2
        least = max(min_path_prob, 1.0 - self._stop if self._stop else 0.0)
        while depth < min(self._gamma, nodes) and worth >= least:
            depth, worth = depth + 1, worth * self._taken[0]
        return depth
