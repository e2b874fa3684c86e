"""Recipes that train models to fill masks: each loss beside an oracle that reads one block at a time, and beside the
nearest rules that are wrong; what is masked; which token sees which."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

pytest.importorskip("torch", reason="recipes are of torch")
pytest.importorskip("transformers", reason="models are trained on transformers' networks")
import torch
from filling import MASK, VOCAB, Noted, Oracle, draws, entropy, net_of, network, text_row
from torch import Tensor

from edgedec.bundle.manifest import DiffusionFacts
from edgedec.errors import CheckpointError, UsageError
from edgedec.export.recipes import FAMILY, _net, made
from edgedec.export.recipes._net import FillingNet
from edgedec.export.recipes._rows import Draws, blocks, blocks_of, fillable, grown, noisy, sight
from edgedec.export.recipes.cd4lm import nested, weight
from edgedec.export.recipes.nap import nearness
from edgedec.export.recipes.sdar_vl import at_least_one, over_realised


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """These networks are too small for more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


KINDS = [("causal", True), ("causal", False), ("block", True), ("block", False), ("full", True), ("full", False)]
SEEDS = range(3)


def facts_of(context: Any, shift: bool, block: int = 4) -> DiffusionFacts:
    return DiffusionFacts(MASK, shift, context, block)


def loss_of(words: str, net: FillingNet, row: Any, seed: int, progress: float = 1.0) -> float:
    return float(made(words, net.facts)[1].loss(net, row, draws(seed), progress).detach())


def near(found: float, expected: float) -> bool:
    return found == pytest.approx(expected, rel=2e-4, abs=2e-5)


def kinds(name: str) -> list[tuple[str, bool]]:
    return [(context, shift) for context, shift in KINDS if context in FAMILY.facts(name).contexts]


def test_the_recipes_are_those_of_the_rows() -> None:
    assert FAMILY.names() == ("cd4lm", "dparallel", "nap", "nbdiff", "sdar_vl")
    assert {FAMILY.facts(name).paper for name in FAMILY.names()} == {"CD4LM", "dParallel", "NAP", "NBDiff", "SDAR-VL"}
    assert [name for name in FAMILY.names() if FAMILY.facts(name).goes_on] == ["cd4lm", "dparallel"]


# ---- rows -------------------------------------------------------------------------------------------


def test_blocks_double() -> None:
    assert [grown(p / 10, 8, 0.6) for p in range(11)] == [1, 1, 2, 2, 4, 4, 8, 8, 8, 8, 8]
    assert [grown(p, 6, 0.6) for p in (0.0, 0.25, 0.5, 0.6)] == [1, 2, 4, 6]
    assert grown(0.0, 8, 0.0) == grown(0.0, 1, 0.5) * 8 == 8
    assert blocks(5, 2, 1).tolist() == [0, 1, 1, 2, 2]
    assert {int(blocks_of(facts_of("causal", True), 9, 4, draws(s)).eq(0).sum()) for s in range(30)} == {1, 2, 3, 4}
    assert blocks_of(facts_of("block", True), 9, 4, draws(3)).tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 2]
    assert blocks_of(facts_of("full", True), 9, 4, draws(3)).tolist() == [0] * 9


def test_sight() -> None:
    own = sight(torch.tensor([0, 0, 1, 1]), "causal").int().tolist()
    assert own[0] == [1, 1, 0, 0, 0, 0, 0, 0]
    assert own[3] == [0, 0, 1, 1, 1, 1, 0, 0]
    assert own[6] == [0, 0, 0, 0, 1, 1, 1, 0]
    assert sight(torch.tensor([0, 0, 1, 1]), "block").int().tolist()[6] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert sight(torch.tensor([0, 0, 0]), "full").all()


@pytest.mark.parametrize("shift", [False, True])
def test_what_is_masked(shift: bool) -> None:
    """Never what is given; shifted, of a block's first token nothing is learned, but half of them are masked."""
    row, block = text_row(14, given=3), blocks(14, 4, 2)
    fill = fillable(row, block, shift)
    assert fill.nonzero()[:, 0].tolist() == ([3, 4, 5, 7, 8, 9, 11, 12, 13] if shift else list(range(3, 14)))
    found = [noisy(row, fill & False, block, facts_of("causal", shift), draws(s)) == MASK for s in range(200)]
    often = torch.stack(found).float().mean(0)
    assert often[[i for i in range(14) if i not in (6, 10)]].max() == 0
    assert (0.4 < often[6] < 0.6 and 0.4 < often[10] < 0.6) if shift else often.max() == 0


