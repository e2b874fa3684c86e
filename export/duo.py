"""Duo-LLM (Alizadeh et al. 2024): a small feed-forward network beside each large one, and routes through them.

Read: third-party notes and the abstract; no code was found. A framework to study adaptive computation: trained under
random routes (each token in each layer by the large or the small network, both as likely), the model works along any
route. An oracle then tries all routes of a token and keeps the best at a budget of large networks; a learned router is
measured against it. Small: 1/16 of the large one's inner size. The notes also name routes that skip a network.

    two layers, budget 1: large-small costs a token 2.1 nats, small-large 1.7 -> the oracle's loss is 1.7

Attention of a token on an odd route sees the others as the large networks leave them, so that one token's route is
tried at a time, as for a single step.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from edgedec.bundle import Bundle
from edgedec.errors import UsageError
from edgedec.export.exits_data import Encode
from edgedec.export.row_training import RowTrainer
from edgedec.export.students import StudentShape, shape_of
from edgedec.export.students._layers import GatedMlp, RmsNorm, capped, linear
from edgedec.export.students._rows import Keys, RowAttention
from edgedec.export.students.hydrapp import HydraPlusStudent

SMALL, LARGE = range(2)
SHARE = 16


@dataclass(frozen=True)
class DuoPlan:
    """layers: of the bundle that the model begins with; minutes and steps: whichever is over first (steps 0: the
    minutes alone); budget: the router's share of large networks."""

    layers: int = 6
    minutes: float = 5.0
    steps: int = 0
    rate: float = 2e-3
    batch: int = 4
    length: int = 128
    budget: float = 0.5
    seed: int = 0
    threads: int = 1


