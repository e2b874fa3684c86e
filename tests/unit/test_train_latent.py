"""Training of latent reasoning: rows of several tokens, what is learned of them, a real training of a small Llama."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import write_llama

from edgedec.cli._app import run_app
from edgedec.errors import CheckpointError, UsageError
from edgedec.export.latent_rows import IGNORED, Problem, grouped, problem_of, reasoning
from edgedec.export.lessons import packed

PROBLEM = Problem([7, 8], [1, 2, 3, 4, 5], [6, 0])


def test_tokens_in_groups() -> None:
    assert grouped([1, 2, 3, 4, 5], 2) == [[1, 2], [3, 4], [5]]
    assert grouped([1, 2], 1) == [[1], [2]]
    assert grouped([], 3) == []


def test_a_separator_is_a_row_of_its_own() -> None:
    made = reasoning(PROBLEM, 2, lambda r: [90, r], 9, random.Random(0))
    assert made.groups == [[7], [8], [90], [2], [9], [1, 2], [3, 4], [5], [9], [6], [0]]
    assert made.labels[:4] == [IGNORED] * 4
    assert made.labels[4] == 9
    assert made.labels[7:] == [5, 9, 6, 0]
    assert made.latent == (4, 8), (
        "a row of thought comes after the separator and each row; the separator after the last"
    )
    drawn = {tuple(reasoning(PROBLEM, 2, lambda r: [], 9, random.Random(i)).labels[3:5]) for i in range(40)}
    assert drawn == {(a, b) for a in (1, 2) for b in (3, 4)}, "any token of a row is to be predicted"


@pytest.mark.parametrize(
    "problem",
    [Problem([], [1], [2]), Problem([7], [1], []), Problem([7], [], [2])],
    ids=["question", "answer", "steps"],
)
def test_problems_without_a_part_are_refused(problem: Problem) -> None:
    with pytest.raises(UsageError, match='a line with "prompt" and "parts"'):
        reasoning(problem, 2, lambda r: [], 9, random.Random(0))


def test_without_steps_nothing_is_said_of_them() -> None:
    made = reasoning(PROBLEM, 0, lambda r: [90, r], 9, random.Random(0))
    assert made.groups == [[7], [8], [9], [6], [0]]
    assert made.labels == [IGNORED, IGNORED, 9, 6, 0]
    assert made.latent == (2, 2)


def test_the_last_part_is_the_answer() -> None:
    row = [7, 8, packed(1, 1), packed(2, 2), packed(6, 3), packed(0, 3)]
    assert problem_of(row) == Problem([7, 8], [1, 2], [6, 0])
    assert problem_of([7, packed(6, 1)]) == Problem([7], [], [6])


pytest.importorskip("torch", reason="latent reasoning is trained with torch")
pytest.importorskip("transformers", reason="it is trained on transformers' networks")
pytest.importorskip("safetensors", reason="training keeps its state as safetensors")
import torch  # noqa: E402
from training import quiet  # noqa: E402

import edgedec  # noqa: E402
from edgedec.bundle.manifest import LATENT_HEAD  # noqa: E402
from edgedec.export.exporter import ExportOptions, export  # noqa: E402
from edgedec.export.latent_head import FILE, read_latent  # noqa: E402
from edgedec.export.latent_train import LatentPlan, LatentTrainer, opened  # noqa: E402
from edgedec.export.training_loop import train  # noqa: E402
from edgedec.search.latent_head import open_latent_head  # noqa: E402


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """These networks are too small for more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Problems whose steps are the question backwards, and whose answer is its first word."""
    rng, lines = random.Random(0), list[str]()
    for _ in range(300):
        words = rng.sample(["an", "in", "on", "the", "and", "thing", "at"], 3)
        problem = {"prompt": " ".join(words), "parts": [" ".join(words[::-1])], "answer": words[0]}
        lines.append(json.dumps(problem))
    file = tmp_path_factory.mktemp("problems") / "problems.jsonl"
    file.write_text("\n".join(lines))
    return file


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("llama") / "hf", num_hidden_layers=2)


def trainer_of(checkpoint: Path, data: Path, **changes: Any) -> LatentTrainer:
    given: dict[str, Any] = {"width": 32, "together": 8, "length": 64, "rate": 3e-3, "steps": 60, "separator": "the"}
    return opened(checkpoint, [data], LatentPlan(**given | changes))[0]


def test_rows_are_sums_over_the_root_of_their_size(checkpoint: Path, data: Path) -> None:
    trainer = trainer_of(checkpoint, data)
    table = trainer._embed.weight.detach().numpy()
    found = trainer.compressed([[3], [1, 2], [5, 5, 9]]).detach().numpy()
    wanted = [table[3], (table[1] + table[2]) / np.sqrt(2), (2 * table[5] + table[9]) / np.sqrt(3)]
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_the_losses_are_their_formulas(checkpoint: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With transformers' own forward, one problem at a time; the head's noise is that of the same seed."""
    trainer = trainer_of(checkpoint, data)
    rows = [trainer.held[0], trainer.held[1]]
    nats, distance = trainer.parted(rows, random.Random(3))
    draw = random.Random(3)
    r = draw.randint(1, 5)
    made = [reasoning(problem_of(row), r, trainer._opening, trainer._separator, draw) for row in rows]
    lost, states, wanted = list[torch.Tensor](), list[torch.Tensor](), list[torch.Tensor]()
    for one in made:
        x = trainer.compressed(one.groups)
        out = trainer.model(inputs_embeds=x[None], output_hidden_states=True)
        logs, first, last = out.logits[0].log_softmax(-1), *one.latent
        lost += [-logs[i - 1, label] for i, label in enumerate(one.labels) if label != IGNORED]
        states.append(out.hidden_states[-1][0, first:last])
        wanted.append(x[first + 1 : last + 1] / trainer._embed.weight.std())
    y, target = trainer.net.fc(torch.cat(states)), torch.cat(wanted)
    noise = torch.randn(target.shape, generator=torch.Generator().manual_seed(draw.getrandbits(62)))
    drawn = trainer.net.mean(y) + trainer.net.log_std(y).exp() * noise
    assert nats.item() == pytest.approx(torch.stack(lost).mean().item(), rel=1e-4)
    assert distance is not None
    assert distance.item() == pytest.approx(((drawn - target) ** 2).mean().item(), rel=1e-4)
    monkeypatch.setattr(trainer, "parted", lambda rows, draw: (torch.tensor(3.0), torch.tensor(0.25)))
    assert trainer.row_loss(rows[0], random.Random(3), 0.0) == 3.25, "both count alike"


