"""The decoding loop of diffusion language models: begin a block, run passes until it is filled, deliver its tokens.

    begin ─> read what is not cached ─> pass ─> choose positions ─> fill ─> deliver the tokens that have none masked
                                         └──────────── until the block is filled ─────────┘     before them

A `DecodeLoop`, so that a session, a batch and the server run it as any other. At a yielded token the text ends with it;
tokens of the block behind it are not part of the text, and are forgotten if the generation ends there.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import perf_counter

from edgedec.bundle.manifest import DiffusionFacts
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.constraint import NO_HOOKS, ConstraintHooks, limit_of
from edgedec.decoding.context import Context
from edgedec.decoding.messages import Completed, DecodeLoop, Stats, Token, Waiting
from edgedec.diffusion.canvas import Canvas
from edgedec.diffusion.editing import BlockEdits
from edgedec.diffusion.filling import fill
from edgedec.diffusion.picking import Picker
from edgedec.diffusion.seams import PassPlan
from edgedec.diffusion.seen import Line, SeenBlock, see
from edgedec.diffusion.tracing import FillTape, FillTrace
from edgedec.diffusion.words import Methods
from edgedec.errors import ContextFull, UsageError
from edgedec.runtime import Call, Capabilities


@dataclass
class PassCounts:
    """What the passes of a generation did. rows: computed, those of prompts included; filled: positions; blocks:
    begun; edited: filled tokens that were replaced."""

    passes: int = 0
    rows: int = 0
    filled: int = 0
    blocks: int = 0
    edited: int = 0


def diffusion_loop(
    context: Context,
    config: GenerationConfig,
    methods: Methods,
    facts: DiffusionFacts,
    stats: Stats,
    counts: PassCounts,
    eos: frozenset[int],
    capabilities: Capabilities,
    trace: list[FillTrace] | None = None,
) -> DecodeLoop:
    """Generate tokens after `context.ids`, a block at a time; trace: collects every pass."""
    text = DiffusionText(context, config, methods, facts, stats, counts, eos, capabilities, FillTape(trace))
    with text.attached():
        while not text.ended():
            text.begin()
            yield from text.deliver()
            if text.open:
                yield from methods.verify.passes(text)


class DiffusionText:
    """The phases of one generation. The arguments are those of `diffusion_loop`."""

    def __init__(
        self,
        context: Context,
        config: GenerationConfig,
        methods: Methods,
        facts: DiffusionFacts,
        stats: Stats,
        counts: PassCounts,
        eos: frozenset[int],
        capabilities: Capabilities,
        tape: FillTape,
    ) -> None:
        if not context.ids:
            raise UsageError("nothing to continue: give at least one token (this tokenizer adds none of its own)")
        self.context, self.methods, self.facts, self.ends = context, methods, facts, config.ends(eos)
        self.config = config = methods.fits.begin(config, self.ends)
        self.stats, self.counts, self.tape = stats, counts, tape
        context.suit()
        stats.prompt, stats.cached = len(context.ids), context.cache.length
        self._left, self._stopped = config.max_tokens, False
        self.canvas = self._new_canvas()
        self.canvas.tokens += self._form()
        self.canvas.last = len(self.canvas.tokens) if methods.fits.form else 0
        self.picker = Picker(config, context, self.ends, capabilities, facts.mask, methods.entropy, methods.fits.strict)
        self.edits = BlockEdits(methods.fits.edits, self.picker.in_order)
        self.made: dict[int, Token] = {}
        self._before: SeenBlock | None = None

    def _form(self) -> list[int]:
        """The tokens of the text's form; ContextFull or UsageError if there is no room for them."""
        form = self.methods.fits.form
        if form and len(form) > self._room():
            raise ContextFull(
                f"--diffusion fits: a form of {len(form)} tokens; the context has room for {self._room()}"
            )
        if form and self._left is not None and self._left < len(form):
            raise UsageError(f"--diffusion fits: a form of {len(form)} tokens; {self._left} may be generated")
        return [self.canvas.mask if token < 0 else token for token in form]

    def _new_canvas(self) -> Canvas:
        """The text as it is; a model that sees everything gets all its masks at once."""
        canvas = Canvas.of(self.context.ids, self.facts.mask, self._left or 0)
        if self.facts.context == "full" and not self.methods.fits.form:
            canvas.tokens += [canvas.mask] * min(self._room(), self._left if self._left is not None else self._room())
        return canvas

    def _room(self) -> int:
        return self.context.cache.capacity - len(self.context.ids)

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Connect the context to the constraint during the generation. At the end the cache holds no more than the
        text, and nothing that depends on tokens that were not delivered."""
        context, constraint = self.context, self.config.constraint
        context.sampling = self.config.sampling
        context.hooks = ConstraintHooks.of(constraint, context.hooks.parks)
        if constraint is not None:
            room = max(self._room(), 0)
            limit_of(constraint, room if self._left is None else min(room, self._left))
        try:
            yield
        finally:
            context.hooks = NO_HOOKS
            context.cache.rollback()
            if self.methods.stale and context.cache.length > self.canvas.start:
                context.cache.truncate(self.canvas.start)
            if self.facts.context == "full" or context.cache.length > len(context.ids):
                context.cache.truncate(0 if self.facts.context == "full" else len(context.ids))

    def ended(self) -> bool:
        """Whether the text is complete; `Stats.finish` then has the reason. A full context slides first, or raises
        ContextFull."""
        if self._stopped:
            return True
        if self._done():
            return self._stop("eos")
        if self._left is not None and self._left <= 0 and self.canvas.last != len(self.context.ids):
            return self._stop("length")
        if self._room() > 0:
            return False
        if self.stats.generated and self.config.max_tokens is None and self.context.sinks is None:
            return self._stop("context")
        self.context.make_room()
        self.canvas = self._new_canvas()
        return False

    def _done(self) -> bool:
        whole = self.canvas.last and len(self.context.ids) >= self.canvas.last
        constraint = self.config.constraint
        return bool(whole) or self.methods.fits.done or (constraint is not None and constraint.done)

    @property
    def open(self) -> bool:
        """Whether the block has positions that may change, and the text goes on."""
        more, canvas = self._left is None or self._left > 0, self.canvas
        return more and not self._stopped and not self._done() and (bool(canvas.masked()) or canvas.editable >= 0)

    def begin(self) -> None:
        """Begin the block of the first token that is not known."""
        canvas, n = self.canvas, len(self.context.ids)
        start = n // self.facts.block * self.facts.block if self.facts.context == "block" else n
        most = len(canvas.tokens) if self.facts.context == "full" else self.context.cache.capacity
        if canvas.last and self.facts.context != "block":
            most = min(most, canvas.last)
        canvas.begin(start, min(max(self.methods.blocks.begin(canvas, start), n + 1), most))
        self.context.suit(canvas.end)
        self.made = {position: token for position, token in self.made.items() if position >= n}
        self.edits.begin(canvas, max(n, start + int(self._led)))
        self._before = None
        self.counts.blocks += 1

    def run(self) -> Generator[Call, Completed, dict[int, Line]]:
        """The block's next pass, and the reading before it: the rows that predict its masked positions."""
        began, forward = perf_counter(), 0.0
        while True:
            plan = self.methods.keep.plan(self.canvas, self.context.cache)
            done = yield from self.call(plan)
            forward += done.seconds
            if plan.shown:
                break
        self.count(perf_counter() - began, forward)
        return {position: Line(done.result, at) for at, position in enumerate(plan.shown) if position >= 0}

    def call(self, plan: PassPlan) -> Generator[Call, Completed, Completed]:
        """Run the rows of a plan, and keep those that it keeps."""
        cache = self.context.cache
        call = Call(plan.rows, cache, adapter=self.context.adapter)
        if plan.shown:
            call = call._replace(outputs=self.picker.outputs._replace(logits_from=plan.logits_from))
        done = yield call
        self.counts.rows += plan.rows.count
        if len(plan.commit):
            cache.commit(plan.commit)
        return done

    def count(self, seconds: float, forward: float) -> None:
        """Count a pass, and its time."""
        self.counts.passes += 1
        self.stats.add_call(seconds, forward)
        self.tape.passed(self.canvas, self.counts.rows, seconds)

    def fill(self, lines: dict[int, Line], seen: SeenBlock | None = None) -> Generator[Waiting]:
        """Fill what a pass does, as `edgedec.diffusion.filling.fill`."""
        yield from fill(self, lines, seen)

    def passed(self, seen: SeenBlock) -> None:
        """Note that a pass has filled what it does."""
        self.canvas.step, self._before = self.canvas.step + 1, replace(seen, before=None)

    def put(self, position: int, token: Token) -> None:
        """Fill a position, or replace its token."""
        known = self.canvas.known(position)
        self.canvas.tokens[position], self.made[position] = int(token), token
        self.counts.filled, self.counts.edited = self.counts.filled + (not known), self.counts.edited + known
        self.tape.filled(position, int(token))

    def see(self, lines: dict[int, Line]) -> SeenBlock:
        """What the pass says of the block, after the block's end was set."""
        canvas, methods = self.canvas, self.methods
        left = max(methods.steps - canvas.step, 1) if methods.steps else 0
        factor = methods.ends.factor(canvas)
        seen = see(lines, canvas.mask, methods.entropy, self._before, left).scaled(self.ends, factor)
        end = max(min(methods.blocks.cut(seen, canvas), self._most_end()), self._least_end())
        if end < canvas.end and self.facts.context != "full":
            canvas.cut(end)
        canvas.end = end
        canvas.tokens += [canvas.mask] * (end - len(canvas.tokens))
        self.tape.saw(seen)
        return seen.between(canvas.start, end)

    def chosen(self, seen: SeenBlock) -> list[int]:
        """The positions to fill. A first token that a row before the block predicts comes first: that row does not see
        the block, so it would not know what was filled behind it."""
        canvas = self.canvas
        given = [canvas.start] if self._led and canvas.start in seen.positions[:1] else []
        rest = replace(seen.between(canvas.start + len(given), canvas.end), given=len(given))
        if not len(rest.positions):
            return given
        least = -(-len(seen.positions) // seen.left) if seen.left else 1
        return [*given, *rest.at_least(self.methods.schedule.choose(rest, canvas), least - len(given))]

    @property
    def _led(self) -> bool:
        """Whether a block's first token is predicted by a row that sees nothing of the block."""
        return self.facts.shift and self.facts.context != "full"

    def _most_end(self) -> int:
        """The last end that a block may be given after a pass."""
        return len(self.canvas.tokens) if self.facts.context == "full" else self.context.cache.capacity

    def _least_end(self) -> int:
        """The first: behind the first masked position and all that is filled."""
        canvas = self.canvas
        filled = [i for i in range(canvas.start, len(canvas.tokens)) if canvas.known(i)]
        return min(max(canvas.masked()[0], *filled) + 1 if filled else canvas.masked()[0] + 1, canvas.end)

    def deliver(self) -> Generator[Token]:
        """Add the tokens that have no masked one before them to the text, one by one; no token that may change."""
        context, canvas = self.context, self.canvas
        while canvas.editable < 0 and (n := len(context.ids)) < canvas.end and canvas.known(n) and self._left != 0:
            if self._done():
                return
            token = self.made[n] if n in self.made else Token(canvas.tokens[n])
            if int(token) in self.ends:
                self._stop("eos")
                return
            context.ids.append(int(token))
            self.stats.generated += 1
            self.picker.chooser.accept(int(token))
            self.methods.fits.accept(int(token))
            if self._left is not None:
                self._left -= 1
            yield token

    def _stop(self, reason: str) -> bool:
        """Note why the text is complete; always True."""
        self.stats.finish, self._stopped = reason, True
        return True
