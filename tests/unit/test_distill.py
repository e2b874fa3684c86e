"""Draft models trained by distillation: they learn, a run cut short goes on, checkpoints have the published names."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgedec

pytest.importorskip("onnx", reason="heads are built with onnx")
pytest.importorskip("torch", reason="heads are trained with torch")
pytest.importorskip("safetensors", reason="training keeps its state as safetensors")
pytest.importorskip("transformers", reason="the target is trained with transformers")
import torch
from checkpoints import write_llama
from safetensors.torch import load_file
from torch.nn import functional
from training import quiet, write_sentences

from edgedec.bundle.read_grams import ReadRecord
from edgedec.cli._app import run_app
from edgedec.cli._exporting import encoder_of
from edgedec.errors import UsageError
from edgedec.export import exits_model, students
from edgedec.export.exits_data import END, is_held
from edgedec.export.exits_train import ExitPlan, ExitTrainer
from edgedec.export.exporter import ExportOptions, export
from edgedec.export.heads_data import collect, windows
from edgedec.export.heads_distill import DECAY, Distiller, DistillPlan, _spans, key_of
from edgedec.export.heads_features import most_used
from edgedec.export.heads_train import train as train_head
from edgedec.export.heads_trainer import TrainingPlan
from edgedec.export.students import eagle3
from edgedec.export.students._layers import Unrolled, UnrolledAttention
from edgedec.export.training_loop import train

KINDS = ("chimera", "eagle3", "falcon", "hiddentransfer", "hydrapp", "kangaroo", "longspec", "m2r2")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """These networks are too small for more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sentences(tmp_path_factory.mktemp("text") / "text.txt", 300, 14)


@pytest.fixture(scope="module")
def model(text: Path, tmp_path_factory: pytest.TempPathFactory) -> edgedec.Model:
    """A small Llama that has learned the grammar: what it says after a word hangs on that word."""
    folder = tmp_path_factory.mktemp("taught")
    source = write_llama(folder / "random", num_hidden_layers=4)
    network = exits_model.Early(exits_model.load(source), "random")
    encode = encoder_of(source, "a test")
    how = ExitPlan((), drop=0.0, minutes=1e6, steps=150, batch=4, length=48, rate=5e-3)
    learning = ExitTrainer(network, [text], encode, how)
    train(learning, None, "", quiet)
    assert learning.measure().loss < 1.0
    (folder / "hf").mkdir()
    exits_model.write(network, source, folder / "hf")
    export(str(folder / "hf"), folder / "bundle", ExportOptions(weights="f32", check=False))
    return edgedec.open(folder / "bundle", engine="reference")


def plan(kind: str, **changes: Any) -> DistillPlan:
    facts: dict[str, Any] = {"depth": 3, "minutes": 1e6, "steps": 6, "batch": 1, "length": 48, "rate": 0.01}
    if kind in ("kangaroo", "m2r2"):
        facts |= {"layer": 1, "depth": 1}
    if kind == "hiddentransfer":
        facts |= {"layer": 2}
    return DistillPlan(kind, **facts | changes)


def distiller(model: edgedec.Model, text: Path, kind: str, **changes: Any) -> Distiller:
    return Distiller(model.bundle, model.runtime, [text], model.tokenizer.encode, plan(kind, **changes))


# ---- what is learned -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_it_learns_on_texts_it_never_saw(model: edgedec.Model, text: Path, kind: str) -> None:
    trainer = distiller(model, text, kind, steps=80, batch=2)
    assert len(trainer.held) > 1
    held = {tuple(row.tokens.tolist()) for row in trainer.held}
    before = trainer.measure()
    loss = train(trainer, None, "", quiet)
    after = trainer.measure()
    assert trainer.steps == 80
    assert after.run > before.run + 0.3
    assert min(after.accuracy) > max(before.accuracy)
    assert loss < 4 * (3 if kind == "chimera" else 1)  # knowing nothing is 5.6; of chimera the sum over its heads
    texts = text.read_text().split(END)
    assert {tuple(model.tokenizer.encode(one)[:49]) for one in texts if is_held(one)} >= held