def test_embeddings_and_head_matrix_stay(checkpoint: Path, data: Path) -> None:
    trainer = trainer_of(checkpoint, data)
    before = trainer._embed.weight.clone(), trainer.model.lm_head.weight.clone(), trainer.net.mean.weight.clone()
    inner = trainer.model.model.layers[0].mlp.up_proj.weight
    first = inner.clone()
    trainer.step(0.0)
    assert torch.equal(before[0], trainer._embed.weight)
    assert torch.equal(before[1], trainer.model.lm_head.weight)
    assert not torch.equal(before[2], trainer.net.mean.weight)
    assert not torch.equal(first, inner)
    told = trainer_of(checkpoint, data, method="cot")
    old = told._embed.weight.clone()
    told.step(0.0)
    assert not torch.equal(old, told._embed.weight)
    assert told.parted(told.held[:2], random.Random(0))[1] is None


def test_what_is_trained_is_decoded(checkpoint: Path, data: Path, tmp_path: Path) -> None:
    """From the steps as tokens to latent rows, to a bundle with its head."""
    cot = trainer_of(checkpoint, data, method="cot")
    first = cot.measure().nats
    train(cot, None, "", quiet)
    assert cot.measure().nats < first / 2
    cot.write(tmp_path / "cot")
    assert read_latent(tmp_path / "cot") is None
    colar = trainer_of(tmp_path / "cot", data, steps=40)
    before = colar.measure()
    train(colar, None, "", quiet)
    after = colar.measure()
    assert after.nats < before.nats
    assert after.distance < before.distance
    colar.write(tmp_path / "colar")
    found = read_latent(tmp_path / "colar")
    assert found is not None
    assert found.std == pytest.approx(float(colar._embed.weight.std()))
    assert found.facts.most == 5
    again = trainer_of(tmp_path / "colar", data)
    assert again._std == found.std
    assert torch.equal(again.net.mean.weight, colar.net.mean.weight), "a training goes on with the head that is there"
    bundle = export(
        str(tmp_path / "colar"), tmp_path / "bundle", ExportOptions(weights="f32", check=False, runtimes=())
    )
    assert LATENT_HEAD in bundle.manifest.files
    state = torch.randn(2, 32)
    model = edgedec.open(tmp_path / "bundle", threads=1)
    mean, _ = open_latent_head(model, "").network.run(state.numpy())
    normed = colar.model.model.norm(state)
    wanted = colar.net.mean(colar.net.fc(normed)) * found.std
    np.testing.assert_allclose(mean, wanted.detach().numpy(), rtol=1e-3, atol=1e-4)
    report = model.session().search("colar:r=2,most=12", "on in the", max_tokens=4, seed=0).report
    assert report["latents"] > 0


def test_the_command(checkpoint: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train-latent", str(checkpoint), str(data), "-o", str(tmp_path / "out"), "--separator", "the"]
    words += ["--steps", "2", "--together", "2", "--width", "16", "--length", "64", "-t", "1"]
    assert run_app([*words, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["steps"] == 2
    assert said["after"]["distance"] > 0
    assert (tmp_path / "out" / FILE).is_file()
    assert run_app(words) == 1
    assert "exists already" in capsys.readouterr().err
    assert run_app([*words, "--force", "--method", "cot"]) == 0
    assert "2 updates" in capsys.readouterr().out
    assert not (tmp_path / "out" / FILE).exists()


def test_what_cannot_be_is_named(checkpoint: Path, data: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="writes '###' as 3 tokens, not one"):
        trainer_of(checkpoint, data, separator="###")
    made = write_llama(tmp_path / "hf", num_hidden_layers=1)
    (made / FILE).write_bytes(b"short")
    with pytest.raises(CheckpointError, match="truncated, or not a safetensors file"):
        read_latent(made)
    (made / FILE).write_bytes((made / "model.safetensors").read_bytes())
    with pytest.raises(CheckpointError, match="not a latent head"):
        read_latent(made)
