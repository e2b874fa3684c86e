"""Chimera and Falcon in training: what they learn from, and that their drafts are what was trained."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import edgedec

pytest.importorskip("onnx", reason="heads are built with onnx")
pytest.importorskip("torch", reason="heads are trained with torch")
pytest.importorskip("safetensors", reason="training keeps its state as safetensors")
pytest.importorskip("transformers", reason="the target is made with transformers")
import torch
from checkpoints import write_llama
from torch.nn import functional
from training import write_sentences

from edgedec.decoding.context import Context
from edgedec.decoding.messages import Completed, ForwardOn
from edgedec.drafters import Draft, DrafterContext, make_drafter
from edgedec.drafters._heads import state_drafter
from edgedec.export.exporter import ExportOptions, export
from edgedec.export.heads_distill import Distiller, DistillPlan, imported
from edgedec.export.students import Features, falcon
from edgedec.export.students._rows import RowAttention
from edgedec.runtime import Call, Rows, Runtime, forward_one

KINDS = ("chimera", "falcon")


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
    export(str(source), folder / "bundle", ExportOptions(weights="f32", check=False))
    return edgedec.open(folder / "bundle", engine="reference")


def distiller(model: edgedec.Model, text: Path, kind: str, **changes: Any) -> Distiller:
    facts: dict[str, Any] = {"depth": 3, "minutes": 1e6, "steps": 4, "length": 40, "rate": 0.01}
    how = DistillPlan(kind, **facts | changes)
    return Distiller(model.bundle, model.runtime, [text], model.tokenizer.encode, how)


@pytest.mark.parametrize("kind", KINDS)
def test_drafts_are_what_was_trained(
    model: edgedec.Model, text: Path, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After parts of a text each guess is as likely as the student's logits say, of which the tokens before it are
    part of the text; at every depth."""
    monkeypatch.setattr(state_drafter, "LEAST", 1e-30)
    depth = 4 if kind == "chimera" else 6  # of falcon three blocks
    trainer = distiller(model, text, kind, depth=4)
    torch.manual_seed(2)
    with torch.no_grad():
        for name, w in trainer.weights.items():
            w.add_(torch.randn(w.shape) * (w.shape[-1] ** -0.5 if w.ndim > 1 else 0.3))
            w.mul_(0.5 if name.startswith("chimera_head") else 1.0)
    (tmp_path / "draft").mkdir()
    trainer.write(tmp_path / "draft", "x")
    bundle, _ = imported(model.bundle, tmp_path / "draft", tmp_path / "bundle", force=False)
    found, compared = edgedec.open(bundle.path, engine="reference"), dict.fromkeys(range(depth), 0)
    ids = [int(t) for t in max(trainer.held, key=len).tokens]
    for n in range(6, len(ids), 3):
        drafts = _paths(_drafted(found, kind, ids[:n]))
        for path in [path for path in drafts if len(path) == depth][:5]:
            with torch.no_grad():
                logprobs = trainer.student.logits(trainer.stream.of([*ids[:n], *path]), depth).log_softmax(-1)
            for k in range(depth):
                p = drafts[path[: k + 1]]
                if p < 0.999:
                    assert p == pytest.approx(float(logprobs[k, n - 2, path[k]].exp()), rel=0.01), (n, k)
                    compared[k] += 1
    assert min(compared.values()) > 5, compared
    kept = _drafter(found, kind)  # shown one text after the other, of which some begin alike
    for again in (ids[:20], [*ids[:9], *ids[12:20]], ids[:16], [*ids[1:9], *ids[:9]], [*ids[:9], *ids[12:20]]):
        kept.reset()
        drafts, fresh = (_paths(_shown(found, one, again)) for one in (kept, _drafter(found, kind)))
        assert drafts == pytest.approx(fresh, rel=1e-3)


def _drafted(model: edgedec.Model, kind: str, ids: list[int]) -> Draft:
    return _shown(model, _drafter(model, kind), ids)


def _drafter(model: edgedec.Model, kind: str) -> Any:
    host = DrafterContext(model.runtime, model.bundle, lambda: model.tokenizer)
    return make_drafter(kind, host, {"beam": "4"} | ({"k": "4"} if kind == "falcon" else {}))


