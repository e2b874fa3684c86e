"""Entropy-adaptive decoding: who writes which token follows from the entropies, and a naive loop writes the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cut import first_layers
from drafting import PROMPT, run

import edgedec
from edgedec import Sampling, UsageError
from edgedec.drafters._models.reader import DraftReader
from edgedec.drafters.ead import Ead, Writer, entropy
from edgedec.runtime import Rows, Runtime, logits_of
from edgedec.sampling import draw_at, probs
from edgedec.testing.fakes import FakeRuntime, tiny_spec

SPEC = tiny_spec(context_length=256)
VOCAB = SPEC.vocab_size


def large() -> FakeRuntime:
    return FakeRuntime(SPEC, spread=7.0)


def small() -> FakeRuntime:
    return FakeRuntime(tiny_spec(context_length=256, n_layers=2), seed=5, spread=6.0)


def test_bits() -> None:
    assert entropy(np.zeros(4, np.float32)) == pytest.approx(2.0)
    assert entropy(np.array([1, 1, -np.inf], np.float32)) == pytest.approx(1.0)
    assert entropy(np.array([90, 0, 0], np.float32)) == pytest.approx(0.0, abs=1e-9)
    p = np.array([0.5, 0.25, 0.25])
    assert entropy((np.log(p) + 3).astype(np.float32)) == pytest.approx(1.5)


def written(tau: float, bits: list[float], window: int, stay: int) -> str:
    """Who writes each token: T the target, S the small model."""
    writer, found = Writer(tau, window, stay), ""
    for one in bits:
        found += "T" if writer.large else "S"
        writer = writer.after(one)
    return found + ("T" if writer.large else "S")


@pytest.mark.parametrize(("bits", "window", "stay", "expected"), [
    ([0.5, 0.7, 0.2, 1.6, 1.2], 2, 2, "TTSSST"),  # the file's example: 1.4 is above, 0.9 was not
    ([2.0, 0.0, 0.0], 2, 1, "TTSS"),  # a mean of 1 is tau: the change needs no less
    ([0.0, 2.0, 2.0], 2, 1, "TSTT"),  # ... and no more the other way
    ([0.0] * 4, 1, 3, "TTTSS"),  # three tokens at least
    ([9.0, 0.0, 0.0, 0.0], 3, 1, "TTTTS"),  # the latest alone would change at the second
    ([0.0, 0.0, 0.0, 9.0], 3, 1, "TSSST"),
    ([0.0, 0.0, 3.0, 0.0, 0.0], 4, 2, "TTSSSS"),  # 0.75; of the maximum it would be 3
])  # fmt: skip
def test_who_writes(bits: list[float], window: int, stay: int, expected: str) -> None:
    assert written(1.0, bits, window, stay) == expected


def after(runtime: Runtime, ids: list[int]) -> np.ndarray:
    return logits_of(runtime, Rows.chain(ids, 0), runtime.new_cache(256), len(ids) - 1)[-1]


def naive(tau: float, window: int, stay: int, n: int, sampling: Sampling) -> tuple[list[int], str]:
    """The method as its paper has it: one model at a time, each on the whole text."""
    models, rng, ids = (large(), small()), np.random.default_rng(7), list(PROMPT)
    owner, stayed, latest, who = 0, 0, list[float](), ""
    for _ in range(n):
        logits = after(models[owner], ids)
        x = logits.astype(np.float64)
        p = np.exp(x) / np.exp(x).sum()
        latest.append(float(-(p * np.log2(p)).sum()))
        u = rng.random() if sampling.temperature else 0.0
        ids.append(draw_at(probs(logits, sampling, ids, len(PROMPT)), u))
        who, stayed, mean = who + "TS"[owner], stayed + 1, float(np.mean(latest[-window:]))
        if stayed >= stay and (mean <= tau if owner == 0 else mean >= tau):
            owner, stayed = 1 - owner, 0
    return ids[len(PROMPT) :], who


HOWS = {
    "greedy": Sampling(),
    "drawn": Sampling(temperature=0.9, top_k=6),
    "penalised": Sampling(temperature=1.2, presence_penalty=0.7, repetition_penalty=1.1),
}


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("length", [1, 4, 16])
@pytest.mark.parametrize(("tau", "window", "stay"), [(2.45, 5, 3), (2.3, 2, 1), (2.5, 3, 7)])
def test_the_text_is_that_of_a_naive_loop(how: str, length: int, tau: float, window: int, stay: int) -> None:
    expected, who = naive(tau, window, stay, 90, HOWS[how])
    assert min(who.count("T"), who.count("S")) > 5, who
    assert "SSS" in who
    drafter = Ead(DraftReader(small()), VOCAB, Writer(tau, window, stay), length)
    target = large()
    tokens, _, stats, _ = run(target, drafter, max_tokens=90, capacity=256, sampling=HOWS[how])
    assert tokens == expected
    counts = drafter.report()["drafters"]["ead"]
    assert counts["small"] >= who.count("S")
    assert stats.proposed == stats.accepted
    if length > 1:  # the target reads what the small model wrote as rows of few calls
        assert stats.calls < 90 - who.count("S") / 3


def test_no_tau_leaves_one_writer() -> None:
    for tau, owner in ((1e9, "S"), (-1.0, "T")):
        assert set(naive(tau, 5, 10, 40, Sampling())[1][10:]) == {owner}
        drafter = Ead(DraftReader(small()), VOCAB, Writer(tau), 8)
        tokens = run(large(), drafter, max_tokens=40, capacity=256)[0]
        assert tokens == naive(tau, 5, 10, 40, Sampling())[0]


@pytest.fixture(scope="module")
def cut(nano: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return first_layers(nano, tmp_path_factory.mktemp("ead") / "small", 3)


def test_in_sessions_it_is_lossy_and_says_so(cut: Path) -> None:
    model = edgedec.open("nano", engine="reference")
    prompt = model.tokenizer.encode("Once upon a time")
    how = Sampling(temperature=0.8, seed=3)
    texts = []
    for length in (2, 9):
        session = model.session(speculate=f"ead:path={cut},tau=3,stay=3,length={length}")
        texts.append([int(t) for t in session.tokens(prompt, max_tokens=40, sampling=how, ignore_eos=True)])
        assert "another text" in session.report()["lossy"]
        assert session.report()["drafters"]["ead"]["changes"] >= 2
    assert texts[0] == texts[1]
    plain = model.session(speculate="off")
    assert texts[0] != [int(t) for t in plain.tokens(prompt, max_tokens=40, sampling=how, ignore_eos=True)]


def test_forks_and_stopped_texts_go_on_as_one(cut: Path) -> None:
    model = edgedec.open("nano", engine="reference")
    prompt, spec = model.tokenizer.encode("Once upon a time"), f"ead:path={cut},tau=3,stay=3,length=6"
    whole = [int(t) for t in model.session(speculate=spec).tokens(prompt, max_tokens=36, ignore_eos=True)]
    for stop in (9, 14, 17):
        session, found = model.session(speculate=spec), list[int]()
        running = session.tokens(prompt, max_tokens=36, ignore_eos=True)
        for token in running:
            found.append(int(token))
            if len(found) == stop:
                break
        running.close()
        twin = session.fork()
        for one in (session, twin):
            rest = [int(t) for t in one.tokens(None, max_tokens=36 - stop, ignore_eos=True)]
            assert [*found, *rest] == whole


@pytest.mark.parametrize(("options", "why"), [
    (",fixed=3", "fixed=3: a drafter that changes the text"),
    ("+copy", "takes no others beside it"),
    (",tau=-1", "tau=-1: must be 0 or more"),
    (",stay=0", "stay=0"),
    (",window=0", "window=0"),
])  # fmt: skip
def test_refusals(cut: Path, options: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        edgedec.open("nano", engine="reference").session(speculate=f"ead:path={cut}{options}")


def test_a_model_of_other_tokens_is_refused(cut: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgedec.drafters.ead.open_draft", lambda *_: (small(), object()))
    with pytest.raises(UsageError, match="of the same tokenizer"):
        edgedec.open("nano", engine="reference").session(speculate=f"ead:path={cut}")
