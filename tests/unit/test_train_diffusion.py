"""`edgedec train-diffusion`: texts and lessons as rows, a training that is killed and goes on, what it writes, what it
refuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from checkpoints import VOCAB, write_llama

import edgedec
from edgedec.cli._app import run_app

pytest.importorskip("torch", reason="models are trained with torch")
pytest.importorskip("transformers", reason="models are trained on transformers' networks")
pytest.importorskip("safetensors", reason="training keeps its state as safetensors")
import torch
import zoo
from filling import network
from safetensors.torch import load_file, save_file
from training import quiet, write_sentences

from edgedec.bundle import Bundle
from edgedec.bundle.manifest import DiffusionFacts
from edgedec.export import exits_data
from edgedec.export.diffusion_start import WantedFacts, facts_of, filling_model
from edgedec.export.diffusion_train import FillingPlan, opened
from edgedec.export.exits_data import Place
from edgedec.export.exporter import ExportOptions, export
from edgedec.export.lessons import CanvasStream, Lesson, LessonEncoder, LessonStream, lessons, unpacked
from edgedec.export.training_loop import train
from edgedec.export.unbundled import unbundled

ROOT = Path(__file__).parents[2]


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
    return write_llama(tmp_path_factory.mktemp("llama") / "hf", num_hidden_layers=2)


def encode(text: str, begins: bool) -> list[int]:
    return [1] * begins + [ord(c) for c in text]


# ---- texts as rows ----------------------------------------------------------------------------------


def test_lines_are_texts_or_prompts_with_answers(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(
        '{"text": "abc"}\n\n{"prompt": "q", "answer": "a"}\n{"prompt": "q", "parts": ["x", "y"], "answer": "z"}\n'
    )
    assert list(lessons(tmp_path / "a.jsonl")) == [
        Lesson("", ("abc",)), Lesson("q", ("a",)), Lesson("q", ("x\n", "y\n", "z")),
    ]  # fmt: skip


@pytest.mark.parametrize("bad", ['{"text": 1}', "[]", "{", "{}", '{"prompt": "q"}', '{"answer": "a"}',
                                 '{"prompt": "q", "answer": "a", "parts": [1]}'])  # fmt: skip
def test_a_line_that_is_none(bad: str, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"text": "a"}\n' + bad)
    with pytest.raises(edgedec.errors.UsageError, match="line 2 is no JSON object"):
        list(lessons(tmp_path / "bad.jsonl"))


def test_a_long_text_is_cut_where_something_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is lost, the last piece alone is an end, and a file without ends is never held as a whole."""
    story = "".join(f"Line {i} of it, and more words.\n" + "\n" * (i % 40 == 39) for i in range(1500))
    (tmp_path / "long.txt").write_text(story)
    monkeypatch.setattr(exits_data, "_CHUNK", 1000)
    monkeypatch.setattr(exits_data, "_LONGEST", 9000)
    longest = max(map(len, exits_data.documents(tmp_path / "long.txt")))
    found = list(lessons(tmp_path / "long.txt"))
    assert longest <= 10_000 < len(story)
    assert "".join(part for lesson in found for part in lesson.parts) == story
    assert max(len(lesson.parts[0]) for lesson in found) <= 4096
    assert sum(lesson.parts[0].endswith(".\n\n") for lesson in found) > len(found) / 2


def test_what_is_given_is_not_learned() -> None:
    coder = LessonEncoder(encode, 2)
    assert unpacked(coder(Lesson("q", ("a", "b")))) == ([1, ord("q"), ord("a"), ord("b"), 2], [0, 0, 1, 2, 2])
    assert unpacked(coder(Lesson("", ("a",)))) == ([1, ord("a"), 2], [1, 1, 1])
    assert unpacked(coder(Lesson("", ("a",), False))) == ([1, ord("a")], [1, 1])
    # A token that begins and ends texts ends one by beginning the next; after a prompt it must be there.
    both = LessonEncoder(encode, 1)
    assert unpacked(both(Lesson("", ("a",))))[0] == [1, ord("a")]
    assert unpacked(both(Lesson("q", ("a",))))[0] == [1, ord("q"), ord("a"), 1]


