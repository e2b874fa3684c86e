"""The loss of next tokens, beside that of masks: what keeps a model with causal context autoregressive, and what trains
the first token of each block.

keep: the share of it that follows the model as it was, not the text (own choice, of nano-block).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from edgedec.export.recipes._net import FillingNet, RowReading, cross_entropy
from edgedec.export.recipes._rows import TextRow, blocks


def following_loss(net: FillingNet, reading: RowReading, row: TextRow, block: Tensor, keep: float) -> Tensor:
    """Nats a token after the row as it is; 0 where no token of it predicts another."""
    where = net.following(row, block)
    if reading.plain is None or not where.any():
        return reading.noisy.new_zeros(())
    targets = row.tokens.roll(-1)[where]
    text = net.each(cross_entropy, reading.plain[where], targets).mean()
    if not keep or net.frozen is None:
        return text
    return (1 - keep) * text + keep * net.each(_soft, reading.plain[where], _told(net.frozen, row, where)).mean()


def _told(frozen: FillingNet, row: TextRow, where: Tensor) -> Tensor:
    """What the model as it was says after each token, before it knew masks: it reads with causal attention."""
    t = len(row.tokens)
    with torch.no_grad():
        seen = torch.ones(t, t, dtype=torch.bool).tril()
        states = frozen.states(row.tokens, torch.arange(t), seen)
        return functional.softmax(frozen.logits(states[where]), -1)


def _soft(logits: Tensor, told: Tensor) -> Tensor:
    """Cross entropy [n] with distributions."""
    return -(told * functional.log_softmax(logits, -1)).sum(-1)


def next_nats(net: FillingNet, row: TextRow) -> tuple[float, int]:
    """The sum over a row read as it is, one token after another, and the number of tokens."""
    block = blocks(len(row.tokens), 1, 0)
    where = net.following(row, block)
    if not where.any():
        return 0.0, 0
    t = len(row.tokens)
    states = net.states(row.tokens, torch.arange(t), torch.ones(t, t, dtype=torch.bool).tril())
    return float(net.each(cross_entropy, states[where], row.tokens.roll(-1)[where]).sum()), int(where.sum())
