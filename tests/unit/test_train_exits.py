"""Training for early exits: the stream of rows, the shares of the loss, a real training of a small Llama."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from checkpoints import write_llama

from edgedec.cli._app import run_app
from edgedec.errors import CheckpointError, UnknownArchitecture, UsageError

pytest.importorskip("torch", reason="exits are trained with torch")
pytest.importorskip("transformers", reason="exits are trained on transformers' networks")
pytest.importorskip("safetensors", reason="training keeps its state as safetensors")
import torch
import zoo
from torch.nn import functional
from training import quiet, write_sentences

from edgedec.export import exits_data
from edgedec.export.exits_data import Place, TokenStream, documents, is_held
from edgedec.export.exits_model import Early, load, write
from edgedec.export.exits_train import ExitPlan, ExitTrainer, default_exits, drop_rates, key_of, shares
from edgedec.export.training_loop import train


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
    return write_llama(tmp_path_factory.mktemp("llama") / "hf", num_hidden_layers=4)


def encode(text: str) -> list[int]:
    return [ord(c) for c in text]


def rows(files: list[Path], n: int, place: Place, **changes: Any) -> list[list[int]]:
    stream = TokenStream(files, encode, changes.get("length", 40), changes.get("seed", 0), place)
    return [next(stream) for _ in range(n)]


# ---- the stream ---------------------------------------------------------------------------------------


def test_documents_are_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exits_data, "_CHUNK", 5)
    (tmp_path / "a.txt").write_text("one\n<|endoftext|>\n  <|endoftext|>two, and more")
    assert list(documents(tmp_path / "a.txt")) == ["one\n", "two, and more"]
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n\n{"text": "b", "n": 1}\n')
    assert list(documents(tmp_path / "a.jsonl")) == ["a", "b"]


@pytest.mark.parametrize("bad", ['{"text": 1}', "[]", "{", "{}", '"x"'])
def test_a_line_that_is_none(bad: str, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"text": "a"}\n' + bad)
    with pytest.raises(UsageError, match="line 2 is no JSON object"):
        list(documents(tmp_path / "bad.jsonl"))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    with pytest.raises(UsageError, match="is not UTF-8"):
        list(documents(tmp_path / "latin.txt"))
    with pytest.raises(UsageError, match=r"none\.txt: cannot be read"):
        list(documents(tmp_path / "none.txt"))


def test_the_stream_goes_on_at_any_place(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows after a restart are those of a run that was not interrupted, over blocks and passes."""
    monkeypatch.setattr(exits_data, "BLOCK", 60)
    stream = TokenStream([text], encode, 200, 0, Place())
    told, places = [], []
    for _ in range(250):
        told.append(next(stream))
        places.append(Place(stream.place.turn, stream.place.block, stream.place.row))
    assert places[-1].turn >= 1
    assert {place.block for place in places} >= {0, 1, 2}
    for i in (0, 7, 60, 131, 240):
        assert rows([text], 5, Place(**vars(places[i])), length=200) == told[i + 1 : i + 6]
    assert rows([text], 5, Place(), length=200, seed=1) != told[:5]


def test_what_is_held_back_is_not_trained_on(text: Path) -> None:
    held = [t for t in documents(text) if is_held(t)]
    assert 1 <= len(held) < 40
    told = "".join(chr(c) for row in rows([text], 300, Place()) for c in row)
    assert all(t[:40] not in told for t in held)
    assert any(t[:30] in told for t in documents(text) if not is_held(t))


def test_too_little_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("short")
    with pytest.raises(UsageError, match="hold no row of 41 tokens"):
        rows([tmp_path / "a.txt"], 1, Place())


# ---- the curriculum -----------------------------------------------------------------------------------


def test_shares_and_rates() -> None:
    assert drop_rates(3, 0.2) == pytest.approx([0, 0.2 * (2**0.5 - 1), 0.2])
    assert shares([3], 4, 1.0) == pytest.approx({3: 3 / 9, 4: 6 / 9})
    assert sum(shares([1, 2, 5], 8, 0.3).values()) == pytest.approx(1)
    assert shares([2], 8, 0.0) == {2: 0, 8: 1}
    assert default_exits(12) == (2, 3, 4, 5, 6, 7, 8)
    assert default_exits(2) == (1,)


def test_an_update_trains_its_exits(checkpoint: Path, text: Path) -> None:
    trainer = small(checkpoint, text, exits=(1, 2, 3), rotate=3, drop=0.0)
    seen: list[tuple[int, ...]] = []
    states = trainer.early.states

    def noted(ids: Any, exits: Any, skipped: Any = ()) -> Any:
        seen.append(tuple(exits))
        return states(ids, exits, skipped)

    trainer.early.states = noted  # type: ignore[method-assign]
    for _ in range(3):
        trainer.step(0.0)
    assert seen[::2] == [(3,), (1,), (2,)]


