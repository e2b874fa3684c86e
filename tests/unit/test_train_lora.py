"""Training of LoRA adapters and of their gates: PEFT's files, frozen weights, the recipe of PHATGOOSE."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import write_llama

import edgedec
from edgedec.bundle import Bundle
from edgedec.bundle.adapter import open_adapter
from edgedec.cli import main
from edgedec.cli._app import run_app
from edgedec.errors import CheckpointError
from edgedec.runtime import ALL_LOGITS, Call, Rows, forward_one

pytest.importorskip("torch", reason="adapters are trained with torch")
pytest.importorskip("transformers", reason="adapters are trained on transformers' networks")
pytest.importorskip("safetensors", reason="adapters are kept as safetensors")
pytest.importorskip("onnx", reason="exporting needs onnx")
import torch
from safetensors.torch import load_file, save_file
from training import quiet, write_sentences

from edgedec.export.adapter import GATES, WEIGHTS, read_peft
from edgedec.export.exporter import ExportOptions, export
from edgedec.export.lora_train import LoraNet, LoraPlan, LoraTrainer, write_peft
from edgedec.export.training_loop import train

PLAN = LoraPlan(minutes=60, steps=30, rate=1e-2, batch=2, length=40)
IDS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """These networks are too small for more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sentences(tmp_path_factory.mktemp("text") / "text.txt", 400, 12)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("llama") / "hf")


@pytest.fixture(scope="module")
def bundle(checkpoint: Path) -> Path:
    options = ExportOptions(weights="f32", check=False, runtimes=("native",))
    export(str(checkpoint), checkpoint.with_name("bundle"), options)
    return checkpoint.with_name("bundle")


@pytest.fixture(scope="module")
def adapter(checkpoint: Path, text: Path) -> Path:
    """As the command writes it, with gates."""
    out = checkpoint.with_name("adapter")
    argv = ["train-lora", checkpoint, text, "-o", out, "--rank", 4, "--steps", 30, "--gates", 20, "--rate", 1e-2]
    assert run_app([str(word) for word in [*argv, "--batch", 2, "--length", 40, "-t", 1, "--json"]]) == 0
    return out


def encode(text: str) -> list[int]:
    return [ord(c) for c in text]


def test_an_adapter_learns_and_its_gates_after_it(checkpoint: Path, text: Path) -> None:
    net = LoraNet(checkpoint, 4, seed=0)
    frozen = {name: w.clone() for name, w in net.model.named_parameters()}
    trainer = LoraTrainer(net, [text], encode, PLAN, net.low_rank())
    before = trainer.measure()
    train(trainer, None, "", quiet)
    after = trainer.measure()
    assert after < before - 0.2
    low = {name: (part.a.clone(), part.b.clone()) for name, part in net.parts.items()}
    gates = net.new_gates()
    assert all(not gate.any() for gate in gates.values())
    second = LoraTrainer(net, [text], encode, PLAN, gates)
    halved = second.measure()
    train(second, None, "", quiet)
    assert after < second.measure() < halved, "at first each adds half, sigmoid(0)"
    assert all(gate.any() for gate in gates.values())
    for name, part in net.parts.items():
        assert torch.equal(part.a, low[name][0])
        assert torch.equal(part.b, low[name][1])
    assert all(torch.equal(w, frozen[name]) for name, w in net.model.named_parameters())


def test_a_gate_weighs_what_its_matrix_adds(checkpoint: Path) -> None:
    net, rng = LoraNet(checkpoint, 4, seed=0), np.random.default_rng(0)
    part = net.parts["model.layers.1.mlp.down_proj"]
    part.b = torch.from_numpy(rng.normal(size=part.b.shape).astype(np.float32))
    u = rng.normal(size=(5, part.a.shape[1])).astype(np.float32)
    low = u @ part.a.numpy().T @ part.b.numpy().T
    np.testing.assert_allclose(part.of(torch.from_numpy(u)).numpy(), low, atol=1e-5)
    part.gate = torch.from_numpy(rng.normal(size=u.shape[1]).astype(np.float32))
    weight = 1 / (1 + np.exp(-(u @ part.gate.numpy())))
    np.testing.assert_allclose(part.of(torch.from_numpy(u)).numpy(), low * weight[:, None], atol=1e-5)


def test_ranks_that_differ_are_named(checkpoint: Path, tmp_path: Path) -> None:
    net, name = LoraNet(checkpoint, 4, seed=0), "model.layers.1.mlp.down_proj"
    net.parts[name].a, net.parts[name].b = net.parts[name].a[:2], net.parts[name].b[:, :2]
    write_peft(net, "base", tmp_path)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"]) == (4, 4)
    assert config["rank_pattern"] == config["alpha_pattern"] == {name: 2}
    assert config["target_modules"] == sorted(net.parts)