# ---- losses beside an oracle ------------------------------------------------------------------------


@pytest.mark.parametrize(("context", "shift"), kinds("nbdiff"))
def test_nbdiff(context: str, shift: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over the drawn share, not the realised one; half of the loss of next tokens, not all of it."""
    facts = facts_of(context, shift)
    monkeypatch.setattr(Draws, "share", lambda self: 0.4)
    for seed in SEEDS:
        net, row = net_of(facts), text_row(15, seed=seed)
        noted = Noted(net)
        found = loss_of("nbdiff", net, row, seed)
        (masked, block), oracle = noted.seen[0], Oracle(net.model, facts, row)
        places, most = oracle.learned(masked, block), len(oracle.open(block))
        assert 0 < len(places) < most
        nats, ar = sum(oracle.nats(masked, block, i) for i in places), oracle.ar(block)
        assert (ar > 0) is shift
        assert near(found, nats / 0.4 / most + 0.5 * ar)
        assert not near(found, nats / (len(places) / most) / most + 0.5 * ar)
        assert near(loss_of("nbdiff:ar=0", net, row, seed), nats / 0.4 / most)
        if shift:
            assert not near(found, nats / 0.4 / most + ar)


def test_nbdiff_grows() -> None:
    facts, row = facts_of("causal", True, 8), text_row(40)
    sizes = []
    for progress in (0.0, 0.25, 0.5, 0.62, 0.63, 1.0):
        net = net_of(facts)
        noted = Noted(net)
        loss = loss_of("nbdiff", net, row, 1, progress)
        _, block = noted.seen[0]
        sizes.append(max(block.count(i) for i in set(block)))
        if progress == 0:
            assert near(loss, 0.5 * Oracle(net.model, facts, row).ar(block))
    assert sizes == [1, 2, 4, 4, 8, 8]


@pytest.mark.parametrize(("context", "shift"), kinds("sdar_vl"))
def test_sdar_vl(context: str, shift: bool) -> None:
    """Each block over the share of it that is masked, not over its level, nor over the row's share."""
    facts = facts_of(context, shift)
    for seed in SEEDS:
        net, row = net_of(facts), text_row(15, seed=seed)
        noted = Noted(net)
        found = loss_of("sdar_vl:ar=0.25", net, row, seed)
        (masked, block), oracle = noted.seen[0], Oracle(net.model, facts, row)
        places, every = oracle.learned(masked, block), oracle.open(block)
        nats, ratios = 0.0, set()
        for b in set(block):
            inside, of = [i for i in places if block[i] == b], [i for i in every if block[i] == b]
            assert bool(inside) is bool(of)  # at least one
            if inside:
                ratios.add(len(inside) / len(of))
                nats += sum(oracle.nats(masked, block, i) for i in inside) / (len(inside) / len(of))
        assert near(found, nats / len(every) + 0.25 * oracle.ar(block))
        if len(ratios) > 1:
            row_wide = sum(oracle.nats(masked, block, i) for i in places) / len(places)
            assert not near(found, row_wide + 0.25 * oracle.ar(block))


def test_levels_of_blocks() -> None:
    """Blocks of one row have levels of their own; their mean rises from 0.5 to 0.7, and they get sharper."""
    recipe: Any = made("sdar_vl", facts_of("causal", True))[1]
    first, last = (recipe.shares(4000, progress, draws(1)) for progress in (0.0, 1.0))
    for shares, mean, sharp in ((first, 0.5, 4.0), (last, 0.7, 25.0)):
        assert float(shares.mean()) == pytest.approx(mean, abs=0.02)
        assert float(shares.var()) == pytest.approx(mean * (1 - mean) / (sharp + 1), rel=0.1)
    fill = torch.tensor([0, 1, 1, 1, 1, 1, 1, 0], dtype=torch.bool)
    block = torch.tensor([0, 0, 1, 1, 1, 2, 2, 3])
    for seed in range(20):
        masked = at_least_one(fill, block, torch.full((8,), 1e-4), draws(seed))
        assert [int(masked[block == b].sum()) for b in range(4)] == [1, 1, 1, 0]
    assert at_least_one(fill, block, torch.ones(8), draws(0)).tolist() == fill.tolist()
    masked = torch.tensor([0, 1, 1, 0, 0, 1, 1, 0], dtype=torch.bool)
    assert over_realised(fill, masked, block).tolist() == [1, 3, 1, 1]


@pytest.mark.parametrize(("context", "shift"), kinds("dparallel"))
def test_dparallel(context: str, shift: bool) -> None:
    """Both halves; the entropy at temperature 0.5, of the right ones alone, twice."""
    facts = facts_of(context, shift)
    kinds_seen = set()
    for seed in range(6):
        net, row = net_of(facts), text_row(18, seed=seed)
        _likely(net, row)
        noted = Noted(net)
        found = loss_of("dparallel:ar=0", net, row, seed)
        assert len(noted.seen) == 2
        oracle, seen = Oracle(net.model, facts, row), noted.seen[:]
        block = seen[0][1]
        views = [oracle.learned(masked, block) for masked, _ in seen]
        assert not set(views[0]) & set(views[1])
        assert sorted(views[0] + views[1]) == oracle.open(block)
        expected = _certain(oracle, seen, views, 0.5, True, 2.0)
        assert near(found, expected)
        wrong = [(0.5, False, 2.0), (1.0, True, 2.0), (0.5, True, 1.0)]
        others = [_certain(oracle, seen, views, *how) for how in wrong]
        kinds_seen |= {i for i, other in enumerate(others) if not near(found, other)}
        assert not near(found, _certain(oracle, seen[:1], views[:1], 0.5, True, 2.0))
        assert near(loss_of("dparallel:ar=0,weight=0", net, row, seed),
                    _certain(oracle, seen, views, 0.5, True, 0.0))  # fmt: skip
    assert kinds_seen == {0, 1, 2}


def _likely(net: FillingNet, row: Any) -> None:
    """Make some of the row's tokens easy, so that there are right guesses and wrong ones."""
    with torch.no_grad():
        net.head.weight.mul_(0.3)
        common = row.tokens[4::2]
        row.tokens[3::3] = common[0]
        net.head.weight[common[0]] += 0.05 * torch.randn(32, generator=torch.Generator().manual_seed(1))


def _certain(oracle: Oracle, seen: Any, views: Any, temperature: float, right_alone: bool, times: float) -> float:
    total = 0.0
    for (masked, block), places in zip(seen, views, strict=True):
        if not places:
            continue
        nats = [oracle.nats(masked, block, i) for i in places]
        right = [int(oracle.logs(masked, block, i).argmax()) == oracle.ids[i] or not right_alone for i in places]
        sure = [entropy(oracle.logs(masked, block, i, temperature)) for i, r in zip(places, right, strict=True) if r]
        total += sum(nats) / len(nats) + times * (sum(sure) / len(sure) if sure else 0.0)
    return total


def test_a_block_of_a_canvas_is_made_sure() -> None:
    """What is before it is known, what is behind it is masked and not learned."""
    facts, row = facts_of("full", False), text_row(100, given=4)
    starts = set()
    for seed in range(12):
        net = net_of(facts)
        noted = Noted(net)
        net.each = lambda score, states, *more: torch.ones(len(states), 3)  # type: ignore[method-assign]
        loss_of("dparallel", net, row, seed)
        one, other = ([i for i, token in enumerate(masked) if token == MASK] for masked, _ in noted.seen)
        behind = set(one) & set(other)
        active = sorted(set(one) ^ set(other))
        starts.add(active[0])
        assert active == list(range(active[0], 36)) or active == list(range(active[0], 68)) or active[-1] == 99
        assert behind == set(range(active[-1] + 1, 100))
    assert starts == {4, 36, 68}


@pytest.mark.parametrize(("context", "shift"), kinds("cd4lm"))
def test_cd4lm(context: str, shift: bool) -> None:
    """T²KL(teacher | student) and the text, over the student's masks; the teacher is the model as it was."""
    facts = facts_of(context, shift)
    told_apart = set()
    for seed in SEEDS:
        net, row = net_of(facts, frozen=True), text_row(36, seed=seed)
        assert net.frozen is not None
        with torch.no_grad():  # the student has learned something since
            net.head.weight.add_(0.3 * torch.randn(VOCAB, 32, generator=torch.Generator().manual_seed(9)))
        student, teacher = Noted(net), Noted(net.frozen)
        found = loss_of("cd4lm:ar=0", net, row, seed, progress=0.55)
        (masked, block), (fewer, _) = student.seen[0], teacher.seen[0]
        oracle, told = Oracle(net.model, facts, row), Oracle(net.frozen.model, facts, row)
        places = oracle.learned(masked, block)
        assert set(told.learned(fewer, block)) < set(places)

        known = (oracle, told, masked, block)
        assert near(found, mixed(*known, 2.0, 0.7, 4.0, False, fewer))
        wrong = [(2.0, 0.7, 1.0, False, fewer), (1.0, 0.7, 1.0, False, fewer), (2.0, 0.7, 4.0, True, fewer),
                 (2.0, 0.7, 4.0, False, masked), (2.0, 0.3, 4.0, False, fewer)]  # fmt: skip
        told_apart |= {i for i, how in enumerate(wrong) if not near(found, mixed(*known, *how))}
    assert told_apart == set(range(5))


def mixed(
    oracle: Oracle, told: Oracle, masked: list[int], block: list[int],
    t: float, share: float, times: float, back: bool, seen: list[int],
) -> float:  # fmt: skip
    """The loss with a temperature, the teacher's share, a factor of its term, which way round, what the teacher saw."""
    far, nats, places = 0.0, 0.0, oracle.learned(masked, block)
    for i in places:
        s, q = oracle.logs(masked, block, i, t), told.logs(seen, block, i, t)
        far += divergence(s, q) if back else divergence(q, s)
        nats += oracle.nats(masked, block, i)
    return (share * far * times + (1 - share) * nats) / len(places)


def divergence(p: Tensor, q: Tensor) -> float:
    """KL(p | q) of log-probabilities."""
    return sum(math.exp(a) * (a - b) for a, b in zip(p.tolist(), q.tolist(), strict=True) if a > -1e30)


def test_masks_of_student_and_teacher() -> None:
    fill = torch.zeros(140, dtype=torch.bool)
    fill[20:120] = True
    ratios = []
    for seed in range(300):
        masked, fewer = nested(fill, draws(seed))
        assert bool((masked & ~fill).any()) is bool((fewer & ~masked).any()) is False
        ratios.append((int(masked.sum()) / 100, int(fewer.sum()) / 100))
    student, teacher = zip(*ratios, strict=True)
    assert 0.39 <= min(student) < 0.45 < 0.85 < max(student) <= 0.9
    assert 0.1 <= min(teacher) < 0.2 < 0.5 < max(teacher) <= 0.6
    assert {tuple(int(m.sum()) for m in nested(fill[12:30], draws(s))) for s in range(20)} == {(2, 1)}
    assert max(int(nested(fill[6:35], draws(s))[0].sum()) for s in range(100)) == 7  # of 15: at most half


def test_the_teachers_weight() -> None:
    assert [round(weight(p, 0.9, 0.5), 6) for p in (0, 0.1, 0.55, 1)] == [0.9, 0.9, 0.7, 0.5]
    assert weight(0.325, 0.9, 0.5) == pytest.approx(0.9 - 0.4 * (1 - math.cos(math.pi / 4)) / 2)


@pytest.mark.parametrize("shift", [False, True])
def test_nap(shift: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Masked tokens weigh by what is known near them, with p 0.1; the summary is masked until late."""
    facts = facts_of("full", shift)
    monkeypatch.setattr(Draws, "share", lambda self: 0.5)
    for seed in SEEDS:
        net, row = net_of(facts), text_row(24, given=4, parts=3, seed=seed)
        noted = Noted(net)
        found = loss_of("nap", net, row, seed)
        (masked, block), oracle = noted.seen[0], Oracle(net.model, facts, row)
        places = oracle.learned(masked, block)
        known = [j for j, token in enumerate(masked) if token != MASK]
        nats, most = {i: oracle.nats(masked, block, i) for i in places}, len(oracle.open(block))
        assert all(masked[i] == MASK for i in range(24) if row.part[i] == 3)
        assert any(row.part[j] in (1, 2) for j in known)

        assert near(found, weighed(nats, known, 0.1) / most)
        assert not near(found, weighed(nats, known, 0.8) / most)
        assert not near(found, sum(nats.values()) / most)
    assert nearness(torch.tensor([False, True, True]), 0.5).tolist() == [0, 0.25, 0.125]


def weighed(nats: dict[int, float], known: list[int], p: float) -> float:
    return sum(loss * sum(0.5 * p * (1 - p) ** (abs(i - j) - 1) for j in known) for i, loss in nats.items())


def test_a_summary_comes_last() -> None:
    recipe: Any = made("nap", facts_of("full", False))[1]
    row = text_row(12, given=2, parts=2)
    for t, parts, summary in ((0.5, 0.45, 1.0), (0.1, 0.09, 1.0), (0.05, 0.045, 0.5)):
        shares = recipe.shares(row, t)
        assert shares[row.part == 1].tolist() == pytest.approx([parts] * 5)
        assert shares[row.part == 2].tolist() == pytest.approx([summary] * 5)
    plain: Any = made("nap:staged=false", facts_of("full", False))[1]
    assert plain.shares(row, 0.5).tolist() == [0.5] * 12
    assert recipe.shares(text_row(6, given=2), 0.5).tolist() == [0.5] * 6


# ---- the loss of next tokens ------------------------------------------------------------------------


def test_next_tokens_may_follow_the_model_as_it_was() -> None:
    facts, row = facts_of("causal", True), text_row(12)
    net = net_of(facts, frozen=True)
    assert net.frozen is not None
    with torch.no_grad():
        net.head.weight.add_(0.3 * torch.randn(VOCAB, 32, generator=torch.Generator().manual_seed(9)))
    oracle, was = Oracle(net.model, facts, row), Oracle(net.frozen.model, facts, row)
    block, places = list(range(12)), [i for i in range(11) if row.part[i + 1]]
    soft = [-sum(float(a.exp() * b) for a, b in zip(was.following(i, block), oracle.following(i, block), strict=True)
                 if a > -1e30) for i in places]  # fmt: skip
    told = loss_of("nbdiff:keep=0.25,ar=1", net, row, 0, progress=0.0)
    assert near(told, 0.75 * oracle.ar(block) + 0.25 * sum(soft) / len(soft))


def test_a_few_logits_at_a_time_cost_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    facts, row = facts_of("causal", True), text_row(40)
    found = []
    for size in (1 << 24, 5 * VOCAB):
        monkeypatch.setattr(_net, "_LOGITS", size)
        net = net_of(facts)
        loss = made("sdar_vl", facts)[1].loss(net, row, draws(3), 1.0)
        loss.backward()
        found.append((float(loss.detach()), net.head.weight.grad.clone()))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-6)
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-4, atol=1e-6)


def test_the_mask_is_never_said() -> None:
    net = net_of(facts_of("causal", True))
    with torch.no_grad():
        net.head.weight[MASK] *= 100
        found = torch.softmax(net.logits(torch.randn(5, 32)), -1)
    assert found[:, MASK].max() == 0


# ---- networks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Qwen3", "Mistral", "Olmo2"])
def test_any_llama_like_network(family: str) -> None:
    facts, row = facts_of("causal", True), text_row(14)
    net = FillingNet(network(0, family), facts, family)
    noted = Noted(net)
    found = loss_of("nbdiff:ar=0.5", net, row, 2)
    (masked, block), oracle = noted.seen[0], Oracle(net.model, facts, row)
    share = draws(2)
    share.whole.randrange(4)
    nats = sum(oracle.nats(masked, block, i) for i in oracle.learned(masked, block))
    assert near(found, nats / share.share() / len(oracle.open(block)) + 0.5 * oracle.ar(block))


def test_a_network_whose_logits_are_more() -> None:
    model = network()
    model.config.final_logit_softcapping = 0.01
    with pytest.raises(CheckpointError, match="not the head of its last states"):
        FillingNet(model, facts_of("causal", True), "odd")


def test_a_network_that_sees_nothing_later() -> None:
    model = network()
    forward = model.model.forward
    model.model.forward = lambda attention_mask=None, **more: forward(**more)
    with pytest.raises(CheckpointError, match="cannot see later tokens"):
        FillingNet(model, facts_of("causal", True), "odd")


# ---- words ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("nbdif", "did you mean nbdiff"),
        ("nbdiff:arr=1", "no option 'arr'"),
        ("nbdiff+nap", "give one recipe"),
        ("nap", "trains models with full context, not causal"),
        ("sdar_vl:mean=2", "mean=2"),
    ],
)
def test_words_that_name_none(words: str, message: str) -> None:
    with pytest.raises(UsageError, match=message.replace("+", r"\+")) as found:
        made(words, facts_of("causal", True))
    assert "\n" not in str(found.value)


def test_rows_are_drawn_anew_for_each_update() -> None:
    """The same numbers for the same seed; others for another."""
    for name, (a, b) in product(("nbdiff", "sdar_vl"), ((0, 0), (0, 1))):
        seen = []
        for seed in (a, b):
            net = net_of(facts_of("causal", True))
            noted = Noted(net)
            loss_of(name, net, text_row(30), seed)
            seen.append(noted.seen)
        assert (seen[0] == seen[1]) is (a == b)