def test_rows_and_canvases(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"q{i}", "answer": "a" * (1 + i % 5)}) + "\n" for i in range(300)))
    coder = LessonEncoder(encode, 2)
    joined = LessonStream([path], coder, 20, 0, Place())
    assert {len(next(joined)) for _ in range(50)} == {21}
    canvas, lengths = CanvasStream([path], coder, 20, 0, Place()), set()
    for _ in range(200):
        ids, parts = unpacked(next(canvas))
        assert (ids[:2], parts[0]) == ([1, ord("q")], 0)
        end = ids.index(2)
        assert set(ids[end:]) == {2}
        assert set(parts[end:]) == {1}
        lengths.add(len(ids))
    assert min(lengths) < 12 < max(lengths) == 21
    again = CanvasStream([path], coder, 20, 0, Place())
    first = [next(again) for _ in range(30)]
    goes_on = CanvasStream([path], coder, 20, 0, Place(0, 0, 20))
    assert [next(goes_on) for _ in range(10)] == first[20:]


# ---- a training -------------------------------------------------------------------------------------


def small(checkpoint: Path, text: Path, **changes: Any) -> Any:
    facts = facts_of(checkpoint, WantedFacts())[0]
    plan: dict[str, Any] = {"recipe": "sdar_vl", "length": 32, "batch": 2, "minutes": 1e6, "steps": 6, "rate": 5e-3}
    return opened(checkpoint, FillingPlan(**plan | {"facts": facts} | changes), [text])


def test_it_learns_to_fill(checkpoint: Path, text: Path) -> None:
    trainer, _ = small(checkpoint, text, steps=60, rate=1e-2)
    before = trainer.measure()
    train(trainer, None, "", quiet)
    after = trainer.measure()
    assert after.masks < 0.5 * before.masks
    assert before.right < 0.1 < 0.3 < after.right
    assert after.following < 0.5 * before.following


