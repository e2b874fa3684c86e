"""FastKV (Jo et al. 2025): all tokens up to a layer, the salient ones above it, and caches chosen apart from that."""

from __future__ import annotations

from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive import Held, slots_of
from scripted import Scripted, Text, any_paid, pays, policy_of, spec_of

from edgedec.errors import UsageError

SPEC = spec_of(layers=3)


def test_the_layer_before_the_cut_chooses_by_hand() -> None:
    """30 tokens, two layers for all, 12 go on: 4 first, the window of 2, and 6 by what the window pays in block 2.

    Block 0 would choose 8 to 10, all rows 20 to 22, the heads' second 16; the mean of three neighbours of 6, 12: 5 to
    7 and 11 to 13.
    """
    chosen = {(0, 29, 6): 3.0, (1, 28, 12): 2.0, (0, 25, 21): 9.0}
    paid = {0: pays(2, 30, {(0, 29, 9): 9.0}), 2: pays(2, 30, chosen), 4: pays(2, 30, {(0, 29, 6): 1.0})}
    words = "fastkv:budget=1,rate=0.4,layer=2,window=2,pool=3"
    runtime = Scripted(SPEC, paid)
    text = Text(runtime, words).read(30, 16)
    up = [0, 1, 2, 3, 5, 6, 7, 11, 12, 13, 28, 29]
    assert text.kept() == [list(range(30)), list(range(30)), up]
    assert [(list(call.blocks or ()), len(call.rows) - call.rows.first) for call in runtime.calls] == [
        ([0, 1, 2, 3], 16),
        ([0, 1, 2, 3], 12),
        ([0, 1, 2, 3], 2),
        ([4, 5], 10),
        ([4, 5], 2),
    ]
    assert [call.outputs.attention for call in runtime.calls] == [False, False, True, False, True]
    assert [call.outputs.hidden for call in runtime.calls] == [(3,), (3,), (3,), (), ()]


def test_caches_are_chosen_apart_from_what_goes_on() -> None:
    """Above the cut 8 of the 12 stay, by that block's own sums: 6 and 13; below it 5 and 9 of all."""
    paid = {
        0: pays(2, 30, {(0, 29, 9): 9.0, (0, 28, 5): 1.0}),
        2: pays(2, 30, {(0, 29, 6): 3.0, (1, 28, 12): 2.0}),
        4: pays(2, 30, {(0, 29, 6): 1.0, (0, 29, 13): 2.0, (0, 29, 20): 8.0}),
    }
    text = Text(Scripted(SPEC, paid), "fastkv:budget=8,rate=0.4,layer=2,window=2,pool=1").read(30)
    assert text.kept()[0] == [0, 1, 2, 3, 5, 9, 28, 29]
    assert text.kept()[1] == [0, 1, 2, 3, 6, 12, 28, 29]
    assert text.kept()[2] == [0, 1, 2, 3, 6, 27, 28, 29], "13 and 20 did not come there"


def naive(paid, n, budget, rate, layer, window, pool) -> list[list[int]]:
    keep = max(ceil(rate * n), window + 8)
    blocks = [Held(paid[b]) for b in paid]
    rows = range(max(0, n - window), n)
    for held in blocks[:layer]:
        held.add(range(n))
        held.look(rows, pool)
    if keep >= n:
        up = list(range(n))
    else:
        chooser = Held(paid[2 * (layer - 1)])
        chooser.add(range(n))
        chooser.look(rows, pool)
        chooser.evict(keep, 4, window)
        up = chooser.at
    for held in blocks[layer:]:
        held.add(up)
        held.look(rows, pool)
    for held in blocks:
        held.evict(slots_of(budget, n), 4, window)
    return [held.at for held in blocks]


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 99),
    n=st.integers(1, 70),
    budget=st.sampled_from([0.3, 1.0, 12]),
    rate=st.sampled_from([0.2, 0.5, 1.0]),
    layer=st.sampled_from([1, 2]),
    window=st.sampled_from([1, 4, 9]),
    pool=st.sampled_from([1, 3]),
    most=st.sampled_from([10, 128]),
)
def test_as_in_plain_loops(seed, n, budget, rate, layer, window, pool, most) -> None:
    paid = {b: any_paid(seed + b, 2, n) for b in (0, 2, 4)}
    words = f"fastkv:budget={budget},rate={rate},layer={layer},window={window},pool={pool}"
    text = Text(Scripted(SPEC, paid), words).read(n, most)
    assert text.kept() == naive(paid, n, budget, rate, layer, window, pool)


def test_a_later_prompt_goes_up_by_itself() -> None:
    """Of a text that goes on only the new tokens are chosen from, by what is paid to them."""
    paid = {b: pays(2, 70, {(0, 69, 50): 1.0, (0, 69, 5): 9.0}) for b in (0, 2, 4)}
    text = Text(Scripted(SPEC, paid), "fastkv:budget=1,rate=0.4,layer=2,window=2,pool=1").read(30).read(39)
    assert text.kept()[2][12:] == [30, 31, 32, 33, 50, *range(59, 70)]


def test_default_layers() -> None:
    """Two fifths of the layers, one at least."""
    for layers, cut in ((2, 1), (3, 1), (4, 2), (10, 4), (14, 6)):
        text = Text(Scripted(spec_of(layers=layers)), "fastkv:budget=1,rate=0.1,window=2").read(40)
        assert [len(slots) for slots in text.kept()] == [40] * cut + [10] * (layers - cut)
    for wrong in (3, 4):
        with pytest.raises(UsageError, match=r"must be from 1 to 2"):
            policy_of(f"fastkv:layer={wrong}", SPEC)
