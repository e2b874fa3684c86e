"""Stop and exit controller: a naive loop that runs each token as far as the controller says writes the same text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("transformers", reason="needs transformers")
import torch
from draft_checkpoints import Oracle, sec, target

import edgedec
from edgedec import Sampling, UsageError
from edgedec.bundle import Bundle
from edgedec.drafters import sec as drafter_file
from edgedec.errors import CheckpointError
from edgedec.export.drafts import add_draft
from edgedec.export.exporter import ExportOptions, export
from edgedec.export.students.sec import CONTINUE, EXIT, STOP, classes, exits
from edgedec.kernels.cpu.loader import why_not
from edgedec.models.drafts import sec as layout
from edgedec.runtime import Call, Outputs, Rows, Runtime
from edgedec.sampling import draw_at, probs
from edgedec.testing.fakes import tiny_spec

ENGINES = ("reference", *(["native"] if why_not() is None else []))
PROMPT = [1, 7, 3, 99, 42, 42, 5, 11, 63, 17]
EOS, N = 2, 60


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Oracle, Path]:
    folder, model = tmp_path_factory.mktemp("target"), target()
    model.save_pretrained(folder / "checkpoint")
    export(str(folder / "checkpoint"), folder / "bundle", ExportOptions(weights="f32", check=False, runtimes=()))
    torch.manual_seed(5)
    oracle = sec()
    add_draft(Bundle.open(folder / "bundle"), oracle.save(folder / "draft"))
    return oracle, folder / "bundle"


def states(runtime: Runtime, ids: list[int], layers: tuple[int, ...]) -> tuple[list[np.ndarray], np.ndarray]:
    """The last token's states after these layers, and the whole model's logits, of a text read at once."""
    blocks = tuple(runtime.spec.span(0, layer).stop - 1 for layer in layers)
    wanted = Outputs(logits=True, hidden=blocks)
    (result,) = runtime.forward([Call(Rows.chain(ids, 0), runtime.new_cache(128), outputs=wanted)])
    assert result.logits is not None
    return [result.hidden[b][-1].astype(np.float64) for b in blocks], result.logits[-1]


def naive(runtime: Runtime, oracle: Oracle, leave: float, stop: float, sampling: Sampling) -> tuple[list[int], str]:
    """Token by token; how each left: by the number of its exit, s stopped, w through the whole model."""
    t = {name: tensor.double().numpy() for name, tensor in oracle.tensors.items()}
    ids, how, rng = list(PROMPT), "", np.random.default_rng(sampling.seed)
    for n in range(N):
        early, logits = states(runtime, ids, tuple(oracle.config["exit_layers"]))
        for i, state in enumerate(early if n else ()):
            scores = t["controller.weight"] @ state
            p = np.exp(scores - scores.max())
            kind, sure = int(p.argmax()), p.max() / p.sum()
            if kind == EXIT and sure > leave:
                z = t[f"lm_heads.{i}.weight"] @ state
                z -= np.log(np.exp(z - z.max()).sum()) + z.max()
                best = np.argsort(-z)[:16]
                logits = np.full(len(z), -np.inf, np.float32)
                logits[best] = z[best]
                how += str(i + 1)
                break
            if kind == STOP and sure > stop:
                how += "s"
                return ids[len(PROMPT) :], how
        else:
            how += "w"
        token = draw_at(probs(logits, sampling, ids, len(PROMPT)), rng.random() if sampling.temperature else 0.0)
        if token == EOS:
            break
        ids.append(token)
    return ids[len(PROMPT) :], how


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.8, seed=4)], ids=["greedy", "drawn"])
@pytest.mark.parametrize("length", [1, 3, 8])
def test_the_text_is_that_of_a_naive_loop(
    made: tuple[Oracle, Path], engine: str, sampling: Sampling, length: int
) -> None:
    """Whatever is run together: exits at each layer, whole tokens between them, later layers caught up."""
    model = edgedec.open(made[1], engine=engine)
    expected, how = naive(model.runtime, made[0], 0.7, 1.0, sampling)
    assert {"1", "2", "3", "w"} <= set(how), how
    session = model.session(speculate=f"sec:leave=0.7,length={length}")
    assert [int(t) for t in session.tokens(PROMPT, max_tokens=N, sampling=sampling)] == expected
    assert session.stats.accepted == session.stats.proposed > 5
    report = session.report()
    assert "left the model early" in report["lossy"]
    counts = report["drafters"]["sec"]
    assert counts["exit 1"] >= how.count("1") > 0
    assert counts["exit 3"] >= how.count("3") > 0
    assert counts["whole"] >= how.count("w")
    plain = [int(t) for t in model.session(speculate="off").tokens(PROMPT, max_tokens=N, sampling=sampling)]
    assert plain != expected


@pytest.mark.parametrize("stop", [0.5, 0.8, 0.99])
def test_a_text_ends_where_it_is_not_worth_going_on(made: tuple[Oracle, Path], stop: float) -> None:
    model = edgedec.open(made[1], engine="reference")
    lengths = []
    for prompt in ([1, 7, 3], [5, 5, 90], [8, 41, 17, 2, 9], [33, 12], [77, 1, 50]):
        PROMPT[:], kept = prompt, list(PROMPT)
        try:
            expected, how = naive(model.runtime, made[0], 1.0, stop, Sampling())
        finally:
            PROMPT[:] = kept
        session = model.session(speculate=f"sec:leave=1,stop={stop}")
        assert [int(t) for t in session.tokens(prompt, max_tokens=N)] == expected
        assert expected, "never at the first token"
        if how.endswith("s"):
            assert session.finish_reason == "eos"
            assert session.report()["drafters"]["sec"]["stopped"] == 1
        lengths.append(len(expected))
    if stop < 0.9:
        assert min(lengths) < N


def test_thresholds_of_one_leave_the_text(made: tuple[Oracle, Path]) -> None:
    model = edgedec.open(made[1], engine="reference")
    plain = [int(t) for t in model.session(speculate="off").tokens(PROMPT, max_tokens=N)]
    session = model.session(speculate="sec:leave=1,stop=1")
    assert [int(t) for t in session.tokens(PROMPT, max_tokens=N)] == plain
    assert session.report()["drafters"]["sec"] == {"whole": len(plain)}


def test_rows_wait_until_a_later_one_needs_the_layers(
    made: tuple[Oracle, Path], monkeypatch: Callable[..., None]
) -> None:
    """Exits at the first layer run nothing after it; one that goes on takes the rows before it along."""
    model, ran = edgedec.open(made[1], engine="reference"), list[tuple[int, int, int]]()
    forward = model.runtime.forward

    def watched(calls):  # type: ignore[no-untyped-def]
        ran.extend((c.blocks.start, c.blocks.stop, c.rows.count) for c in calls if isinstance(c.blocks, range))
        return forward(calls)

    verdicts = iter([EXIT, EXIT, CONTINUE, EXIT, CONTINUE, CONTINUE, CONTINUE])
    session = model.session(speculate="sec:leave=0.7,length=8")
    monkeypatch.setattr(drafter_file.Sec, "verdict", lambda self, state: next(verdicts, CONTINUE))  # type: ignore[attr-defined]
    monkeypatch.setattr(model.runtime, "forward", watched)  # type: ignore[attr-defined]
    list(session.tokens(PROMPT, max_tokens=5, ignore_eos=True))
    drafted = [one for one in ran if one[1] <= 14]
    # Two leave after layer 1; the third goes to layer 4 with the two before it and leaves; the fourth goes through.
    assert drafted[:7] == [(0, 2, 1), (0, 2, 1), (0, 2, 1), (2, 8, 3), (0, 2, 1), (2, 8, 1), (8, 14, 4)]
    assert (2, 16, 4) in ran, "verification goes on after the first layer, for all four rows"


def test_classes_of_tokens() -> None:
    right = torch.tensor([[0, 0, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]]).bool()
    found = classes(right, torch.tensor([0, 1, 0, 0]).bool()).T.tolist()
    assert found == [[CONTINUE, EXIT, EXIT], [CONTINUE] * 3, [EXIT] * 3, [STOP] * 3]
    assert exits(8) == (1, 4, 7)
    assert exits(7) == (1, 4)


@pytest.mark.parametrize("layers", [None, [1, 4], [4, 1, 7], [0, 4, 7], [1, 4, 9], [1, 1, 7], ["1", 4, 7]])
def test_exits_that_do_not_fit_are_refused(layers: object) -> None:
    names = [*(f"lm_heads.{i}.weight" for i in range(3)), "controller.weight"]
    spec = tiny_spec(n_layers=8)
    assert layout.plan({"exit_layers": [1, 4, 7]}, names, spec).features == (1, 7, 13)
    with pytest.raises(CheckpointError, match="exit_layers is"):
        layout.plan({"exit_layers": layers}, names, spec)


def test_what_is_missing_is_refused(nano: Path) -> None:
    with pytest.raises(UsageError, match="has no sec head"):
        edgedec.open(nano, engine="reference").session(speculate="sec")
