"""ADED's exploration: if the most frequent continuation changes, the other one was tried before."""

from __future__ import annotations

import numpy as np
from loops import decode

from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.decoding.messages import Stats
from edgedec.drafters.trigram import Trigram
from edgedec.runtime import Call, Hidden, Logits
from edgedec.testing.fakes import FakeRuntime, tiny_spec

VERSES, LENGTH = 6, 6
WIDTH = 2 * LENGTH + 1


class Song(FakeRuntime):
    """After each opening comes the likelier of two verses, then the next opening; `share`: of the second verse."""

    def __init__(self, share: float) -> None:
        super().__init__(tiny_spec(vocab_size=VERSES * WIDTH, n_layers=1, context_length=4096))
        self._laws = np.zeros((VERSES * WIDTH, VERSES * WIDTH), np.float32)
        self.say(share)

    def run_block(self, b: int, hidden: Hidden, call: Call, span: tuple[int, int]) -> None:
        """Nothing but the token at hand says what follows."""

    def head(self, hidden: Hidden) -> Logits:
        return self._laws[hidden[:, 0].astype(int)]

    def say(self, share: float) -> None:
        laws, openings = self._laws, np.arange(VERSES) * WIDTH
        laws[:] = np.random.default_rng(5).normal(size=laws.shape) * 0.1 - 9
        for opening, following in zip(openings, np.roll(openings, -1), strict=True):
            for verse, chance in enumerate((1 - share, share)):
                tokens = opening + 1 + verse * LENGTH + np.arange(LENGTH)
                laws[opening, tokens[0]] = np.log(chance)
                laws[tokens, [*tokens[1:], following]] = 0


def tokens_a_call(explore: float, nodes: int, share: float) -> tuple[float, float]:
    """While the first verses are sung, and in the first round of the second ones."""
    song, drafter, found = Song(share), Trigram(VERSES * WIDTH, nodes, explore=explore), []
    context = Context([0], 1, song.new_cache(2048))
    for chance, n in ((share, 600), (1 - share, VERSES * (LENGTH + 1) * 2)):
        song.say(chance)
        stats, before = Stats(), len(context.ids)
        list(decode(song, context, GenerationConfig(max_tokens=n), drafter, stats=stats))
        assert stats.accepted > 0
        first = VERSES * (LENGTH + 1)
        second = [token % WIDTH > LENGTH for token in context.ids[before + 1 : before + first] if token % WIDTH]
        assert all(second) if chance > 0.5 else not any(second), "the likelier verses are sung"
        found.append(stats.generated / stats.calls)
    return found[0], found[1]


def test_exploration_pays_when_the_most_frequent_continuation_changes() -> None:
    cases = [(nodes, share) for nodes in (6, 12, 16) for share in (0.4, 0.45)]
    none, usual, much = (np.array([tokens_a_call(explore, *case) for case in cases]) for explore in (0.0, 0.05, 0.2))
    assert (usual[:, 1] >= none[:, 1]).all()
    assert (much[:, 1] >= none[:, 1]).all()
    assert usual[:, 1].sum() > 1.01 * none[:, 1].sum()
    assert much[:, 1].sum() > 1.1 * none[:, 1].sum()
    # What it costs where nothing changes.
    assert usual[:, 0].sum() > 0.99 * none[:, 0].sum()
    assert much[:, 0].sum() > 0.97 * none[:, 0].sum()
