"""The drafter `model`: what it drafts, what it reads again, and two vocabularies for one text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drafting import PROMPT, draft_of, finish, paths, saved
from hypothesis import given, settings
from hypothesis import strategies as st
from loops import decode

import edgedec
from edgedec.bundle.manifest import Text
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.decoding.loop import StepTrace
from edgedec.decoding.messages import Completed, ForwardOn, Stats
from edgedec.decoding.runner import run_requests
from edgedec.decoding.verify import FAMILY as VERIFIERS
from edgedec.drafters import Draft, Drafter, DrafterContext, Sampled, make_drafter
from edgedec.drafters._models.reader import DraftReader, Reading, children, shape, shares
from edgedec.drafters._models.retokenize import Inside, Retokenizer, _shared, same_tokens
from edgedec.drafters.model import ModelDrafter
from edgedec.drafters.off import Off
from edgedec.errors import UsageError
from edgedec.model import Model
from edgedec.runtime import CallResult, Outputs, Runtime
from edgedec.sampling import Probs, Sampling
from edgedec.spec import Mlp, Ssm
from edgedec.testing.fakes import FakeRuntime, tiny_layer, tiny_spec
from edgedec.text.tokenizer import Tokenizer

VERIFICATIONS = ("match", *VERIFIERS.shipped)

WARM = Sampling(temperature=1.0, presence_penalty=0.5)
DRAWN = [name for name in VERIFICATIONS if name != "match"]


def run(
    runtime: Runtime, drafter: Drafter, n: int = 40, sampling: Sampling | None = None, ids: Sequence[int] = PROMPT
) -> tuple[list[int], Stats, Context]:
    stats = Stats()
    context = Context(list(ids), len(ids), runtime.new_cache(256), rng=np.random.default_rng(7))
    found = decode(runtime, context, GenerationConfig(sampling or Sampling(), max_tokens=n), drafter, stats=stats)
    return list(map(int, found)), stats, context


def plain(runtime: Runtime, n: int = 40, sampling: Sampling | None = None, ids: Sequence[int] = PROMPT) -> list[int]:
    return run(runtime, Off(), n, sampling, ids)[0]


def fake(seed: int = 0, spread: float = 6.0, **changes: Any) -> FakeRuntime:
    return FakeRuntime(tiny_spec(**{"context_length": 256} | changes), seed=seed, spread=spread)


# -- drafts


@pytest.mark.parametrize("gamma", [1, 3, 8])
def test_a_draft_model_that_is_the_target_is_always_right(gamma: int) -> None:
    """Its cache is right as well, then: a fake model says something else if one token is amiss."""
    tokens, stats, _ = run(fake(), ModelDrafter(fake(), 13, gamma), 6 * (gamma + 1))
    assert tokens == plain(fake(), 6 * (gamma + 1))
    assert stats.calls == 6


@pytest.mark.parametrize("sampling", [Sampling(), WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize("seed", range(4))
def test_any_draft_model_leaves_the_text_as_it_is(seed: int, sampling: Sampling) -> None:
    tokens, stats, _ = run(fake(), ModelDrafter(fake(seed, 6.0 + seed), 13, 5), sampling=sampling)
    assert tokens == plain(fake(), sampling=sampling)
    assert stats.proposed > 0


def depth_of(draft: Draft) -> int:
    """The levels of a draft."""
    found = [0]
    for parent in draft.parents:
        found.append(found[parent + 1] + 1)
    return max(found)


@pytest.mark.parametrize("verify", DRAWN)
def test_of_the_right_distribution_every_draw_is_taken(verify: str) -> None:
    """The target is its own draft model: p = q, whatever path of the tree came true before."""
    sampling = replace(WARM, temperature=0.7)
    drafter = ModelDrafter(fake(spread=20), 13, 4, 2, verify)
    runtime, stats, trace = fake(spread=20), Stats(), list[StepTrace]()
    context = Context(list(PROMPT), len(PROMPT), runtime.new_cache(256), rng=np.random.default_rng(7))
    list(decode(runtime, context, GenerationConfig(sampling, max_tokens=60), drafter, stats, trace))
    taken = [(len(step.step.path) - 1, depth_of(step.draft)) for step in trace]
    assert max(depth for _, depth in taken) == 4
    if verify == "multipath":  # the chosen of two paths is no draw from q
        assert stats.calls < 30
    else:
        assert all(path == depth for path, depth in taken)


@pytest.mark.parametrize("verify", DRAWN)
def test_drawn_drafts_are_those_of_the_seed(verify: str) -> None:
    first, again = (run(fake(), ModelDrafter(fake(1), 13, 4, 2, verify), sampling=WARM)[0] for _ in range(2))
    assert first == again
    greedy = run(fake(), ModelDrafter(fake(1), 13, 4, 2, verify))[0]
    assert greedy == plain(fake())  # where nothing is drawn it drafts as under match


def propose(
    drafter: ModelDrafter, nodes: int = 99, min_path_prob: float = 0.0, sampling: Sampling | None = None
) -> Draft:
    context = Context(list(PROMPT), len(PROMPT), fake().new_cache(64), sampling=sampling or Sampling())
    return draft_of(drafter._reader._runtime, drafter.propose(context, nodes, min_path_prob))


def test_the_likeliest_paths_are_drafted() -> None:
    """A chain, and two runners-up at each of its places; fewer nodes are the best of these."""
    whole = propose(ModelDrafter(fake(), 13, 4))
    assert len(whole.tokens) == 12
    assert len({(parent, token) for parent, token in zip(whole.parents, whole.tokens, strict=True)}) == 12
    for nodes in range(1, 12):
        some = propose(ModelDrafter(fake(), 13, 4), nodes)
        assert len(some.tokens) == nodes
        np.testing.assert_allclose(sorted(paths(some)), sorted(paths(whole))[-nodes:])
    assert propose(ModelDrafter(fake(), 13, 4), 0) == Draft()


def test_nothing_unlikely_is_drafted() -> None:
    sizes = []
    for min_path_prob in (0.02, 0.1, 0.3):
        draft = propose(ModelDrafter(fake(), 13, 6), min_path_prob=min_path_prob)
        assert all(path >= min_path_prob for path in paths(draft))
        sizes.append(len(draft.tokens))
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[-1]
    assert not propose(ModelDrafter(fake(), 13, 6), min_path_prob=0.9999).tokens


def test_it_stops_before_the_draft_model_is_asked_in_vain() -> None:
    runtime = fake()
    propose(ModelDrafter(runtime, 13, 8), min_path_prob=0.9999)
    assert runtime.calls == 1


def test_claims_follow_what_came_true() -> None:
    wrong, right = ModelDrafter(fake(3), 13, 1), ModelDrafter(fake(), 13, 1)
    before = propose(right).p[0]
    for drafter in (wrong, right):
        run(fake(), drafter, 100)
        drafter.reset()
    assert propose(right).p[0] > before
    assert propose(right).p[0] > 0.7
    assert propose(wrong).p[0] < 0.5


@pytest.mark.parametrize("verify", DRAWN)
def test_the_shape_is_settled_before_the_draws(verify: str) -> None:
    width = 1 if verify in ("token", "block") else 3
    shapes = set()
    for seed in range(5):
        drafter = ModelDrafter(fake(1), 13, 4, 3, verify)
        context = Context(list(PROMPT), 5, fake().new_cache(64), rng=np.random.default_rng(seed), sampling=WARM)
        draft = draft_of(drafter._reader._runtime, drafter.propose(context, 20, 0.0))
        sampled = draft.sampled
        assert isinstance(sampled, Sampled)
        assert sampled.verifier == verify
        assert len(sampled.probs) == len(draft.tokens) <= 20
        assert all(q.of(token) > 0 for q, token in zip(sampled.probs, draft.tokens, strict=True))
        shapes.add((tuple(draft.parents), tuple(draft.p)))
    ((parents, _),) = shapes
    assert parents.count(-1) == width
    if width > 1 and verify == "recursive":
        assert len(set(draft.tokens[:3])) == 3


def test_shapes() -> None:
    assert shape(4, 2, 2, 20) == [2, 2, 1, 1]
    assert shape(4, 2, 2, 12) == [2, 2, 1]
    assert shape(3, 4, 1, 99) == [4, 1, 1]
    assert shape(3, 4, 2, 2) == [2]


def test_draws_without_replacement_end_with_the_tokens() -> None:
    q = Probs(np.array([2, 5]), np.array([0.9, 0.1]))
    rng = np.random.default_rng(0)
    assert sorted(children(q, 4, again=False, rng=rng)) == [2, 5]
    assert len(children(q, 4, again=True, rng=rng)) == 4


def test_shares() -> None:
    output = CallResult(
        ids=np.array([[7, 2, 9, -1]], np.int32), scores=np.log(np.array([[4, 2, 2, 1e-30]], np.float32))
    )

    def rounded(vocab: int, sampling: Sampling | None = None) -> list[tuple[int, float]]:
        return [(token, round(p, 6)) for token, p in shares(output, sampling or Sampling(), vocab)]

    assert rounded(13) == [(7, 0.5), (2, 0.25), (9, 0.25)]
    assert rounded(9) == [(7, 0.5), (2, 0.25)]
    assert rounded(13, Sampling(temperature=0.5, top_k=2)) == [(7, 0.8), (2, 0.2)]
    output = replace(output, ids=np.full((1, 4), -1, np.int32))
    assert rounded(13) == []


# -- reading


TOP, ALL = Outputs(top=1), Outputs(logits=True)


def read(reader: DraftReader, ids: list[int], outputs: Outputs = ALL, room: int = 0) -> CallResult:
    return finish(reader._runtime, reader.read(ids, outputs, room))


def grow(reader: DraftReader, tokens: list[int], parents: list[int]) -> CallResult:
    return finish(reader._runtime, reader.grow(tokens, parents, ALL))


def test_what_two_texts_share_is_read_once() -> None:
    runtime = fake()
    reader = DraftReader(runtime)
    read(reader, list(range(10)), TOP, 4)
    read(reader, [*range(10), 4], TOP, 4)
    grow(reader, [3], [-1])
    reader.reset()
    runtime.rows = 0
    again = read(reader, [*range(8), 5, 6], TOP, 4)
    assert runtime.rows == 2
    fresh = read(DraftReader(fake()), [*range(8), 5, 6], TOP, 4)
    assert again.scores is not None
    assert fresh.scores is not None
    np.testing.assert_array_equal(again.scores, fresh.scores)


def test_what_was_drafted_and_came_true_is_not_read_again() -> None:
    runtime = fake()
    reader = DraftReader(runtime)
    read(reader, [1, 2, 3], ALL, 4)
    grow(reader, [4], [-1])
    grow(reader, [5], [0])
    runtime.rows = 0
    last = read(reader, [1, 2, 3, 4, 5, 6], ALL, 4)
    assert runtime.rows == 1
    np.testing.assert_array_equal(last.logits, read(DraftReader(fake()), [1, 2, 3, 4, 5, 6]).logits)


@pytest.mark.parametrize("spec", ["attention", "recurrent"])
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_reader_knows_the_text_whatever_it_read_before(spec: str, data: st.DataObject) -> None:
    """Texts grow, drafts are wrong, trees hang below, texts are swapped, proposals abandoned; the context is short."""
    small = st.lists(st.integers(0, 12), min_size=1, max_size=9)
    layers = {} if spec == "attention" else {"layers": (tiny_layer(), (Ssm(2, 4, 4), Mlp(24)))}
    runtime = fake(context_length=24, **layers)
    reader, ids = DraftReader(runtime), list(data.draw(small))
    for _ in range(data.draw(st.integers(1, 8))):
        result = read(reader, ids, ALL, 6)
        text = ids[reader._base :]
        fresh = read(DraftReader(fake(context_length=24, **layers)), text)
        assert result.logits is not None
        assert fresh.logits is not None
        np.testing.assert_array_equal(result.logits, fresh.logits)
        what = data.draw(st.sampled_from(["chain", "tree", "reset", "abandoned"]))
        new = data.draw(small)
        if what == "chain":
            for i, token in enumerate(data.draw(small)[:6]):
                grow(reader, [token], [i - 1])
        elif what == "tree":
            grow(reader, [new[0], 3], [-1, -1])
            grow(reader, [1, new[-1]], [0, 1])
        elif what == "abandoned":
            proposal = reader.grow(new[:6], [-1] * len(new[:6]), ALL)
            run_requests(runtime, [next(proposal)])
            proposal.close()
        else:
            reader.reset()
            ids = ids[: data.draw(st.integers(0, len(ids)))]
        ids = [*ids, *new]


def test_a_long_text_is_read_in_chunks() -> None:
    runtime = FakeRuntime(tiny_spec(context_length=256), prefill_chunk=16)
    reader, ids = DraftReader(runtime), [i * i % 13 for i in range(100)]
    rows = [request.call.rows.count for request in requests_of(runtime, reader.read(ids, ALL, 4))]
    assert rows == [16] * 6 + [4]


def requests_of(runtime: Runtime, reading: Reading) -> Iterator[ForwardOn]:
    done: Completed | None = None
    try:
        while True:
            request = next(reading) if done is None else reading.send(done)
            assert isinstance(request, ForwardOn)
            assert request.runtime is runtime
            yield request
            (done,) = run_requests(runtime, [request])
    except StopIteration:
        return


def test_a_short_context_of_the_draft_model_is_no_limit() -> None:
    tokens, stats, _ = run(fake(), ModelDrafter(fake(context_length=12), 13, 8), 100)
    assert tokens == plain(fake(), 100)
    assert stats.proposed > 0


@pytest.mark.parametrize("vocab", [7, 20])
@pytest.mark.parametrize("verify", ["match", "recursive"])
def test_vocabularies_of_two_sizes(vocab: int, verify: str) -> None:
    drafter = ModelDrafter(fake(1, vocab_size=vocab), 13, 4, 2, verify)
    text = [0, 12, 7, 3]
    tokens, stats, _ = run(fake(), drafter, 30, ids=text)
    assert tokens == plain(fake(), 30, ids=text)
    assert stats.proposed > 0
    bias = Sampling(temperature=1.0, logit_bias={12: 1.0})
    context = Context(text, 4, fake().new_cache(64), sampling=bias)
    drafter.reset()
    draft = draft_of(drafter._reader._runtime, drafter.propose(context, 9, 0.0))
    assert draft.tokens
    assert all(0 <= token < min(vocab, 13) for token in draft.tokens)


# -- real bundles


@pytest.fixture(scope="module")
def small(nano: Path) -> Model:
    return edgedec.open(nano, threads=1)


def host_of(model: Model) -> DrafterContext:
    return DrafterContext(model.runtime, model.bundle, lambda: model.tokenizer)


STORY = "Once upon a time there was a little girl. One day, she went to the"


def test_a_bundle_drafts_for_itself(small: Model, nano: Path) -> None:
    """Four tokens a call more, the text and the cache of plain decoding to the byte."""
    ids = small.tokenizer.encode(STORY)
    drafter = make_drafter("model", host_of(small), {"path": str(nano), "gamma": "4"})
    other_sessions = make_drafter("model", host_of(small), {"path": str(nano), "gamma": "2"})
    assert isinstance(drafter, ModelDrafter)
    assert isinstance(other_sessions, ModelDrafter)
    assert other_sessions._reader._runtime is drafter._reader._runtime  # its weights are there once
    tokens, stats, context = run(small.runtime, drafter, 40, ids=ids)
    expected, _, other = run(small.runtime, Off(), 40, ids=ids)
    assert tokens == expected
    assert drafter.report()["tokens"] == "same"
    if small.runtime.name == "native":
        assert stats.calls in (8, 9)  # where the model is in doubt it drafts less
        assert saved(context.cache) == saved(other.cache)


def test_a_step_pays_where_it_is_likelier_than_it_costs() -> None:
    """A step of 12.3 ms beside a call of 41 ms is 0.3 of it, which is added to the least probability; 0.9 at most."""
    drafter = ModelDrafter(fake(1), 13, 4)
    assert drafter.report()["step_ms"] == 0.0
    assert drafter._pays(0.21, 0.2)  # nothing is measured yet
    assert not drafter._pays(0.19, 0.2)
    drafter._step_s, drafter._call_s = 0.0123, 0.041
    assert drafter.report()["step_ms"] == 12.3
    assert [drafter._pays(worth, 0.2) for worth in (0.49, 0.51)] == [False, True]
    assert drafter._pays(0.01, 0.0)  # whatever it costs
    drafter._step_s = 0.082
    assert [drafter._pays(worth, 0.05) for worth in (0.94, 0.96)] == [False, True]


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.8)], ids=["greedy", "sampled"])
def test_drafting_through_text(small: Model, sampling: Sampling) -> None:
    """The same tokens, treated as if they were others."""
    translator = Retokenizer(small.tokenizer, small.tokenizer)
    drafter = ModelDrafter(small.runtime, small.spec.vocab_size, 6, translator=translator)
    ids = small.tokenizer.encode(STORY)
    tokens, stats, context = run(small.runtime, drafter, 80, sampling, ids)
    expected, _, other = run(small.runtime, Off(), 80, sampling, ids)
    assert tokens == expected
    assert stats.accepted > 20
    assert context.rng.bit_generator.state == other.rng.bit_generator.state
    if small.runtime.name == "native":
        assert saved(context.cache) == saved(other.cache)


def test_what_cannot_be_opened(small: Model, nano: Path, tmp_path: Path) -> None:
    host = host_of(small)
    wrong: list[tuple[dict[str, str], str]] = [
        ({}, "no draft model"),
        ({"path": str(tmp_path / "no")}, "path=.*no such bundle folder"),
        ({"path": str(tmp_path)}, "path=.*no edgedec.json"),
        ({"path": str(nano), "verify": "maybe"}, "verify=maybe"),
        ({"path": str(nano), "gamma": "0"}, "gamma=0"),
        ({"path": str(nano), "width": "99"}, "width=99"),
    ]
    for options, words in wrong:
        with pytest.raises(UsageError, match=words):
            make_drafter("model", host, options)
    mute = replace(small.bundle, manifest=replace(small.bundle.manifest, text=Text(None)))
    with pytest.raises(UsageError, match="has no tokenizer"):
        make_drafter("model", replace(host, bundle=mute), {"path": str(nano)})
    with pytest.raises(UsageError, match="verify=token needs"):
        ModelDrafter(fake(), 13, verify="token", translator=Retokenizer(small.tokenizer, small.tokenizer))


# -- two vocabularies

TEXT = (
    "The cat sat on the mat, and then it ran off! \n\nWhy did it run?  Nobody knows; naïve dogs bark. "
    "Once there was a ring of 12 men who ate 345 cakes in the old house on the hill. "
)


def metaspace(merges: Sequence[str], alphabet: str = "▁abcdefghijklmnopqrstuvwxyz.,") -> Tokenizer:
    """In the manner of Llama 2: a space is written in front of every text."""
    from tokenizers import Tokenizer as Raw
    from tokenizers import decoders, models, normalizers

    pairs = [(left, right) for left, right in (merge.split() for merge in merges)]
    vocabulary = {piece: i for i, piece in enumerate([*alphabet, *(a + b for a, b in pairs)])}
    raw = Raw(models.BPE(vocabulary, pairs))
    raw.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    raw.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return Tokenizer(raw)


@cache
def bytewise(size: int) -> Tokenizer:
    from tokenizers import Tokenizer as Raw
    from tokenizers import decoders, models, pre_tokenizers, trainers

    raw = Raw(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    raw.train_from_iterator([TEXT], trainer)
    return Tokenizer(raw)


def gpt2(data: Path) -> Tokenizer:
    from tokenizers import Tokenizer as Raw
    from tokenizers import decoders, models, pre_tokenizers

    folder = data / "tokenizers" / "gpt2"
    if not folder.is_dir():
        pytest.skip("GPT-2's vocabulary is not among the shared data")
    raw = Raw(models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    return Tokenizer(raw)


def phi3(data: Path) -> Tokenizer:
    path = data / "tokenizers" / "phi-3-mini" / "tokenizer.json"
    if not path.is_file():
        pytest.skip("Phi-3's vocabulary is not among the shared data")
    return Tokenizer.load(path)


def test_the_example_of_the_docstring() -> None:
    target = metaspace(["▁ c", "▁c a", "▁ s", "a t", "▁s at"])
    draft = metaspace(["▁ c", "▁c a", "▁ca t", "▁ s", "a t"])
    words = Retokenizer(target, draft)
    ids = target.encode("the cat")
    assert [target.token(i) for i in ids[-2:]] == ["▁ca", "t"]
    followed = words.follow(ids)
    assert followed is not None
    assert followed[0] == draft.encode("the cat")
    drafted = draft.encode("cat sat.")[1:]
    assert [draft.token(i) for i in drafted] == ["▁s", "at", "."]
    tokens, claims = words.say(drafted, [0.5, 0.9, 0.7])
    assert [target.token(i) for i in tokens] == ["▁sat"]
    np.testing.assert_allclose(claims, [0.5 * 0.9])


def test_shared_claims() -> None:
    assert _shared([2, 5, 6], [1, 4, 5, 6], [0.5, 0.8, 0.9, 0.7]) == [0.4, 0.9, 0.7]
    assert _shared([1, 3], [3], [0.6]) == [0.6, 0.97]


Maker = Callable[[Path], Tokenizer]
PAIRS: dict[str, tuple[Maker, Maker]] = {
    "bytes": (lambda _: bytewise(300), lambda _: bytewise(420)),
    "bytes reversed": (lambda _: bytewise(420), lambda _: bytewise(300)),
    "gpt2 and phi-3": (gpt2, phi3),
    "phi-3 and gpt2": (phi3, gpt2),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_the_true_continuation_is_said_in_the_targets_tokens(pair: str, request: pytest.FixtureRequest) -> None:
    """At every place of a text that is long enough for old words to be settled."""
    data = request.getfixturevalue("data") if "gpt2" in pair else Path()
    target, draft = (make(data) for make in PAIRS[pair])
    words, text = Retokenizer(target, draft), TEXT * 4
    ids = target.encode(text)
    said = 0
    for n in range(1, len(ids), 3):
        followed = words.follow(ids[:n])
        if followed is None:
            continue
        known, settled = followed
        done = draft.decode(known)
        assert draft.decode(known[:settled]) == done[: len(draft.decode(known[:settled]))]
        assert text.startswith(done)
        if text[len(done) : len(done) + 1] != " ":
            continue
        coming = text[len(done) :][:40]
        drafted = Inside(draft).encode(coming[: coming.rindex(" ")])
        tokens, claims = words.say(drafted, [0.9] * len(drafted))
        assert len(tokens) == len(claims)
        assert ids[n : n + len(tokens)] == tokens
        said += len(tokens) > 0
    assert said > 20


def test_old_text_is_encoded_once() -> None:
    target, draft = bytewise(300), bytewise(420)
    words = Retokenizer(target, draft)
    ids = target.encode(TEXT * 20)
    last = 0
    for n in range(1, len(ids)):
        followed = words.follow(ids[:n])
        if followed is not None:
            assert followed[1] >= last
            last = followed[1]
            assert len(followed[0]) - last < 200
    assert last > 300


def test_what_the_target_would_not_write_gets_no_draft() -> None:
    target = metaspace(["▁ c", "▁c a", "▁ca t"])
    words = Retokenizer(target, metaspace([]))
    odd = [target.id(piece) for piece in ("▁c", "a", "t")]
    assert words.follow([token for token in odd if token is not None]) is None
    words.reset()
    assert words.follow(target.encode("cat")) is not None


def test_half_a_character_waits_for_the_rest() -> None:
    target, draft = bytewise(257), bytewise(300)
    words, ids = Retokenizer(target, draft), target.encode("a ☃ b")
    followed = [words.follow(ids[:n]) for n in range(1, len(ids) + 1)]
    assert [draft.decode(f[0]) if f else None for f in followed] == ["a", "a ", None, None, "a ☃", "a ☃ ", "a ☃ b"]


def test_a_lone_space_is_no_text() -> None:
    words = Retokenizer(metaspace([]), metaspace(["▁ c"]))
    space = words._target.tokenizer.id("▁")
    assert space is not None
    assert words.follow([space, space]) is None


@given(st.lists(st.integers(0, 290), min_size=1, max_size=30), st.lists(st.integers(0, 290), max_size=9))
@settings(max_examples=80, deadline=None)
def test_whatever_was_written_and_drafted(ids: list[int], drafted: list[int]) -> None:
    """Broken characters and all: what is said is what the target would write."""
    target, draft = bytewise(291), bytewise(310)
    words = Retokenizer(target, draft)
    if words.follow(ids[: len(ids) // 2 or 1]) is None or words.follow(ids) is None:
        return
    tokens, claims = words.say(drafted, [0.9] * len(drafted))
    assert len(tokens) == len(claims)
    assert all(0 < claim <= 0.97 for claim in claims)
    text = target.decode(ids) + draft.decode(drafted)
    assert text.startswith(target.decode([*ids, *tokens]))


def test_same_tokens() -> None:
    assert same_tokens(bytewise(300), bytewise(300))
    assert same_tokens(bytewise(300), bytewise(290))  # the first merges are the same
    assert not same_tokens(metaspace(["▁ c"]), metaspace(["▁ s"]))
    assert not same_tokens(metaspace([]), bytewise(300))
