"""Constraints on text: what they allow, at every node of a draft tree, and that speculation changes nothing."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from typer.testing import CliRunner

import edgedec
from edgedec import constraints
from edgedec.cli._app import app
from edgedec.constraints import _matcher_guest as guest
from edgedec.constraints import choices, grammar, json_object, json_schema, regex
from edgedec.constraints.hosts import LocalHost
from edgedec.constraints.matcher import GrammarConstraint
from edgedec.constraints.remote import MatcherGroup, reason
from edgedec.constraints.vocabulary import vocabulary
from edgedec.decoding.constraint import ConstraintHooks
from edgedec.decoding.context import Context
from edgedec.decoding.messages import StepResult
from edgedec.drafters import BaseDrafter, Draft
from edgedec.drafters.forced import Forced
from edgedec.errors import RuntimeUnavailable, TextError, UsageError
from edgedec.kernels.cpu import loader
from edgedec.model import Model
from edgedec.runtime import CallResult, Rows
from edgedec.sampling import Sampling
from edgedec.text.tokenizer import Tokenizer

pytest.importorskip("llguidance", reason="constraints need llguidance")

PERSON = {
    "type": "object",
    "properties": {
        "full name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "animals": {"type": "array", "items": {"enum": ["cat", "dog", "little bird"]}, "maxItems": 2},
    },
    "required": ["full name", "age", "animals"],
    "additionalProperties": False,
}
SQL = r"""
start: "SELECT " columns " FROM " NAME [" WHERE " condition] [" LIMIT " INT] ";"
columns: "*" | NAME (", " NAME)*
condition: test ((" AND " | " OR ") test)*
test: NAME (" = " | " < " | " > ") (INT | STRING) | "(" condition ")"
NAME: /[a-z]{1,8}/
INT: /[0-9]{1,4}/
STRING: /'[a-z ]{0,10}'/
"""
# A small language: assignments, blocks, expressions with precedence left to the parser.
PROGRAM = r"""
start: statement statement? statement?
statement: NAME " = " sum ";\n" | "while (" sum ") {\n" statement statement? "}\n" | "print " sum ";\n"
sum: product ((" + " | " - ") product)~0..2
product: atom (" * " atom)~0..1
atom: NAME | INT | "(" sum ")"
NAME: /[a-z]{1,5}/
INT: /[0-9]{1,3}/
"""
GREEDY, DRAWN = Sampling(), Sampling(temperature=0.8, top_p=0.95, seed=5)


@pytest.fixture(scope="module")
def model(nano: Path) -> Model:
    return edgedec.open(nano, threads=1)


def spell(model: Model, text: str) -> list[int]:
    return model.tokenizer.encode(text, special=False, around=False)


def take(model: Model, constraint: GrammarConstraint, text: str) -> bool:
    """Feed it, as long as it is allowed."""
    for token in spell(model, text):
        if not constraint.mask(())[token]:
            return False
        constraint.accept(token)
    return True


def may_end(model: Model, constraint: GrammarConstraint) -> bool:
    return bool(constraint.mask(())[list(model.eos)].all())


# -- the five kinds


KINDS: dict[str, tuple[Callable[[Model], GrammarConstraint], list[str], list[str]]] = {
    "regex": (
        lambda m: regex(m, r"[A-Z][a-z]+ is \d{1,2}\."),
        ["Tom is 3.", "Lily is 12."],
        ["tom is 3.", "Tom is 123.", "Tom is 3", "Tom is 3.."],
    ),
    "choices": (
        lambda m: choices(m, ["yes", "no", 'a "q" \\ b', "é😀\n\t", "(.*)", "no way", "yes", "\x7f"]),
        ["yes", "no", 'a "q" \\ b', "é😀\n\t", "(.*)", "no way"],
        ["", "ye", "yess", "no w", "anything"],
    ),
    "lark": (
        lambda m: grammar(m, 'start: "<" NAME ">" start? "</" NAME ">"\nNAME: /[a-z]+/'),
        ["<a></a>", "<a><b></b></a>"],
        ["<a>", "<a></a", "<A></A>"],
    ),
    "gbnf": (
        lambda m: grammar(m, 'root ::= item ("," item)* "!"\nitem ::= [0-9]+ | "x"'),
        ["1!", "12,x!", "x,x,x!"],
        ["!", "1,!", "1", "y!"],
    ),
    "schema": (
        lambda m: json_schema(m, PERSON),
        ['{"full name":"Tom","age":7,"animals":[]}', '{"full name": "", "age": 120, "animals": ["cat", "dog"]}'],
        [
            '{"full name":"Tom","age":121,"animals":[]}',
            '{"full name":"Tom","age":7}',
            '{"full name":"Tom","age":7,"animals":["cow"]}',
            '{"full name":"Tom","age":7,"animals":[],"x":1}',
            '{"full name":"Tom  and Tim and","age":7,"animals":[]}',
        ],
    ),
    "json object": (json_object, ["{}", '{"a": [1, null, {"b": "c"}]}'], ["[]", "1", '{"a"}', "{a: 1}"]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_allows_its_texts_and_no_others(model: Model, kind: str) -> None:
    make, good, bad = KINDS[kind]
    constraint = make(model)
    for text in good:
        constraint.reset()
        assert take(model, constraint, text), text
        assert may_end(model, constraint), text
    for text in bad:
        constraint.reset()
        assert not (take(model, constraint, text) and may_end(model, constraint)), text


def test_how_much_space_is_a_choice(model: Model) -> None:
    texts = {'{"a":1}': "none space any", '{"a": 1}': "space any", '{ "a" : 1 }': "space any", '{\n  "a":  1}': "any"}
    schema = json.dumps({"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False})
    for text, fine in texts.items():
        for whitespace in ("none", "space", "any"):
            constraint = json_schema(model, schema, whitespace=whitespace)
            assert take(model, constraint, text) == (whitespace in fine.split()), (text, whitespace)


def test_a_schema_of_one_word(model: Model) -> None:
    assert take(model, json_schema(model, True), "[null]")
    with pytest.raises(UsageError, match="false allows nothing"):
        json_schema(model, False)


REFUSED: dict[str, tuple[Callable[[Model], object], str]] = {
    "not": (lambda m: json_schema(m, {"not": {"type": "string"}}), '"not"'),
    "unique": (lambda m: json_schema(m, {"type": "array", "uniqueItems": True}), '"uniqueItems"'),
    "oneOf": (lambda m: json_schema(m, {"oneOf": [{"minLength": 2}, {"maxLength": 4}]}), "oneOf"),
    "smuggled": (lambda m: json_schema(m, {"x-guidance": {"lenient": True}, "not": {}}), '"not"'),
    "look-ahead": (lambda m: json_schema(m, {"type": "string", "pattern": "(?=a)b"}), "look-ahead"),
    "reference": (lambda m: json_schema(m, {"$ref": "http://example.com/x"}), "http://example.com/x"),
    "nothing": (lambda m: json_schema(m, {"type": "integer", "minimum": 5, "maximum": 3}), "minimum"),
    "no schema": (lambda m: json_schema(m, cast(Any, [1])), "not list"),
    "no JSON": (lambda m: json_schema(m, "{"), "not JSON"),
    "no value": (lambda m: json_schema(m, {"const": object()}), "serializable"),
    "spaces": (lambda m: json_schema(m, {}, whitespace=cast(Any, "much")), "whitespace 'much'"),
    "regex": (lambda m: regex(m, "(a"), "unclosed group"),
    "lark": (lambda m: grammar(m, "start: foo"), 'unknown name: "foo"'),
    "gbnf": (lambda m: grammar(m, "root ::= ("), "Expected"),
    "no choices": (lambda m: choices(m, []), "at least one"),
    "one text": (lambda m: choices(m, "yes"), "list"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_followed_is_refused_by_name_on_one_line(model: Model, what: str) -> None:
    make, words = REFUSED[what]
    with pytest.raises(UsageError, match=re.escape(words)) as caught:
        make(model)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 360


def test_lenient_passes_over_what_it_cannot_follow(model: Model) -> None:
    schema = {"type": "array", "uniqueItems": True, "items": {"oneOf": [{"type": "integer"}, {"const": 1}]}}
    assert take(model, json_schema(model, schema, lenient=True), "[1, 1]")


def test_without_the_package_the_extra_is_named(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    for make in (json_object, lambda m: regex(m, "a"), lambda m: grammar(m, "start: /a/"), lambda m: choices(m, ["a"])):
        with pytest.raises(RuntimeUnavailable, match='pip install "llguidance'):
            make(model)


def test_reasons_are_short() -> None:
    assert (
        reason('at 1(8): bad\n   1 | start: x\n        ^\nerror: deep\n<state>\n{"a": 1}') == "at 1(8): bad error: deep"
    )
    assert reason("") == "no reason given"


# -- the matcher at the nodes of a tree


def texts(model: Model, constraint: GrammarConstraint, path: list[int]) -> set[str]:
    return {model.tokenizer.decode([i], special=True) for i in np.flatnonzero(constraint.mask(path)).tolist()}


def test_every_path_of_a_tree_is_masked_along_itself(model: Model) -> None:
    """In whatever order paths are asked about, each mask is that of a constraint that never saw another."""
    make = KINDS["schema"][0]
    text = spell(model, '{"full name": "Tom", "age": 12, "animals": ["cat"]}')
    rng = np.random.default_rng(3)
    constraint = make(model)
    for n in range(0, len(text), 3):
        paths: list[list[int]] = [[]]
        for _ in range(12):
            path = list(paths[rng.integers(len(paths))])
            allowed = np.flatnonzero(constraint.mask(path))
            paths.append([*path, int(rng.choice(allowed))] if len(allowed) else path)
        for at in rng.permutation(len(paths)).tolist():
            fresh = make(model)
            for token in [*text[:n], *paths[at]]:
                fresh.accept(token)
            assert (constraint.mask(paths[at]) == fresh.mask(())).all()
        assert constraint.done == (n == len(text))
        for token in text[n : n + 3]:
            constraint.accept(token)
    assert constraint.done


def test_another_branch_is_begun_from_where_it_leaves_the_first(model: Model) -> None:
    a, b, c, x, y = (model.tokenizer.id(sign) for sign in "abcxy")
    rule, fresh = (constraints.regex(model, "abbx|acy|bx") for _ in range(2))
    for path in ((), (a,), (a, b)):
        rule.mask(path)  # type: ignore[arg-type]
    assert rule.begun((a, b, b)) in (True, False)  # type: ignore[attr-defined]
    for path in ((a, c), (b,)):
        rule.begun(path)  # type: ignore[attr-defined]
        found = rule.mask(path)  # type: ignore[arg-type]
        assert (found == fresh.mask(path)).all()  # type: ignore[arg-type]
        assert found[y if path == (a, c) else x]  # type: ignore[index]


def test_masks_are_computed_once(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[int] = []
    real = GrammarConstraint._computed
    monkeypatch.setattr(GrammarConstraint, "_computed", lambda self, path: (computed.append(1), real(self, path))[1])
    constraint = regex(model, "(ab|ba)*")
    a, b = spell(model, "a") + spell(model, "b")
    for path in ([], [a], [a, b], [a], [], [b], [a, b]):
        constraint.mask(path)
    assert len(computed) == 4
    constraint.accept(a)
    assert constraint.mask([b])[a]
    assert not constraint.mask([])[a]
    assert len(computed) == 4, "known from before"
    constraint.accept(b)
    assert constraint.mask([b])[a]
    assert len(computed) == 5


def test_nothing_may_follow_what_is_not_allowed(model: Model) -> None:
    constraint = regex(model, "ab")
    a, b, c = (spell(model, x)[0] for x in "abc")
    assert not constraint.mask([c]).any()
    assert not constraint.mask([a, c, b]).any()
    assert not constraint.mask([model.spec.vocab_size + 5]).any()
    assert constraint.mask([a])[b]
    with pytest.raises(UsageError, match=f"token {c} is not allowed"):
        constraint.accept(c)
    constraint.accept(a)
    assert texts(model, constraint, []) == {"b"}


def test_the_end_is_allowed_where_the_text_may_end(model: Model) -> None:
    constraint = regex(model, "ab?")
    (end,) = model.eos
    a, b = (spell(model, x)[0] for x in "ab")
    assert not constraint.mask([])[end]
    assert np.flatnonzero(constraint.mask([a])).tolist() == sorted([end, b])
    assert np.flatnonzero(constraint.mask([a, b])).tolist() == [end]
    assert constraint.mask([a, b, end]).all(), "after the end is whatever"
    assert not constraint.done
    constraint.accept(a)
    assert not constraint.done
    constraint.mask([b])
    assert not constraint.done, "a drafted token is not there yet"
    constraint.accept(b)
    assert constraint.done
    constraint.accept(end)
    assert constraint.done
    constraint.reset()
    assert not constraint.done
    assert constraint.mask([])[a]


def test_forks_are_independent(model: Model) -> None:
    constraint = regex(model, "abc|abd")
    a, b, c, d = (spell(model, x)[0] for x in "abcd")
    constraint.accept(a)
    constraint.mask([b])
    twin = constraint.fork()
    for token in (b, c):
        twin.accept(token)
    assert twin.done
    assert not constraint.done
    assert constraint.mask([b])[[c, d]].all()


def test_forced_text_is_known_in_advance(model: Model) -> None:
    constraint = json_schema(model, PERSON, whitespace="none")
    assert model.tokenizer.decode(constraint.forced()) == '{"full name":"'
    constraint.mask(constraint.forced()[:2])
    assert model.tokenizer.decode(constraint.forced()) == '{"full name":"', "drafted tokens do not count"
    take(model, constraint, '{"full name":"T')
    assert not constraint.forced()


def test_a_grammar_that_outgrows_the_matcher_is_an_error_and_no_end(model: Model) -> None:
    known = vocabulary(model)
    limits = {"step_lexer_fuel": 1000}
    group = MatcherGroup("regex", LocalHost(guest.Matchers(known.tokenizer, limits)))
    constraint = GrammarConstraint("regex", group.compiled("regex", "x(.*a.{30})*", {}), known)
    constraint.accept(spell(model, "x")[0])
    with pytest.raises(UsageError, match="regex: too complex to follow further: lexer error"):
        constraint.mask([])
    with pytest.raises(UsageError, match="too complex"):
        _ = constraint.done


# -- vocabularies


def standing_in(model: Model, file: Path, eos: set[int], size: int) -> Model:
    manifest = SimpleNamespace(text=SimpleNamespace(tokenizer=file.name))
    bundle = SimpleNamespace(manifest=manifest, path=file.parent, file=lambda name: file)
    spec = SimpleNamespace(vocab_size=size)
    return cast(Model, StandIn(bundle=bundle, eos=frozenset(eos), spec=spec))


class StandIn(SimpleNamespace):
    """A model of nothing but a vocabulary, which is read when it is used."""

    @property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer.load(self.bundle.file(""))


def tokenizer_file(model: Model) -> Path:
    name = model.bundle.manifest.text.tokenizer
    assert name is not None
    return model.bundle.file(name)


def test_logits_may_be_wider_than_the_vocabulary(model: Model) -> None:
    n = model.tokenizer.vocab_size
    wide = regex(standing_in(model, tokenizer_file(model), set(model.eos), n + 100), ".*").mask([])
    plain = regex(model, ".*").mask([])
    assert wide.shape == (n + 100,)
    assert (wide[:n] == plain[:n]).all()
    assert not wide[n:].any()
    narrow = regex(standing_in(model, tokenizer_file(model), set(model.eos), n - 100), ".*").mask([])
    assert (narrow == plain[: n - 100]).all()


@pytest.mark.parametrize("more", [0, 100])
def test_a_model_without_an_end_token_ends_when_the_text_is_complete(model: Model, more: int) -> None:
    n = model.tokenizer.vocab_size
    constraint = regex(standing_in(model, tokenizer_file(model), set(), n + more), "ab")
    a, b = (spell(model, x)[0] for x in "ab")
    assert np.flatnonzero(constraint.mask([a])).tolist() == [b]
    assert constraint.mask([a, b]).all(), "nobody will see it"
    constraint.accept(a)
    constraint.accept(b)
    assert constraint.done


def test_several_end_tokens_are_all_allowed(model: Model) -> None:
    ends = {0, spell(model, "a")[0]}
    constraint = regex(standing_in(model, tokenizer_file(model), ends, model.spec.vocab_size), "b*")
    assert constraint.mask([])[sorted(ends)].all()


def test_a_vocabulary_of_pieces_and_bytes(model: Model, data: Path) -> None:
    file = data / "tokenizers" / "phi-3-mini" / "tokenizer.json"
    if not file.is_file():
        pytest.skip("no tokenizer of that kind at hand")
    from edgedec.text.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(file)
    constraint = json_schema(standing_in(model, file, {32000, 32007}, 32064), {"const": "é中 a b"})
    for token in tokenizer.encode('x"é中 a b"', special=False, around=False)[1:]:
        assert constraint.mask([])[token], tokenizer.token(token)
        constraint.accept(token)
    assert np.flatnonzero(constraint.mask([])).tolist() == [32000, 32007]


def test_a_vocabulary_is_read_once_and_what_is_none_is_refused(model: Model, tmp_path: Path) -> None:
    assert vocabulary(model) is vocabulary(model)
    bad = tmp_path / "tokenizer.json"
    bad.write_text(json.dumps({"model": {"type": "Mystery", "vocab": {"a": 0}}, "added_tokens": []}))
    with pytest.raises(TextError, match="no constraint can follow this tokenizer"):
        regex(standing_in(model, bad, {0}, 1), "a")
    none = standing_in(model, bad, {0}, 1)
    cast(Any, none).bundle.manifest.text.tokenizer = None
    with pytest.raises(TextError, match="no tokenizer"):
        regex(none, "a")


# -- generating


SPECS = ["auto", "forced", "copy:fixed=6+recycling"]
needs_native = pytest.mark.skipif(loader.why_not() is not None, reason=f"no native engine: {loader.why_not()}")
GENERATED: dict[str, Callable[[Model], GrammarConstraint]] = {
    "schema": lambda m: json_schema(m, PERSON),
    "compact": lambda m: json_schema(m, PERSON, whitespace="none"),
    "object": json_object,
    "sql": lambda m: grammar(m, SQL),
    "program": lambda m: grammar(m, PROGRAM),
    "regex": lambda m: regex(m, r"([A-Z][a-z]{1,6} ){2,5}[a-z]+\."),
}


@needs_native
@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("kind", GENERATED)
def test_speculation_changes_nothing(model: Model, kind: str, sampling: Sampling) -> None:
    constraint, prompt = GENERATED[kind](model), model.tokenizer.encode("Tom and Lily went to the park. Tom")
    found = {}
    for spec in ["off", *SPECS]:
        session = model.session(speculate=spec)
        for _ in range(2):  # the second time drafters know the text
            tokens = list(session.tokens(prompt, max_tokens=90, constraint=constraint, sampling=sampling))
            found[spec] = tokens, session.finish_reason, str(session._context.rng.bit_generator.state)
            if spec == "off":
                assert session.stats.calls >= len(tokens)
            assert found[spec][:2] == found["off"][:2]
        assert sampling is GREEDY or found[spec] == found["off"]


@needs_native
def test_forced_tokens_cost_no_call(model: Model) -> None:
    told = {"a long name of a key": "and what is always under it"}
    constraint = json_schema(model, {"const": told}, whitespace="none")
    calls = {}
    for spec in ("off", "forced", "auto"):
        session = model.session(speculate=spec)
        text = "".join(session.generate("Once", max_tokens=60, constraint=constraint))
        assert json.loads(text) == told
        calls[spec] = session.stats.calls
        if spec != "off":
            report = session.report()["drafters"]["forced"]
            assert report["accepted"] == report["proposed"] > 10
    assert calls["auto"] == calls["forced"] < calls["off"] / 4


def test_a_complete_text_ends_whether_or_not_the_model_would(model: Model) -> None:
    constraint = choices(model, ["yes", "no"])
    session = model.session(speculate="off")
    for ignore_eos in (False, True):
        tokens = list(session.tokens([0], max_tokens=20, constraint=constraint, ignore_eos=ignore_eos))
        assert model.tokenizer.decode(tokens) in ("yes", "no")
        assert session.finish_reason == "eos"
        assert session.stats.calls == len(tokens), "no call for the end"
    assert not list(session.tokens(None, constraint=constraint)), "it goes on where it stands: at the end"
    assert session.finish_reason == "eos"
    assert list(session.tokens([0], max_tokens=20, constraint=constraint)), "a new prompt begins anew"


def test_a_text_cut_short_goes_on(model: Model) -> None:
    constraint, prompt = json_schema(model, PERSON), model.tokenizer.encode("Once")
    whole = list(model.session(speculate="off").tokens(prompt, max_tokens=90, constraint=constraint))
    session = model.session(speculate="off")
    parts = list(session.tokens(prompt, max_tokens=7, constraint=constraint))
    assert session.finish_reason == "length"
    parts += session.tokens(None, max_tokens=83, constraint=constraint)
    assert parts == whole


def seeds(model: Model, constraint: GrammarConstraint, n: int, limit: int = 80) -> Iterator[str]:
    """Finished texts."""
    session = model.session()
    for seed in range(n):
        sampling = Sampling(temperature=1.0, seed=seed)
        text = "".join(session.generate("Once", max_tokens=limit, sampling=sampling, constraint=constraint))
        if session.finish_reason == "eos":
            yield text


def test_generated_sql_parses(model: Model) -> None:
    lark = pytest.importorskip("lark")
    # A recogniser of its own: by pieces, not by characters.
    parser = lark.Lark(
        r"""
        start: "SELECT" ("*" | NAME ("," NAME)*) "FROM" NAME ["WHERE" either] ["LIMIT" INT] ";"
        either: both ("OR" both)*
        both: test ("AND" test)*
        test: NAME ("=" | "<" | ">") (INT | STRING) | "(" either ")"
        NAME: /[a-z]+/
        INT: /[0-9]+/
        STRING: /'[^']*'/
        %ignore " "
        """,
        parser="lalr",
    )
    found = list(seeds(model, grammar(model, SQL), 12))
    assert len(found) > 6
    assert len(set(found)) > 3
    for text in found:
        parser.parse(text)


def test_generated_programs_parse(model: Model) -> None:
    lark = pytest.importorskip("lark")
    parser = lark.Lark(
        r"""
        start: statement+
        statement: NAME "=" sum ";" | "while" "(" sum ")" "{" statement+ "}" | "print" sum ";"
        ?sum: product (("+" | "-") product)*
        ?product: atom ("*" atom)*
        ?atom: NAME | INT | "(" sum ")"
        NAME: /[a-z]+/
        INT: /[0-9]+/
        %ignore /\s+/
        """,
        parser="earley",
        lexer="dynamic",
    )
    found = list(seeds(model, grammar(model, PROGRAM), 12, 120))
    assert len(found) > 4
    assert len(set(found)) > 3
    for text in found:
        parser.parse(text)


# -- the drafter of forced tokens


class Recorded(BaseDrafter):
    """Keeps the number of tokens that each proposal was limited to."""

    def __init__(self) -> None:
        self.limits: list[int] = []

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Draft:
        self.limits.append(nodes)
        return Draft.chain([7]) if nodes else Draft()

    def report(self) -> dict[str, Any]:
        return {"silent": 3, "sizes": {}, "drafters": {"inner": {"proposed": 1}}}


def context_of(forced: list[int]) -> Context:
    context = Context([1], 1, cast(Any, None))
    context.hooks = ConstraintHooks(forced=lambda: forced)
    return context


def seen(accepted: int) -> StepResult:
    path = list(range(accepted + 1))
    return StepResult(Rows.chain([1], 0), 0, path, [5] * (accepted + 1), CallResult(), 0.001)


def test_forced_tokens_come_before_guesses() -> None:
    inner = Recorded()
    drafter = Forced(inner)
    draft = drafter.propose(context_of([4, 5, 6]), 9, 0.0)
    assert (tuple(draft.tokens), tuple(draft.parents), set(draft.by)) == ((4, 5, 6), (-1, 0, 1), {"forced"})
    assert tuple(drafter.propose(context_of([4, 5, 6]), 2, 0.0).tokens) == (4, 5)
    assert inner.limits == [0, 0], "it had no draft in that call"
    assert tuple(drafter.propose(context_of([]), 9, 0.0).tokens) == (7,)
    assert not drafter.propose(context_of([4]), 0, 0.0).tokens
    assert inner.limits == [0, 0, 9, 0]


def test_less_is_forced_on_a_model_that_spells_otherwise_and_it_is_tried_again() -> None:
    drafter, forced = Forced(Recorded()), [4] * 20
    assert len(drafter.propose(context_of(forced), 99, 0.0).tokens) == 16
    lengths = []
    for _ in range(200):
        draft = drafter.propose(context_of(forced), 99, 0.0)
        lengths.append(len(draft.tokens) if draft.by else 0)
        drafter.observe(seen(0))
    assert 0 < sum(lengths[-64:]) <= 4, "now and then one token"
    for _ in range(400):
        draft = drafter.propose(context_of(forced), 99, 0.0)
        drafter.observe(seen(len(draft.tokens) if draft.by else 0))
    assert len(drafter.propose(context_of(forced), 99, 0.0).tokens) > 8, "the model agreed again"
    assert drafter.report()["silent"] == 3
    assert set(drafter.report()["drafters"]) == {"inner", "forced"}


def test_without_forced_tokens_the_report_is_the_others() -> None:
    assert Forced(Recorded()).report() == Recorded().report()


# -- the command line


def call(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


FLAGS = ["--json-schema", "--grammar", "--regex"]


def test_the_flags_do_what_they_say(nano: Path, tmp_path: Path) -> None:
    schema, rules = tmp_path / "schema.json", tmp_path / "rules.lark"
    schema.write_text(json.dumps(PERSON))
    rules.write_text(SQL)
    common = ["run", "-m", nano, "-p", "Once", "-n", 90, "--no-echo", "--seed", 3, "-t", 1]
    for given in (schema, json.dumps(PERSON)):
        person = json.loads(call(*common, "--json-schema", given).stdout)
        assert list(person) == PERSON["required"]
    assert call(*common, "--grammar", rules).stdout.startswith("SELECT ")
    assert re.fullmatch(r"[0-9]{3}\n", call(*common, "--regex", "[0-9]{3}").stdout)


def test_the_flags_say_what_is_wrong(nano: Path, tmp_path: Path) -> None:
    common = ["run", "-m", nano, "-p", "Once", "-n", 4]
    for flags, words in [
        (["--regex", "(a"], "unclosed group"),
        (["--json-schema", tmp_path / "none.json"], "none.json"),
        (["--json-schema", '{"not": {}}'], '"not"'),
        (["--json-schema", "{"], "not JSON"),
        (["--grammar", tmp_path / "none.lark"], "none.lark"),
        (["--regex", "a", "--choices", '["b"]'], "choices and regex: a dead end"),
    ]:
        result = call(*common, *flags)
        assert result.exit_code in (1, 2)
        said = result.stderr or str(result.exception)
        assert words in said, flags


def test_every_turn_of_a_chat_is_held_to_it(nano: Path) -> None:
    result = CliRunner().invoke(
        app, ["chat", "-m", str(nano), "--regex", "[A-Z]{2}", "-t", "1"], input="Hello\nAgain\n"
    )
    assert re.findall(r"\b[A-Z]{2}\b", result.stdout) != []
    assert result.exit_code == 0, result.output
    assert len(re.findall(r"^[A-Z]{2}$", result.stdout, re.MULTILINE)) == 2


def test_the_public_makers_are_all() -> None:
    makers = set(constraints.__all__) - {"Constraint", "ConstraintFacts", "FAMILY"}
    assert makers == set(constraints.FAMILY.shipped)
    assert not any(isinstance(getattr(constraints, name), ModuleType) for name in makers)