def test_peft_reads_the_adapter_and_gives_the_logits_of_the_bundle(
    checkpoint: Path, bundle: Path, adapter: Path, tmp_path: Path
) -> None:
    peft = pytest.importorskip("peft", reason="PEFT reads the adapter")
    from transformers import AutoModelForCausalLM

    model = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(checkpoint), adapter)
    with torch.no_grad():
        expected = model(torch.tensor([IDS])).logits[0].numpy()
        with model.disable_adapter():
            plain = model(torch.tensor([IDS])).logits[0].numpy()
    assert main(["adapter", str(adapter), "-m", str(bundle), "-o", str(tmp_path / "a.lora")]) == 0
    opened = edgedec.open(bundle, engine="reference")
    given = opened.adapter(tmp_path / "a.lora")
    call = Call(Rows.chain(IDS, 0), opened.runtime.new_cache(32), outputs=ALL_LOGITS, adapter=given)
    np.testing.assert_allclose(forward_one(opened.runtime, call).logits, expected, atol=1e-4)
    assert np.abs(expected - plain).max() > 0.05


def test_each_matrix_of_the_checkpoint_has_a_gate_of_its_own(bundle: Path, adapter: Path, tmp_path: Path) -> None:
    assert main(["adapter", str(adapter), "-m", str(bundle), "-o", str(tmp_path / "a.lora")]) == 0
    spec, stored = Bundle.open(bundle).spec, load_file(adapter / GATES)
    found = open_adapter(tmp_path / "a.lora", spec).matrices["blocks.0.qkv"].gates
    assert found is not None
    names = [f"base_model.model.model.layers.0.self_attn.{x}_proj.gate" for x in "qkv"]
    assert found.vectors.tolist() == [stored[name].tolist() for name in names]
    attention: Any = spec.blocks[0]
    q, kv = attention.q_dim, attention.kv_dim
    assert found.parts.tolist() == [[4, 0, q], [4, q, kv], [4, q + kv, kv]]
    assert len({tuple(row) for row in found.vectors.tolist()}) == 3


def test_gates_are_trained_for_an_adapter_that_is_there(
    checkpoint: Path, adapter: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = tmp_path / "given"
    given.mkdir()
    for name in ("adapter_config.json", WEIGHTS):
        (given / name).write_bytes((adapter / name).read_bytes())
    out, how = tmp_path / "out", ["--gates", "5", "--batch", "1", "--length", "40", "-t", "1", "--json"]
    argv = ["train-lora", str(checkpoint), str(text), "-o", str(out), "--from", str(given), *how]
    assert run_app(argv) == 0
    report = json.loads(capsys.readouterr().out)
    assert set(report["nats"]) == {"before", "gates"}
    old, new = load_file(given / WEIGHTS), load_file(out / WEIGHTS)
    assert old.keys() == new.keys()
    assert all(torch.equal(old[name], new[name]) for name in old)
    assert all(gate.any() for gate in load_file(out / GATES).values())
    assert main(argv) == 1
    assert "exists already" in capsys.readouterr().err


def test_gates_are_kept_by_how_long_their_adapter_was_trained(checkpoint: Path, text: Path, tmp_path: Path) -> None:
    """Or a training that goes on for more minutes would end with the gates of the adapter as it was."""
    work, how = tmp_path / "work", ["--gates", "3", "--batch", "1", "--length", "40", "--rank", "2", "--steps", "2"]
    out = ["-o", str(tmp_path / "out"), "--work", str(work), "-t", "1"]
    assert run_app(["train-lora", str(checkpoint), str(text), *out, *how]) == 0
    assert {path.name for path in work.glob("*.safetensors")} == {"adapter.safetensors", "gates-2.safetensors"}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda gates, name: gates.pop(name), "no gate of model.layers.0.self_attn.k_proj"),
        (lambda gates, name: gates.update({name: gates[name][1:].clone()}), r"k_proj is \[\d+\], not \[\d+\]"),
        (lambda gates, name: gates.update({name: gates[name] * float("nan")}), "k_proj is not finite"),
        (lambda gates, name: gates.update({"base_model.model.x.gate": gates[name].clone()}), "x.gate belongs to no"),
    ],
    ids=["lacking", "narrow", "nan", "foreign"],
)
def test_gates_of_a_checkpoint_that_do_not_fit(
    change: Any, says: str, bundle: Path, adapter: Path, tmp_path: Path
) -> None:
    for path in adapter.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    gates = load_file(tmp_path / GATES)
    change(gates, "base_model.model.model.layers.0.self_attn.k_proj.gate")
    save_file(gates, tmp_path / GATES)
    with pytest.raises(CheckpointError, match=says) as refused:
        read_peft(tmp_path, Bundle.open(bundle))
    assert "\n" not in str(refused.value)


def test_a_bundle_with_rounded_weights_is_trained_beside(text: Path, tmp_path: Path) -> None:
    argv = ["train-lora", "nano", str(text), "-o", str(tmp_path / "a"), "--rank", "2", "--steps", "1", "--gates", "1"]
    assert run_app([*argv, "--batch", "1", "--length", "16", "-t", "1", "--json"]) == 0
    found = read_peft(tmp_path / "a", edgedec.open("nano").bundle)
    assert {low.gates is not None for low in found.values()} == {True}
