"""Splitting a model into experts of domains, and training them: rule, loss, rounds, and the bundle of it."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import write_llama

from edgedec.bundle import Bundle
from edgedec.cli import main
from edgedec.cli._app import run_app
from edgedec.errors import CheckpointError, UsageError
from edgedec.kernels.cpu.loader import why_not
from edgedec.runtime import Rows, RuntimeOptions, open_runtime
from edgedec.spec import Moe, PreRouter
from edgedec.testing.conformance.compare import run, text

pytest.importorskip("torch", reason="experts are trained with torch")
pytest.importorskip("transformers", reason="experts are trained on transformers' networks")
pytest.importorskip("safetensors", reason="experts are kept as safetensors")
pytest.importorskip("onnx", reason="exporting needs onnx")
import torch

from edgedec.export.domain_experts import FILE, own_of_each, read_experts, stored_shared
from edgedec.export.experts_train import (
    DomainNet,
    DomainSplit,
    DomainStream,
    ModelTrainer,
    Place,
    RouterTrainer,
    StagePlan,
    rows_of,
    split,
)
from edgedec.export.exporter import ExportOptions, export
from edgedec.export.pre_router_net import RouterNet, overlaps, router_loss

PLAN = StagePlan(steps=4, rate=1e-2, batch=2, length=30)
ENGINES = ("reference", *(["native"] if why_not() is None else []))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """These networks are too small for more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def domains(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Texts of letters that no other domain has."""
    folder, rng, found = tmp_path_factory.mktemp("domains"), random.Random(0), []
    for name, letters in (("low", "abcdefgh ."), ("digits", "0123456789+="), ("high", "ABCDEFGH ,;")):
        texts = ["".join(rng.choice(letters) for _ in range(60)) for _ in range(120)]
        found.append(folder / f"{name}.jsonl")
        found[-1].write_text("".join(json.dumps({"text": one}) + "\n" for one in texts))
    return found


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("llama") / "hf", intermediate_size=128, num_hidden_layers=2)


def encode(text: str) -> list[int]:
    return [ord(c) for c in text]


def made_of(checkpoint: Path, domains: list[Path]) -> DomainSplit:
    return split(DomainNet(checkpoint), domains, encode, 300, 30, 0, (16, 2))


@pytest.fixture(scope="module")
def trained(checkpoint: Path, domains: list[Path]) -> Path:
    """As the command writes it."""
    out = checkpoint.with_name("experts")
    sizes = ["--split-tokens", 300, "--router-size", 16, "--length", 30, "--batch", 2, "-t", 1, "--json"]
    rounds = ["--rounds", 1, "--router-steps", 20, "--model-steps", 3, "--router-rate", 1e-2]
    assert run_app([str(word) for word in ["train-experts", checkpoint, *domains, "-o", out, *sizes, *rounds]]) == 0
    return out


def inputs_of(net: DomainNet, row: list[int]) -> list[torch.Tensor]:
    """What the last matrix of each feed-forward reads, without the split's own hooks."""
    states = net.model(torch.tensor([row]), output_hidden_states=True).hidden_states
    found = []
    for layer, entering in zip(net.model.model.layers, states, strict=False):
        places = torch.arange(len(row))[None]
        rotary = net.model.model.rotary_emb(entering, places)
        causal = torch.full((len(row), len(row)), float("-inf")).triu(1)[None, None]
        normed = layer.input_layernorm(entering)
        added = layer.self_attn(hidden_states=normed, position_embeddings=rotary, attention_mask=causal)[0]
        x = layer.post_attention_layernorm(entering + added)[0]
        found.append(torch.nn.functional.silu(layer.mlp.gate_proj(x)) * layer.mlp.up_proj(x))
    return found


def test_neurons_are_chosen_by_their_mean_magnitude(checkpoint: Path, domains: list[Path]) -> None:
    made, net = made_of(checkpoint, domains), DomainNet(checkpoint)
    for number, path in enumerate(domains):
        sums = np.zeros((2, 128))
        for row in rows_of(path, encode, 300, 30, 0):
            with torch.no_grad():
                seen = inputs_of(net, row)
            sums += np.stack([one.abs().sum(0).numpy() for one in seen])
        best = np.argsort(-sums, axis=1)[:, :64]
        assert [sorted(row) for row in best.tolist()] == [
            np.flatnonzero(row).tolist() for row in made.selected[:, number]
        ]
    assert own_of_each(made.selected).any(axis=-1).all(), "each domain has neurons of its own"


def test_the_loss_is_that_of_the_authors() -> None:
    """In plain loops."""
    rng = np.random.default_rng(0)
    u, logits = rng.normal(size=(6, 20)), rng.normal(size=(6, 3))
    own = np.zeros((3, 20))
    for expert in range(3):
        own[expert, rng.choice(20, 7, replace=False)] = 1
    found = np.zeros((6, 3))
    for t in range(6):
        ranks = np.argsort(np.argsort(-u[t]))
        for i in range(20):
            weight = sum(ranks[i] < among for among in (6, 5, 4, 2, 1)) / 21
            found[t] += weight * own[:, i]
    found = (found - found.mean()) * 10
    np.testing.assert_allclose(overlaps(torch.tensor(u), torch.tensor(own)).numpy(), found, atol=1e-6)
    logs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    soft = np.exp(found) / np.exp(found).sum(1, keepdims=True)
    hard = 0.5 * np.eye(3)[found.argmax(1)] + 0.5 / 3
    expected = -(0.75 * (hard * logs).sum(1) + 0.25 * (soft * logs).sum(1)).mean()
    loss = router_loss(torch.tensor(logits), torch.tensor(u), torch.tensor(own))
    assert float(loss) == pytest.approx(expected, abs=1e-6)


def test_the_stages_train_what_is_theirs(checkpoint: Path, domains: list[Path]) -> None:
    made = made_of(checkpoint, domains)
    for trainer, changes in ((RouterTrainer, made.router), (ModelTrainer, made.net.model)):
        before = {part: [w.clone() for w in part.parameters()] for part in (made.router, made.net.model)}
        stage = trainer(made, domains, encode, PLAN, Place())
        for i in range(PLAN.steps):
            stage.step(i / PLAN.steps)
        for part, weights in before.items():
            same = [torch.equal(old, new) for old, new in zip(weights, part.parameters(), strict=True)]
            assert not all(same) if part is changes else all(same)
    assert stage.share(0.5) == pytest.approx(0.5)
    assert stage.optimizer.param_groups[0]["weight_decay"] == 0.01


def test_the_model_is_trained_through_the_chosen_experts(checkpoint: Path, domains: list[Path]) -> None:
    """Neurons that no domain keeps never learn."""
    made = made_of(checkpoint, domains)
    never = ~torch.from_numpy(made.selected.any(axis=1))
    assert never.any()
    stage = ModelTrainer(made, domains, encode, PLAN, Place())
    stage.row_loss(next(stage.stream), None, 0.0).backward()
    for layer, left in zip(made.net.model.model.layers, never, strict=True):
        gradient = layer.mlp.down_proj.weight.grad
        assert gradient is not None
        assert not gradient[:, left].any()
        assert gradient[:, ~left].any()


def test_domains_take_turns(domains: list[Path]) -> None:
    stream = DomainStream(domains, encode, 30, 0, Place())
    rows = [bytes(next(stream)).decode() for _ in range(60)]
    assert all(any(letter in row for row in rows) for letter in "a0A")
    held = {bytes(row).decode() for row in stream.held()}
    assert held
    assert not held & set(rows)


def test_an_interrupted_stage_goes_on(checkpoint: Path, domains: list[Path], tmp_path: Path) -> None:
    whole = RouterTrainer(made_of(checkpoint, domains), domains, encode, PLAN, Place())
    for i in range(4):
        whole.step(i / 4)
    cut = RouterTrainer(made_of(checkpoint, domains), domains, encode, PLAN, Place())
    for i in range(2):
        cut.step(i / 4)
    cut.save(tmp_path / "router", "key")
    again = RouterTrainer(made_of(checkpoint, domains), domains, encode, PLAN, Place())
    again.load(tmp_path / "router", "key")
    assert again.steps == 2
    for i in range(2, 4):
        again.step(i / 4)
    for name, w in whole.weights.items():
        torch.testing.assert_close(again.weights[name], w, atol=1e-5, rtol=0)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_bundle_runs_as_the_network(trained: Path, engine: str, tmp_path: Path) -> None:
    export(str(trained), tmp_path / "b", ExportOptions(weights="f32", check=False, runtimes=("native",)))
    bundle, experts = Bundle.open(tmp_path / "b"), read_experts(trained)
    assert experts is not None
    blocks = bundle.spec.blocks
    assert isinstance(blocks[0], PreRouter)
    moes = [block for block in blocks if isinstance(block, Moe)]
    shared = [len(stored_shared(selected)) for selected in experts.selected]
    assert [(block.inner_size, block.shared_size) for block in moes] == [(64 - n, n) for n in shared]
    net, ids = DomainNet(trained), encode("abc 123+=4 ABC, h")
    net.selected = torch.from_numpy(experts.selected).float()
    router = RouterNet(torch.zeros(net.spec.vocab_size, 16), 16, 2, 3, net.theta, net.spec.norm_eps)
    router.load_state_dict({name: torch.from_numpy(np.array(w)) for name, w in experts.router.items()})
    with torch.no_grad():
        chosen = router(torch.tensor(ids)).argmax(-1)
        expected = net.through(torch.tensor(ids), chosen).numpy()
        others = net.through(torch.tensor(ids), (chosen + 1) % 3).numpy()
    assert len(set(chosen.tolist())) > 1, "several experts run"
    runtime = open_runtime(engine, bundle, RuntimeOptions(threads=1, kv="f32"))
    found = text(runtime, ids, chunk=5)[1]
    np.testing.assert_allclose(found, expected, atol=2e-4)
    assert np.abs(found - others).max() > 0.01
    if engine == "reference":
        cache = runtime.new_cache(32)
        run(runtime, rows := Rows.chain(ids, 0), cache)
        assert cache.experts.of(0, rows).tolist() == chosen.tolist()  # type: ignore[attr-defined]


def test_the_experts_that_a_text_uses(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export(str(trained), tmp_path / "b", ExportOptions(weights="int8", check=False, runtimes=("native",)))
    (tmp_path / "text.txt").write_text("abcabc 123123 " * 5)
    argv = ["eval", "experts", str(tmp_path / "text.txt"), "-m", str(tmp_path / "b"), "--engine", "reference", "--json"]
    assert run_app(argv) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["shares"]["token"] == pytest.approx(1 / 3)
    assert 1 / 3 <= found["shares"]["chunk"] <= 1
    each = [block["bytes"] for block in found["blocks"].values()]
    assert found["bytes"]["token"] == pytest.approx(sum(each) / 3)
    assert min(each) > 0


def test_bad_input_is_refused_in_a_line(
    checkpoint: Path, domains: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(argv: list[Any]) -> str:
        assert main([str(word) for word in argv]) != 0
        return capsys.readouterr().err

    first, out = ["train-experts", checkpoint], ["-o", tmp_path / "out"]
    short = ["--split-tokens", 60, "--length", 30, "--router-size", 16]
    assert "two domains or more" in refused([*first, domains[0], *out])
    assert "--router-size 17 with 2 heads" in refused([*first, *domains, *out, *short[:4], "--router-size", 17])
    assert "--router-size 64 with 2 heads" in refused([*first, *domains, *out, *short[:4]])  # unless it is given
    assert "--length 5000" in refused([*first, *domains, *out, "--length", 5000])
    (tmp_path / "same").mkdir()
    twin = tmp_path / "same" / "twin.jsonl"
    twin.write_bytes(domains[0].read_bytes())
    assert "the same in all domains" in refused([*first, domains[0], twin, *out, *short])
    odd = write_llama(tmp_path / "odd", intermediate_size=40)
    assert "40 neurons" in refused(["train-experts", odd, *domains, *out, *short])
    assert not (tmp_path / "out").exists()


def test_experts_of_another_model_are_refused(trained: Path, tmp_path: Path) -> None:
    other = write_llama(tmp_path / "other", intermediate_size=64)
    (other / FILE).write_bytes((trained / FILE).read_bytes())
    with pytest.raises(CheckpointError, match="other feed-forwards"):
        export(str(other), tmp_path / "b", ExportOptions(check=False))
    (other / FILE).write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    with pytest.raises(CheckpointError, match="train them again"):
        export(str(other), tmp_path / "b", ExportOptions(check=False))
    assert not (tmp_path / "b").exists()


def test_passes_leave_them_alone(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="chosen before its layers"):
        export(str(trained), tmp_path / "b", ExportOptions(weights="int4", check=False, passes="gptq"))