class DuoLayer(nn.Module):
    """A Llama layer with two feed-forward networks."""

    def __init__(self, shape: StudentShape) -> None:
        super().__init__()
        self.input_layernorm, self.self_attn = RmsNorm(shape.hidden, shape.eps), RowAttention(shape)
        self.post_attention_layernorm = RmsNorm(shape.hidden, shape.eps)
        small = StudentShape(**vars(shape) | {"inner": max(1, shape.inner // SHARE)})
        self.mlps = nn.ModuleList([GatedMlp(small), GatedMlp(shape)])
        self.router = linear(shape.hidden, 2)

    def attended(self, x: Tensor, text: Keys, sees: Tensor, own: Sequence[Keys] = ()) -> Tensor:
        place = torch.arange(len(x), device=x.device)
        return x + self.self_attn(self.input_layernorm(x), place, text, sees, own)

    def keys(self, x: Tensor) -> Keys:
        return self.self_attn.keys(self.input_layernorm(x), torch.arange(len(x), device=x.device))

    def fed(self, x: Tensor, large: Tensor) -> Tensor:
        """large [T]: the share of the large network; the rest is the small one's."""
        y, w = self.post_attention_layernorm(x), large[:, None]
        return x + w * self.mlps[LARGE](y) + (1 - w) * self.mlps[SMALL](y)


class DuoModel(nn.Module):
    """The first layers of a bundle, with a small network beside each of theirs."""

    def __init__(self, bundle: Bundle, layers: int) -> None:
        super().__init__()
        HydraPlusStudent.check(bundle.spec)
        if not 0 < layers <= bundle.spec.n_layers:
            raise UsageError(f"layers={layers}: must be from 1 to {bundle.spec.n_layers}")
        spec = bundle.spec
        self.shape = shape_of(spec, spec.vocab_size, 1)
        self.embed = nn.Parameter(_tensor(bundle, "embed") * spec.embed_scale)
        self.head = nn.Parameter(_tensor(bundle, "embed" if spec.tied else "head"))
        self.norm = RmsNorm(spec.hidden_size, spec.norm_eps)
        self.layers = nn.ModuleList(DuoLayer(self.shape) for _ in range(layers))
        with torch.no_grad():
            self.norm.weight.copy_(_tensor(bundle, "final_norm").flatten())
            for i, layer in enumerate(self.layers):
                _fill(layer, bundle, i)

    def forward(self, ids: Tensor, routes: Tensor) -> Tensor:
        """ids [T], routes [layers, T]: shares of the large networks -> logits [T, V]"""
        x = self.embed[ids]
        sees = torch.ones(len(ids), len(ids), dtype=torch.bool).tril()
        for layer, large in zip(self.layers, routes, strict=True):
            x = layer.fed(layer.attended(x, layer.keys(x), sees), large)
        return self.read(x)

    def routed(self, ids: Tensor, heat: float) -> tuple[Tensor, Tensor]:
        """By its routers, softmax at this temperature (0: the likelier) -> logits, the shares [layers, T]."""
        x, shares = self.embed[ids], list[Tensor]()
        sees = torch.ones(len(ids), len(ids), dtype=torch.bool).tril()
        for layer in self.layers:
            x = layer.attended(x, layer.keys(x), sees)
            said = layer.router(layer.post_attention_layernorm(x))
            shares.append((said / heat).softmax(-1)[:, LARGE] if heat else (said.argmax(-1) == LARGE).float())
            x = layer.fed(x, shares[-1])
        return self.read(x), torch.stack(shares)

    def read(self, x: Tensor) -> Tensor:
        return capped(functional.linear(self.norm(x), self.head), self.shape.softcap)

    def each_route(self, ids: Tensor) -> Iterator[tuple[tuple[int, ...], Tensor]]:
        """Every route and the loss of each token [T - 1] if it alone takes it."""
        n = len(ids) - 1
        earlier = torch.ones(n, n, dtype=torch.bool).tril(-1)
        with torch.no_grad():
            x, text = self.embed[ids[:n]], list[Keys]()
            for layer in self.layers:
                text.append(layer.keys(x))
                x = layer.fed(layer.attended(x, text[-1], earlier | torch.eye(n, dtype=torch.bool)), torch.ones(n))
            yield from self._below(self.embed[ids[:n]], (), text, earlier, ids[1:])

    def _below(
        self, x: Tensor, route: tuple[int, ...], text: list[Keys], earlier: Tensor, following: Tensor
    ) -> Iterator[tuple[tuple[int, ...], Tensor]]:
        if len(route) == len(self.layers):
            yield route, functional.cross_entropy(self.read(x), following, reduction="none")
            return
        layer = self.layers[len(route)]
        x = layer.attended(x, text[len(route)], earlier, [layer.keys(x)])
        for choice in (SMALL, LARGE):
            after = layer.fed(x, torch.full((len(x),), float(choice)))
            yield from self._below(after, (*route, choice), text, earlier, following)


class DuoTrainer(RowTrainer):
    """All weights under random routes; or, with `routers`, the routers alone, the model frozen."""

    command = "duo"
    plan: DuoPlan

    def __init__(
        self, model: DuoModel, files: list[Path], encode: Encode, plan: DuoPlan, routers: bool = False
    ) -> None:
        super().__init__(files, encode, plan)
        self.model, self.routers = model, routers
        self.optimize({name: w for name, w in model.named_parameters() if ("router" in name) is routers})

    def row_loss(self, row: list[int], draw: random.Random, progress: float) -> Tensor:
        ids = torch.tensor(row)
        return self.router_loss(ids, progress) if self.routers else self.loss(ids, draw)

    def loss(self, row: Tensor, draw: random.Random) -> Tensor:
        """row [T + 1]: each token of it in each layer by either network."""
        n, layers = len(row) - 1, len(self.model.layers)
        routes = torch.tensor([[float(draw.random() < 0.5) for _ in range(n)] for _ in range(layers)])
        return functional.cross_entropy(self.model(row[:-1], routes), row[1:])

    def router_loss(self, row: Tensor, progress: float) -> Tensor:
        """The text, and how far the mean share of large networks, over all layers and tokens, is from the budget; the
        routers' temperature falls from 1 to 0.1."""
        logits, shares = self.model.routed(row[:-1], 1.0 - 0.9 * progress)
        return functional.cross_entropy(logits, row[1:]) + 10.0 * (shares.mean() - self.plan.budget) ** 2


@dataclass(frozen=True)
class Routes:
    """losses [routes, tokens] of every route and token; large [routes, layers]: 1 where the large network ran."""

    losses: np.ndarray
    large: np.ndarray

    def at(self, budget: int) -> dict[str, float]:
        """Mean losses with so many large networks for each token: the oracle's, of the best one route for all tokens,
        with the large networks in the last layers, and of a random route."""
        some = self.large.sum(1) == budget
        losses, large = self.losses[some], self.large[some]
        late = large[:, large.shape[1] - budget :].all(1) if budget else np.ones(len(large), bool)
        return {
            "oracle": float(losses.min(0).mean()),
            "best fixed": float(losses.mean(1).min()),
            "last layers": float(losses[late].mean()),
            "random": float(losses.mean()),
        }

    def chosen(self, budget: int) -> list[float]:
        """How often the oracle uses the large network of each layer."""
        some = self.large.sum(1) == budget
        found: list[float] = self.large[some][self.losses[some].argmin(0)].mean(0).tolist()
        return found


def all_routes(model: DuoModel, rows: Sequence[Sequence[int]]) -> Routes:
    """What every route costs every token of some rows."""
    parts, routes = list[np.ndarray](), list[tuple[int, ...]]()
    for row in rows:
        found = list(model.each_route(torch.tensor(list(row))))
        routes = [route for route, _ in found]
        parts.append(np.stack([loss.numpy() for _, loss in found]))
    return Routes(np.concatenate(parts, 1), np.array(routes))


def _tensor(bundle: Bundle, name: str) -> Tensor:
    return torch.from_numpy(np.array(bundle.rows(name), np.float32))


def _fill(layer: DuoLayer, bundle: Bundle, i: int) -> None:
    """The bundle's layer; the small network and the router begin anew."""
    attention, mlp = bundle.spec.span(i, i + 1)
    block = bundle.spec.attention[attention]
    q, k, v = _tensor(bundle, f"blocks.{attention}.qkv").split([block.q_dim, block.kv_dim, block.kv_dim])
    gate, up = _tensor(bundle, f"blocks.{mlp}.gate_up").chunk(2)
    large = layer.mlps[LARGE]
    pairs = [(layer.self_attn.q_proj, q), (layer.self_attn.k_proj, k), (layer.self_attn.v_proj, v)]
    pairs += [(layer.self_attn.o_proj, _tensor(bundle, f"blocks.{attention}.o"))]
    pairs += [(large.gate_proj, gate), (large.up_proj, up), (large.down_proj, _tensor(bundle, f"blocks.{mlp}.down"))]
    pairs += [(layer.input_layernorm, _tensor(bundle, f"blocks.{attention}.norm").flatten())]
    pairs += [(layer.post_attention_layernorm, _tensor(bundle, f"blocks.{mlp}.norm").flatten())]
    for part, value in pairs:
        part.weight.copy_(value)
