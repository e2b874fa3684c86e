"""Adam with moments of eight bits beside torch's: the code, the blocks, the loss, the bytes and a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from edgedec.export.adam8 import BLOCK, LEAST, MOMENTS, SCALES, Adam8, codes, packed, unpacked  # noqa: E402
from edgedec.export.checkpointing import Checkpointed  # noqa: E402
from edgedec.export.exits_data import Place  # noqa: E402


def test_the_code_is_the_dynamic_tree() -> None:
    signed, positive = codes(True), codes(False)
    for found in (signed, positive):
        assert len(found.unique()) == 256
        assert found.max() == 1
        assert 0 in found
    # Seven exponents with 1, 2, 4, … fractions of either sign, or 2, 4, 8, … of one.
    np.testing.assert_allclose(signed[signed > 0][:3], [0.55e-6, 3.25e-6, 7.75e-6], rtol=1e-5)
    np.testing.assert_allclose(
        positive[1:7], [3.25e-7, 7.75e-7, *np.array([2.125, 4.375, 6.625, 8.875]) * 1e-6], rtol=1e-5
    )
    assert len(positive) - 1 == int((positive > 0).sum())
    np.testing.assert_allclose(signed[:127], -signed[128:255].flip(0), rtol=1e-6)  # and 1, which has no negative


@pytest.mark.parametrize("signed", [True, False])
def test_values_are_the_nearest_of_their_block(signed: bool) -> None:
    x = torch.randn(3, BLOCK) * torch.tensor([[1.0], [1e-6], [100.0]])
    x = x[:, : BLOCK - 1].reshape(-1)  # the last block is short
    x = x if signed else x.square()
    stored, scales = packed(x, signed)
    assert (stored.dtype, stored.shape, scales.shape) == (torch.uint8, x.shape, (3,))
    found = unpacked(stored, scales, signed)
    for at in (0, 17, BLOCK, 2 * BLOCK + 5, len(x) - 1):
        block = x[at // BLOCK * BLOCK :][:BLOCK]
        choices = (codes(signed) if signed else codes(signed)[1:]) * block.abs().max()
        assert (found[at] - x[at]).abs() <= (choices - x[at]).abs().min() * (1 + 1e-4)
    small = x.abs() > 1e-4 * scales.repeat_interleave(BLOCK)[: len(x)]
    assert ((found - x).abs()[small] <= 0.3 * x.abs()[small]).all()  # small values keep some digits
    assert not unpacked(*packed(torch.zeros(5), signed), signed).any()
    # A second moment of zero beside a gradient would make a step of any size; a first moment may be zero.
    tiny = torch.tensor([1.0, 1e-12])
    assert (unpacked(*packed(tiny, signed), signed)[1] > 0) == (not signed)


def test_small_tensors_are_updated_as_torch_does() -> None:
    for decay in (0.0, 0.1):
        ours, theirs = (torch.nn.Parameter(torch.linspace(-1, 1, LEAST - 1)) for _ in range(2))
        both = (
            Adam8([ours], 0.01, (0.9, 0.95), 1e-8, decay),
            torch.optim.AdamW([theirs], 0.01, (0.9, 0.95), 1e-8, decay),
        )
        for step in range(5):
            for w, one in ((ours, both[0]), (theirs, both[1])):
                w.grad = torch.sin(w.detach() * 7 + step)
                one.step()
        assert SCALES[0] not in both[0].state[ours]
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def trained(optimizer: Any, steps: int = 100) -> tuple[float, Any]:
    """The loss of a small network that learns another one, and its optimizer."""
    torch.manual_seed(0)
    teacher = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.Tanh(), torch.nn.Linear(128, 64))
    student = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.Tanh(), torch.nn.Linear(128, 64))
    made = optimizer(student.parameters(), lr=3e-3, betas=(0.9, 0.95))
    total = 0.0
    for step in range(steps):
        x = torch.randn(64, 64)
        loss = (student(x) - teacher(x)).square().mean()
        made.zero_grad()
        loss.backward()
        made.step()
        total += float(loss.detach()) if step >= steps - 50 else 0.0
    return total / 50, made


def test_the_loss_is_that_of_four_times_the_bytes() -> None:
    plain, wide = trained(torch.optim.Adam)
    ours, small = trained(Adam8)
    assert abs(ours / plain - 1) < 0.01

    def size(optimizer: Any) -> int:
        large = [state for w, state in optimizer.state.items() if w.numel() >= LEAST]
        assert len(large) == 2
        return sum(v.nbytes for state in large for part, v in state.items() if part != "step")

    assert 0.25 < size(small) / size(wide) < 0.252


def test_a_block_has_its_own_scale() -> None:
    x = torch.cat([torch.full((BLOCK,), 1e-9), torch.ones(BLOCK)])
    assert unpacked(*packed(x, False), False)[0] == pytest.approx(1e-9)


class Training(Checkpointed):
    command = "a test"

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.weights = {"w": torch.nn.Parameter(torch.randn(80, 80)), "b": torch.nn.Parameter(torch.randn(8))}
        self.optimizers = (Adam8(self.weights.values()),)
        self.steps, self.spent, self._place = 0, 0.0, Place()

    @property
    def place(self) -> Place:
        return self._place

    def step(self) -> None:
        for w in self.weights.values():
            w.grad = torch.cos(w.detach() * (3 + self.steps))
        self.optimizers[0].step()
        self.steps += 1


def test_a_checkpoint_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    whole, first, second = Training(), Training(), Training()
    for _ in range(4):
        whole.step()
    for _ in range(2):
        first.step()
    first.save(tmp_path / "c", "key")
    second.load(tmp_path / "c", "key")
    assert set(second.optimizers[0].state[second.weights["w"]]) == {*MOMENTS, *SCALES, "step"}
    assert second.steps == 2
    for _ in range(2):
        second.step()
    for name, w in whole.weights.items():
        assert torch.equal(w, second.weights[name])