def _shown(model: edgedec.Model, drafter: Any, ids: list[int]) -> Draft:
    """The draft after a text of which all tokens but the last have been seen: in a prompt, then in a call."""
    runtime = model.runtime
    context = Context(list(ids), len(ids), runtime.new_cache(len(ids)))
    for start, stop in ((0, 4), (4, len(ids) - 1)):
        rows = Rows.chain(ids[start:stop], start)
        result = forward_one(runtime, Call(rows, context.cache, outputs=drafter.reads))
        context.cache.commit(range(len(rows)))
        if start:
            drafter._seen.read(rows, result, ids[start + 1 : stop + 1])
        else:
            _run(runtime, drafter.read(context, rows, result))
    return _run(runtime, drafter.propose(context, 400, 0.0))


def _run(runtime: Runtime, steps: Any) -> Any:
    """What a generator of calls returns."""
    done: Any = None
    try:
        while True:
            asked = steps.send(done)
            on, call = (asked.runtime, asked.call) if isinstance(asked, ForwardOn) else (runtime, asked)
            done = Completed(forward_one(on, call), call.rows.count, 0.0)
    except StopIteration as end:
        return end.value


def _paths(draft: Draft) -> dict[tuple[int, ...], float]:
    """Each path and the probability of its last token after those before it."""
    at: list[tuple[int, ...]] = []
    for token, parent in zip(draft.tokens, draft.parents, strict=True):
        at.append((*(at[parent] if parent >= 0 else ()), token))
    return dict(zip(at, draft.p, strict=True))


# ---- the losses ----------------------------------------------------------------------------------------


def test_chimera_learns_the_texts_own_tokens_and_sums_over_its_heads(model: edgedec.Model, text: Path) -> None:
    trainer = distiller(model, text, "chimera")
    row, student = trainer.held[0], trainer.student

    def sure(shift: int) -> Any:
        def unrolled(features: Features, depth: int, guessing: bool) -> list[torch.Tensor]:
            assert guessing, "from the second head on, tokens are its own"
            n = len(features) - depth
            places = [torch.arange(n) + 2 + k + shift for k in range(depth)]
            return [9.0 * functional.one_hot(row.tokens[at.clamp(max=len(row) - 1)], 512).float() for at in places]

        return unrolled

    right = float(-torch.tensor([9.0, *[0.0] * 511]).log_softmax(0)[0])
    student._unrolled = sure(0)
    assert float(student.own_loss(row)) == pytest.approx(3 * right, rel=1e-4)
    for shift in (-1, 1):
        student._unrolled = sure(shift)
        assert float(student.own_loss(row)) > 3 * right + 3


def test_chimera_reads_its_own_guesses_while_it_learns(model: edgedec.Model, text: Path) -> None:
    """In training, head 2 goes on from the likeliest token of head 1; when measured, from the text's."""
    trainer = distiller(model, text, "chimera")
    row, student = trainer.held[0], trainer.student
    asked: list[list[int]] = []
    before = student._embedded
    student._embedded = lambda tokens: asked.append(tokens.tolist()) or before(tokens)  # type: ignore[func-returns-value]
    with torch.no_grad():
        guessed = student._unrolled(row, 3, guessing=True)
        assert asked == [guessed[0].argmax(-1).tolist(), guessed[1].argmax(-1).tolist()]
        read = student.logits(row, 3)
    assert len(asked) == 2
    torch.testing.assert_close(read[0], guessed[0])
    same = guessed[0].argmax(-1) == row.tokens[2:][: len(guessed[0])]
    assert not same.all()
    assert not torch.allclose(read[1][~same], guessed[1][~same])


def test_falcon_learns_states_two_ahead_and_a_little_of_their_tokens(model: edgedec.Model, text: Path) -> None:
    """Where the states are right, the loss is that of the drawn token alone, at its weight."""
    trainer = distiller(model, text, "falcon")
    row, student = trainer.held[0], trainer.student
    states = student._states(row)
    n = len(row) - 2
    for shift, wrong in ((2, False), (1, True), (3, True)):
        given = torch.cat([states, states[:2]])[shift:][:n]
        student._through = lambda *_, given=given: given
        loss = float(student.own_loss(row))
        entropy = float(-(student._read(given).softmax(-1) * student._read(given).log_softmax(-1)).sum(-1).mean())
        expected = falcon.TOKENS * falcon.HARD * entropy
        assert (abs(loss - expected) > 0.05) is wrong, (shift, loss, expected)