# ---- the network --------------------------------------------------------------------------------------


FAST = ("llama", "gemma2", "gemma3", "phi3", "qwen3", "olmo2", "granitemoe_tied", "bamba")


@pytest.mark.parametrize("name", [n for n in sorted(zoo.ZOO) if n in FAST or os.environ.get("EDGEDEC_SLOW_TESTS")])
def test_exits_read_what_transformers_says(name: str, tmp_path: Path) -> None:
    """Hidden states after each layer are transformers' own; a layer left out passes its input on."""
    zoo.save(name, tmp_path / "hf")
    early = Early(load(tmp_path / "hf"), name)
    ids = torch.arange(2, 12)[None]
    with torch.no_grad():
        plain = early.model(input_ids=ids, use_cache=False, output_hidden_states=True)
        states = early.states(ids, range(1, len(early)))
        for e in range(1, len(early)):
            torch.testing.assert_close(states[e], plain.hidden_states[e][0])
        torch.testing.assert_close(early.readout(states[len(early)]), plain.logits[0], atol=1e-4, rtol=1e-4)
        skipped = early.states(ids, [1], skipped=[1])
    assert not torch.equal(skipped[len(early)], states[len(early)])
    torch.testing.assert_close(skipped[1], states[1])


def test_families_that_are_not_carried(tmp_path: Path) -> None:
    write_llama(tmp_path / "hf")
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    (tmp_path / "hf" / "config.json").write_text(json.dumps(config | {"model_type": "t5"}))
    with pytest.raises(UnknownArchitecture, match="t5"):
        load(tmp_path / "hf")


def test_a_tensor_that_is_missing(tmp_path: Path) -> None:
    """transformers would start it at random, with a warning."""
    write_llama(tmp_path / "hf", num_hidden_layers=3)
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    (tmp_path / "hf" / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 4}))
    with pytest.raises(CheckpointError, match=r"model\.layers\.3\."):
        load(tmp_path / "hf")


def test_a_readout_that_is_not_the_models(checkpoint: Path) -> None:
    model = load(checkpoint)
    model.config.final_logit_softcapping = 0.01
    with pytest.raises(CheckpointError, match="more than norm and head"):
        Early(model, "odd")


# ---- training -----------------------------------------------------------------------------------------


def small(checkpoint: Path, text: Path, **changes: Any) -> ExitTrainer:
    facts: dict[str, Any] = {"exits": (1, 2), "length": 24, "batch": 2, "minutes": 1e6, "steps": 6, "rate": 2e-3}
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    early = Early(load(checkpoint), "small")
    return ExitTrainer(early, [text], lambda t: tokenizer.encode(t).ids, ExitPlan(**facts | changes))


def test_it_learns_to_be_left_early(checkpoint: Path, text: Path) -> None:
    trainer = small(checkpoint, text, steps=150, rate=1e-2, rotate=2)
    before = trainer.measure()
    train(trainer, None, "", quiet)
    after = trainer.measure()
    assert trainer.steps == 150
    assert after.loss < 0.6 * before.loss
    assert before.agreement[2] < 0.4 < 0.7 < after.agreement[2]


@pytest.mark.parametrize("method", ["s2d", "sortednet"])
def test_sub_models_learn_the_text(checkpoint: Path, text: Path, method: str) -> None:
    """Each says what comes next nearly as well as the whole model."""
    trainer = small(checkpoint, text, steps=150, rate=1e-2, method=method)
    train(trainer, None, "", quiet)
    after = trainer.measure()
    assert min(after.agreement.values()) > 0.7


def test_the_loss_of_sub_models(checkpoint: Path, text: Path) -> None:
    """s2d: the mean of the losses of all of them, on the text; sortednet: of one, each of them drawn now and then."""
    trainer = small(checkpoint, text, method="s2d")
    row = torch.tensor(next(trainer.stream))
    states, n = trainer.early.states(row[None, :-1], (1, 2)), len(trainer.early)
    each = [functional.cross_entropy(trainer.early.readout(states[e]), row[1:]).item() for e in (1, 2, n)]
    assert trainer.loss(row, random.Random(0)).item() == pytest.approx(sum(each) / 3, rel=1e-4)
    drawn = small(checkpoint, text, method="sortednet")
    found = [drawn.loss(row, random.Random(seed)).item() for seed in range(40)]
    where = [min(range(3), key=lambda i: abs(each[i] - loss)) for loss in found]
    assert all(abs(each[i] - loss) < 1e-4 for i, loss in zip(where, found, strict=True))
    assert set(where) == {0, 1, 2}