def test_parts_on_a_canvas(checkpoint: Path, tmp_path: Path) -> None:
    path = tmp_path / "parts.jsonl"
    lines = [{"prompt": f"the {i}: ", "parts": ["a cat", "an inn"], "answer": f"in {i}"} for i in range(300)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    facts = DiffusionFacts(VOCAB, True, "full", 32)
    trainer, _ = small(checkpoint, path, recipe="nap", facts=facts, steps=40, rate=1e-2)
    row = trainer.text(next(trainer.stream))
    assert sorted(set(row.part.tolist())) == [0, 1, 2, 3]
    before = trainer.measure()
    train(trainer, None, "", quiet)
    after = trainer.measure()
    assert after.masks < 0.6 * before.masks
    assert after.following is None


@pytest.mark.parametrize("recipe", ["nbdiff", "sdar_vl:keep=0.5", "cd4lm", "dparallel"])
def test_a_run_cut_short_goes_on(checkpoint: Path, text: Path, tmp_path: Path, recipe: str) -> None:
    """Weights of a run in two parts are those of a run in one, the teacher's included."""
    whole = small(checkpoint, text, recipe=recipe)[0]
    for i in range(4):
        whole.step(i / 4)
    first = small(checkpoint, text, recipe=recipe)[0]
    for i in range(2):
        first.step(i / 4)
    first.save(tmp_path / "c.safetensors", "key")
    second = small(checkpoint, text, recipe=recipe)[0]
    second.load(tmp_path / "c.safetensors", "key")
    for i in range(2, 4):
        second.step(i / 4)
    for name, w in whole.weights.items():
        assert torch.equal(w, second.weights[name]), name
    given = load_file(checkpoint / "model.safetensors")["model.norm.weight"]
    assert not torch.equal(whole.weights["model.norm.weight"].detach(), given)


def test_a_killed_command_goes_on_to_the_same_bytes(
    checkpoint: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Killed as soon as it has kept something: what is written at the end are the bytes of a run that was not."""
    code = (
        "import sys\nfrom edgedec.export import diffusion_train\ndiffusion_train.SAVE_EVERY = 0.0\n"
        "from edgedec.cli._app import run_app\nsys.exit(run_app(sys.argv[1:]))"
    )
    args = ["train-diffusion", str(checkpoint), "--text", str(text), "--steps", "12", "--length", "24"]
    more = ["--batch", "2", "--threads", "1", "--minutes", "1000000", "--recipe", "sdar_vl", "--json"]

    def command(out: str, work: str) -> list[str]:
        return [*args, *more, "-o", str(tmp_path / out), "--work", str(tmp_path / work)]

    kept = tmp_path / "cut" / "diffusion.safetensors"
    started = subprocess.Popen([sys.executable, "-c", code, *command("again", "cut")], stdout=subprocess.DEVNULL)
    until = time.monotonic() + 120
    while not kept.exists() and started.poll() is None and time.monotonic() < until:
        time.sleep(0.01)
    started.send_signal(signal.SIGKILL)
    assert started.wait() == -signal.SIGKILL, "it ended before it could be killed"
    assert kept.exists()
    assert not (tmp_path / "again").exists()
    told(capsys, *command("again", "cut"))
    told(capsys, *command("whole", "one"))
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


def test_a_loss_that_is_no_number(checkpoint: Path, text: Path) -> None:
    trainer, _ = small(checkpoint, text)
    before = {name: w.detach().clone() for name, w in trainer.weights.items()}
    trainer.recipe.loss = lambda *_: sum(w.sum() for w in trainer.weights.values()) * torch.nan
    with pytest.raises(edgedec.errors.UsageError, match="train-diffusion: the loss of update 1 is nan; take a lower"):
        trainer.step(0.0)
    assert all(torch.equal(w, before[name]) for name, w in trainer.weights.items())


# ---- what it begins with ----------------------------------------------------------------------------


def test_a_mask_is_added(checkpoint: Path) -> None:
    facts, fills = facts_of(checkpoint, WantedFacts())
    assert (facts, fills) == (DiffusionFacts(VOCAB, True, "causal", 8), False)
    model = filling_model(checkpoint, facts, 32)
    for part in (model.get_input_embeddings(), model.get_output_embeddings()):
        assert part.weight.shape[0] == -(-(VOCAB + 1) // 16) * 16
        torch.testing.assert_close(part.weight[VOCAB], part.weight[:VOCAB].mean(0))
    own, _ = facts_of(checkpoint, WantedFacts(mask=7, shift=False, context="block", block=4))
    assert own == DiffusionFacts(7, False, "block", 4)
    assert filling_model(checkpoint, own, 32).get_input_embeddings().weight.shape[0] == VOCAB


def test_what_fills_already_goes_on_as_it_was_trained(tmp_path: Path) -> None:
    said = {"mask": VOCAB, "shift": True, "context": "block", "block": 4}
    write_llama(tmp_path / "hf", vocab_size=VOCAB + 8, diffusion=said)
    assert facts_of(tmp_path / "hf", WantedFacts()) == (DiffusionFacts(VOCAB, True, "block", 4), True)
    assert facts_of(tmp_path / "hf", WantedFacts(block=8))[0].block == 8
    with pytest.raises(edgedec.errors.UsageError, match="was trained with context block"):
        facts_of(tmp_path / "hf", WantedFacts(context="causal"))


@pytest.mark.parametrize("family", ["Qwen2", "Qwen3"])
def test_a_bundle_with_float_weights_is_a_checkpoint(family: str, tmp_path: Path) -> None:
    network(0, family).save_pretrained(tmp_path / "hf")
    export(str(tmp_path / "hf"), tmp_path / "bundle", ExportOptions(weights="f32", check=False, runtimes=()))
    unbundled(Bundle.open(tmp_path / "bundle"), tmp_path / "back")
    given, back = (load_file(folder / "model.safetensors") for folder in (tmp_path / "hf", tmp_path / "back"))
    assert given.keys() == back.keys()
    assert all(torch.equal(given[key], back[key]) for key in given)


def test_a_bundle_of_another_kind(tmp_path: Path) -> None:
    zoo.save("gemma2", tmp_path / "hf")
    export(str(tmp_path / "hf"), tmp_path / "bundle", ExportOptions(weights="f32", check=False, runtimes=()))
    with pytest.raises(edgedec.errors.CheckpointError, match="is no plain Llama, Qwen2 or Qwen3"):
        unbundled(Bundle.open(tmp_path / "bundle"), tmp_path / "back")


def test_a_bundle_of_a_plain_llama(checkpoint: Path, tmp_path: Path) -> None:
    export(str(checkpoint), tmp_path / "bundle", ExportOptions(weights="f32", check=False, runtimes=()))
    unbundled(Bundle.open(tmp_path / "bundle"), tmp_path / "back")
    given, back = (load_file(folder / "model.safetensors") for folder in (checkpoint, tmp_path / "back"))
    assert given.keys() == back.keys()
    assert all(torch.equal(given[key], back[key]) for key in given)
    assert (tmp_path / "back" / "tokenizer.json").exists()


# ---- the command ------------------------------------------------------------------------------------


def told(capsys: pytest.CaptureFixture[str], *args: Any) -> tuple[int, str, str]:
    code = run_app([str(a) for a in args])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_command(checkpoint: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Trained, exported, decoded several tokens a pass; then made surer on texts of its own."""
    args = ("--text", text, "--length", "24", "--batch", "2", "--threads", "1", "--rate", "0.01", "--json")
    out, bundle = tmp_path / "out", tmp_path / "bundle"
    first = ("train-diffusion", checkpoint, *args, "-o", out, "--block", "4", "--steps", "80")
    code, said, err = told(capsys, *first, "--bundle", bundle, "--weights", "f32", "--recipe", "sdar_vl")
    assert (code, err) == (0, "")
    found = json.loads(said)
    assert found["steps"] == 80
    assert found["masks"][1] < found["masks"][0]
    assert json.loads((out / "config.json").read_text())["diffusion"] == {
        "mask": VOCAB, "shift": True, "context": "causal", "block": 4,
    }  # fmt: skip
    assert "exists already" in told(capsys, *first)[2]
    model = edgedec.open(bundle)
    session = model.session(diffusion="schedule=threshold:p=0.2")
    list(session.tokens(model.tokenizer.encode("the cat in"), max_tokens=32, ignore_eos=True))
    report: Any = session.diffusion_report()
    assert report["filled"] > 1.2 * report["passes"]
    second = ("train-diffusion", out, *args, "-o", tmp_path / "sure", "--steps", "2", "--work", tmp_path / "work")
    code, said, err = told(capsys, *second, "--recipe", "dparallel", "--self-distill", "80")
    assert (code, err) == (0, "")
    (own,) = (tmp_path / "work").glob("own-*.jsonl")
    assert len(own.read_text().splitlines()) == 80
    assert json.loads((tmp_path / "sure" / "config.json").read_text())["diffusion"]["block"] == 4


@pytest.mark.skipif(not os.environ.get("EDGEDEC_SLOW_TESTS"), reason="slow: trains three times")
def test_the_entropy_term_saves_passes(checkpoint: Path, text: Path, tmp_path: Path, capsys: Any) -> None:
    """dParallel (D40): at least a quarter fewer passes at threshold 0.5 than the same training without its entropy,
    as good at guessing masks."""
    common = ("--text", text, "--length", "48", "--batch", "2", "--threads", "1", "--json")
    first = ("train-diffusion", checkpoint, *common, "-o", tmp_path / "base", "--steps", "150", "--rate", "0.01")
    assert told(capsys, *first, "--recipe", "sdar_vl")[0] == 0
    passes, right = [], []
    for weight in (0, 2):
        out, bundle = tmp_path / f"out{weight}", tmp_path / f"bundle{weight}"
        second = ("train-diffusion", tmp_path / "base", *common, "-o", out, "--steps", "100", "--rate", "0.003")
        more = ("--recipe", f"dparallel:weight={weight}", "--bundle", bundle, "--weights", "f32")
        right.append(json.loads(told(capsys, *second, *more)[1])["right"][1])
        model, count = edgedec.open(bundle, threads=1), 0
        for one in text.read_text().split("<|endoftext|>")[:20]:
            session = model.session(diffusion="schedule=threshold:p=0.5")
            list(session.tokens(model.tokenizer.encode(one)[:12], max_tokens=24, ignore_eos=True))
            report: Any = session.diffusion_report()
            count += report["passes"]
        passes.append(count)
    assert passes[1] <= 0.75 * passes[0]
    assert right[1] > right[0] - 0.05


ONE = ("--steps", "1", "--length", "24", "--threads", "1")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--mask", "9999"), f"--mask 9999: beyond the {VOCAB} tokens of"),
        (("--mask", str(ord("t") - 33)), "which is the mask; choose another"),
        (("--length", "300"), "--length 300: must be less than the 256 tokens that the model reads"),
        (("--block", "64"), "--block 64: must be at most --length 24"),
        (("--block", "1"), "a shifted block of one token has no mask to learn"),
        (("--recipe", "dparallel"), "this one fills none yet; train it by nbdiff or sdar_vl first"),
        (("--recipe", "nap"), "trains models with full context, not causal"),
        (("--recipe", "nbdif"), "did you mean nbdiff"),
    ],
)
def test_what_cannot_be_trained(
    options: tuple[str, ...], message: str, checkpoint: Path, text: Path, tmp_path: Path, capsys: Any
) -> None:
    code, _, err = told(capsys, "train-diffusion", checkpoint, "--text", text, "-o", tmp_path / "out", *ONE, *options)
    assert code == 1
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("place", "content", "message"),
    [
        ("short.txt", "short", "the data hold too few texts to keep some back"),
        ("none.txt", None, "none.txt: cannot be read"),
        ("bad.jsonl", "{}", "line 1 is no JSON object"),
    ],
)
def test_texts_that_are_none(
    place: str, content: str | None, message: str, checkpoint: Path, tmp_path: Path, capsys: Any
) -> None:
    path = tmp_path / place
    if content is not None:
        path.write_text(content)
    code, _, err = told(capsys, "train-diffusion", checkpoint, "--text", path, "-o", tmp_path / "out", *ONE)
    assert (code, err.count("\n")) == (1, 1)
    assert message in err


def test_places_that_are_no_checkpoint(text: Path, tmp_path: Path, capsys: Any) -> None:
    """A bundle of rounded weights, a recurrent model, weights that are no numbers."""

    def refused(place: Any) -> str:
        code, _, err = told(capsys, "train-diffusion", place, "--text", text, "-o", tmp_path / "out", *ONE)
        assert (code, err.count("\n")) == (1, 1)
        return str(err)

    assert "its weights are int8, not floats; train the checkpoint" in refused("nano")
    zoo.save("bamba", tmp_path / "bamba")
    write_llama(tmp_path / "tok")
    (tmp_path / "bamba" / "tokenizer.json").write_bytes((tmp_path / "tok" / "tokenizer.json").read_bytes())
    assert "which a block of kind ssm cannot" in refused(tmp_path / "bamba")
    write_llama(tmp_path / "nan")
    weights = load_file(tmp_path / "nan" / "model.safetensors")
    weights["model.norm.weight"][0] = torch.nan
    save_file(weights, tmp_path / "nan" / "model.safetensors")
    assert "holds values that are not finite" in refused(tmp_path / "nan")
    write_llama(tmp_path / "mute", tokenizer=False)
    assert "tokenizer.json: missing" in refused(tmp_path / "mute")
