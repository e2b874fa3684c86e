"""Datastores: the file, its index against a plain search, the command, drafts, and pruning by a draft model."""

from __future__ import annotations

import json
import lzma
import re
import shlex
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cut import first_layers
from drafting import check, draft_of, reading, replay
from guesses import Proposes
from hypothesis import given, settings
from hypothesis import strategies as st

import edgedec
from edgedec.cli._app import run_app
from edgedec.decoding.context import Context
from edgedec.drafters import Draft
from edgedec.drafters.datastore import DatastoreDrafter
from edgedec.errors import UsageError
from edgedec.kernels.cpu import loader
from edgedec.speculation.guide import Guide, Guided, pruned
from edgedec.storage.datastore import DEPTH, END, Datastore, write_datastore
from edgedec.testing.fakes import FakeRuntime

DIGEST, VOCAB = "ab" * 32, 6
TEXTS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=30), min_size=1, max_size=6)
needs_native = pytest.mark.skipif(loader.why_not() is not None, reason=f"no native engine: {loader.why_not()}")


def made(folder: Path, texts: list[list[int]], segment: int = 1 << 21, onto: Datastore | None = None) -> Datastore:
    write_datastore(folder / "it.store", DIGEST, VOCAB, texts, onto, segment)
    return Datastore(folder / "it.store", DIGEST, VOCAB)


def followers(texts: list[list[int]], end: list[int]) -> list[int]:
    """What follows `end` in each place of the texts, by a plain search."""
    found = []
    for text in texts:
        whole = [*text, END]
        found += [whole[i + len(end)] for i in range(len(text) - len(end) + 1) if whole[i : i + len(end)] == end]
    return sorted(found)


