"""Training of latent reasoning: rows of several tokens, what is learned of them, a real training of a small Llama."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import write_llama

from edgedec.cli._app import run_app
from edgedec.cli.train_latent import LatentFlags
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
import edgedec.export.latent_grpo as latent_grpo  # noqa: E402
from edgedec.bundle.manifest import LATENT_HEAD  # noqa: E402
from edgedec.export.exporter import ExportOptions, export  # noqa: E402
from edgedec.export.latent_grpo import GrpoTrainer, Rollout, Solution, advantages, drawn, opened  # noqa: E402
from edgedec.export.latent_head import FILE, read_latent  # noqa: E402
from edgedec.export.latent_train import LatentPlan, LatentTrainer  # noqa: E402
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


def test_an_update_is_by_the_mean_loss_at_a_rate_that_rises_and_falls(checkpoint: Path, data: Path) -> None:
    trainer = trainer_of(checkpoint, data, rate=0.004)
    for steps, progress, rate in ((0, 0.0, 0.0002), (9, 0.0, 0.002), (50, 0.0, 0.004), (50, 0.25, 0.003)):
        trainer.steps = steps
        w = trainer.net.mean.weight
        assert trainer.update((w.sum() * 0 + loss for loss in (1.0, 3.0)), 2, progress) == 2.0
        assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(rate)
    before = trainer.net.mean.bias.detach().clone()
    trainer.update([trainer.net.mean.bias.sum()], 1, 0.5)
    assert (trainer.net.mean.bias < before).all()


def test_what_the_command_takes_by_default_is_the_plan() -> None:
    flags, plan = asdict(LatentFlags()), asdict(LatentPlan())
    assert flags == {name: plan[name] for name in flags}
    assert (plan["most"], plan["samples"], plan["width"]) == (5, 8, 2048), "the authors'"


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


@pytest.fixture(scope="module")
def thinking(checkpoint: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that was trained to reason in latent rows."""
    folder = tmp_path_factory.mktemp("thinking")
    for method, start, steps in (("cot", checkpoint, 150), ("colar", folder / "cot", 150)):
        trainer = trainer_of(start, data, method=method, steps=steps)
        train(trainer, None, "", quiet)
        trainer.write(folder / method)
    return folder / "colar"


def grpo_of(thinking: Path, data: Path, **changes: Any) -> GrpoTrainer:
    trainer = trainer_of(thinking, data, **({"method": "grpo", "most": 2, "length": 32} | changes))
    assert isinstance(trainer, GrpoTrainer)
    return trainer


def test_advantages_are_of_the_group() -> None:
    assert advantages([1.0, 0.0, 0.0, 0.0]) == pytest.approx([1.5, -0.5, -0.5, -0.5])
    assert advantages([1.0, 1.0]) == [0.0, 0.0]


def test_tokens_are_drawn_of_the_likeliest() -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().expand(4000, -1)
    counts = torch.bincount(drawn(logits, 0.7, torch.Generator().manual_seed(0)), minlength=4) / 4000
    np.testing.assert_allclose(counts, [0.625, 0.375, 0, 0], atol=0.03)
    all_of_them = torch.bincount(drawn(logits, 1.0, torch.Generator().manual_seed(0)), minlength=4) / 4000
    np.testing.assert_allclose(all_of_them, [0.5, 0.3, 0.15, 0.05], atol=0.03)


def test_solutions_are_drawn_as_the_model_says(thinking: Path, data: Path) -> None:
    """Side by side as alone: a solution, read again from its rows, ends where a separator was drawn, and its
    probabilities are those of transformers' own forward."""
    trainer = grpo_of(thinking, data)
    problem = problem_of(trainer.held[0])
    question = trainer.question(problem)
    assert question == [*problem.question, *trainer._opening(2), trainer._separator]
    found = trainer.sampled(question, 32, torch.Generator().manual_seed(1))
    assert len({len(one.rows) for one in found}) > 1, "one has ended before the others"
    assert all(one.tokens[0] == trainer._separator for one in found)
    assert all(trainer._end not in one.tokens[1:-1] for one in found)
    logs = trainer.log_probabilities(found)
    for one, own in zip(found, logs, strict=True):
        x = torch.cat([trainer.compressed([[token] for token in question]), one.rows * trainer._std])
        x = torch.cat([x, trainer.compressed([[token] for token in one.tokens])])
        out = trainer.model(inputs_embeds=x[None], output_hidden_states=True)
        y = trainer.net.fc(out.hidden_states[-1][0])
        wanted = list[float]()
        for i, row in enumerate(one.rows, len(question) - 1):
            mean, deviation = trainer.net.mean(y[i]), trainer.net.log_std(y[i]).exp()
            density = -0.5 * ((row - mean) / deviation) ** 2 - deviation.log() - 0.5 * np.log(2 * np.pi)
            wanted.append(density.mean().item())
        for i, token in enumerate(one.tokens, len(question) + len(one.rows) - 1):
            wanted.append(out.logits[0, i].log_softmax(-1)[token].item())
        np.testing.assert_allclose(own.detach().numpy(), wanted, rtol=1e-3, atol=1e-4)


