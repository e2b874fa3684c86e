"""Tokens that fit where earlier ones are not known: grammars with gaps (D51), given forms (D19)."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from diffusion.test_grammars import Given
from diffusion.texts import decode

import edgedec
from edgedec.bundle.manifest import DiffusionFacts
from edgedec.decoding.config import GenerationConfig
from edgedec.diffusion.canvas import Canvas
from edgedec.diffusion.fits.grammar import GrammarFit
from edgedec.diffusion.host import DiffusionHost
from edgedec.errors import ContextFull, UsageError
from edgedec.kernels.cpu import loader
from edgedec.runtime import Capabilities
from edgedec.testing.fake_runtime import FakeRuntime, tiny_spec
from edgedec.text.token_bytes import TokenBytes

COUNT = 250 if os.environ.get("EDGEDEC_SLOW_TESTS") else 20
# Single characters, and some that are longer; the end and the mask have no bytes.
LONG = [b'{"', b'":', b", ", b'"}', b"ab", b"true", b"[1", b'"n', b"((", b"))", b"+a", b"a*"]
LETTERS = [bytes([n]) for n in b'{}[]",: abcnme0123456789truefalsl()+*-']
KNOWN = TokenBytes([*dict.fromkeys(LETTERS + LONG), b"", b""])
VOCAB = len(KNOWN.of)
END, MASK = VOCAB - 2, VOCAB - 1
ENDS = frozenset([END])

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 9},
        "n": {"type": "integer"},
        "all": {"type": "array", "items": {"type": "boolean"}, "maxItems": 4},
    },
    "required": ["name", "n", "all"],
    "additionalProperties": False,
}
SUMS = 'start: start "+" item | item\nitem: "(" start ")" | "a" | "b" | item "*" item'


def hashes() -> FakeRuntime:
    return FakeRuntime(tiny_spec(vocab_size=VOCAB), spread=14.0)


def text_of(tokens: Any) -> str:
    return b"".join(KNOWN.of[int(token)] for token in tokens).decode()


def some_json(rng: random.Random) -> str:
    name = "".join(rng.choice("abcnme 0") for _ in range(rng.randint(0, 9)))
    return json.dumps({"name": name, "n": rng.randint(-99, 999), "all": [rng.random() < 0.5] * rng.randint(0, 3)})


def some_sum(rng: random.Random, depth: int = 0) -> str:
    kind = rng.random()
    if depth > 3 or kind < 0.3:
        return rng.choice("ab")
    if kind < 0.6:
        return f"({some_sum(rng, depth + 1)})"
    return f"{some_sum(rng, depth + 1)}{rng.choice('+*')}{some_sum(rng, depth + 1)}"


def parses_json(text: str) -> bool:
    jsonschema = pytest.importorskip("jsonschema")
    try:
        jsonschema.validate(json.loads(text), SCHEMA)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


def parses_sum(text: str) -> bool:
    lark = pytest.importorskip("lark")
    try:
        lark.Lark(SUMS).parse(text)
    except lark.exceptions.LarkError:
        return False
    return True


def with_gaps(text: str, rng: random.Random) -> list[int]:
    """The tokens of a text with some runs masked; a run of two tokens or more may get one mask."""
    tokens, form, at = KNOWN.spell(text.encode()), list[int](), 0
    assert tokens is not None
    while at < len(tokens):
        size = rng.randint(1, 4)
        if rng.random() < 0.4:
            form += [-1] * rng.choice([1, len(tokens[at : at + size])])
        else:
            form += tokens[at : at + size]
        at += size
    return form


@pytest.mark.parametrize(
    ("kind", "grammar", "some", "parses"),
    [("json schema", json.dumps(SCHEMA), some_json, parses_json), ("grammar", SUMS, some_sum, parses_sum)],
    ids=["schema", "sums"],
)
def test_infills_in_any_order_parse(
    kind: str, grammar: str, some: Callable[[random.Random], str], parses: Callable[[str], bool]
) -> None:
    rng, parsed, without, gaps, moved, parallel = random.Random(5), 0, 0, 0, 0, 0
    constraint = Given(kind, grammar, "space")
    for i in range(COUNT):
        form = list[int]()
        while -1 not in form:
            text = some(rng)
            form = with_gaps(text, rng) if len(text) > 12 else []
        context, shift = rng.choice(["causal", "block", "full"]), rng.random() < 0.5
        facts = DiffusionFacts(MASK, shift, context, rng.choice([4, 16]))  # type: ignore[arg-type]
        words = f"schedule=static:count={rng.choice([1, 2])},fits=grammar:tokens={json.dumps(form)}"
        options = {"temperature": rng.choice([0.0, 1.0])}
        found, counts, _ = decode(hashes(), facts, [0], words, ENDS, i, 128, KNOWN, constraint=constraint, **options)
        plain, _, _ = decode(hashes(), facts, [0], words.replace("grammar", "fixed"), ENDS, i, 128, KNOWN, **options)
        assert parses(text_of(found)), text_of(found)
        assert MASK not in map(int, found)
        assert END not in map(int, found)
        fixed = [token for token in form if token >= 0]
        rest = iter(map(int, found))
        assert all(token in rest for token in fixed)  # in order, though they may have moved
        parsed, without = parsed + 1, without + parses(text_of(plain))
        gaps += sum(a == -1 != b for a, b in pairwise(form))
        moved += len(found) != len(form)
        parallel += counts.filled - counts.passes
    assert parsed == COUNT
    assert without < parsed / 2
    assert gaps > parsed
    assert moved > 0
    assert parallel > 0


def fit(kind: str, grammar: str, tokens: list[int] | None = None, **more: Any) -> GrammarFit:
    host = DiffusionHost(DiffusionFacts(MASK, False, "full", 8), Capabilities((), ()), token_bytes=lambda: KNOWN)
    made = GrammarFit(host, tuple(tokens or ()))
    made.begin(GenerationConfig(constraint=Given(kind, grammar)), ENDS)  # type: ignore[arg-type]
    return made


def ids(text: str) -> list[int]:
    found = KNOWN.spell(text.encode())
    assert found is not None
    return found


def canvas(text: str, **more: Any) -> Canvas:
    """Of a text in which _ is a mask and $ the end."""
    tokens = [{"_": MASK, "$": END}.get(sign) for sign in text]
    return Canvas([ids(s)[0] if t is None else t for s, t in zip(text, tokens, strict=True)], MASK, **more)


def able(made: GrammarFit, at: Canvas, position: int) -> str:
    """The single characters that fit, and $ for the end."""
    found = made.candidates(at, 0, position, VOCAB)
    fitting = [t for t in range(VOCAB) if found[t] and made.fits(at, 0, position, t)]
    return "".join(sorted("$" if t == END else KNOWN.of[t].decode() for t in fitting if len(KNOWN.of[t]) < 2))


def test_a_token_is_kept_only_if_a_text_goes_through_it() -> None:
    made = fit("grammar", 'start: "a" start "b" | "c"')
    assert able(made, canvas("____b", last=5), 0) == "a"
    assert able(made, canvas("____b", last=5), 3) == "b"
    assert able(made, canvas("____b"), 3) == "$bc"
    assert able(made, canvas("a_b"), 1) == "c"  # three tokens
    assert able(made, canvas("_c_"), 0) == "a"
    assert able(made, canvas("__c__"), 1) == "$a"
    assert able(made, canvas("a__b"), 1) == "a"
    assert able(made, canvas("c_"), 1) == "$"
    assert able(made, canvas("acb_"), 3) == "$"
    assert able(made, canvas("ac_"), 2) == "b"
    assert able(made, canvas("a_$"), 1) == ""  # "cb" are two
    assert able(made, canvas("c$_"), 2) != ""  # behind the end anything
    assert able(made, canvas("_____", last=5), 2) == "abc"  # a text of five bytes or more fits
    assert able(made, canvas("_c_", last=3), 2) == "b"


def test_a_gap_of_one_token_gets_the_two_that_it_needs() -> None:
    made = fit("grammar", 'start: "a" start "b" | "c"')
    assert able(made, canvas("a_c", last=3), 1) == ""
    bridge = made.bridge(canvas("aa_b", last=4), 0)
    assert bridge == (2, 3, (ids("c")[0], ids("b")[0]))
    at = canvas("aa_b", last=4, end=4)
    assert at.replace(*bridge) == 1
    assert (text_of(at.tokens), at.last) == ("aacbb", 5)


def test_a_text_ends_within_its_tokens_if_it_can() -> None:
    made = fit("grammar", 'start: "(" start ")" | "a"')
    assert able(made, canvas("(____", budget=5), 1) == "(a"
    assert able(made, canvas("((___", budget=5), 2) == "a"
    assert able(made, canvas("((_", budget=3), 2) == "(a"  # it cannot any more
    assert able(made, canvas("((___"), 2) == "(a"


def test_a_grammar_with_gaps_ends_the_text_and_needs_no_end_token() -> None:
    for context in ("causal", "block", "full"):
        facts = DiffusionFacts(MASK, True, context, 8)  # type: ignore[arg-type]
        for seed in range(6):
            found, counts, held = decode(
                hashes(),
                facts,
                [seed],
                "fits=grammar,schedule=static:count=3",
                capacity=64,
                known=KNOWN,
                constraint=Given("json schema", json.dumps(SCHEMA)),
                max_tokens=60,
                seed=seed,
                temperature=1.0,
            )
            assert parses_json(text_of(found)), text_of(found)
            assert counts.passes < counts.filled
            assert held.ids == [seed, *map(int, found)]


def test_a_form_stands_where_it_was_given() -> None:
    form = [3, -1, -1, 5, 6, -1, 7, -1, 8, 9]
    for context in ("causal", "block", "full"):
        for shift in (False, True):
            facts = DiffusionFacts(MASK, shift, context, 4)  # type: ignore[arg-type]
            found, counts, held = decode(hashes(), facts, [1, 2], f"fits=fixed:tokens={json.dumps(form)}", ENDS)
            assert len(found) == len(form)
            assert all(a in (-1, b) for a, b in zip(form, map(int, found), strict=True))
            assert held.ids == [1, 2, *map(int, found)]
            assert counts.filled == 4
    full = DiffusionFacts(MASK, False, "full", 16)
    other = [3, -1, -1, 5, 6, -1, 7, -1, 8, 4]
    texts = [decode(hashes(), full, [1], f"fits=fixed:tokens={json.dumps(each)}", ENDS)[0] for each in (form, other)]
    assert list(map(int, texts[0]))[1:3] != list(map(int, texts[1]))[1:3]  # what is behind is seen


def test_a_form_with_a_cache_is_that_without() -> None:
    form = [-1, 3, -1, -1, 5, 6, 6, 6, 6, -1, 7, -1, 8, -1]
    for context in ("causal", "block"):
        facts = DiffusionFacts(MASK, True, context, 4)  # type: ignore[arg-type]
        words = f"fits=fixed:tokens={json.dumps(form)}"
        kept, counts, _ = decode(hashes(), facts, [1, 2, 3], words, ENDS)
        oracle, all_counts, _ = decode(hashes(), facts, [1, 2, 3], words + ",keep=none", ENDS)
        assert list(map(int, kept)) == list(map(int, oracle))
        assert counts.rows < all_counts.rows


@pytest.mark.parametrize(
    ("words", "options", "message"),
    [
        ("fits=grammar", {}, "needs a constraint"),
        ("fits=fixed", {}, "needs text=… or tokens=…"),
        ("fits=fixed:tokens=[-2]", {}, "is no token of a text"),
        (f"fits=fixed:tokens=[{MASK}]", {}, "is no token of a text"),
        ("fits=fixed:tokens=[1],fits=front", {}, "given twice"),
        ("fits=fixed:text=a,tokens=[1]", {}, "one form"),
        ("fits=fixed:tokens=[1,-1,-1]", {"max_tokens": 2}, "form of 3 tokens; 2 may be generated"),
        ("fits=grammar:tokens=[1]", {"constraint": Given("regex", "a")}, "no text of the constraint has this form"),
        ("fits=grammar", {"constraint": Given("regex", "é"), "max_tokens": 4}, "no text follows it"),
    ],
)
def test_what_cannot_fit_is_refused(words: str, options: dict[str, Any], message: str) -> None:
    facts = DiffusionFacts(MASK, True, "causal", 4)
    with pytest.raises(UsageError, match=message):
        decode(hashes(), facts, [1], words, ENDS, known=KNOWN, **options)


def test_a_form_beyond_the_context_is_refused() -> None:
    with pytest.raises(ContextFull, match="a form of 70 tokens; the context has room for 63"):
        decode(hashes(), DiffusionFacts(MASK, True, "causal", 4), [1], f"fits=fixed:tokens={[-1] * 70}", ENDS)


def test_a_host_without_a_tokenizer_says_so() -> None:
    with pytest.raises(UsageError, match="needs a tokenizer"):
        decode(hashes(), DiffusionFacts(MASK, True, "causal", 4), [1], "fits=fixed:text=abc", ENDS)


@pytest.mark.skipif(loader.why_not() is not None, reason=f"native engine: {loader.why_not()}")
def test_the_bundled_model_fills_a_form_of_json() -> None:
    model = edgedec.open("nano-block", threads=1)
    words = """fits=grammar:text='{"na[[1]]": "[[6]]"[[1]]n": [[2]]}',steps=3"""
    schema = {**SCHEMA, "properties": {"name": {"type": "string"}, "n": {"type": "integer"}}, "required": ["name", "n"]}
    for options in ({"temperature": 0.0}, {"temperature": 0.9, "seed": 2}):
        session = model.session(diffusion=words)
        constraint = f"json_schema:schema='{json.dumps(schema)}'"
        text = "".join(session.generate("Once upon a time", constraint=constraint, **options))  # type: ignore[arg-type]
        assert set(json.loads(text)) == {"name", "n"}
        assert session.finish_reason == "eos"
    assert model.session(diffusion=words).diffusion_report()["methods"].endswith(words)


def test_arrays_of_logits_are_not_changed() -> None:
    """Refused tokens are left out of a copy: log-probabilities are those of the model."""
    facts = DiffusionFacts(MASK, True, "causal", 4)
    found, _, _ = decode(
        hashes(),
        facts,
        [1],
        "fits=grammar",
        ENDS,
        known=KNOWN,
        constraint=Given("regex", "a+b"),
        max_tokens=5,
        logprobs=1,
    )
    assert all(token.logprob is not None and np.isfinite(token.logprob) for token in found)
