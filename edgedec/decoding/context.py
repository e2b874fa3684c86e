"""The state of one text that is being generated, as the loop and the drafters use it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from edgedec.bundle.modes import ModeFacts
from edgedec.cache import Cache
from edgedec.cache.prefixes import common
from edgedec.decoding.constraint import NO_HOOKS, ConstraintHooks
from edgedec.decoding.host_time import Gaps
from edgedec.decoding.streams import copied
from edgedec.errors import ContextFull
from edgedec.policies import CachePolicy
from edgedec.runtime import Adapter, suit, suits
from edgedec.sampling import Sampling


class Ends(NamedTuple):
    """Of a batch to which no further texts come, the texts that end after this one, and those that end with it, itself
    included. ties 0: further texts come."""

    after: int = 0
    ties: int = 0


NEVER = Ends()


def _generator() -> np.random.Generator:
    """Looked up when it is called, so that tests may seed it."""
    return np.random.default_rng()


@dataclass
class Context:
    """A text's tokens, and the cache that holds all but the last few of them.

    `ids` is only appended to, or replaced by another list: forks refer to it until they need a list of their own.
    `sampling`: the settings of the generation in progress; `rng`: its random generator; `concurrent`: how many other
    sequences share its calls, and `ends` when it ends among them; `hooks`: the functions of its constraint besides
    masks; `adapter`: the low-rank weights that its calls use; `policy`: the cache policy, None to keep everything
    (`edgedec.decoding.apply_policy`); `gaps`: the time between its calls; `left`: the tokens that the runtime's own
    steps may add from here on, 0 where the next call cannot be such a step; `most_rows`: of a call that reads the text
    while others wait for their tokens, 0: as many as the runtime takes; `modes`: of a model whose first tokens choose
    which rows see each other.
    """

    ids: list[int]
    n_prompt: int
    cache: Cache
    sinks: int | None = None
    rng: np.random.Generator = field(default_factory=_generator)
    sampling: Sampling = field(default_factory=Sampling)
    concurrent: int = 0
    ends: Ends = NEVER
    hooks: ConstraintHooks = NO_HOOKS
    adapter: Adapter | None = None
    policy: CachePolicy | None = None
    gaps: Gaps = field(default_factory=Gaps)
    left: int = 0
    most_rows: int = 0
    modes: ModeFacts | None = None

    def fork(self, rng: np.random.Generator | None = None) -> Context:
        """An independent copy, without the constraint's hooks: a generation that continues it sets its own. Its text is
        copied at its first use. rng: its random generator, by default a copy."""
        rng = copied(self.rng) if rng is None else rng
        policy = None if self.policy is None else self.policy.fork()
        cache = self.cache.fork()
        own = {**vars(self), "cache": cache, "rng": rng, "policy": policy, "hooks": NO_HOOKS, "most_rows": 0}
        if (ids := own.pop("ids", None)) is not None:
            own["_text"] = ids, len(ids)
        twin = Context.__new__(Context)
        vars(twin).update(own)  # beams make forks in every step
        return twin

    if not TYPE_CHECKING:  # to mypy, any attribute of a class with this method exists

        def __getattr__(self, name):
            """`ids` of a fork that has not been used yet."""
            text = vars(self).pop("_text", None) if name == "ids" else None
            if text is None:
                raise AttributeError(name)
            ids, n = text
            self.ids = ids[:n]
            return self.ids

    @property
    def together(self) -> int:
        """How many of the first tokens see each other; 0 where a row sees only what is before it."""
        return 0 if self.modes is None else self.modes.together(self.ids)

    @property
    def shareable(self) -> bool:
        """Whether other texts may go on from its cache, and it from theirs: what a policy keeps, and what sees a whole
        source, is of one text."""
        return self.policy is None and not self.together

    def shared(self, ids: Sequence[int]) -> int:
        """How many tokens of the cache are those of the text `ids`; none where tokens see each other and are not all
        the same."""
        n, modes = common(ids, self.ids), self.modes
        if modes is not None and n < max(modes.together(ids), self.together if self.cache.length else 0):
            return 0
        return min(n, self.cache.length)

    def forget(self, length: int) -> None:
        """Cut the cache to the first `length` tokens. Under a policy, cut it to nothing: what the policy dropped
        because of later tokens cannot be restored, so the text is read again. So are rows that see each other, unless
        only the last of them is cut."""
        if length < self.cache.length:
            whole = self.policy is None and length >= self.together - 1
            self.cache.truncate(length if whole else 0)
            if self.policy is not None:
                self.policy.reset()

    def suit(self, length: int | None = None) -> bool:
        """Let the cache have the ropes of a text of this length, by default the present one; returns whether that
        forgot what it held (`runtime.long_ropes`)."""
        length = len(self.ids) if length is None else length
        if suits(self.cache, length):
            return False
        self.forget(0)
        suit(self.cache, length)
        return True

    def generated_after(self, length: int) -> int:
        """The tokens after the first `length` that were generated, and not appended to the text."""
        return max(len(self.ids) - max(length, self.n_prompt), 0)

    def pending(self) -> list[int]:
        """The tokens not yet cached: the next call runs them, and the last of them is the root of a draft."""
        return self.ids[self.cache.length :]

    def chunk(self, size: int) -> int:
        """The rows of the next call that reads the text, where the runtime takes `size`."""
        return min(size, self.most_rows) if self.most_rows else size

    def make_room(self) -> None:
        """Slide a full context: keep the first and the latest tokens, and read them again.

        Half of the capacity is kept, so that one re-reading is spread over many tokens; the kept tokens get new
        positions and keys and values without the dropped tokens, exactly as in a new session."""
        capacity = self.cache.capacity
        if self.together:
            raise ContextFull(
                f"{len(self.ids)} tokens do not fit a context of {capacity}, and a source that sees itself is not cut: "
                "shorten it, or ask for fewer tokens"
            )
        if self.sinks is None:
            raise ContextFull(
                f"{len(self.ids)} tokens do not fit a context of {capacity}: shorten the prompt, ask for fewer "
                "tokens, or let the context slide (--on-full slide, in Python on_full='slide')"
            )
        latest = max(capacity // 2 - self.sinks, 1)
        dropped = len(self.ids) - self.sinks - latest
        self.ids = self.ids[: self.sinks] + self.ids[-latest:]
        self.n_prompt = max(self.n_prompt - dropped, min(self.n_prompt, self.sinks))
        self.forget(0)
