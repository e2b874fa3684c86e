"""Dynamic tokenization: prompts in fewer rows, by hand and on the bundled model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scripted import CAN, Scripted, Text, spec_of

import edgedec
from edgedec.bundle.subwords import LAYER, SubwordNetwork, open_subwords, save_subwords
from edgedec.cli._app import run_app
from edgedec.constraints import regex
from edgedec.decoding.scheduler.batch import Batch
from edgedec.errors import UsageError
from edgedec.kernels.cpu.loader import why_not
from edgedec.policies import PolicyHost, make_policy
from edgedec.policies._joined import JoinedEmbeddings
from edgedec.policies.subwords import Subwords
from edgedec.text.subwords import PieceBytes

SPEC = spec_of()
PIECES: list[PieceBytes] = [None, b"a", b"b", b" c"]
# " c" "a" stands there three times.
IDS = [3, 1, 2, 3, 1, 2, 0, 3, 1]
STORY = (
    "Bartholomew the hippopotamus met Elizabeth, a philosophical xylophonist. Elizabeth quarrelled with Bartholomew "
    "about jurisprudence, hippopotamus to xylophonist. "
)


class Letters:
    def pieces(self, ids: Sequence[int]) -> list[PieceBytes]:
        return [PIECES[i] for i in ids]

    def whole(self, joined: bytes) -> bool:
        return b" " not in joined[1:]

    def encode(self, text: str) -> list[int]:
        return list(map(int, text.split()))


def text(keep: float = 0.7, merges: int = 99, joined: JoinedEmbeddings | None = None, **host: Any) -> Text:
    made = Text(Scripted(SPEC), "snapkv")
    one = Letters()
    made.policy = Subwords(SPEC, lambda: one, joined or JoinedEmbeddings(None), keep, merges)  # type: ignore[arg-type,return-value]
    made.policy.words = "subwords"
    return made


def test_joined_rows_by_hand() -> None:
    """Two calls of four rows at most: " ca" b " ca" b, then what may not be joined and " ca". A joined row stands at
    the place of its last token and has the mean of its parts' embeddings; token i's is [i, -1] here."""
    one = text().read(IDS, 4)
    embedded, *calls = one.runtime.calls  # type: ignore[attr-defined]
    assert (embedded.blocks, embedded.rows.tokens.tolist(), embedded.outputs.hidden) == ((), [0, 1, 2, 3], (-1,))
    assert [call.rows.positions.tolist() for call in calls] == [[1, 2, 4, 5], [6, 8]]
    assert [call.rows.row_numbers().tolist() for call in calls] == [[1, 2, 4, 5], [0, 2]]
    rows = np.concatenate([call.rows.embeddings for call in calls])
    assert rows.tolist() == [[2, -1], [2, -1], [2, -1], [2, -1], [0, -1], [2, -1]]
    assert one.cache.length == 9
    assert one.kept() == [[1, 2, 4, 5, 6, 8]] * 2
    assert one.step(2).kept()[0] == [1, 2, 4, 5, 6, 8, 9, 10]
    report = one.policy.report(one.cache)
    assert (report["slots"], report["of"], report["lossy"]) == (16, 22, True)


def test_how_much_is_joined() -> None:
    def sizes(keep: float, merges: int = 99) -> list[int]:
        policy = text(keep, merges).policy
        assert isinstance(policy, Subwords)
        return policy.sizes(IDS)

    assert sizes(0.7) == [2, 1, 2, 1, 1, 2]
    assert sizes(0.56) == [2, 1, 2, 1, 1, 2], "6 of 9 rows are the share rounded up"
    assert sizes(0.55) == [3, 3, 1, 2]
    assert sizes(0.01, 1) == [2, 1, 2, 1, 1, 2]
    assert sizes(0.01, 0) == [1] * 9
    assert sizes(1.0) == [1] * 9


def test_texts_without_joins_are_read_as_they_are() -> None:
    for one, ids in ((text(keep=1), IDS), (text(), [3] * 9), (text(), IDS[:7])):
        one.read(ids, 4)
        assert all(call.rows.embeddings is None for call in one.runtime.calls)  # type: ignore[attr-defined]
        assert one.kept()[0] == list(range(len(ids)))


def test_a_later_prompt_is_joined_by_itself() -> None:
    one = text().read(IDS)
    one.read([3, 1, 2, 3, 1, 2, 3, 1])
    assert one.kept()[0] == [1, 2, 4, 5, 6, 8, 9, 11, 12, 14, 15, 17], "the token that waited is the first of it"


def test_pairs_of_a_file(tmp_path: Path) -> None:
    """a b is the most frequent there, " c" a in the prompt."""
    letters = Letters()
    host = PolicyHost(SPEC, CAN, joinable=lambda: letters)  # type: ignore[arg-type,return-value]
    file = tmp_path / "texts.jsonl"
    file.write_text("".join(json.dumps({"text": one}) + "\n" for one in ("1 2 1 2", "3 1 0", "3 1 2 0 2 0 1 2")))
    policy = make_policy(f"subwords:by=mean,merges=1,keep=0.1,texts={file}", host)
    assert isinstance(policy, Subwords)
    assert policy.pairs == ((b"a", b"b"),)
    assert policy.sizes(IDS) == [1, 2, 1, 2, 1, 1, 1]
    (tmp_path / "one.txt").write_text("3 1 3 1 2")
    policy = make_policy(f"subwords:by=mean,merges=1,texts={tmp_path}/one.txt", host)
    assert isinstance(policy, Subwords)
    assert policy.sizes(IDS) == [2, 1, 2, 1, 1, 2]
    (tmp_path / "bad.jsonl").write_text('{"prompt": 1}\n')
    for name, why in (("none", "no such file"), ("bad.jsonl", 'JSON lines with a "text" each')):
        with pytest.raises(UsageError, match=why):
            make_policy(f"subwords:by=mean,texts={tmp_path}/{name}", host)
    with (tmp_path / "large.txt").open("wb") as large:
        large.truncate((64 << 20) + 1)
    with pytest.raises(UsageError, match="has more than 64 MiB"):
        make_policy(f"subwords:by=mean,texts={tmp_path}/large.txt", host)


def test_refusals(tmp_path: Path) -> None:
    host = PolicyHost(SPEC, CAN)
    with pytest.raises(UsageError, match="no tokenizer"):
        make_policy("subwords", host)
    with pytest.raises(UsageError, match="no such file; make it with edgedec train-subwords"):
        make_policy(f"subwords:path={tmp_path}/none", host)
    with pytest.raises(UsageError, match=r"needs a runtime with embeddings, selections"):
        make_policy("subwords", PolicyHost(SPEC, replace(CAN, embeddings=False, selections=False)))


def test_a_word_is_made_once() -> None:
    """By one network for all sessions; the latest words are kept."""
    made = list[tuple[int, ...]]()

    class Counting(SubwordNetwork):
        def made(self, parts: Any) -> Any:
            made.append(parts.shape[:2])
            return parts.sum(1)

    joined = JoinedEmbeddings(Counting({}, 8, 0))
    one, two = text(joined=joined).read(IDS), text(joined=joined).read([3, 1, 3, 1, 3, 1, 2, 2, 2], 4)
    assert made == [(1, 2)], "three times in the first text, three times in the second"
    calls = one.runtime.calls[1:], two.runtime.calls[1:]  # type: ignore[attr-defined]
    assert calls[0][0].rows.embeddings[0].tolist() == [4, -2]
    assert calls[1][0].rows.embeddings[0].tolist() == [4, -2], "as it was made in the first"


# ---- the network


def arrays(hidden: int = 2, width: int = 8, longest: int = 3, layers: int = 1) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    found = {"down": (width, hidden), "up": (hidden, width), "place": (longest, width), "count": (longest, width)}
    found |= {f"{i}.{name}": (a * width, b * width) for i in range(layers) for name, (a, b) in LAYER.items()}
    made = {name: rng.normal(0, 0.5, shape).astype(np.float32) for name, shape in found.items()}
    return made | {"mix": np.ones((longest, longest), np.float32), "scale": np.float32(0.5).reshape(())}


def test_a_word_by_itself(tmp_path: Path) -> None:
    """Its embedding is the same bytes, whatever is made beside it."""
    save_subwords(tmp_path / "it", SPEC, 1, arrays())
    network = open_subwords(tmp_path / "it", SPEC)
    assert (network.longest, network.layers) == (3, 1)
    for count in (2, 3):
        parts = np.random.default_rng(1).normal(0, 1, (5, count, 2)).astype(np.float32)
        found = network.made(parts)
        assert found.shape == (5, 2)
        for i in range(5):
            assert network.made(parts[i : i + 1]).tobytes() == found[i].tobytes()
        assert np.abs(found - network.made(parts[:, ::-1])).max() > 0.01, "places count"


def test_broken_files(tmp_path: Path) -> None:
    path = tmp_path / "it"
    save_subwords(path, SPEC, 1, arrays())
    raw = path.read_bytes()
    for broken in (b"", raw[:100], raw[:-1], raw[:-5] + b"xxxxx"):
        (tmp_path / "broken").write_bytes(broken)
        with pytest.raises(UsageError, match="broken"):
            open_subwords(tmp_path / "broken", SPEC)
    with pytest.raises(UsageError, match=r"for 'scripted': make it again for 'other' with `edgedec train-subwords`"):
        open_subwords(path, replace(SPEC, architecture="other"))
    good = arrays()
    wrong: list[tuple[int, dict[str, Any]]] = [(2, good), (1, arrays(hidden=3)), (1, good | {"more": good["mix"]})]
    wrong += [(1, good | {"scale": np.float32(0).reshape(())}), (1, good | {"up": good["up"] * np.nan})]
    wrong += [(1, {name: a for name, a in good.items() if name != "place"}), (1, arrays(width=6)), (17, good)]
    for layers, given in wrong:
        save_subwords(path, SPEC, layers, given)
        with pytest.raises(UsageError, match=r"do not fit this model|not finite"):
            open_subwords(path, SPEC)


# ---- the bundled model


@pytest.fixture(scope="module")
def model(nano: Path) -> edgedec.Model:
    if why_not() is not None:
        pytest.skip(f"native engine: {why_not()}")
    return edgedec.open(nano, engine="native", threads=1, prefix_tokens=0)


@pytest.fixture(scope="module")
def network(nano: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("network") / "it.subwords"
    bundle = edgedec.open(nano, engine="reference").bundle
    save_subwords(path, bundle.spec, 1, arrays(bundle.spec.hidden_size, longest=8))
    return path


def said(model: edgedec.Model, words: str, n: int = 16, **how: Any) -> tuple[list[int], edgedec.Session]:
    session = model.session(cache=words, **how)
    return [int(t) for t in session.tokens(model.tokenizer.encode(STORY * 3), max_tokens=n, ignore_eos=True)], session


def saved(session: edgedec.Session) -> dict[str, Any]:
    return session._context.cache.save()


def same(one: edgedec.Session, other: edgedec.Session) -> bool:
    a, b = saved(one), saved(other)
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def test_the_whole_share_is_the_whole_cache(model: edgedec.Model) -> None:
    whole, one = said(model, "full"), said(model, "subwords:by=mean,keep=1")
    assert whole[0] == one[0]
    assert same(whole[1], one[1])
    absent = said(model, "subwords")
    assert same(whole[1], absent[1])
    report = absent[1].cache_report()
    assert (report["lossy"], report["share"]) == (False, 1.0)
    assert report["absent"].endswith(".subwords")


def test_engines_agree(model: edgedec.Model, nano: Path, network: Path) -> None:
    words, reference = f"subwords:path={network},keep=0.6", edgedec.open(nano, engine="reference")
    ids, found = model.tokenizer.encode(STORY), []
    for each in (model, reference):
        session = each.session(cache=words, speculate="off")
        (token,) = session.tokens(ids, max_tokens=1, logprobs=0, ignore_eos=True)
        found.append((session._context.cache.positions(0).tolist(), token.logprob))
    assert found[0][0] == found[1][0]
    assert len(found[0][0]) < 0.7 * len(ids)
    assert found[0][1] == pytest.approx(found[1][1], abs=0.1)  # native's products round rows to int8


def test_drafts_forks_and_files(model: edgedec.Model, network: Path, tmp_path: Path) -> None:
    words = f"subwords:path={network},keep=0.7"
    plain, alone = said(model, words, speculate="off")
    drafted, session = said(model, words, speculate="copy+recycling:fixed=5")
    assert session.stats.accepted > 0
    assert drafted == plain != said(model, "full")[0]
    assert same(alone, session)
    session.save(tmp_path / "it")
    loaded, fork = model.session(cache=words), session.fork()
    loaded.load(tmp_path / "it")
    more = [[int(t) for t in s.tokens(None, max_tokens=6, ignore_eos=True)] for s in (session, fork, loaded)]
    assert more[0] == more[1] == more[2]
    with pytest.raises(edgedec.errors.SessionError):
        model.session().load(tmp_path / "it")


def test_texts_of_a_batch(model: edgedec.Model, network: Path) -> None:
    words = f"subwords:path={network},keep=0.7"
    alone, prompt = said(model, words)[0], model.tokenizer.encode(STORY * 3)
    batch, found = Batch(model.runtime), [list[int](), list[int]()]
    for into in found:
        add = lambda token, into=into: None if token is None else into.append(int(token))  # noqa: E731
        model.session(cache=words).submit(batch, prompt, add, max_tokens=16, ignore_eos=True)
    batch.run()
    assert found == [alone, alone]


def test_constraints_and_full_contexts(model: edgedec.Model, network: Path) -> None:
    words, ids = f"subwords:path={network},keep=0.7", model.tokenizer.encode(STORY)
    yes, found = regex(model, "(yes|no), [a-z ]{12}"), list[str]()
    for how in ("off", "copy+recycling:fixed=5"):
        session = model.session(cache=words, speculate=how)
        found.append("".join(session.generate(ids, max_tokens=12, constraint=yes)))
    assert found[0] == found[1]
    assert found[0].startswith(("yes, ", "no, "))
    session = model.session(cache=words, context=len(ids) + 8, on_full="slide", speculate="off")
    assert len(list(session.tokens(ids, max_tokens=40, ignore_eos=True))) == 40


def test_a_command(network: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = f"subwords:path={network},keep=0.7"
    assert run_app(["run", "-p", STORY, "-n", "4", "--cache", words, "--stats", "--engine", "reference"]) == 0
    assert f"lossy: cache policy {words} keeps" in capsys.readouterr().err