def test_thought_is_over_when_a_separator_is_drawn(thinking: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of two texts after its second row, the other after its fourth; then the answers, until they end."""
    trainer = grpo_of(thinking, data)
    mark, end, word = trainer._separator, trainer._end, 4
    assert end is not None
    drawing = [(word, word), (mark, word), (word, word), (word, mark), (word, word), (end, word), (word, end)]
    shares, told = list[float](), iter(drawing)

    def draws(logits: torch.Tensor, top_p: float, generator: torch.Generator) -> torch.Tensor:
        shares.append(top_p)
        return torch.tensor(next(told))

    monkeypatch.setattr(latent_grpo, "drawn", draws)
    found = trainer.sampled([3, 5, mark], 2, torch.Generator().manual_seed(0))
    assert [len(one.rows) for one in found] == [2, 4]
    assert [one.tokens for one in found] == [[mark, word, end], [mark, word, word, end]]
    assert shares == [1.0] * 4 + [0.9] * 3


def test_what_a_run_reads_unseen_changes_nothing(thinking: Path, data: Path) -> None:
    trainer = grpo_of(thinking, data)
    rows = [torch.randn(2, 32, generator=torch.Generator().manual_seed(i)) for i in range(3)]
    both, alone = Rollout(trainer, [3, 4, 5], 2), Rollout(trainer, [3, 4, 5], 1)
    with torch.no_grad():
        both.read(rows[0], torch.tensor([True, True]))
        both.read(rows[1], torch.tensor([True, False]))
        both.read(rows[2], torch.tensor([True, True]))
        for row in (rows[0], rows[2]):
            alone.read(row[1:], torch.tensor([True]))
    np.testing.assert_allclose(both.logits[1].detach(), alone.logits[0].detach(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(both.state[1].detach(), alone.state[0].detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("log_ratio", "advantage", "each"), [(0.5, 1.0, 1.2), (-0.5, -1.0, -0.8), (0.5, -1.0, -1.6487)]
)
def test_the_policy_loss_is_its_formula(
    thinking: Path, data: Path, log_ratio: float, advantage: float, each: float
) -> None:
    """Clipped where the ratio has gone as far as the advantage wants, summed in a solution and over 32."""
    trainer = grpo_of(thinking, data)
    one = Solution([3, 4], torch.randn(3, 32), [5, 6])
    with torch.no_grad():
        (logs,) = trainer.log_probabilities([one])
    then = Solution(one.question, one.rows, one.tokens, advantage, logs - log_ratio)
    idle = Solution(one.question, one.rows, one.tokens, 0.0, logs)
    assert trainer.policy_loss([then, idle]).item() == pytest.approx(-5 * each / 32 / 2, rel=1e-3)


def test_right_solutions_become_likelier(thinking: Path, data: Path, tmp_path: Path) -> None:
    """And wrong ones less likely; rows and tokens both."""
    trainer, draw = grpo_of(thinking, data, rate=1e-4), random.Random(0)
    table, problems = trainer._embed.weight.clone(), [problem_of(row) for row in trainer.held]
    drawn = [one for problem in problems * 3 for one in trainer.solved(problem, draw)]
    assert sum(one.advantage > 0 for one in drawn) > 20
    for i, one in enumerate(drawn):
        if one.advantage > 0:
            assert trainer.is_right(one, problems[i // 8 % len(problems)])
    trainer.steps = 20  # after the warm-up
    trainer.update([trainer.policy_loss(drawn)], 1, 0.0)
    with torch.no_grad():
        logs = trainer.log_probabilities(drawn)
    for part in (slice(None, -3), slice(-2, None)):  # of rows, and of answers
        gained = [one.advantage * float((now - one.logs)[part].sum()) for one, now in zip(drawn, logs, strict=True)]
        assert np.mean(gained) > 0
    assert torch.equal(table, trainer._embed.weight)
    trainer.write(tmp_path / "rl")
    found = read_latent(tmp_path / "rl")
    assert found is not None
    assert found.facts.most == 5, "what colar trained; grpo takes rows of 2 tokens"


def test_several_updates_learn_from_solutions_of_one_model(
    thinking: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, sizes, ratios = grpo_of(thinking, data, batch=3, rate=1e-2), list[int](), list[float]()
    loss_of, losses = trainer.policy_loss, list[float]()

    def seen(part: list[Solution]) -> torch.Tensor:
        sizes.append(len(part))
        with torch.no_grad():
            logs = trainer.log_probabilities(part)
        ratios.append(max(float((now - one.logs).abs().max()) for now, one in zip(logs, part, strict=True)))
        loss = loss_of(part)
        losses.append(loss.item())
        return loss

    monkeypatch.setattr(trainer, "policy_loss", seen)
    assert trainer.step(0.0) == pytest.approx(sum(losses) / 3)
    assert sizes == [8, 8, 8]
    assert ratios[0] < 1e-4
    assert ratios[2] > 1e-3, "two updates later"
    assert trainer.steps == 1


def test_grpo_refuses_what_it_cannot_train(checkpoint: Path, thinking: Path, data: Path) -> None:
    with pytest.raises(UsageError, match="has no latent head; train it with --method colar before grpo"):
        grpo_of(checkpoint, data)
    with pytest.raises(UsageError, match=r"--most 6: rows of .* stand for at most 5"):
        grpo_of(thinking, data, most=6)
    with pytest.raises(UsageError, match="its separator is 'the'; pass --separator"):
        grpo_of(thinking, data, separator="and")
    with pytest.raises(UsageError, match="--length 4096: with its speed and separators the model reads at most"):
        trainer_of(checkpoint, data, length=4096)
