"""The training objectives of BlockFFN: by hand, and what they do to a router."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch", reason="training needs torch")

from edgedec.export.sparse_experts import LOCALITY, Factor, chunks, locality, used_shares  # noqa: E402


def test_locality_is_the_cross_entropy_of_a_tokens_experts_under_the_next_tokens() -> None:
    """Two experts, two pairs of tokens, of which the second pair are of two texts."""
    scores = torch.tensor([[[0.01, -0.02], [0.03, 0.0], [1.0, -1.0]]])
    within = torch.tensor([[1.0, 1.0, 0.0]])

    def entropy(before: float, after: float) -> float:
        p, q = (1 / (1 + math.exp(-100 * x)) for x in (before, after))
        return -(q * math.log(p) + (1 - q) * math.log(1 - p))

    expected = (entropy(0.01, 0.03) + entropy(-0.02, 0.0)) / 2
    assert float(locality(scores, within)) == pytest.approx(expected, rel=1e-5)
    backwards = (entropy(0.03, 0.01) + entropy(0.0, -0.02)) / 2
    assert abs(expected - backwards) > 0.01, "the order does not show"
    assert float(locality(scores, torch.zeros(1, 3))) == 0.0
    assert LOCALITY == 2e-3


def test_chunks_is_the_share_of_experts_that_any_token_uses() -> None:
    """The examples of the docstring; and one of three experts in four tokens, chunks of two."""
    always, never = torch.ones(1, 2, 1), -torch.ones(1, 2, 1)
    assert float(chunks(always, 2)) == pytest.approx(1, abs=1e-4)
    assert float(chunks(never, 2)) == pytest.approx(0, abs=1e-4)
    scores = torch.tensor([[[1.0, 3.0, -1.0], [2.0, -1.0, -1.0], [-1.0, -1.0, 4.0], [-1.0, -1.0, 1.0]]])
    unused = [(1 - 0.25) * (1 - 1), (1 - 0.75) * 1, 1, 1, 1, (1 - 1) * (1 - 1)]
    assert float(chunks(scores, 2)) == pytest.approx(1 - sum(unused) / 6, abs=1e-4)
    assert used_shares(scores, 2) == pytest.approx((5 / 12, 3 / 6))
    with pytest.raises(RuntimeError):
        chunks(scores, 3)


def test_a_router_that_follows_them_uses_fewer_experts_and_its_neighbours_the_same() -> None:
    torch.manual_seed(0)
    topics = torch.randn(2, 8, 1, 16).expand(2, 8, 16, 16).reshape(2, 128, 16)
    x, router = topics + 0.5 * torch.randn(2, 128, 16), torch.randn(12, 16).requires_grad_()
    optimizer = torch.optim.Adam([router], lr=0.05)
    before = used_shares(x @ router.T, 16)
    for _ in range(150):
        scores = x @ router.T
        optimizer.zero_grad()
        (LOCALITY * locality(scores, torch.ones(2, 128)) + chunks(scores, 16)).backward()
        optimizer.step()
    after = used_shares(x @ router.T, 16)
    assert before[1] > 0.6
    assert after[0] < 0.8 * before[0]
    assert after[1] < 0.8 * before[1]
    assert after[1] - after[0] < before[1] - before[0]


def test_the_factor_stays_and_then_follows_the_loss() -> None:
    """Steady for 20 steps; at step 20 the last ten losses are 1.5 times those before, so it grows by that in ten steps;
    at 30 they are less than before, and it falls by their ratio."""
    factor = Factor(0.1, steady=20, every=10)
    used = [factor.step(loss) for loss in [1.0] * 10 + [1.5] * 10 + [1.2] * 10 + [1.2] * 10]
    assert used[:20] == [0.1] * 20
    assert used[20] == pytest.approx(0.1 + 0.05 / 10)
    assert used[29] == pytest.approx(0.15)
    assert used[39] == pytest.approx(0.15 * 1.2 / 1.5)
    assert used[19:30] == sorted(set(used[19:30]))


def test_the_factor_grows_by_the_least_ratio_at_least_and_to_the_most_at_most() -> None:
    factor = Factor(1.0, steady=0, every=2, most=4.0, least=1.025)
    slow = [factor.step(loss) for loss in (1.0, 1.0, 1.001, 1.001, 1.002, 1.002)]
    assert slow[-1] == pytest.approx(1.025)
    factor = Factor(1.0, steady=0, every=2)
    fast = [factor.step(10.0**i) for i in range(12)]
    assert max(fast) == pytest.approx(4.0)
    assert fast[-1] == pytest.approx(4.0)
