"""What diffusion decoding costs at a model's sizes if its passes brought as many tokens as published: replayed
acceptances, beside token-by-token decoding of the same weights.

Each contestant fills so many positions a pass, whatever the model says, so that only the calls are measured: their
rows, commits and caches are those of real decoding. `canvas` is what llama.cpp's diffusion program does, written out on
this engine: the whole text and all its masks run in every step, nothing is cached. Contestants take turns of a few
tokens each, so that other load affects all of them equally; reading the prompt is not measured, but for `canvas`, which
reads it in every step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

from edgedec.bench.batch import texts_of
from edgedec.bench.dial import Dial
from edgedec.bench.prompts import Prompt
from edgedec.bundle.manifest import DiffusionFacts
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.decoding.draft import PromptRows
from edgedec.decoding.loop import decode_loop
from edgedec.decoding.messages import DecodeLoop, Stats, Token
from edgedec.decoding.scheduler.batch import Batch
from edgedec.diffusion.canvas import Canvas
from edgedec.diffusion.host import DiffusionHost
from edgedec.diffusion.loop import PassCounts, diffusion_loop
from edgedec.diffusion.seen import SeenBlock
from edgedec.diffusion.words import parse_diffusion
from edgedec.drafters import Draft
from edgedec.drafters.off import Off
from edgedec.errors import EdgedecError, UsageError
from edgedec.runtime import Outputs
from edgedec.sampling import Sampling

if TYPE_CHECKING:
    from edgedec.model import Model

AR, _TURN, _AHEAD = "off", 4, 16
_BEST = 4


@dataclass(frozen=True)
class ReplayedWay:
    """rate: tokens of a pass (of `draft`: the chance that a guess is right if the one before was); block: positions of
    a block or window, masks below a draft; sequences: most texts at a time."""

    name: str
    rate: float
    block: int
    context: Literal["causal", "full"] = "causal"
    shift: bool = True
    words: str = ""
    guesses: int = 0
    most: int = 256


# Published or assumed tokens a pass (../docs/diffusion.md); canvas: as many as block 4, so that quality is equal.
CONTESTANTS = (
    ReplayedWay("block 4, commit fused", 2.2, 4, words="keep=block"),
    ReplayedWay("causal window 8", 2.5, 8, shift=False, words="keep=reorder,blocks=sliding"),
    ReplayedWay("lossless drafts, 4 masks", 0.65, 4, guesses=3),
    ReplayedWay("canvas, no cache (llama.cpp)", 2.2, 0, "full", words="keep=none", most=1),
)


class Replayed:
    """A schedule that fills `rate` positions a pass, on average, from the left; what a block has no room for is filled
    later."""

    def __init__(self, rate: float) -> None:
        self._rate, self._owed = rate, 0.0

    def choose(self, seen: SeenBlock, canvas: Canvas) -> Sequence[int]:
        self._owed += self._rate
        n = min(max(1, int(self._owed)), len(seen.positions) + seen.given)
        self._owed -= n
        return [int(i) for i in seen.positions[: max(n - seen.given, 0)]]


class ReplayedDraft(Dial):
    """Guesses of the text that are right as often as told, and masks below the last, as `--spec block` has them."""

    outputs = Outputs(top=_BEST)

    def __init__(self, text: Sequence[int], right: float, seed: int, vocab: int, guesses: int, mask: list[int]) -> None:
        super().__init__(text, right, seed, vocab)
        self._guesses, self._mask = guesses, mask

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Draft:
        draft = super().propose(context, min(nodes, self._guesses), min_path_prob)
        if len(draft.tokens) < self._guesses:
            return draft
        n = len(self._mask)
        return draft.with_prompts(PromptRows([len(draft.tokens) - 1 + i for i in range(n)], None, self._mask, [0] * n))


@dataclass
class ReplayCell:
    """Of one contestant and number of texts: tokens a second of each round, and what its calls did."""

    name: str
    sequences: int
    speeds: list[float] = field(default_factory=list)
    tokens: int = 0
    calls: int = 0
    rows: int = 0

    def to_json(self, plain: ReplayCell) -> dict[str, Any]:
        over = [ours / theirs for ours, theirs in zip(self.speeds, plain.speeds, strict=True)]
        return {
            "name": self.name,
            "sequences": self.sequences,
            "tokens_per_s": [round(speed, 2) for speed in self.speeds],
            # Plain decoding runs in the engine's own steps, which are not counted: a row a text and call.
            "tokens_per_call": round(self.tokens / self.calls / self.sequences, 3) if self.calls else 1.0,
            "rows_per_call": round(self.rows / self.calls, 2) if self.calls else float(self.sequences),
            "over_off": round(median(over), 3),
        }


class ReplayBench:
    """One model, its prompts, and how many tokens of each text are measured."""

    def __init__(self, model: Model, prompts: Sequence[Prompt], most: int, tokens: int) -> None:
        facts = model.bundle.manifest.diffusion
        if facts is None:
            name = model.bundle.manifest.name
            raise UsageError(f"--replay: {name} has no mask (no section diffusion in its manifest); take nano-block")
        self.model, self.facts, self.tokens = model, facts, tokens
        self.prompts = [model.tokenizer.encode(text) for text in texts_of(prompts, most)]
        self.length = max(map(len, self.prompts)) + tokens + _AHEAD
        if self.length > model.spec.context_length:
            raise UsageError(f"-n {tokens}: texts of {self.length} tokens do not fit {model.spec.context_length}")
        self.texts: list[list[int]] = []

    def measure(
        self, sequences: Sequence[int], rounds: int, progress: Callable[[int, int], None] = lambda done, total: None
    ) -> list[ReplayCell]:
        """Every contestant, the plain one first, with so many texts at a time."""
        self.texts = self._plain()
        cells = [ReplayCell(name, n) for n in sequences for name in (AR, *(c.name for c in self.ready(n)))]
        for round_ in range(rounds):
            for at, n in enumerate(sequences):
                self._round([cell for cell in cells if cell.sequences == n], n)
                progress(round_ * len(sequences) + at + 1, rounds * len(sequences))
        return cells

    def ready(self, sequences: int) -> Iterable[ReplayedWay]:
        """Those whose calls this engine takes, with so many texts."""
        largest = self.model.runtime.capabilities.largest_call
        for one in CONTESTANTS:
            if sequences <= one.most and (one.context != "full" or self.length <= largest):
                yield one

    def _round(self, cells: Sequence[ReplayCell], n: int) -> None:
        by_name = {one.name: one for one in CONTESTANTS}
        runs = [ReplayRun(self, by_name.get(cell.name), n) for cell in cells]
        for run in runs:
            run.begin()
        for until in range(_TURN, self.tokens, _TURN):
            for run in runs:
                run.run(until * n)
        for cell, run in zip(cells, runs, strict=True):
            run.end()
            cell.speeds.append(run.made / run.seconds if run.seconds else 0.0)
            cell.tokens, cell.calls, cell.rows = cell.tokens + run.made, cell.calls + run.calls, cell.rows + run.rows

    def _plain(self) -> list[list[int]]:
        run = ReplayRun(self, None, len(self.prompts))
        while run.step():
            pass
        return [context.ids for context in run.contexts]


class ReplayRun:
    """One contestant on the first texts. made, seconds, calls, rows: since all texts had begun."""

    def __init__(self, bench: ReplayBench, contestant: ReplayedWay | None, n: int) -> None:
        self._bench, self._one, self._begun = bench, contestant, 0
        self._counter = CountedRuntime(bench.model.runtime)
        self._batch = Batch(self._counter)
        self.contexts: list[Context] = []
        self.made, self.seconds, self.calls, self.rows = 0, 0.0, 0, 0
        for i, prompt in enumerate(bench.prompts[:n]):
            self._add(i, prompt)

    def _add(self, i: int, prompt: Sequence[int]) -> None:
        bench, runtime = self._bench, self._bench.model.runtime
        context = Context(list(prompt), len(prompt), runtime.new_cache(bench.length))
        config = GenerationConfig(Sampling(temperature=0), bench.tokens, ignore_eos=True)
        self._batch.add(
            context, self._loop(i, context, config), lambda token: self._count(token, context), bench.length
        )
        self.contexts.append(context)

    def _loop(self, i: int, context: Context, config: GenerationConfig) -> DecodeLoop:
        one, bench, can = self._one, self._bench, self._bench.model.runtime.capabilities
        if one is None:
            return decode_loop(context, config, Off(), capabilities=can)
        if one.guesses:
            masks = [bench.facts.mask] * one.block
            draft = ReplayedDraft(bench.texts[i], one.rate, i, bench.model.spec.vocab_size, one.guesses, masks)
            return decode_loop(context, config, draft, capabilities=can)
        facts = DiffusionFacts(bench.facts.mask, one.shift, one.context, one.block or bench.length)
        methods = parse_diffusion(one.words, one.context).make(DiffusionHost(facts, can))
        methods = replace(methods, schedule=Replayed(one.rate))
        return diffusion_loop(context, config, methods, facts, Stats(), PassCounts(), frozenset(), can)

    def _count(self, token: Token | None, context: Context) -> None:
        self.made += token is not None
        self._begun += token is not None and len(context.ids) == context.n_prompt + 1

    def step(self) -> bool:
        return self._batch.step()

    def begin(self) -> None:
        """Run until all texts have begun; what is before is not counted."""
        while self._begun < len(self.contexts) and self.step():
            pass
        self.made, self._counter.calls, self._counter.rows = 0, 0, 0

    def run(self, until: int) -> None:
        began = perf_counter()
        while self.made < until and self.step():
            pass
        self.seconds += perf_counter() - began

    def end(self) -> None:
        """End all texts; EdgedecError if drafts changed one."""
        self.calls, self.rows = self._counter.calls, self._counter.rows
        for job in list(self._batch.jobs):
            self._batch.cancel(job)
        for context, text in zip(self.contexts, self._bench.texts, strict=False):
            if self._one is not None and self._one.guesses and context.ids != text[: len(context.ids)]:
                raise EdgedecError(f"bench diffusion: {self._one.name}: a text is not what it is without drafts")


class CountedRuntime:
    """A runtime that counts its forwards and their rows."""

    def __init__(self, runtime: Any) -> None:
        self._runtime, self.calls, self.rows = runtime, 0, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)

    def forward(self, calls: Sequence[Any]) -> Any:
        self.calls, self.rows = self.calls + 1, self.rows + sum(call.rows.count for call in calls)
        return self._runtime.forward(calls)
