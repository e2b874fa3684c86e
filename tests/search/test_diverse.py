"""Diverse beam search beside transformers' older group beam search, written again from its public source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from search.laws import PROMPT, VOCAB, beside, logps_of, search_of, searched

from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.runner import run_loop
from edgedec.errors import UsageError
from edgedec.testing.fakes import FakeRuntime, random_reference

LogPs = Callable[[tuple[int, ...]], Any]
ENDS = frozenset({2})


class Hypotheses:
    """`BeamHypotheses` of transformers 4.5x."""

    def __init__(self, width: int, penalty: float, early: bool) -> None:
        self.width, self.penalty, self.early = width, penalty, early
        self.found: list[tuple[float, tuple[int, ...]]] = []
        self.worst = 1e9

    def add(self, text: tuple[int, ...], total: float, length: int) -> None:
        score = total / length**self.penalty
        if len(self.found) < self.width or score > self.worst:
            self.found.append((score, text))
            if len(self.found) > self.width:
                self.found.remove(min(self.found, key=lambda one: one[0]))
            self.worst = min(one[0] for one in self.found)

    def done(self, best: float, length: int) -> bool:
        if len(self.found) < self.width:
            return False
        return self.early or self.worst >= best / length**self.penalty


def group_beam_search(
    logps: LogPs, width: int, groups: int, less: float, penalty: float, most: int, early: bool
) -> tuple[int, ...]:
    """`_group_beam_search` with `HammingDiversityLogitsProcessor` and `BeamSearchScorer`: the best text."""
    size = width // groups
    beams = [[(0.0, ())] + [(-1e9, ())] * (size - 1) for _ in range(groups)]
    kept, over = [Hypotheses(size, penalty, early) for _ in range(groups)], [False] * groups
    for n in range(1, most + 1):
        used = Counter[int]()
        for g in range(groups):
            if over[g]:
                continue
            found = [
                (score + float(logps(text)[t]) - less * used[t], i * VOCAB + t, text, t)
                for i, (score, text) in enumerate(beams[g])
                for t in range(VOCAB)
            ]
            top = sorted(found, key=lambda one: (-one[0], one[1]))[: 2 * size]
            beams[g] = []
            for rank, (score, _, text, t) in enumerate(top):
                if t in ENDS:
                    if rank < size:
                        kept[g].add((*text, t), score, n)
                else:
                    beams[g].append((score, (*text, t)))
                if len(beams[g]) == size:
                    break
            over[g] = kept[g].done(top[0][0], n)
            used.update(text[-1] for _, text in beams[g])
        if all(over):
            break
    for g in range(groups):
        if not over[g]:
            for score, text in beams[g]:
                kept[g].add(text, score, len(text))
    return max((one for group in kept for one in group.found), key=lambda one: one[0])[1]


def config(most: int = 8) -> GenerationConfig:
    return GenerationConfig(max_tokens=most)


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("penalty", [1.0, 0.0])
def test_groups_are_transformers(early: bool, penalty: float) -> None:
    """The same text, and one that the groups change."""
    changed = 0
    for seed in range(8):
        runtime = FakeRuntime(seed=seed, spread=4.0)
        logps = logps_of(runtime, PROMPT)
        for width, groups in ((4, 2), (6, 3), (6, 2)):
            best = group_beam_search(logps, width, groups, 0.5, penalty, 8, early)
            stop = str(early).lower()
            words = f"diverse:width={width},groups={groups},length_penalty={penalty},early_stopping={stop}"
            found = searched(runtime, words, config(), eos=ENDS)
            assert found == [token for token in best if token not in ENDS], (seed, width, groups)
            one = searched(runtime, f"beam:width={width},length_penalty={penalty}", config(), eos=ENDS)
            changed += found != one
    assert changed > 3


def test_one_group_is_beam_search() -> None:
    for seed in range(4):
        runtime = FakeRuntime(seed=seed)
        beams = search_of(runtime, "beam:width=4", config(), ENDS)
        groups = search_of(runtime, "diverse:width=4,groups=1", config(), ENDS)
        assert list(run_loop(runtime, beams.loop)) == list(run_loop(runtime, groups.loop))
        assert [b.tokens for b in beams.room.ranked] == [b.tokens for b in groups.room.ranked]


def test_a_penalty_of_nothing_gives_the_same_text_in_every_group() -> None:
    runtime = FakeRuntime()
    search = search_of(runtime, "diverse:width=3,groups=3,penalty=0", config())
    list(run_loop(runtime, search.loop))
    assert len({tuple(branch.tokens) for branch in search.room.ranked}) == 1
    apart = search_of(runtime, "diverse:width=3,groups=3,penalty=5", config())
    list(run_loop(runtime, apart.loop))
    firsts = [branch.tokens[0] for branch in apart.room.ranked]
    assert len(set(firsts)) == 3


def test_all_groups_share_one_forward() -> None:
    runtime = FakeRuntime()
    search = search_of(runtime, "diverse:width=6,groups=3", config(5))
    runtime.forwards.clear()
    list(run_loop(runtime, search.loop))
    assert runtime.forwards == [1, 3, 6, 6, 6, 6]


@pytest.mark.parametrize("make", [FakeRuntime, random_reference], ids=["hashes", "reference"])
def test_the_result_does_not_depend_on_company(make: Any) -> None:
    runtime = make()
    assert beside(runtime, "diverse:width=4", config()) == searched(runtime, "diverse:width=4", config())


def test_groups_must_divide_the_width() -> None:
    with pytest.raises(UsageError, match="groups=3: must divide width, which is 4"):
        search_of(FakeRuntime(), "diverse:width=4,groups=3", config())
    with pytest.raises(UsageError, match="rank=4: 4 texts are found"):
        search_of(FakeRuntime(), "diverse:width=4,rank=4", config())
