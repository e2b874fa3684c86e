"""The network that trains a text encoder by two decodings: RetroMAE v2, or DupMAE.

Liu, Xiao, Shao, Cao 2023 (arXiv:2305.02564; Xiao, Liu 2022, arXiv:2211.08769), of which this has read the abstracts and
the authors' code (staoxiao/RetroMAE, `src/pretrain`). The encoder reads a text with 30% of its words hidden.

- [CLS] decoding: one layer rebuilds every token of the text. Its row i asks with norm(CLS + position i), sees CLS and
  the tokens of the text themselves of which half are hidden, other ones for each row, and never token i.
- Decoding of the ordinary tokens: the largest logit of each term over all rows but [CLS] gives a law over the
  vocabulary, and the loss is the cross entropy of the text's set of tokens, each with a weight of 1 / length.

The loss is the first + 0.1 times the second (the code's weight) + the encoder's own masked-language loss; all
three with the encoder's head over the vocabulary. As in the code: the shares, a tenth of hidden tokens replaced by
random ones and a tenth left, AdamW at 1e-4. Ours: the decoder's positions are its own table, so any encoder will do;
words are hidden up to the first that does not fit; every row draws its own (the code draws from 256 choices).
"""

from __future__ import annotations

from copy import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.modeling_outputs import BaseModelOutput

from edgedec.export.embedder_texts import PassageBatch

_DEVIATION = 0.02
_REPLACED, _LEFT = 0.8, 0.9


class DuplexLosses(NamedTuple):
    """Nats: of a hidden token by the encoder, of a token by the decoder, of a text's bag of words."""

    encoder: Tensor
    decoder: Tensor
    bag: Tensor


class DuplexNet(nn.Module):  # type: ignore[misc]
    """An encoder of transformers with its head over the vocabulary (`lm`), and the layer that decodes [CLS]."""

    def __init__(self, lm: Any, length: int) -> None:
        super().__init__()
        self.lm = lm
        embedded = lm.get_input_embeddings().weight.shape[1]
        self.decoder = ClsDecoder(lm.config.hidden_size, lm.config.num_attention_heads, embedded, length)
        # The same weights with something in the encoder's place that gives the states it is given.
        self._head = [copy(lm)]
        self._head[0]._modules = {**lm._modules, lm.base_model_prefix: _Given()}

    def states(self, ids: Tensor, kept: Tensor) -> Tensor:
        """The last states [B, T, hidden] of texts."""
        found: Tensor = self.lm.base_model(input_ids=ids, attention_mask=kept.long())[0]
        return found

    def logits(self, states: Tensor) -> Tensor:
        """Of the vocabulary, after states."""
        found: Tensor = self._head[0](inputs_embeds=states).logits
        return found

    def masked_loss(self, batch: PassageBatch, mask: int) -> Tensor:
        """The encoder's own loss alone, as `losses` has it."""
        states = self.states(corrupted(batch, mask, self.lm.config.vocab_size), batch.kept)
        return functional.cross_entropy(self.logits(states[batch.hidden]), batch.ids[batch.hidden])

    def losses(self, batch: PassageBatch, mask: int) -> DuplexLosses:
        states = self.states(corrupted(batch, mask, self.lm.config.vocab_size), batch.kept)
        logits = self.logits(states)
        decoded = self.decoder(states[:, 0], self.lm.get_input_embeddings()(batch.ids), batch.visible)
        ordinary = batch.ordinary
        return DuplexLosses(
            functional.cross_entropy(logits[batch.hidden], batch.ids[batch.hidden]),
            functional.cross_entropy(self.logits(decoded)[ordinary], batch.ids[ordinary]),
            bag_loss(term_scores(logits, batch.kept), batch.ids, ordinary),
        )


class ClsDecoder(nn.Module):  # type: ignore[misc]
    """A layer as BERT's, whose queries come from [CLS] and positions."""

    def __init__(self, hidden: int, heads: int, embedded: int, length: int) -> None:
        super().__init__()
        self.heads = heads
        self.positions = nn.Parameter(torch.empty(length, hidden))
        self.lift = nn.Identity() if embedded == hidden else nn.Linear(embedded, hidden)
        self.q, self.k, self.v, self.o = (nn.Linear(hidden, hidden) for _ in range(4))
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)
        self.norm, self.attention_norm, self.mlp_norm = (nn.LayerNorm(hidden) for _ in range(3))
        for name, w in self.named_parameters():
            if w.dim() > 1:
                nn.init.normal_(w, std=_DEVIATION)
            elif name.endswith("bias"):
                nn.init.zeros_(w)

    def forward(self, cls: Tensor, embedded: Tensor, visible: Tensor) -> Tensor:
        """cls [B, hidden], embedded [B, T, embedding], visible [B, T, T] -> states [B, T, hidden]"""
        places = self.positions[: embedded.shape[1]]
        asking = self.norm(cls[:, None] + places)
        read = torch.cat([cls[:, None], self.norm(self.lift(embedded) + places)[:, 1:]], 1)
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.q(asking), self.k(read), self.v(read))
        )
        found = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=visible[:, None] | ~visible.any(-1)[:, None, :, None]
        )
        x = self.attention_norm(asking + self.o(found.transpose(1, 2).flatten(2)))
        return self.mlp_norm(x + self.down(functional.gelu(self.up(x))))


class _Given(nn.Module):  # type: ignore[misc]
    """What stands where the encoder was."""

    def forward(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> Any:
        return BaseModelOutput(last_hidden_state=inputs_embeds)


def corrupted(batch: PassageBatch, mask: int, vocabulary: int) -> Tensor:
    """What the encoder reads [B, T]."""
    draw = torch.rand(batch.ids.shape)
    ids = torch.where(batch.hidden & (draw < _REPLACED), mask, batch.ids)
    other = torch.randint(vocabulary, batch.ids.shape)
    return torch.where(batch.hidden & (draw >= _REPLACED) & (draw < _LEFT), other, ids)


def term_scores(logits: Tensor, kept: Tensor) -> Tensor:
    """The largest logit of each term over the rows after [CLS]: [B, T, V], [B, T] -> [B, V]"""
    rows: Tensor = logits[:, 1:].masked_fill(~kept[:, 1:, None], -torch.inf)
    return rows.amax(1)


def bag_loss(scores: Tensor, ids: Tensor, ordinary: Tensor) -> Tensor:
    """scores [B, V], ids [B, T] -> the mean of the texts. A text 5 6 5 wants 5 and 6 at a weight of a third each."""
    wanted = torch.zeros_like(scores)
    for weights, text, which in zip(wanted, ids, ordinary, strict=True):
        weights[text[which]] = 1 / max(1, int(which.sum()))
    return -(wanted * scores.log_softmax(-1)).sum(-1).mean()
