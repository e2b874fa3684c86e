"""Duo-LLM: routes through large and small networks, the oracle over all of them, routers."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgedec

pytest.importorskip("torch", reason="trains with torch")
pytest.importorskip("safetensors", reason="training keeps its state as safetensors")
pytest.importorskip("onnx", reason="bundles are written with onnx")
import torch
from checkpoints import write_llama
from torch.nn import functional
from training import quiet, write_sentences

from edgedec.errors import UsageError
from edgedec.export.duo import LARGE, SMALL, DuoModel, DuoPlan, DuoTrainer, Routes, all_routes
from edgedec.export.exporter import ExportOptions, export
from edgedec.export.training_loop import train
from edgedec.runtime import Call, Outputs, Rows, forward_one


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sentences(tmp_path_factory.mktemp("text") / "text.txt", 300, 14)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> edgedec.Model:
    folder = tmp_path_factory.mktemp("random")
    source = write_llama(folder / "hf", num_hidden_layers=3)
    export(str(source), folder / "bundle", ExportOptions(weights="f32", check=False, runtimes=()))
    return edgedec.open(folder / "bundle", engine="reference")


def trainer(model: edgedec.Model, text: Path, routers: bool = False, **changes: Any) -> DuoTrainer:
    torch.manual_seed(0)
    facts: dict[str, Any] = {"layers": 3, "minutes": 1e6, "steps": 6, "batch": 2, "length": 32, "rate": 5e-3}
    plan = DuoPlan(**facts | changes)
    return DuoTrainer(DuoModel(model.bundle, plan.layers), [text], model.tokenizer.encode, plan, routers)


def lively(duo: DuoModel) -> DuoModel:
    """With small networks that do something."""
    for layer in duo.layers:
        torch.nn.init.normal_(layer.mlps[SMALL].down_proj.weight, std=0.3)
    return duo


def test_the_large_networks_alone_are_the_bundles_model(model: edgedec.Model) -> None:
    ids = [1, 7, 3, 99, 42, 5]
    call = Call(Rows.chain(ids, 0), model.runtime.new_cache(16), outputs=Outputs(logits=True))
    with torch.no_grad():
        found = lively(DuoModel(model.bundle, 3))(torch.tensor(ids), torch.ones(3, 6))
    np.testing.assert_allclose(found.numpy(), forward_one(model.runtime, call).logits, atol=2e-3)


def test_every_route_costs_what_a_text_costs_whose_last_token_takes_it(model: edgedec.Model) -> None:
    duo, ids = lively(DuoModel(model.bundle, 3)), torch.tensor([1, 7, 3, 99, 42, 5])
    found = dict(duo.each_route(ids))
    assert set(found) == set(itertools.product((SMALL, LARGE), repeat=3))
    for route, losses in found.items():
        for t in range(5):
            routes = torch.ones(3, t + 1)
            routes[:, t] = torch.tensor(route).float()
            with torch.no_grad():
                alone = functional.cross_entropy(duo(ids[: t + 1], routes)[-1:], ids[t + 1 : t + 2])
            assert float(losses[t]) == pytest.approx(float(alone), abs=2e-4), (route, t)


def test_the_oracle_is_of_each_token_and_a_fixed_route_of_all() -> None:
    """Two layers, two tokens, losses by hand."""
    large = np.array([[0, 0], [0, 1], [1, 0], [1, 1]])
    losses = np.array([[4.0, 4.0], [1.0, 3.0], [2.0, 1.0], [0.5, 3.5]])
    routes = Routes(losses, large)
    assert routes.at(1) == {"oracle": 1.0, "best fixed": 1.5, "last layers": 2.0, "random": 1.75}
    assert routes.at(0) == dict.fromkeys(("oracle", "best fixed", "last layers", "random"), 4.0)
    assert routes.at(2)["oracle"] == 2.0
    assert routes.chosen(1) == [0.5, 0.5]
    assert routes.chosen(2) == [1.0, 1.0]


def test_each_token_in_each_layer_is_routed_at_random(model: edgedec.Model, text: Path) -> None:
    learning, seen = trainer(model, text), list[torch.Tensor]()
    before = learning.model.forward
    learning.model.forward = lambda ids, routes: seen.append(routes) or before(ids, routes)  # type: ignore[func-returns-value]
    row = torch.tensor(next(learning.stream))
    for seed in range(6):
        learning.loss(row, random.Random(seed))
    found = torch.stack(seen)
    assert found.shape == (6, 3, 32)
    assert set(found.unique().tolist()) == {0.0, 1.0}
    assert 0.4 < float(found.mean()) < 0.6
    assert len({tuple(routes.flatten().tolist()) for routes in seen}) == 6
    assert not (found[0] == found[0, :, :1]).all(), "tokens of a layer differ"
    assert not (found[0] == found[0, :1]).all(), "layers of a token differ"


def test_any_route_works_after_training_and_the_oracle_needs_few_large_networks(
    model: edgedec.Model, text: Path
) -> None:
    learning = trainer(model, text, steps=150)
    rows = learning.held[:3]
    before = all_routes(learning.model, rows)
    train(learning, None, "", quiet)
    after = all_routes(learning.model, rows)
    for budget in range(4):
        found = after.at(budget)
        assert found["oracle"] <= found["best fixed"] <= found["random"] + 1e-6
        assert found["random"] < before.at(budget)["random"] - 0.5
    assert after.at(1)["oracle"] < after.at(3)["oracle"] + 0.1, "one large network, well chosen"


def test_routers_keep_to_their_budget(model: edgedec.Model, text: Path) -> None:
    for budget in (0.25, 0.75):
        learning = trainer(model, text, routers=True, steps=120, rate=3e-2, budget=budget)
        frozen = {name: w.clone() for name, w in learning.model.named_parameters() if "router" not in name}
        train(learning, None, "", quiet)
        with torch.no_grad():
            shares = torch.cat([learning.model.routed(torch.tensor(row), 0.0)[1].flatten() for row in learning.held])
        assert abs(float(shares.mean()) - budget) < 0.15
        assert all(torch.equal(w, frozen[n]) for n, w in learning.model.named_parameters() if n in frozen)


@pytest.mark.parametrize("routers", [False, True])
def test_a_run_cut_short_goes_on(model: edgedec.Model, text: Path, tmp_path: Path, routers: bool) -> None:
    whole, first, again = (trainer(model, text, routers) for _ in range(3))
    for i in range(6):
        whole.step(i / 6)
    for i in range(3):
        first.step(i / 6)
    first.save(tmp_path / "c.safetensors", "k")
    again.load(tmp_path / "c.safetensors", "k")
    for i in range(3, 6):
        again.step(i / 6)
    for name, w in whole.weights.items():
        torch.testing.assert_close(again.weights[name], w, msg=name)


def test_what_cannot_be_made_is_refused(model: edgedec.Model) -> None:
    with pytest.raises(UsageError, match="layers=4: must be from 1 to 3"):
        DuoModel(model.bundle, 4)