def test_hydra_learns_more_than_medusa(model: edgedec.Model, text: Path) -> None:
    """Tokens before its own are known to hydra, and not to medusa."""
    pieces = windows([model.tokenizer.encode(one) for one in text.read_text().split(END)], 64, None)
    data = collect(model.runtime, pieces, 0, quiet)
    found = {}
    for kind in ("hydra", "medusa"):
        how = TrainingPlan(kind, depth=3, minutes=1e6, steps=200, batch=256, rate=0.01)
        found[kind] = train_head(model.bundle, data, how, None, "", quiet)[0].measure()
    assert found["hydra"][1] > found["medusa"][1] + 0.03
    assert found["hydra"][2] > found["medusa"][2] + 0.03


def test_the_target_is_all_that_the_model_says(model: edgedec.Model, text: Path) -> None:
    """Soft targets: the loss of a draft that says exactly what the target says is the target's entropy."""
    trainer = distiller(model, text, "hydrapp")
    row = trainer.held[0]
    teacher = trainer._teacher(row)
    assert teacher.sum(-1).allclose(torch.ones(len(row)), atol=1e-5)
    assert (trainer.target.ids[teacher.argmax(-1)] == row.said).float().mean() > 0.95

    def said(features: students.Features, depth: int) -> torch.Tensor:
        n, teacher = len(features) - depth, trainer._teacher(features)
        return torch.stack([teacher[1 + k : 1 + k + n].log() for k in range(depth)])

    trainer.student.logits = said
    entropy = [-(teacher * teacher.log()).sum(-1)[1 + k : 1 + k + len(row) - 3].mean() for k in range(3)]
    expected = sum(DECAY**k * e for k, e in enumerate(entropy)) / sum(DECAY**k for k in range(3))
    assert trainer.loss(row).item() == pytest.approx(float(expected), rel=1e-3)
    assert trainer.measure().run > 2.8


def test_what_cannot_be_said_is_not_learned(model: edgedec.Model, text: Path) -> None:
    trainer = distiller(model, text, "eagle3", keep=8)
    assert trainer.shape.kept == 8
    row = trainer.held[0]
    known = trainer.places[row.said] >= 0
    assert known.any()
    assert not known.all()
    trainer.places[:] = -1
    assert trainer.loss(row).item() == 0


def test_a_step_of_the_unrolled_draft_sees_what_drafting_sees(model: edgedec.Model, text: Path) -> None:
    """Row t at step k: rows up to t of step 0 and its own later ones, at places t to t + k; as if run in turn."""
    shape = students.shape_of(model.spec, 10, 3)
    torch.manual_seed(1)
    block = UnrolledAttention(shape, shape.hidden)
    torch.nn.init.normal_(block.o_proj.weight)
    steps = [torch.randn(7, shape.hidden) for _ in range(3)]
    past = Unrolled()
    found = [block(x, past) for x in steps]
    for t in range(7):
        alone = torch.cat([steps[0][: t + 1], *(x[t : t + 1] for x in steps[1:])])
        whole = block(alone, Unrolled())
        for k in range(3):
            torch.testing.assert_close(found[k][t], whole[t + k], atol=1e-4, rtol=1e-4)


# ---- going on --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_cut_short_goes_on(model: edgedec.Model, text: Path, tmp_path: Path, kind: str) -> None:
    whole = distiller(model, text, kind)
    train(whole, None, "", quiet)
    path = tmp_path / f"{kind}.checkpoint.safetensors"

    def stop(stage: str, done: int, total: int) -> None:
        if done >= total // 2:
            raise KeyboardInterrupt

    half = distiller(model, text, kind)
    with pytest.raises(KeyboardInterrupt):
        train(half, path, "k", stop)
    assert half.steps == 3
    again = distiller(model, text, kind)
    train(again, path, "k", quiet)
    assert again.steps == whole.steps == 6
    for name, w in whole.weights.items():
        torch.testing.assert_close(again.weights[name], w, atol=1e-5, rtol=1e-5, msg=name)


