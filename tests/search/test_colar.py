"""Chains of thought in latent rows: what the head computes, when the rows end, and that nobody else reads them."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from search.laws import PROMPT, Letters, beside, fresh, search_of, searched

import edgedec
from edgedec.bundle import Bundle
from edgedec.bundle.latent_head import FACTS_KEY, LatentFacts, facts_of
from edgedec.bundle.manifest import LATENT_HEAD
from edgedec.bundle.onnx_rules import check_graphs
from edgedec.cli._app import run_app
from edgedec.cli._stream import _searched
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.runner import run_loop
from edgedec.errors import BundleCorrupt, ContextFull, RuntimeUnavailable, UsageError
from edgedec.export.latent_head import LatentNetwork, graph_of, install, shapes
from edgedec.runtime import Call, Outputs, Rows, Runtime
from edgedec.search.latent_head import LatentHead, open_latent_head
from edgedec.search.strategies import colar
from edgedec.testing.fakes import FakeRuntime, RandomDrafter, random_reference

CONFIG = GenerationConfig(max_tokens=6).override({"temperature": 0.0})
FACTS = LatentFacts(5, "the", "<{}>")
SEPARATOR, OPENING = 2, [1, 4, 3]


def network(hidden: int, width: int = 24, std: float = 0.05, facts: LatentFacts = FACTS) -> LatentNetwork:
    rng = np.random.default_rng(5)
    arrays = {n: (rng.standard_normal(s) * 0.6).astype(np.float32) for n, s in shapes(hidden, width).items()}
    return LatentNetwork(arrays, std, facts)


def law_by_hand(net: LatentNetwork, states: np.ndarray, norm: np.ndarray, eps: float) -> tuple[np.ndarray, np.ndarray]:
    """The oracle, in float64: mean and deviation of the next row."""
    a = {name: array.astype(np.float64) for name, array in net.arrays.items()}
    x = states / np.sqrt((states**2).mean(-1, keepdims=True) + eps) * norm
    x = x @ a["fc.0.weight"].T + a["fc.0.bias"]
    x = x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
    x = x @ a["fc.2.weight"].T + a["fc.2.bias"]
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * a["fc.3.weight"] + a["fc.3.bias"]
    mean, log = (x @ a[f"{name}.weight"].T + a[f"{name}.bias"] for name in ("mean", "log_std"))
    return mean * net.std, np.exp(log) * net.std


@pytest.fixture
def folder(tiny: Path, tmp_path: Path) -> Path:
    made = Path(shutil.copytree(tiny, tmp_path / "bundle"))
    bundle = Bundle.open(made)
    install(bundle, network(bundle.spec.hidden_size), bundle.rows("final_norm"))
    return made


def test_the_head_is_its_arithmetic(folder: Path) -> None:
    model = edgedec.open(folder, threads=1)
    head, spec = open_latent_head(model, "test"), model.spec
    states = np.random.default_rng(1).standard_normal((3, spec.hidden_size)) * 4
    norm = model.bundle.rows("final_norm").ravel().astype(np.float64)
    assert np.ptp(norm) > 0.1, "a norm of ones shows nothing"
    wanted = law_by_hand(network(spec.hidden_size), states, norm, spec.norm_eps)
    for found, right in zip(head.network.run(states.astype(np.float32)), wanted, strict=True):
        np.testing.assert_allclose(found, right, rtol=2e-4, atol=2e-5 * np.abs(right).max())
    assert head.facts == FACTS
    assert head.block == spec.n_blocks - 1
    assert model.tokenizer.decode([head.separator]) == "the"
    check_graphs(model.bundle)


def test_a_row_is_the_mean_and_noise_of_that_deviation() -> None:
    mean, deviation = np.array([[1.0, 2.0]], np.float32), np.array([[0.5, 3.0]], np.float32)
    head = LatentHead(Planned(mean, deviation), FACTS, 0, 0)  # type: ignore[arg-type]
    noise = np.random.default_rng(4).standard_normal((1, 2))
    for spread in (0.0, 1.0, 0.25):
        row = head.draw(np.zeros((1, 2), np.float32), spread, np.random.default_rng(4))
        np.testing.assert_allclose(row, mean + spread * noise * deviation, rtol=1e-6)


class Planned:
    """A network of these outputs, or of what the state says."""

    def __init__(self, *outputs: np.ndarray) -> None:
        self._outputs, self.seen = outputs, list[np.ndarray]()

    def run(self, state: np.ndarray) -> Sequence[np.ndarray]:
        self.seen.append(state.copy())
        # Smooth, so that no rounding grows from row to row.
        return self._outputs or (np.tanh(state[:, ::-1] / 16) / 2, 0.4 + 0.2 * np.tanh(state / 16))


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> Planned:
    """A head of any model of 13 tokens, and a tokenizer whose opening has ids of it."""
    found = Planned()
    monkeypatch.setattr(Letters, "encode", lambda *_, **__: list(OPENING))
    block = random_reference(seed=3).spec.n_blocks - 1
    monkeypatch.setattr(colar, "open_latent_head", lambda *_: LatentHead(found, FACTS, block, SEPARATOR))  # type: ignore[arg-type]
    return found


def by_hand(runtime: Runtime, seed: int, n: int, most: int, spread: float = 1.0) -> tuple[list[int], int]:
    """Everything read anew at each step -> the greedy text, and how many rows came before it."""
    rng, last = np.random.default_rng(seed), runtime.spec.n_blocks - 1

    def embedded(tokens: list[int]) -> np.ndarray:
        call = Call(Rows.chain(tokens, 0), runtime.new_cache(len(tokens)), (), outputs=Outputs(hidden=(-1,)))
        return runtime.forward([call])[0].hidden[-1]

    def read(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        call = Call(Rows.embedded(rows, 0), runtime.new_cache(64), outputs=Outputs(logits=True, hidden=(last,)))
        result = runtime.forward([call])[0]
        return result.hidden[last][-1:], result.logits[-1].astype(np.float64)

    rows, count = embedded([*PROMPT, *OPENING, SEPARATOR]), 0
    while count < most:
        state, _ = read(rows)
        mean, deviation = Planned().run(state)
        rows = np.concatenate([rows, mean + spread * deviation * rng.standard_normal(mean.shape)]).astype(np.float32)
        count += 1
        p = np.exp(read(rows)[1])
        if rng.random() < p[SEPARATOR] / p.sum():
            break
    rows, text = np.concatenate([rows, embedded([SEPARATOR])]), list[int]()
    for _ in range(n):
        text.append(int(read(rows)[1].argmax()))
        rows = np.concatenate([rows, embedded(text[-1:])])
    return text, count


@pytest.mark.parametrize(("most", "spread"), [(30, 1.0), (3, 1.0), (30, 0.0)])
def test_the_rows_and_the_text_of_the_oracle(planned: Planned, most: int, spread: float) -> None:
    runtime, counts = random_reference(seed=3), set()
    for seed in range(6):
        text, count = by_hand(runtime, seed, 6, most, spread)
        words = f"colar:r=3,spread={spread},most={most}"
        search = search_of(runtime, words, CONFIG, context=fresh(runtime, seed=seed))
        assert list(run_loop(runtime, search.loop)) == text, seed
        assert search.room.counts.latents == count, seed
        counts.add(count)
    assert len(counts) > 2 or counts == {3}, "the token is sampled: the rows end at different places"


def test_the_same_beside_other_texts_and_with_drafts(planned: Planned) -> None:
    runtime = random_reference(seed=3)
    alone = searched(runtime, "colar:most=20", CONFIG)
    assert beside(runtime, "colar:most=20", CONFIG) == alone
    drafted = searched(runtime, "colar:most=20", CONFIG, drafter=lambda: RandomDrafter(3))
    assert drafted == alone


def test_room_for_the_rows_is_asked_for(planned: Planned) -> None:
    runtime = random_reference(seed=3)
    search = search_of(runtime, "colar:most=20", CONFIG)
    list(run_loop(runtime, search.loop))
    assert search.need == len(PROMPT) + 6 + len(OPENING) + 1 + 20 + 1
    with pytest.raises(ContextFull, match=r"5 tokens and 45 rows leave a context of 50 no room"):
        searched(runtime, "colar:most=40", CONFIG, context=fresh(runtime, room=50))


def test_other_speeds_have_other_openings(folder: Path) -> None:
    model = edgedec.open(folder, threads=1)
    seen = [model.session().search(f"colar:r={r},most=4", "on", max_tokens=3, seed=1) for r in (1, 5)]
    assert seen[0].tokens != seen[1].tokens
    assert FACTS.opening(5) == "<5>"
    assert LatentFacts(5).opening(2) == "(Thinking speed: 2)"
    with pytest.raises(UsageError, match="r=6: the model was trained for rows of at most 5 tokens"):
        model.session().search("colar:r=6", "on", max_tokens=3)


def test_the_next_turn_reads_the_text_itself(folder: Path) -> None:
    model = edgedec.open(folder, threads=1)
    given: dict[str, Any] = {"max_tokens": 8, "temperature": 0.0, "min_tokens": 8}
    session, ids = model.session(), model.tokenizer.encode("on an inn then")
    found = list(session.tokens(ids, search="colar:most=9", seed=2, **given))
    assert found != list(model.session().tokens(ids, **given)), "the rows changed the text"
    assert session.ids == [*ids, *found]
    assert session.search_report()["latents"] > 0
    clean = edgedec.open(folder, threads=1, prefix_tokens=0)
    assert list(session.tokens(None, **given)) == list(clean.session().tokens([*ids, *found], **given))


def test_a_seed_is_one_text(folder: Path) -> None:
    def told(seed: int) -> tuple[int, ...]:
        return edgedec.open(folder, threads=1).session().search("colar", "on", max_tokens=8, seed=seed).tokens

    assert told(1) == told(1)
    assert len({told(seed) for seed in range(4)}) > 1


def test_the_command_line_counts_the_rows(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "-m", str(folder), "-p", "on", "-n", "4", "--seed", "1", "--search", "colar:most=7"]
    assert run_app([*words, "--json"]) == 0
    search = json.loads(capsys.readouterr().out)["stats"]["search"]
    assert search["lossy"]
    assert 1 <= search["latents"] <= 7
    assert run_app([*words, "--stats"]) == 0
    assert f"{search['latents']} latents" in capsys.readouterr().err


def test_what_cannot_be_is_named(tiny: Path, folder: Path, tmp_path: Path, planned: Planned) -> None:
    with pytest.raises(RuntimeUnavailable, match="runs no rows of embeddings"):
        searched(FakeRuntime(embeddings=False), "colar", CONFIG)
    model = edgedec.open(tiny, threads=1)
    with pytest.raises(UsageError, match="has no latent head; make one with `edgedec train-latent`"):
        open_latent_head(model, "--search colar")
    with pytest.raises(UsageError, match="does not go with a cache policy"):
        edgedec.open(folder, threads=1).session(cache="streaming:budget=16").search("colar", "on", max_tokens=3)


def test_a_wrong_head_is_named(folder: Path) -> None:
    bundle = Bundle.open(folder)
    hidden = bundle.spec.hidden_size
    install(bundle, network(hidden, facts=replace(FACTS, separator="then the")), bundle.rows("final_norm"))
    with pytest.raises(BundleCorrupt, match="separator 'then the' is not one token"):
        open_latent_head(edgedec.open(folder, threads=1), "test")
    with pytest.raises(UsageError, match=r"is of a model of 8, not of 32"):
        install(bundle, network(8), bundle.rows("final_norm"))
    for said in ("{}", json.dumps({"most": 0}), json.dumps({"most": 5, "speed": "slow"}), "no JSON"):
        graph = graph_of(network(hidden), np.ones(hidden, np.float32), 1e-5)
        graph.metadata_props[0].value = said
        put(folder, graph)
        with pytest.raises(BundleCorrupt, match=r"latent_head\.onnx.* latent head"):
            open_latent_head(edgedec.open(folder, threads=1), "test")
    put(folder, graph_of(network(8), np.ones(8, np.float32), 1e-5))
    with pytest.raises(BundleCorrupt, match=r"reads \[8\], the model has states of 32"):
        open_latent_head(edgedec.open(folder, threads=1), "test")


def put(folder: Path, graph: onnx.ModelProto) -> None:
    from edgedec.export.amend import add_files

    assert graph.metadata_props[0].key == FACTS_KEY
    add_files(Bundle.open(folder), {LATENT_HEAD: graph.SerializeToString()}, lambda manifest: manifest)


def test_facts_that_are_nested_too_deeply_are_refused() -> None:
    with pytest.raises(BundleCorrupt, match="h: not a latent head of edgedec"):
        facts_of({FACTS_KEY: "[" * 200_000}, "h")


def test_the_line_of_a_search_has_what_there_was() -> None:
    found = {"search": "colar", "lossy": True, "candidates": 1, "tokens": 6, "forwards": 9, "scorer_calls": 0}
    assert _searched(found | {"latents": 3}) == "\nlossy: search colar: 1 texts, 6 tokens, 9 forwards, 3 latents"
    called = found | {"lossy": False, "search": "best", "latents": 0, "scorer_calls": 2}
    assert _searched(called) == "\nsearch best: 1 texts, 6 tokens, 9 forwards, 2 scorer calls"