def test_falcon_glances_at_first_rows_of_blocks_less_and_less(model: edgedec.Model, text: Path) -> None:
    trainer = distiller(model, text, "falcon")
    row, student = trainer.held[0], trainer.student
    wanted, passes = student._states(row)[2:], list[tuple[torch.Tensor, torch.Tensor]]()
    nothing = torch.zeros_like(wanted)

    def through(states: torch.Tensor, following: torch.Tensor, rng: torch.Generator) -> torch.Tensor:
        passes.append((states, following))
        return nothing

    student._through = through
    n, counts = len(wanted), []
    for progress in (0.0, 1.0):
        passes.clear()
        student.progress = progress
        student.own_loss(row)
        (_, first), (states, following) = passes
        truth = (states == wanted).all(-1)
        assert set(truth.nonzero()[:, 0].tolist()) <= set(range(0, n, 2)), "first rows of blocks"
        torch.testing.assert_close(first, row.embeddings[1 : n + 1])
        moved = truth & (torch.arange(n) < n - 1)
        torch.testing.assert_close(following[moved], row.embeddings[3:][: n - 1][moved[: n - 1]])
        torch.testing.assert_close(following[~truth], first[~truth])
        counts.append(int(truth.sum()))
    wrong = int((student._read(nothing).argmax(-1) != student._read(wanted).argmax(-1)).sum())
    assert counts == [min(int(0.45 * wrong), n // 2), int(0.1 * wrong)]
    assert counts[0] > counts[1] > 0


def test_rows_of_a_block_see_each_other_and_nothing_later(model: edgedec.Model, text: Path) -> None:
    student = distiller(model, text, "falcon").student
    torch.nn.init.normal_(student.layers[0].self_attn.o_proj.weight)
    states = torch.randn(6, student.shape.hidden)
    changed = states.clone()
    changed[3] += 1.0
    rng = torch.Generator()
    with torch.no_grad():
        before, after = (student._through(x, torch.zeros_like(x), rng.manual_seed(3)) for x in (states, changed))
    moved = (before != after).any(-1).tolist()
    assert moved == [False, False, True, True, True, True]


def test_rows_attend_to_what_they_are_shown() -> None:
    """Keys of the text by the mask, and one's own keys: as plain attention over the same keys."""
    from edgedec.export.students import StudentShape

    torch.manual_seed(0)
    shape = StudentShape(16, 8, 2, 1, 8, 100.0, 1e-5, 9, 9, 1, 64, 1)
    block = RowAttention(shape)
    torch.nn.init.normal_(block.o_proj.weight)
    x, other, mine = torch.randn(3, 16), torch.randn(4, 16), torch.randn(3, 16)
    sees = torch.tensor([[1, 0, 0, 1], [0, 1, 0, 0], [1, 1, 1, 1]]).bool()
    places, own = torch.tensor([5, 7, 9]), torch.tensor([6, 2, 4])
    with torch.no_grad():
        found = block(x, places, block.keys(other, torch.arange(4)), sees, [block.keys(mine, own)])
        for i in range(3):
            rows = torch.cat([other[sees[i]], mine[i : i + 1]])
            at = torch.cat([torch.arange(4)[sees[i]], own[i : i + 1]])
            alone = block(x[i : i + 1], places[i : i + 1], block.keys(rows, at), torch.ones(1, len(rows)).bool())
            torch.testing.assert_close(found[i], alone[0])


@pytest.mark.parametrize("kind", KINDS)
def test_the_published_names(model: edgedec.Model, text: Path, tmp_path: Path, kind: str) -> None:
    trainer = distiller(model, text, kind)
    names = set(trainer.student.published())
    trainer.write(tmp_path, "x")
    config = json.loads((tmp_path / "config.json").read_text())
    if kind == "falcon":
        assert {
            f"lstm.{part}_l{i}" for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh") for i in (0, 1)
        } < names
        assert config["k_mask"] == 2
    else:
        assert {"trimlp.0.linear.weight", "trimlp.1.weight", "chimera_head.2.0.weight"} < names
        assert config["chimera_num_heads"] == 3
