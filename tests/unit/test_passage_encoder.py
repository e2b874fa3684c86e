"""`rapid:encoder=`: passages are the nearest by an encoder's vectors, each is embedded once, the text is as without."""

from __future__ import annotations

from pathlib import Path
from time import thread_time
from typing import Any

import encoder_checkpoints as checkpoints
import numpy as np
import pytest
from typer.testing import CliRunner

import edgedec
from edgedec import Sampling, UsageError
from edgedec.cli._app import app
from edgedec.drafters import DrafterContext, make_drafter
from edgedec.drafters._models import passages as encoding
from edgedec.drafters.rapid import Rapid, retrieved
from edgedec.encoding import TextEncoder
from edgedec.export.exporter import ExportOptions, export
from edgedec.kernels.cpu import loader

pytestmark = pytest.mark.skipif(loader.why_not() is not None, reason=f"native engine: {loader.why_not()}")

BUDGET, CHUNK, REFRESH, LEAST = 128, 24, 40, 100
SIZES = f"least={LEAST},budget={BUDGET},chunk={CHUNK},refresh={REFRESH}"
WORDS = [*"abcdefghijklmnopqrstuvwxyz", "the", "cat", "dog", "sat", "mat", "red ball", "tree", "rain", "boat", "book"]


@pytest.fixture(scope="module")
def model(nano: Path) -> edgedec.Model:
    return edgedec.open(nano, engine="native", threads=1)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An encoder of up to 24 tokens, another with words in front of texts, and a reranker."""
    folder, found = tmp_path_factory.mktemp("encoders"), {}
    for name, write in (
        ("encoder", checkpoints.sentence_encoder),
        ("prompts", lambda at: checkpoints.sentence_encoder(at, prompts={"query": "who: ", "document": "the cat "})),
        ("reranker", checkpoints.reranker),
    ):
        found[name] = folder / name
        export(str(write(folder / f"{name}-checkpoint")), found[name], ExportOptions(weights="f32", runtimes=()))
    return found


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str | None]]:
    """The texts that are embedded, with the names of their prompts."""
    texts, own = list[tuple[str, str | None]](), TextEncoder.read

    def reading(self: TextEncoder, given: Any, prompt: str | None = None, truncate: bool = False) -> Any:
        texts.extend((text, prompt) for text in given)
        return own(self, given, prompt, truncate)

    monkeypatch.setattr(TextEncoder, "read", reading)
    return texts


def story(sentences: int) -> str:
    """Sentences of which no two are alike."""
    rng = np.random.default_rng(7)
    return "".join(f"{' '.join(rng.choice(WORDS, 6)).capitalize()}. " for _ in range(sentences))


def expected(model: edgedec.Model, encoder: edgedec.Model, ids: list[int], **prompts: str) -> list[int]:
    """The short text by the definition, of single embeddings."""

    def vector(tokens: list[int], prompt: str | None) -> np.ndarray:
        text = model.tokenizer.decode(tokens).strip("\ufffd").strip()
        found: np.ndarray = encoder.embed(text, prompt=prompt, truncate=True)
        return found / np.linalg.norm(found)

    tail, query = len(ids) - 2 * CHUNK, vector(ids[-CHUNK:], prompts.get("query"))
    starts = list(range(32, tail - CHUNK + 1, CHUNK))
    cosines = [float(vector(ids[at : at + CHUNK], prompts.get("document")) @ query) for at in starts]
    best = sorted(range(len(starts)), key=lambda i: -cosines[i])[: (BUDGET - 32) // CHUNK - 2]
    return [*ids[:32], *(token for i in sorted(best) for token in ids[starts[i] : starts[i] + CHUNK])]


def drafter_of(model: edgedec.Model, encoder: Path | None, tables: dict[Any, Any] | None = None) -> Rapid:
    host = DrafterContext(model.runtime, model.bundle, lambda: model.tokenizer, tables)
    options = {"budget": BUDGET, "chunk": CHUNK, "refresh": REFRESH, "least": LEAST}
    found = make_drafter("rapid", host, options | ({} if encoder is None else {"encoder": str(encoder)}))
    assert isinstance(found, Rapid)
    return found


def many(n: int) -> int:
    """The passages of a text of n tokens."""
    return (n - 2 * CHUNK - 32) // CHUNK


def short(drafter: Rapid, ids: list[int]) -> list[int]:
    drafter._passages.settle(ids, len(ids))
    return drafter._passages._short


@pytest.mark.parametrize(
    ("name", "prompts"), [("encoder", {}), ("prompts", {"query": "query", "document": "document"})]
)
def test_passages_are_the_nearest_by_their_vectors(
    model: edgedec.Model, bundles: dict[str, Path], name: str, prompts: dict[str, str]
) -> None:
    ids, encoder = model.tokenizer.encode(story(80)), edgedec.open(bundles[name], engine="native", threads=1)
    drafter, by_tokens = drafter_of(model, bundles[name]), drafter_of(model, None)
    differ = 0
    for n in range(200, len(ids), 37):
        found = short(drafter, ids[:n])
        assert found == expected(model, encoder, ids[:n], **prompts)
        differ += found != short(by_tokens, ids[:n])
        drafter.reset()
        by_tokens.reset()
    assert differ > 5, "tokens in common choose the same passages"


def test_the_sides_have_their_prompts(
    model: edgedec.Model, bundles: dict[str, Path], read: list[tuple[str, str | None]]
) -> None:
    ids = model.tokenizer.encode(story(60))[:250]
    short(drafter_of(model, bundles["prompts"]), ids)
    assert read[-1] == (model.tokenizer.decode(ids[-CHUNK:]).strip(), "query")
    assert {prompt for _, prompt in read[:-1]} == {"document"}
    read.clear()
    short(drafter_of(model, bundles["encoder"]), ids)
    assert {prompt for _, prompt in read} == {None}


def test_the_encoder_is_not_asked_when_all_passages_fit(
    model: edgedec.Model, bundles: dict[str, Path], read: list[tuple[str, str | None]]
) -> None:
    ids = model.tokenizer.encode(story(60))[: 32 + 4 * CHUNK]
    assert short(drafter_of(model, bundles["encoder"]), ids)[32:] == ids[32 : 32 + 2 * CHUNK]
    assert read == []


def test_each_passage_is_embedded_once(
    model: edgedec.Model, bundles: dict[str, Path], read: list[tuple[str, str | None]]
) -> None:
    ids, drafter = model.tokenizer.encode(story(80))[:500], drafter_of(model, bundles["encoder"])
    counts = []
    for n in (300, 340, 380, 300):
        read.clear()
        short(drafter, ids[:n])
        counts.append(len(read) - 1)
    assert counts == [many(300), many(340) - many(300), many(380) - many(340), 0]
    assert drafter.report()["embedded"] == sum(counts)
    fork, tables = drafter_of(model, bundles["encoder"]), dict[Any, Any]()
    fork.inherit(drafter)
    read.clear()
    assert short(fork, ids[:380]) == expected(model, edgedec.open(bundles["encoder"], engine="native"), ids[:380])
    assert len(read) == 1 + 1 + many(380), "the query, and those of `expected`"
    for _ in range(2):
        read.clear()
        short(drafter_of(model, bundles["encoder"], tables), ids[:300])
    assert len(read) == 1, "sessions that share tables"


def test_vectors_of_the_text_at_hand_stay(
    model: edgedec.Model, bundles: dict[str, Path], read: list[tuple[str, str | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding, "_KEPT", 12 * 48)
    ids, drafter = model.tokenizer.encode(story(80)), drafter_of(model, bundles["encoder"])
    short(drafter, ids[:300])
    read.clear()
    short(drafter, ids[:340])
    assert len(read) == 2, "a new passage and the query"
    short(drafter, ids[100:300])
    read.clear()
    short(drafter, ids[:340])
    assert len(read) == 1 + many(340), "another text's were dropped"


def test_half_characters_are_left_out(
    model: edgedec.Model, bundles: dict[str, Path], read: list[tuple[str, str | None]]
) -> None:
    ids = model.tokenizer.encode("ab 😀 c" + "漢字😀é." * 60)
    cut = [model.tokenizer.decode(ids[at : at + CHUNK]) for at in range(32, len(ids) - 3 * CHUNK, CHUNK)]
    assert sum("\ufffd" in text for text in cut) > 3
    short(drafter_of(model, bundles["encoder"]), ids)
    assert len(read) > 5
    assert all(text and "\ufffd" not in text for text, _ in read)


def test_passages_without_text_are_far(model: edgedec.Model, bundles: dict[str, Path]) -> None:
    """Special tokens have no text."""
    special = min(model.tokenizer.hidden)
    drafter = drafter_of(model, bundles["encoder"])
    found = drafter._passages._encoder.cosines([[special] * 4, model.tokenizer.encode("the cat")], [5, 6])
    assert found[0] == 0 != found[1]
    assert not drafter._passages._encoder.cosines([[7, 8]], [special]).any()


def test_rare_tokens_in_common_weigh_more() -> None:
    found = encoding.shared_tokens([[1, 2], [9, 9], [5, 6], [7, 6]], [6, 5, 6])
    np.testing.assert_allclose(found, [0, 0, np.log(5 / 2) + np.log(5 / 3), np.log(5 / 3)])


def test_scores_choose() -> None:
    ids = [1, 2, 9, 9, 5, 6, 7, 7]
    seen = list[Any]()

    def scores(passages: Any, query: Any) -> Any:
        seen.append(([list(passage) for passage in passages], query))
        return np.array([0.5, 0.5, -1.0, 0.7])

    assert retrieved(ids, [6, 5], 2, 2, 0, scores) == [0, 6], "of equals the first"
    assert seen == [([[1, 2], [9, 9], [5, 6], [7, 7]], [6, 5])]
    assert retrieved(ids, [6, 5], 2, 4, 0, scores) == [0, 2, 4, 6]
    assert len(seen) == 1


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0, seed=5)], ids=["greedy", "drawn"])
def test_the_text_is_as_without_drafts(model: edgedec.Model, bundles: dict[str, Path], sampling: Sampling) -> None:
    ids, found = model.tokenizer.encode(story(80))[:330], {}
    for how in ("off", f"rapid:{SIZES},fixed=4,encoder={bundles['encoder']}"):
        session = model.session(speculate=how)
        found[how] = [int(t) for t in session.tokens(ids, max_tokens=90, sampling=sampling, ignore_eos=True)]
    assert len(set(map(tuple, found.values()))) == 1
    assert session.stats.accepted > 15
    report = session.report()["drafters"]["rapid"]
    assert report["reads"] < 200
    assert 12 < report["embedded"] < 18


def transferred(session: edgedec.Session, ids: list[int], n: int) -> list[int]:
    how = Sampling(temperature=0.8, seed=3)
    return [int(t) for t in session.tokens(ids, max_tokens=n, sampling=how, ignore_eos=True)]


def test_transfer_bends_towards_these_passages(model: edgedec.Model, bundles: dict[str, Path]) -> None:
    """The text is a function of the prompt and the seed, in sessions and forks, however much is drafted."""
    ids, how = model.tokenizer.encode(story(80))[:250], f"rapid:{SIZES},transfer=6,encoder={bundles['encoder']}"
    texts = [transferred(model.session(speculate=f"{how},length={n}"), ids, 60) for n in (2, 8)]
    assert texts[0] == texts[1]
    assert texts[0] != transferred(model.session(speculate=f"rapid:{SIZES},transfer=6"), ids, 60)
    session = model.session(speculate=how)
    assert transferred(session, ids, 60) == texts[0]
    made = session._drafter._reader.report()["embedded"]
    twin = session.fork()
    both = [transferred(each, each.ids, 45) for each in (session, twin)]
    assert both[0] == both[1]
    new = session._drafter._reader.report()["embedded"] - made
    assert 0 < new == twin._drafter._reader.report()["embedded"] < made, "the fork knows the older passages"


@pytest.mark.parametrize("more", ["fixed=4", "transfer=6"])
def test_a_saved_session_goes_on(model: edgedec.Model, bundles: dict[str, Path], tmp_path: Path, more: str) -> None:
    ids, how = model.tokenizer.encode(story(80))[:250], f"rapid:{SIZES},{more},encoder={bundles['encoder']}"
    first, later = model.session(speculate=how), model.session(speculate=how)
    list(first.tokens(ids, max_tokens=30, ignore_eos=True))
    first.save(tmp_path / "text")
    later.load(tmp_path / "text")
    texts = [[int(t) for t in each.tokens(each.ids, max_tokens=50, ignore_eos=True)] for each in (first, later)]
    assert texts[0] == texts[1]
    assert later.stats.accepted > 5


def test_the_governor_sees_the_time(
    model: edgedec.Model, bundles: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = TextEncoder.vectors

    def slow(self: TextEncoder, *args: Any) -> Any:
        until = thread_time() + 0.3
        while thread_time() < until:
            pass
        return own(self, *args)

    monkeypatch.setattr(TextEncoder, "vectors", slow)
    session = model.session(speculate=f"rapid:{SIZES},fixed=4,encoder={bundles['encoder']}")
    list(session.tokens(model.tokenizer.encode(story(80))[:300], max_tokens=8, ignore_eos=True))
    report = session.report()["drafters"]["rapid"]
    assert report["asked"] >= 1
    assert report["seconds"] >= 0.6, "passages and the query"
    assert 0.6 <= report["embed_s"] < 600


@pytest.mark.parametrize(
    ("where", "why"),
    [
        ("./nowhere", r"encoder=./nowhere: nowhere: no such bundle folder; make a bundle"),
        ("https://example.org/encoder", r"encoder=https://example.org/encoder: .*no such bundle folder"),
        ("nano", r"encoder=nano: .* generates text; passages need a text encoder"),
        ("{reranker}", r"cannot embed; this model can rerank or classify"),
    ],
)
def test_refusals(model: edgedec.Model, bundles: dict[str, Path], where: str, why: str) -> None:
    how = f"rapid:encoder='{where.format(**bundles)}'"
    with pytest.raises(UsageError, match=f"^drafter rapid: .*{why}[^\n]*$"):
        model.session(speculate=how)


def test_texts_need_tokenizers(model: edgedec.Model, bundles: dict[str, Path], tmp_path: Path, nano: Path) -> None:
    checkpoint = checkpoints.sentence_encoder(tmp_path / "checkpoint")
    (checkpoint / "tokenizer.json").unlink()
    export(str(checkpoint), tmp_path / "encoder", ExportOptions(runtimes=()))
    with pytest.raises(UsageError, match=f"^drafter rapid: encoder=.*{tmp_path}/encoder has no tokenizer, so it reads"):
        model.session(speculate=f"rapid:encoder={tmp_path}/encoder")


def test_the_command_line(bundles: dict[str, Path], tmp_path: Path) -> None:
    prompt = tmp_path / "prompt.txt"
    prompt.write_text(story(60))
    common = ["run", "-f", str(prompt), "-n", "24", "--temp", "0", "--json"]
    found = [
        CliRunner().invoke(app, [*common, "--spec", how])
        for how in ("off", f"rapid:{SIZES},fixed=4,encoder={bundles['encoder']}", "rapid:encoder=nano")
    ]
    assert [each.exit_code for each in found] == [0, 0, 1], found[1].output
    assert '"embedded":' in found[1].output
    assert len(found[2].output.strip().splitlines()) == 1