@pytest.mark.parametrize("method", ["layerskip", "s2d", "sortednet"])
def test_a_run_cut_short_goes_on(checkpoint: Path, text: Path, tmp_path: Path, method: str) -> None:
    """Weights of a run in two parts are those of a run in one."""
    whole = small(checkpoint, text, method=method)
    for i in range(6):
        whole.step(i / 6)
    first = small(checkpoint, text, method=method)
    for i in range(3):
        first.step(i / 6)
    first.save(tmp_path / "c.safetensors", "key")
    second = small(checkpoint, text, method=method)
    second.load(tmp_path / "c.safetensors", "key")
    assert second.steps == 3
    for i in range(3, 6):
        second.step(i / 6)
    for name, w in whole.weights.items():
        assert torch.equal(w, second.weights[name]), name


def test_checkpoints_of_something_else(checkpoint: Path, text: Path, tmp_path: Path) -> None:
    trainer, path = small(checkpoint, text), tmp_path / "c.safetensors"
    trainer.save(path, "one")
    with pytest.raises(UsageError, match="of another training"):
        trainer.load(path, "two")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(UsageError, match="not a checkpoint of train-exits"):
        trainer.load(path, "one")
    plan = trainer.plan
    assert key_of(checkpoint, [text], plan) == key_of(checkpoint, [text], ExitPlan(**vars(plan) | {"minutes": 1.0}))
    assert key_of(checkpoint, [text], plan) != key_of(checkpoint, [text], ExitPlan(**vars(plan) | {"drop": 0.3}))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_folder_that_is_written(dtype: str, checkpoint: Path, text: Path, tmp_path: Path) -> None:
    source = tmp_path / "hf"
    write_llama(source, num_hidden_layers=4, torch_dtype=dtype)
    trainer = small(source, text)
    trainer.step(0.0)
    (tmp_path / "out").mkdir()
    write(trainer.early, source, tmp_path / "out")
    again = load(tmp_path / "out")
    for name, w in again.named_parameters():
        assert torch.equal(w, trainer.weights[name].detach().to(getattr(torch, dtype)).float()), name
    assert (tmp_path / "out" / "config.json").read_bytes() == (source / "config.json").read_bytes()
    assert (tmp_path / "out" / "tokenizer.json").exists()


# ---- the command --------------------------------------------------------------------------------------


def told(capsys: pytest.CaptureFixture[str], *args: Any) -> tuple[int, str, str]:
    code = run_app([str(a) for a in args])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_command(
    checkpoint: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trained, exported, and the exit drafts tokens that the model accepts."""
    import edgedec

    out = tmp_path / "out"
    args = ("train-exits", checkpoint, text, "-o", out, "--steps", "120", "--rate", "0.01", "--length", "24")
    more = ("--batch", "2", "--exits", "2", "--rotate", "1", "--threads", "1", "--work", tmp_path / "work", "--json")
    code, said, err = told(capsys, *args, *more)
    assert (code, err) == (0, "")
    found = json.loads(said)
    assert found["steps"] == 120
    assert found["loss"][1] < found["loss"][0]
    assert (tmp_path / "work" / "exits.safetensors").exists()
    code, _, err = told(capsys, *args, *more)
    assert code == 1
    assert "exists already" in err
    code, said, _ = told(capsys, *args, *more, "--force")
    assert (code, json.loads(said)["steps"]) == (0, 120)
    assert told(capsys, "export", out, "-o", tmp_path / "bundle", "--weights", "f32")[0] == 0
    model = edgedec.open(tmp_path / "bundle")
    session = model.session(speculate="exit:layer=2,fixed=3,threshold=0.0")
    ids = model.tokenizer.encode("the cat in")
    tokens = list(session.tokens(ids, max_tokens=40, ignore_eos=True))
    assert sum(token.by == "exit" for token in tokens) > 10
    plain = [int(t) for t in model.session(speculate="off").tokens(ids, max_tokens=40, ignore_eos=True)]
    assert plain == list(map(int, tokens))


ONE = ("--steps", "1", "--length", "24", "--threads", "1")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--exits", "9"), "--exits 9: must be from 1 to 3"),
        (("--exits", "a,b"), "must be numbers of layers"),
        (("--length", "257"), "--length 257: the model reads at most 256 tokens"),
    ],
)
def test_what_cannot_be_trained(
    options: tuple[str, ...], message: str, checkpoint: Path, text: Path, tmp_path: Path, capsys: Any
) -> None:
    code, _, err = told(capsys, "train-exits", checkpoint, text, "-o", tmp_path / "out", *ONE, *options)
    assert code == 1
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_folder_without_a_tokenizer(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_llama(tmp_path / "hf", tokenizer=False)
    code, _, err = told(capsys, "train-exits", tmp_path / "hf", text, "-o", tmp_path / "out", *ONE)
    assert (code, err.count("\n")) == (1, 1)
    assert "tokenizer.json: missing" in err