@given(TEXTS, st.lists(st.integers(0, 3), min_size=1, max_size=20), st.sampled_from([1 << 21, 200]))
@settings(max_examples=80, deadline=None)
def test_the_index_finds_what_a_plain_search_finds(
    tmp_path_factory: pytest.TempPathFactory, texts: list[list[int]], ids: list[int], segment: int
) -> None:
    store = made(tmp_path_factory.mktemp("store"), texts, segment)
    assert store.tokens == sum(map(len, texts)) + len(texts)
    longest = max((n for n in range(1, min(DEPTH, len(ids)) + 1) if followers(texts, ids[-n:])), default=0)
    found = store.find(ids, 10_000)
    assert [length for length, _ in found] == [n for n in (longest, longest // 2 * (longest >= 4)) if n]
    for length, group in found:
        assert sorted(match.next for match in group) == followers(texts, ids[-length:])


def test_segments_hold_bounded_parts_and_an_addition_goes_on_where_the_last_ended(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    texts = [rng.integers(0, VOCAB, n).tolist() for n in (700, 20, 900, 1, 300)]
    whole = made(tmp_path, texts, segment=500)
    assert [len(segment.tokens) for segment in whole.segments] == [500, 500, 500, 426]
    (tmp_path / "it.store").rename(tmp_path / "whole.store")
    grown = made(tmp_path, texts[3:], 500, made(tmp_path, texts[:3], 500))
    assert (tmp_path / "it.store").read_bytes() == (tmp_path / "whole.store").read_bytes()
    assert grown.find(texts[4][:250], 5)[0][1][0].next == texts[4][250]


def test_many_places_are_sampled_evenly(tmp_path: Path) -> None:
    store = made(tmp_path, [[1, 2, 3]] * 300 + [[1, 2, 4]] * 100, segment=300)
    assert len(store.segments) > 4
    (length, group), *_ = store.find([5, 1, 2], 32)
    assert (length, len(group)) == (2, 32)
    assert 20 <= sum(match.next == 3 for match in group) <= 28


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_a_damaged_file_is_refused_by_name(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("store")
    made(folder, [[1, 2, 3, 4], [5, 0]])
    file = folder / "it.store"
    raw = bytearray(file.read_bytes())
    if data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at] ^= data.draw(st.integers(1, 255))
        if 88 <= at < 128:
            return  # the header's unused bytes
    else:
        raw = raw[: data.draw(st.integers(0, len(raw) - 1))]
    file.write_bytes(raw)
    with pytest.raises(UsageError, match=r"it\.store"):
        Datastore(file, DIGEST, VOCAB)


@pytest.mark.parametrize("value", [-2, VOCAB, 1 << 30])
def test_numbers_out_of_range_are_refused_though_the_hash_is_right(tmp_path: Path, value: int) -> None:
    with pytest.raises(UsageError, match="out of range"):
        made(tmp_path, [[1, 2, value]])


def test_another_tokenizer_or_no_file_is_refused_by_name(tmp_path: Path) -> None:
    made(tmp_path, [[1, 2, 3]])
    with pytest.raises(UsageError, match="another tokenizer"):
        Datastore(tmp_path / "it.store", "cd" * 32, VOCAB)
    with pytest.raises(UsageError, match=r"none\.store"):
        Datastore(tmp_path / "none.store", DIGEST, VOCAB)
    with pytest.raises(UsageError, match="no such folder"):
        write_datastore(tmp_path / "no" / "it.store", DIGEST, VOCAB, [])


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    def documents():  # type: ignore[no-untyped-def]
        yield [1, 2, 3]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_datastore(tmp_path / "it.store", DIGEST, VOCAB, documents())
    assert not list(tmp_path.iterdir())


# -- drafts


@given(TEXTS, st.lists(st.integers(0, 3), max_size=12), st.integers(0, 12), st.sampled_from([0.0, 0.1]))
@settings(max_examples=80, deadline=None)
def test_every_draft_is_honest(
    tmp_path_factory: pytest.TempPathFactory, texts: list[list[int]], ids: list[int], nodes: int, least: float
) -> None:
    drafter = DatastoreDrafter(made(tmp_path_factory.mktemp("store"), texts), 1)
    check(drafter.propose(reading([*ids, 1]), nodes, least), nodes, max(least, 0.04), VOCAB)


def test_a_document_is_copied_in_few_calls(tmp_path: Path) -> None:
    text = np.random.default_rng(1).integers(0, VOCAB, 200).tolist()
    assert replay(DatastoreDrafter(made(tmp_path, [text])), text[:8], text[8:]) > 8


def test_the_worked_example_of_pruning() -> None:
    guide = Draft([10, 11], [-1, -1], [0.7, 0.2])
    retrieved = Draft([10, 12, 13, 14], [-1, 0, -1, 2], [0.5, 0.6, 0.4, 0.9])
    cut = pruned(retrieved, guide, 0.25)
    assert (list(cut.tokens), list(cut.parents)) == ([10, 12], [-1, 0])
    assert cut.p == pytest.approx([(0.5 * 0.7) ** 0.5, 0.6])
    assert list(pruned(retrieved, guide, 0.19).tokens) == [10, 12, 13, 14]
    assert pruned(retrieved, Draft(), 0.25) == retrieved  # without a guide the documents are alone


@pytest.mark.parametrize("calls", [False, True])
def test_documents_are_pruned_by_a_proposal_for_the_same_text(calls: bool) -> None:
    """Whether drafters make calls of the model, as generators, or none."""

    class Makes(Proposes):
        def propose(self, context: Context, nodes: int, min_path_prob: float) -> Any:
            draft = super().propose(context, nodes, min_path_prob)
            return settled(iter(()), draft) if calls else draft

    def settled(requests: Iterator[Any], draft: Draft) -> Generator[Any, Any, Draft]:
        yield from requests
        return draft

    runtime, text = FakeRuntime(), reading([1, 2])
    guide = Guide(Makes(Draft([10, 11], [-1, -1], [0.7, 0.2])))
    documents = Guided(Makes(Draft([10, 12, 13], [-1, 0, -1], [0.5, 0.6, 0.01])), [guide])
    assert list(draft_of(runtime, documents.propose(text, 8, 0.0)).tokens) == [10, 12, 13], "nothing guides yet"
    draft_of(runtime, guide.propose(text, 8, 0.0))
    assert list(draft_of(runtime, documents.propose(text, 8, 0.0)).tokens) == [10, 12]
    assert documents.report()["pruned"] == 1
    assert len(draft_of(runtime, documents.propose(reading([1, 2, 3]), 8, 0.0)).tokens) == 3, "of another text"


@needs_native
def test_fused_and_pruned_beats_either_alone(nano: Path, data: Path, tmp_path: Path) -> None:
    """RASD's property, on documents like the texts to come, for a smaller model and for a trained head: over 20 texts,
    because one instruction set's rounding changes what a few are worth; and the text stays as it is."""
    packed = data / "text" / "stories_sampled_t065.txt.xz"
    if not packed.is_file():
        pytest.skip("the sampled stories are not among the shared data")
    stories = lzma.decompress(packed.read_bytes()).decode("utf-8", "ignore")
    (tmp_path / "docs.txt").write_text(stories[:4_000_000])
    prompts = [story[:60] for story in stories[5_000_000:].split("\n") if len(story) > 200][:20]
    assert len(prompts) == 20
    assert run_app(["datastore", "build", str(tmp_path / "docs.txt"), "-o", str(tmp_path / "s"), "--json"]) == 0
    small = first_layers(nano, tmp_path / "small", 4)
    model = edgedec.open("nano", engine="native", threads=1)

    def tokens_a_call(spec: str) -> tuple[float, list[list[int]]]:
        live, calls, texts = model.session(speculate=spec), 0, []
        for prompt in prompts:
            ids = model.tokenizer.encode(prompt)
            texts.append(list(map(int, live.tokens(ids, max_tokens=80, ignore_eos=True))))
            calls += live.stats.calls
        if "+" in spec:
            report = live.report()["drafters"]
            assert report["datastore"]["pruned"] > 0
            assert all(member["accepted"] > 0 for member in report.values())
        return 80 * len(prompts) / calls, texts

    plain = tokens_a_call("off")[1]
    store = f"datastore:path={tmp_path / 's'}"
    for name in (f"model:path={small},gamma=7,fixed=7", "hydra:fixed=7"):
        alone, stored, fused = (tokens_a_call(spec) for spec in (name, f"{store},fixed=7", f"{name}+{store}"))
        assert fused[0] > 1.01 * max(alone[0], stored[0])
        assert alone[1] == stored[1] == fused[1] == plain


# -- the command


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = run_app(["datastore", *argv])
    return code, *capsys.readouterr()


def test_the_command_builds_and_adds(nano: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, lines, store = tmp_path / "a.md", tmp_path / "b.jsonl", tmp_path / "s.store"
    text.write_text("A red fox.\nIt ran.<|endoftext|>\nA blue fox. It sat.\n" * 40)
    lines.write_text('{"question": "Who ran?", "answer": "The fox."}\n\n{"turns": ["Hi", "Ho"]}\n')
    code, out, _ = run(capsys, "build", str(text), "-o", str(store), "--json")
    first = json.loads(out)
    assert code == 0
    assert first["tokens"] == first["added"] > 400
    code, out, _ = run(capsys, "build", str(text), "-o", str(store))
    assert code == 1
    code, out, _ = run(capsys, "add", str(lines), "-o", str(store), "--json")
    assert code == 0
    encode = edgedec.open("nano").tokenizer.encode
    expected = [encode(part, special=False) for part in ("Who ran?", "The fox.", "Hi", "Ho")]
    assert json.loads(out)["added"] == sum(map(len, expected)) + 2
    live = edgedec.open("nano").session(speculate=f"auto+datastore:path={store}")
    assert live.report()["drafters"]["datastore"]["stored"] == json.loads(out)["tokens"]


@pytest.mark.parametrize("name", ["plain.store", "a+b, c.store"])
def test_the_printed_option_can_be_pasted(
    nano: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    text = tmp_path / "a.md"
    text.write_text("A red fox.\nIt ran.\n" * 40)
    code, out, _ = run(capsys, "build", str(text), "-o", str(tmp_path / name))
    assert code == 0
    *_, flag, words = shlex.split(out)
    assert flag == "--spec"
    assert edgedec.open("nano").session(speculate=words).report()["drafters"]["datastore"]["stored"] > 100


def test_a_long_document_is_encoded_in_parts(nano: Path, tmp_path: Path) -> None:
    from edgedec.cli.datastore import encoded

    file = tmp_path / "long.txt"
    file.write_text("A little fox ran home to its den.\n" * 10_000)
    found = list(encoded([file], edgedec.open("nano").tokenizer))
    assert len(found) > 4
    assert max(map(len, found)) < 1 << 16


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        (b"\xff\xfe", "a.txt", r"a\.txt: line 1: not UTF-8"),
        (b'{"text": "x"}\n{"n": 1}\n', "a.jsonl", r"a\.jsonl: line 2: no JSON object"),
        (b"[", "a.jsonl", r"a\.jsonl: line 1: no JSON object"),
        (None, "none.txt", r"none\.txt: No such file"),
        (b"", "a.txt", "no text"),
    ],
)
def test_files_that_cannot_be_read_are_named(
    nano: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, name: str, message: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    code, _, err = run(capsys, "build", str(tmp_path / name), "-o", str(tmp_path / "s.store"))
    assert code == 1
    assert len(err.strip().splitlines()) == 1
    assert re.search(message, err)
    assert not (tmp_path / "s.store").exists()


@pytest.mark.parametrize("spec", ["datastore", "datastore:path=none.store", "datastore:least=0,path=x"])
def test_a_spec_without_a_file_is_refused(nano: Path, spec: str) -> None:
    with pytest.raises(UsageError, match="datastore"):
        edgedec.open("nano").session(speculate=spec)