def test_a_checkpoint_of_another_training_is_refused(model: edgedec.Model, text: Path, tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    train(distiller(model, text, "eagle3", steps=1), path, "k", quiet)
    with pytest.raises(UsageError, match="of another training"):
        train(distiller(model, text, "eagle3"), path, "other", quiet)
    path.write_bytes(b"x" * 100)
    with pytest.raises(UsageError, match="not a checkpoint of train-heads"):
        train(distiller(model, text, "eagle3"), path, "k", quiet)
    keys = {
        key_of(model.bundle, model.runtime, [text], plan("eagle3", seed=s, minutes=m)) for s in (0, 1) for m in (1, 2)
    }
    assert len(keys) == 2, "how long it takes makes no other training"


# ---- what is written -------------------------------------------------------------------------------------

LAYER = {f"self_attn.{p}_proj.weight" for p in "qkvo"} | {f"mlp.{p}_proj.weight" for p in ("gate", "up", "down")}
LAYER |= {"input_layernorm.weight", "post_attention_layernorm.weight"}


def test_eagle3_has_the_published_names(model: edgedec.Model, text: Path, tmp_path: Path) -> None:
    trainer = distiller(model, text, "eagle3", keep=40)
    trainer.write(tmp_path, "target")
    tensors, config = load_file(tmp_path / "model.safetensors"), json.loads((tmp_path / "config.json").read_text())
    midlayer = {f"midlayer.{name}" for name in LAYER | {"hidden_norm.weight"}}
    assert set(tensors) == midlayer | {"fc.weight", "norm.weight", "lm_head.weight", "d2t", "t2d"}
    hidden, vocab = model.spec.hidden_size, model.spec.vocab_size
    assert tensors["fc.weight"].shape == (hidden, 3 * hidden)
    assert tensors["midlayer.self_attn.q_proj.weight"].shape[1] == 2 * hidden
    assert tensors["lm_head.weight"].shape == (40, hidden)
    assert tensors["d2t"].dtype == torch.int64
    assert (config["vocab_size"], config["draft_vocab_size"]) == (vocab, 40)
    ids = torch.arange(40) + tensors["d2t"]
    assert tensors["t2d"].nonzero()[:, 0].tolist() == ids.tolist() == trainer.target.ids.tolist()
    assert config["rope_theta"] == pytest.approx(10000.0)


def test_hydrapp_has_the_published_names(model: edgedec.Model, text: Path, tmp_path: Path) -> None:
    trainer = distiller(model, text, "hydrapp", depth=2, blocks=2)
    trainer.write(tmp_path, "target")
    tensors, config = load_file(tmp_path / "model.safetensors"), json.loads((tmp_path / "config.json").read_text())
    prefix = "prefix_embeding_layer."
    expected = {f"{prefix}layers.0.{name}" for name in LAYER} | {f"{prefix}norm.weight"}
    for i in range(2):
        expected |= {f"hydra_mlp.{i}.{j}.linear.{p}" for j in (1, 3) for p in ("weight", "bias")}
        expected |= {f"hydra_mlp.{i}.1.res_connection.{p}" for p in ("weight", "bias")}
        expected |= {f"hydra_lm_head.{i}.1.{p}" for p in ("weight", "bias")}
    assert set(tensors) == expected
    hidden = model.spec.hidden_size
    assert tensors["hydra_mlp.1.1.linear.weight"].shape == (hidden, 3 * hidden)
    np.testing.assert_array_equal(tensors["hydra_lm_head.0.1.weight"], trainer.target.readout)
    assert config["hydra_head_arch"] == "prefix-mlp"
    assert (config["hydra_num_heads"], config["hydra_num_layers"]) == (2, 2)
    assert config["base_model_name_or_path"] == "target"


def test_kangaroo_has_the_published_names(model: edgedec.Model, text: Path, tmp_path: Path) -> None:
    trainer = distiller(model, text, "kangaroo", layer=2)
    trainer.write(tmp_path, "target")
    tensors, config = load_file(tmp_path / "model.safetensors"), json.loads((tmp_path / "config.json").read_text())
    layer = {f"layers.0.self_attn.{p}_proj.weight" for p in "qkvo"}
    assert set(tensors) == layer | {"layers.0.input_layernorm.weight", "norm.weight"}
    assert (config["num_hidden_layers"], config["exit_layer"]) == (1, 2)


def test_kangaroo_begins_as_the_plain_exit(model: edgedec.Model, text: Path) -> None:
    """Row t predicts what the model says after token t, by the states after the first layers and its own head."""
    trainer = distiller(model, text, "kangaroo", layer=4)
    row = trainer.held[0]
    assert torch.equal(row.states[0], row.last)
    assert trainer.measure().run > 0.99, "after the last layer there is nothing left to guess"


def test_velocity_adapters_begin_as_the_plain_exit_and_are_written_as_they_are(
    model: edgedec.Model, text: Path, tmp_path: Path
) -> None:
    trainer = distiller(model, text, "m2r2", layer=3, width=8)
    row = trainer.held[0]
    assert len(row.states) == 3
    assert trainer.student.stream(row.states).allclose(row.states[-1], atol=1e-4)
    train(trainer, None, "", quiet)
    trainer.write(tmp_path, "target")
    t, config = load_file(tmp_path / "model.safetensors"), json.loads((tmp_path / "config.json").read_text())
    assert (config["exit_layer"], config["rank"]) == (3, 8)
    ahead, hidden = torch.zeros_like(row.states[0]), model.spec.hidden_size
    for i, state in enumerate(row.states):
        p = f"accelerators.{i}."
        x = functional.rms_norm(state, (hidden,), t[f"{p}state_norm.weight"], 1e-5) @ t[f"{p}state_proj.weight"].T
        if i:
            residual = functional.rms_norm(row.states[i - 1] + ahead, (hidden,), t[f"{p}residual_norm.weight"], 1e-5)
            x = x + residual @ t[f"{p}residual_proj.weight"].T
        ahead = ahead + functional.silu(x) @ t[f"{p}out_proj.weight"].T
    moved = trainer.student.stream(row.states)
    assert not moved.allclose(row.states[-1], atol=1e-3), "it has learned something"
    assert moved.allclose(row.states[-1] + ahead, atol=1e-4)


def test_prompt_tokens_learn_through_the_frozen_target(model: edgedec.Model, text: Path, tmp_path: Path) -> None:
    """Real tokens in the place of prompts give what the engine says; gradients reach the prompts only."""
    trainer = distiller(model, text, "prompt", steps=60, rate=0.1)
    row, student = trainer.held[0], trainer.student
    n = len(row) - 3
    x = torch.stack([row.embeddings[1 + k : 1 + k + n] for k in range(2)], 1)
    with torch.no_grad():
        states = student.stack.ahead(x, student.stack.read(row.embeddings[:n])).transpose(0, 1)
        logits = functional.rms_norm(states, states.shape[-1:], trainer.target.norm, 1e-5) @ trainer.target.readout.T
    for k in range(2):
        assert (logits[k].argmax(-1) == row.said[1 + k : 1 + k + n]).float().mean() > 0.97
    assert list(trainer.weights) == ["prompts.weight"]
    with torch.no_grad():
        before = sum(float(trainer.loss(held)) for held in trainer.held)
    train(trainer, None, "", quiet)
    with torch.no_grad():
        after = sum(float(trainer.loss(held)) for held in trainer.held)
    assert after < 0.9 * before
    trainer.write(tmp_path, "target")
    tensors = load_file(tmp_path / "model.safetensors")
    assert tensors["prompts.weight"].shape == (3, model.spec.hidden_size)
    assert json.loads((tmp_path / "config.json").read_text())["num_prompt_tokens"] == 3


def test_spans_that_a_target_is_sure_of() -> None:
    largest = torch.tensor([0.9, 0.8, 0.3, 0.9])
    teacher = torch.stack([largest, 1 - largest], 1)
    found = [span.int().tolist() for span in _spans(teacher, 0.7, 3)]
    assert found == [[1, 1, 1, 1], [1, 1, 1], [1, 1]], "0.3 is 0.7 of the other"
    teacher = torch.stack([largest, (1 - largest) / 2, (1 - largest) / 2], 1)
    assert [span.int().tolist() for span in _spans(teacher, 0.7, 3)] == [[1, 1, 0, 1], [1, 0, 0], [0, 0]]
    assert all(span.all() for span in _spans(teacher, 0.0, 3))


def test_pads_learn_what_the_target_is_sure_of(model: edgedec.Model, text: Path, tmp_path: Path) -> None:
    """Guess k counts where the next token and all up to its own are sure; elsewhere it has no gradient."""
    trainer = distiller(model, text, "lud", steps=60, rate=0.1)
    assert trainer.sure == 0.7
    row, depth = trainer.held[0], 3
    n, teacher = len(row) - depth, trainer._teacher(row)
    sure = teacher.max(-1).values >= 0.7
    assert 0 < sure.float().mean() < 1
    logits = trainer.student.logits(row, depth).detach()
    total = 0.0
    for k in range(depth):
        for t in range(n):
            if sure[t : t + k + 2].all():
                each = functional.cross_entropy(logits[k, t], teacher[t + 1 + k])
                total += DECAY**k * float(each) / n
    assert trainer.loss(row).item() == pytest.approx(total / sum(DECAY**k for k in range(depth)), rel=1e-4)
    with torch.no_grad():
        before = sum(float(trainer.loss(held)) for held in trainer.held)
    train(trainer, None, "", quiet)
    with torch.no_grad():
        after = sum(float(trainer.loss(held)) for held in trainer.held)
    assert after < 0.9 * before
    trainer.write(tmp_path, "target")
    assert list(load_file(tmp_path / "model.safetensors")) == ["units.weight"]


def test_units_of_trained_pads(model: edgedec.Model, text: Path, tmp_path: Path) -> None:
    """The command's bundle decodes several tokens a call, and a pad has the law of the row in its place."""
    out = tmp_path / "with"
    common = ("train-heads", str(model.bundle.path), str(text), "--kind", "lud", "--out", str(out), "--threads", "1")
    assert run_app([*common, "--heads", "2", "--vocab-trim", "0", "--steps", "80"]) == 0
    found = edgedec.open(out, engine="reference")
    assert found.bundle.manifest.drafts.keys() == {"lud"}
    prompt = found.tokenizer.encode("the cat in a hat")
    session = found.session(speculate="lud:beta=0.3")
    tokens = [int(t) for t in session.tokens(prompt, max_tokens=30, ignore_eos=True)]
    assert session.stats.calls < 28
    assert "not verified" in session.report()["lossy"]
    plain = [int(t) for t in found.session(speculate="off").tokens(prompt, max_tokens=30, ignore_eos=True)]
    strict = found.session(speculate="lud:beta=1")
    assert [int(t) for t in strict.tokens(prompt, max_tokens=30, ignore_eos=True)] == plain
    assert len(tokens) == 30


def test_a_controller_learns_where_to_leave(model: edgedec.Model, text: Path, tmp_path: Path) -> None:
    """Heads learn the text, the controller the class of each token; by hand for one text, then from the command."""
    trainer = distiller(model, text, "sec", steps=120, rate=0.02)
    row, student = trainer.held[0], trainer.student
    assert student.places == (1,)
    with torch.no_grad():
        student.controller.weight.normal_()
    logits, truth = student.lm_heads[0](row.states[0][:-1]), row.tokens[1:]
    right, whole = logits.argmax(-1) == truth, row.said[:-1] == truth
    labels = torch.tensor([1 if r else 0 if w else 2 for r, w in zip(right, whole, strict=True)])
    assert len(set(labels.tolist())) == 3
    expected = functional.cross_entropy(logits, truth)
    expected = expected + functional.cross_entropy(student.controller(row.states[0][:-1]), labels)
    assert trainer.loss(row).item() == pytest.approx(expected.item(), rel=1e-4)
    train(trainer, None, "", quiet)
    with torch.no_grad():
        assert trainer.loss(row).item() < 0.6 * expected.item()
        left, others = list[torch.Tensor](), list[torch.Tensor]()
        for held in trainer.held:
            picked = student.controller(held.states[0][:-1]).softmax(-1)[:, 1]
            right = (student.lm_heads[0](held.states[0][:-1]).argmax(-1) == held.tokens[1:]).float()
            left.append(right[picked > 0.7])
            others.append(right[picked <= 0.7])
    sure, unsure = torch.cat(left), torch.cat(others)
    assert min(len(sure), len(unsure)) > 10
    assert sure.mean() > unsure.mean() + 0.05, "where it leaves it is right more often"

    out = tmp_path / "with"
    common = ("train-heads", str(model.bundle.path), str(text), "--kind", "sec", "--out", str(out), "--threads", "1")
    assert run_app([*common, "--vocab-trim", "0", "--steps", "120"]) == 0
    found = edgedec.open(out, engine="reference")
    session = found.session(speculate="sec:leave=0.6")
    list(session.tokens(found.tokenizer.encode("the cat in a hat"), max_tokens=40, ignore_eos=True))
    assert session.report()["drafters"]["sec"]["exit 1"] > 10


def test_early_heads_have_the_whole_vocabulary(model: edgedec.Model, text: Path) -> None:
    with pytest.raises(UsageError, match="--vocab-trim 0"):
        distiller(model, text, "sec", keep=8)


def test_what_prompts_cannot_be_trained_through_is_refused() -> None:
    from edgedec.export.students._frozen import require_frozen
    from edgedec.spec import Moe
    from edgedec.testing.fakes import tiny_spec

    spec = tiny_spec()
    require_frozen(spec)
    moe = Moe(n_experts=2, top_k=1, inner_size=8)
    with pytest.raises(UsageError, match="not moe; train eagle3"):
        require_frozen(dataclasses.replace(spec, layers=((spec.blocks[0], moe),)))


def test_the_most_used_are_kept(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(f"aab{END}bbbc")
    encode = lambda text: [ord(c) - ord("a") for c in text]  # noqa: E731
    assert most_used([tmp_path / "a.txt"], encode, 5, 2).tolist() == [0, 1]
    assert most_used([tmp_path / "a.txt"], encode, 5, 3).tolist() == [0, 1, 2]
    assert most_used([tmp_path / "a.txt"], encode, 5, 0).tolist() == list(range(5))


def test_the_depths_of_eagle3(model: edgedec.Model) -> None:
    assert eagle3.levels(32) == (2, 16, 29)
    assert eagle3.levels(3) == (2, 2, 2)
    assert students.student_class("hydra++").depths(model.spec) == ()


def test_unknown_kinds_name_those_there_are(tiny: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["train-heads", str(tiny), str(text), "--in-place", "--kind", "eagle"]) == 1
    known = "chimera, eagle3, exit, falcon, hiddentransfer, hydra, hydrapp, kangaroo, longspec, lud, m2r2, medusa, "
    known += "prompt, sec"
    assert f"no draft head 'eagle'; there are: {known}" in capsys.readouterr().err


# ---- the command ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "drafter"),
    [
        ("eagle3", "eagle3"),
        ("hydra++", "hydrapp"),
        ("kangaroo", "kangaroo"),
        ("m2r2", "m2r2"),
        ("hidden-transfer", "hiddentransfer"),
        ("chimera", "chimera"),
        ("falcon", "falcon"),
    ],
)
def test_the_command_trains_and_imports(
    model: edgedec.Model, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, drafter: str
) -> None:
    """What it imported drafts, drafts well, and changes no token."""
    out, kept = tmp_path / "with", tmp_path / "checkpoint"
    common = ("train-heads", str(model.bundle.path), str(text), "--kind", kind, "--out", str(out), "--threads", "1")
    common += ("--heads", "3", "--vocab-trim", "0", "--checkpoint", str(kept), "--work", str(tmp_path / "work"))
    common += ("--layer", "2") if kind in ("kangaroo", "m2r2", "hidden-transfer") else ()
    assert run_app([*common, "--steps", "200", "--self-distill", "4", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["kind"], report["steps"]) == (drafter, 200)
    assert report["run"] > 0.5
    assert (kept / "config.json").is_file()
    assert run_app([*common, "--steps", "1"]) == 1
    assert "exists already" in capsys.readouterr().err, "and nothing was trained for it"

    found = edgedec.open(out, engine="reference")
    assert found.bundle.manifest.drafts.keys() == {drafter}
    read = ReadRecord.of(found.bundle)
    assert [part.of for part in read.parts] == [(drafter,)]
    assert {read.seen([one], [drafter]) for one in text.read_text().split(END) if one.strip()} == {"seen"}
    prompt = found.tokenizer.encode("the cat in a hat")
    plain = [int(t) for t in found.session(speculate="off").tokens(prompt, max_tokens=40, ignore_eos=True)]
    session = found.session(speculate=f"{drafter}:fixed=4")
    tokens = list(session.tokens(prompt, max_tokens=40, ignore_eos=True))
    assert [int(t) for t in tokens] == plain
    assert sum(token.by == drafter for token in tokens) > 8
