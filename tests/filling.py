"""What the tests of recipes share: a small network, rows of text, and oracles that read one block at a time."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from edgedec.bundle.manifest import DiffusionFacts
from edgedec.export.recipes._net import FillingNet, RowReading
from edgedec.export.recipes._rows import Draws, TextRow

VOCAB, MASK = 41, 40


def network(seed: int = 0, family: str = "Llama") -> Any:
    """Random weights large enough that every token seen changes the logits."""
    import transformers

    torch.manual_seed(seed)
    sizes = {"vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128}
    config = getattr(transformers, f"{family}Config")(**sizes, **heads, tie_word_embeddings=False)
    model = getattr(transformers, f"{family}ForCausalLM")(config).float()
    for name, w in model.named_parameters():
        if w.dim() > 1:
            torch.nn.init.normal_(w, std=0.35 if "embed" not in name else 1.0)
    return model


def net_of(facts: DiffusionFacts, frozen: bool = False, seed: int = 0) -> FillingNet:
    return FillingNet(network(seed), facts, "small", frozen)


def text_row(length: int, given: int = 3, parts: int = 1, seed: int = 0) -> TextRow:
    """The first tokens are given, the rest is in parts of about equal length."""
    g = torch.Generator().manual_seed(seed)
    part = torch.zeros(length, dtype=torch.int64)
    part[given:] = 1 + torch.arange(length - given) * parts // (length - given)
    return TextRow(torch.randint(0, MASK, (length,), generator=g), part)


def draws(seed: int = 0) -> Draws:
    return Draws(random.Random(seed))


class Noted:
    """What a recipe reads: every row with masks, with its blocks."""

    def __init__(self, net: FillingNet) -> None:
        self.seen: list[tuple[list[int], list[int]]] = []
        read = net.read

        def noted(row: TextRow, masked: Tensor, block: Tensor) -> RowReading:
            self.seen.append((masked.tolist(), block.tolist()))
            return read(row, masked, block)

        net.read = noted  # type: ignore[method-assign]


class Oracle:
    """The model read a block at a time, as it is decoded: what is before the block as it is, then the block."""

    def __init__(self, model: Any, facts: DiffusionFacts, row: TextRow) -> None:
        self.model, self.facts, self.row, self.ids = model, facts, row, row.tokens.tolist()
        self._said: dict[tuple[Any, ...], Tensor] = {}

    def logs(self, masked: list[int], block: list[int], at: int, temperature: float = 1.0) -> Tensor:
        """Log-probabilities of the token at a position of a row with masks."""
        facts = self.facts
        own = [i for i in range(len(block)) if facts.context == "full" or block[i] == block[at]]
        start, end = own[0], own[-1] + 1
        ids = self.ids[:start] + masked[start:end]
        sees = [[self._sees(i, j, start, block) for j in range(end)] for i in range(end)]
        return self._read(ids, sees, at - 1 if facts.shift else at, temperature)

    def _sees(self, i: int, j: int, start: int, block: list[int]) -> bool:
        if i >= start:
            return True
        return block[j] <= block[i] if self.facts.context == "block" else j <= i

    def following(self, at: int, block: list[int]) -> Tensor:
        """Log-probabilities of the token after a position of the text as it is."""
        end = max(i for i in range(len(block)) if block[i] == block[at]) + 1
        n = end if self.facts.context == "block" else at + 1
        sees = [[self._sees(i, j, n, block) for j in range(n)] for i in range(n)]
        return self._read(self.ids[:n], sees, at, 1.0)

    def _read(self, ids: list[int], sees: list[list[bool]], row: int, temperature: float) -> Tensor:
        key = (*ids, *(sum(line) for line in sees))
        if key not in self._said:
            mask = torch.zeros(len(ids), len(ids)).masked_fill(~torch.tensor(sees), -torch.inf)
            place = torch.arange(len(ids))[None]
            with torch.no_grad():
                found = self.model(input_ids=torch.tensor([ids]), attention_mask=mask[None, None], position_ids=place)
            self._said[key] = found.logits[0]
        said = self._said[key][row].clone()
        said[self.facts.mask] = -torch.inf
        return functional.log_softmax(said / temperature, -1)

    def nats(self, masked: list[int], block: list[int], at: int) -> float:
        return -float(self.logs(masked, block, at)[self.ids[at]])

    def learned(self, masked: list[int], block: list[int]) -> list[int]:
        """The masked positions that a row with masks predicts."""
        facts, part = self.facts, self.row.part.tolist()
        found = [i for i, token in enumerate(masked) if token == facts.mask and part[i]]
        return [i for i in found if not facts.shift or (i and (facts.context == "full" or block[i - 1] == block[i]))]

    def open(self, block: list[int]) -> list[int]:
        """All positions that might be masked and learned."""
        return self.learned([self.facts.mask] * len(block), block)

    def ar(self, block: list[int]) -> float:
        """The mean of next tokens."""
        facts, part = self.facts, self.row.part.tolist()
        if not facts.shift or facts.context == "full":
            return 0.0
        places = [i for i in range(len(block) - 1) if part[i + 1]]
        if facts.context == "block":
            places = [i for i in places if block[i + 1] != block[i]]
        found = [-float(self.following(i, block)[self.ids[i + 1]]) for i in places]
        return sum(found) / len(found) if found else 0.0


def entropy(logs: Tensor) -> float:
    p = logs.exp()
    return -float(sum(a * b for a, b in zip(p.tolist(), logs.tolist(), strict=True) if a > 0))
