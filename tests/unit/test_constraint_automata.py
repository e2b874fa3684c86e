"""Automata over the bytes of tokens: spans of a passage, queries of a graph, objects of classes."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgedec
from edgedec import constraints
from edgedec.constraints.automata.classes import Schema
from edgedec.constraints.automata.graph import FORMS, VARIABLES, QueryScript, TripleGraph
from edgedec.constraints.automata.script import ScriptConstraint
from edgedec.constraints.automata.spans import Span
from edgedec.constraints.automata.tokens import TokenTree
from edgedec.constraints.kinds.classes import class_prompt
from edgedec.constraints.kinds.span import LARGEST, _Whole
from edgedec.errors import UsageError
from edgedec.model import Model

pytest.importorskip("llguidance", reason="constraints need llguidance")

PASSAGE = 'Lily and Tom live in "Paris", near the river. Zoë said: é😀!'
TRIPLES = (
    "Ann\tknows\tBob\nAnn\tknows\tCid\nBob\tlives in\tRome\nCid\tlives in\tOslo\nRome\tnear\tOslo\nBob\tknows\tBob\n"
)
FIELDS = {"people": "list[Person]", "place": "Place", "about": "Entity", "words": "list[str]"}
SCHEMA: dict[str, Any] = {
    "passage": PASSAGE,
    "classes": [
        {"name": "Entity", "doc": "A thing."},
        {"name": "Person", "base": "Entity", "fields": {"name": "str"}},
        {"name": "Place", "base": "Entity", "fields": {"name": "str"}},
        {"name": "Child", "base": "Person", "doc": "A young person."},
        {
            "name": "LivesIn",
            "fields": {"people": "list[Person]", "place": "Place", "about": "Entity", "words": "list[str]"},
        },
    ],
}
# A small vocabulary: bytes, words of many, a part of a character, a special token, two ends.
SPELT = [
    b"a",
    b"b",
    b"ab",
    b"ba",
    b"bab",
    b"c",
    b" ",
    "é".encode(),
    b"\xc3",
    b"\xa9",
    None,
    b"<end>",
    b"",
    b"abab",
    b"a",
]
ENDS = frozenset({11, 16})


@pytest.fixture(scope="module")
def model(nano: Path) -> Model:
    return edgedec.open(nano, threads=1)


def small() -> TokenTree:
    return TokenTree(SPELT, 18, ENDS)


def written(model: Model, found: ScriptConstraint, draw: random.Random, most: int = 400) -> str | None:
    """A random text that a constraint allows; None if it does not end in time."""
    found.reset()
    taken: list[int] = []
    while not found.done and len(taken) < most:
        may = np.flatnonzero(found.mask(())).tolist()
        token = may[draw.randrange(len(may))]
        if token in model.eos:
            break
        found.accept(token)
        taken.append(token)
    return model.tokenizer.decode(taken) if found.may_end() else None


# --- tokens ---


def test_the_tree_has_each_token_once() -> None:
    tree = small()
    assert sorted(tree.order.tolist()) == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 14]  # not special ones, ends, empty ones
    found, left = list[int](), [(tree.root, b"")]
    while left:
        node, text = left.pop()
        own = tree.order[node.low : node.low + node.own].tolist()
        assert all(SPELT[token] == text for token in own)
        assert sorted(SPELT[t] or b"" for t in tree.order[node.low : node.high])[0].startswith(text)
        found += own
        left += [(child, text + bytes([byte])) for byte, child in node.children().items()]
    assert sorted(found) == sorted(tree.order.tolist())


@pytest.mark.parametrize("passage", ["ababc", "aé b", "c", "éaé"])
def test_masks_checks_and_drafts_agree_with_all_substrings(passage: str) -> None:
    tree, spans = small(), {passage[i:j] for i, j in itertools.combinations(range(len(passage) + 1), 2)}
    found = ScriptConstraint("span", _Whole(passage), tree)
    beginnings = {span.encode()[:n] for span in spans for n in range(len(span.encode()) + 1)}
    left: list[tuple[int, ...]] = [()]
    seen = 0
    while left:
        path = left.pop()
        text = b"".join(SPELT[token] or b"" for token in path)
        want = np.zeros(18, bool)
        for token, more in enumerate(SPELT):
            want[token] = bool(more) and token not in ENDS and text + (more or b"") in beginnings
        want[list(ENDS)] = text in {span.encode() for span in spans}
        mask = found.mask(path)
        assert mask.tolist() == want.tolist()
        assert found.validate(range(18), path) == want.tolist()
        chain = [*path, 0]
        drafts = found.allowed([*chain], [-1, *range(len(path))], 0.0)
        assert drafts == [True] * len(path) + [bool(want[0])]
        assert found.mask([*path, 11]).all() == bool(want[11])
        seen += 1
        left += [(*path, token) for token in np.flatnonzero(want).tolist() if token not in ENDS]
    assert seen > len(passage)


def test_a_span_begins_and_ends_with_characters() -> None:
    found = ScriptConstraint("span", _Whole("aé"), small())
    assert not found.validate([9])[0]  # the second byte of a character
    assert found.validate([8, 7]) == [True, True]
    found.accept(8)
    assert not found.may_end()
    assert np.flatnonzero(found.mask(())).tolist() == [9]
    found.accept(9)
    assert found.done
    assert np.flatnonzero(found.mask(())).tolist() == sorted(ENDS)


def test_texts_forks_and_ends() -> None:
    found = ScriptConstraint("span", _Whole("abc"), small())
    with pytest.raises(UsageError, match="span: token 7 is not allowed here"):
        found.accept(7)
    found.accept(0)
    twin = found.fork()
    found.accept(1)
    assert twin.validate([1, 5]) == [True, False]
    assert found.validate([1, 5]) == [False, True]
    found.accept(11)
    assert found.done
    assert found.mask(()).all()  # what follows the end is discarded
    assert not twin.done
    found.reset()
    assert found.validate([0, 1, 5]) == [True] * 3
    assert found.forced() == ()


def test_a_vocabulary_that_cannot_go_on() -> None:
    found = ScriptConstraint("span", _Whole("a-"), TokenTree([b"a", b"b", b""], 4, frozenset({3})))
    found.accept(0)
    assert np.flatnonzero(found.mask(())).tolist() == [3]
    stuck = ScriptConstraint("span", _Whole("é"), TokenTree([b"\xc3", b"b"], 4, frozenset({3})))
    stuck.accept(0)
    with pytest.raises(UsageError, match="span: a dead end after 1 tokens: no token continues it"):
        stuck.mask(())
    endless = ScriptConstraint("span", _Whole("a"), TokenTree([b"a", b"b"], 2, frozenset()))
    endless.accept(0)
    assert endless.done
    assert endless.mask(()).all()


def test_masks_are_kept_by_state_and_shared_by_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[Any]()
    walk = ScriptConstraint.may_follow

    def noted(self: ScriptConstraint, state: Any, found: Any) -> None:
        asked.append(state)
        walk(self, state, found)

    monkeypatch.setattr(ScriptConstraint, "may_follow", noted)
    found = ScriptConstraint("span", _Whole("ababab"), small())
    for _ in range(3):
        found.fork().mask([0])
        found.mask([0, 1])
        found.mask([2])  # the same state by another token
    assert len(asked) == len(set(asked)) == 3


# --- spans ---


@pytest.mark.parametrize("passage", ["abcbc", "aabab", "abbb", "abcabcd", "aaaa", "abcdbcdcd", "mississippi"])
def test_the_automaton_of_a_passage_is_the_smallest(passage: str) -> None:
    """A place for each set of ends that substrings have, and the beginning."""
    ends: dict[str, set[int]] = {}
    for i, j in itertools.combinations(range(len(passage) + 1), 2):
        ends.setdefault(passage[i:j], set()).add(j)
    assert len(Span(passage)._edges) == 1 + len({frozenset(found) for found in ends.values()})


def test_the_automaton_of_a_passage_is_small() -> None:
    span = Span("ab" * 500)
    assert len(span._edges) <= 2 * 1000
    assert list(span.ends(span.first)) == []


def test_a_span_without_some_characters(model: Model) -> None:
    span = Span('say "hi" x', '"')
    place = span.edges(span.first)
    assert ord('"') not in place
    assert ord('"') not in span.edges(place[ord(" ")])
    draw = random.Random(1)
    for _ in range(20):
        text = written(model, constraints.span(model, PASSAGE), draw)
        assert text
        assert text in PASSAGE


@pytest.mark.parametrize(
    ("passage", "words"), [("", "is empty"), ("x" * (LARGEST + 1), f"at most {LARGEST:,}"), ("a\ud800", "is no text")]
)
def test_passages_that_are_refused(model: Model, passage: str, words: str) -> None:
    with pytest.raises(UsageError, match=f"span: .*{words}"):
        constraints.span(model, passage)


# --- graphs ---


def brute(graph: TripleGraph, query: str) -> set[tuple[str, ...]]:
    """The answers by trying all names for all variables."""
    form = next(form for form in FORMS if query.startswith(form))
    triples = [tuple(part) for part in (_split(p) for p in query[len(form) : -2].split(" . "))]
    used = [v for v in VARIABLES if any(v in triple for triple in triples)]
    names = sorted({name for h, _, t in graph.triples for name in (h, t)})
    found = set()
    for values in itertools.product(names, repeat=len(used)):
        bound = dict(zip(used, values, strict=True))
        if all(tuple(bound.get(term, term) for term in triple) in graph.triples for triple in triples):
            found.add(tuple(bound[name] for name in FORMS[form]))
    return {(str(len(found)),)} if "COUNT" in form else found


def _split(triple: str) -> list[str]:
    return triple.replace("> ", ">\n").replace("?x ", "?x\n").replace("?y ", "?y\n").replace("?z ", "?z\n").split("\n")


def test_no_query_without_an_answer(model: Model) -> None:
    graph, draw, seen = TripleGraph.read(TRIPLES), random.Random(3), set[str]()
    found = constraints.graph(model, TRIPLES)
    for _ in range(60):
        query = written(model, found, draw)
        assert query
        assert set(graph.answers(query)) == brute(graph, query)
        assert graph.answers(query) not in ([], [("0",)])
        seen.add(query)
    assert {form for form in FORMS for query in seen if query.startswith(form)} == set(FORMS)
    assert any(" . " in query for query in seen)
    assert any("?z" in query for query in seen)


def allows(found: ScriptConstraint, model: Model, text: str) -> bool:
    found.reset()
    for token in model.tokenizer.encode(text, special=False, around=False):
        if not found.validate([token])[0]:
            return False
        found.accept(token)
    return found.may_end()


@pytest.mark.parametrize(
    ("query", "fine"),
    [
        ("SELECT ?x WHERE { <Ann> <knows> ?x }", True),
        ("SELECT ?x WHERE { <Ann> <lives in> ?x }", False),  # no relation of this head
        ("ASK WHERE { <Ann> <knows> <Rome> }", False),  # no tail of this head and relation
        ("ASK WHERE { ?x <knows> ?x }", True),  # Bob himself
        ("ASK WHERE { ?x <near> ?x }", False),
        ("SELECT ?x WHERE { <Ann> <knows> ?x . ?x <lives in> <Oslo> }", True),
        ("SELECT ?x WHERE { <Ann> <knows> ?x . ?x <near> <Oslo> }", False),  # a join without a solution
        ("SELECT ?x WHERE { ?x <knows> <Cid> . ?x <lives in> ?y }", False),
        ("SELECT ?x ?y WHERE { <Ann> <knows> ?x }", False),  # a variable of the form is missing
        ("SELECT ?x ?y WHERE { ?x <knows> ?y }", True),
        ("SELECT ?x WHERE { ?y <knows> ?x }", False),  # a new variable is the next one
        ("SELECT ?x WHERE { <Zed> <knows> ?x }", False),
        ("ASK WHERE { ?x <knows> ?y . ?y <knows> ?z . ?z <lives in> <Rome> }", True),
        ("ASK WHERE { ?x <knows> ?y . ?y <knows> ?z . ?z <near> ?x }", False),
    ],
)
def test_names_are_of_items_connected_to_those_chosen(model: Model, query: str, fine: bool) -> None:
    assert allows(constraints.graph(model, TRIPLES), model, query) == fine


def test_an_edited_graph_has_other_queries_and_answers(model: Model) -> None:
    query, edited = "SELECT ?x WHERE { <Ann> <likes> ?x }", TRIPLES + "Ann\tlikes\tDan\n"
    assert not allows(constraints.graph(model, TRIPLES), model, query)
    assert allows(constraints.graph(model, edited), model, query)
    assert TripleGraph.read(edited).answers(query) == [("<Dan>",)]
    assert TripleGraph.read(edited.replace("Dan", "Eve")).answers(query) == [("<Eve>",)]
    assert TripleGraph.read(TRIPLES).answers("SELECT (COUNT(?x) AS ?n) WHERE { ?x <knows> <Bob> }") == [("2",)]
    assert TripleGraph.read(TRIPLES).answers("ASK WHERE { <Ann> <knows> <Bob> }") == [()]
    with pytest.raises(UsageError, match="is no query"):
        TripleGraph.read(TRIPLES).answers("SELECT ?x WHERE { ?x }")


def test_at_most_so_many_triples(model: Model) -> None:
    two = "ASK WHERE { ?x <knows> ?y . ?y <lives in> ?z }"
    assert allows(constraints.graph(model, TRIPLES, most=2), model, two)
    assert not allows(constraints.graph(model, TRIPLES, most=1), model, two)
    draw, one = random.Random(2), constraints.graph(model, TRIPLES, most=1)
    for _ in range(20):
        query = written(model, one, draw)
        assert query  # variables of the form find a place in one triple
        assert TripleGraph.read(TRIPLES).answers(query)


def test_large_graphs_are_not_joined_at_length(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgedec.constraints.automata.graph._WORK", 8)
    script, draw = QueryScript(TripleGraph.read(TRIPLES), 3), random.Random(2)
    assert script._early == 1
    found = constraints.graph(model, TRIPLES)
    for _ in range(20):
        query = written(model, found, draw)
        assert query
        assert query.count(" . ") <= 2
    assert not allows(found, model, "ASK WHERE { ?x <knows> ?y . ?y <lives in> ?z }")  # four solutions times four


def test_names_of_identifiers(model: Model) -> None:
    triples, labels = "Q1\tP1\tQ2\nQ3\tP1\tQ2\n", "Q1\tAnn\nQ3\tAnn\nQ2\tRome\nP1\tlives in\n"
    found = constraints.graph(model, triples, labels)
    assert allows(found, model, "ASK WHERE { <Ann (Q1)> <lives in> <Rome> }")
    assert not allows(found, model, "ASK WHERE { <Q1> <P1> <Q2> }")


@pytest.mark.parametrize(
    ("triples", "labels", "words"),
    [
        ("", "", "no triples"),
        ("\n \n", "", "no triples"),
        ("a\tb", "", "triples, line 1: needs 3 columns with tabs between, has 2"),
        ("a\tb\tc\n\na b c", "", "triples, line 3"),
        ("a\tb\tc", "a", "labels, line 1: needs 2 columns"),
        ("a\t<b>\tc", "", "'<b>' is no name"),
        ("a\t\tc", "", "'' is no name"),
        ("a\tb\t" + "c" * (1 << 19), "", "at most"),
    ],
)
def test_graphs_that_are_refused(model: Model, triples: str, labels: str, words: str) -> None:
    with pytest.raises(UsageError, match=f"graph: .*{words}"):
        constraints.graph(model, triples, labels)


def test_no_answers_of_what_is_no_query() -> None:
    graph = TripleGraph.read(TRIPLES)
    form = next(form for form in FORMS if FORMS[form] == ("?x",) and "COUNT" not in form)
    fine = "?x <lives in> <Rome>"
    assert graph.answers(f"{form}{fine} }}") == [("<Bob>",)]
    unbound = f"{form}<Ann> <knows> <Bob> }}"
    for query in (
        unbound,
        f"{form}{fine} . ?x knows }}",
        f"{form}?x . {fine} }}",
        f"{form}{fine}",
        f"{form} }}",
        f"FIND {fine} }}",
    ):
        with pytest.raises(UsageError, match="is no query that it allows"):
            graph.answers(query)


def test_a_graph_is_a_file(model: Model, tmp_path: Path) -> None:
    (tmp_path / "graph.tsv").write_text("Q1\tknows\tQ2\n", "utf-8")
    (tmp_path / "labels.tsv").write_text("Q1\tAnn\nQ2\tBob\n", "utf-8")
    words = f"graph:triples={tmp_path / 'graph.tsv'},labels={tmp_path / 'labels.tsv'},most=1"
    found = "".join(model.session().generate("Who? ", max_tokens=60, constraint=words))
    assert "<knows>" in found
    assert "Q1" not in found
    with pytest.raises(UsageError, match=r"constraint graph: .*none\.tsv: .*No such file"):
        model.session().generate("Who? ", constraint=f"graph:triples={tmp_path / 'none.tsv'}")


# --- classes ---


def test_texts_construct_objects_of_spans(model: Model) -> None:
    found, draw, seen = constraints.classes(model, json.dumps(SCHEMA)), random.Random(4), set[str]()
    defined = dict[str, Any]()
    exec(Schema.read(SCHEMA["classes"]).prompt(), defined)  # our own text
    for _ in range(40):
        text = written(model, found, draw, 300)
        if text is not None:
            for made in eval(text, defined):
                assert type(made) is not defined["Entity"]
                seen |= {type(made).__name__}
                _check(made, defined)
    assert seen == {"Person", "Place", "Child", "LivesIn"}


def _check(made: Any, defined: dict[str, Any]) -> None:
    for key, value in vars(made).items():
        if key == "place":
            assert type(value) is defined["Place"]
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, str):
                assert item in PASSAGE
            else:
                assert not (key == "people" and not isinstance(item, defined["Person"]))
                _check(item, defined)


@pytest.mark.parametrize(
    ("text", "fine"),
    [
        ("[]", True),
        ('[Person(name="Lily")]', True),
        ('[Person(name="Lily"), Child(name="Tom live in ")]', True),
        (
            '[LivesIn(people=[Child(name="Tom")], place=Place(name="Paris"), about=Person(name="T"), '
            'words=["é😀", "and"])]',
            True,
        ),
        ('[LivesIn(people=[], place=Place(name="Paris"), about=Place(name="T"), words=[])]', True),
        ('[LivesIn(people=[Place(name="Paris")]', False),  # of another type
        ('[LivesIn(people=[], place=Person(name="Paris")', False),
        ('[Person(name="Lilly")]', False),  # not in the passage
        ('[Person(name="")]', False),
        ('[Person(name="in "Paris")]', False),  # no quotes inside
        ("[Entity()]", False),
        ('[Person("Lily")]', False),
        ('[Person(name="Lily"),]', False),
        ('[Person(name="Lily")', False),
    ],
)
def test_objects_of_classes(model: Model, text: str, fine: bool) -> None:
    assert allows(constraints.classes(model, json.dumps(SCHEMA)), model, text) == fine


def test_the_prompt_has_classes_and_passage() -> None:
    found = class_prompt(json.dumps(SCHEMA))
    assert 'class Child(Person):\n    """A young person."""\n' in found
    assert "class Entity:\n" in found
    assert "    def __init__(self, name: str):\n        self.name = name\n" in found
    assert found.endswith("\nresults = ")
    assert json.dumps(PASSAGE, ensure_ascii=False) in found
    assert (
        Schema.read([{"name": "A"}, {"name": "B", "fields": {"c": "str"}}]).prompt().startswith("class A:\n    pass\n")
    )


def _with(*classes: dict[str, Any]) -> dict[str, Any]:
    return {"passage": "x", "classes": [*classes]}


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("{", "not JSON"),
        ({"passage": "x"}, "an object with a passage and classes"),
        ({"passage": "", "classes": []}, "the passage is empty"),
        (_with(), "a list of objects"),
        (_with({"name": "A"}), "none has fields"),
        (_with({"name": 5}), "needs a name"),
        (_with({"name": "A", "field": {}}), "needs a name; doc"),
        (_with({"name": "a-b", "fields": {"x": "str"}}), "'a-b' is no name"),
        (_with({"name": "A", "fields": {"class": "str"}}), "'class' is no name"),
        (_with({"name": "A", "fields": {"x": "str"}}, {"name": "A"}), "A is defined twice"),
        (_with({"name": "A", "base": "B", "fields": {"x": "str"}}), "its base 'B' must stand before it"),
        (_with({"name": "A", "fields": {"x": "int"}}), "A.x: no type 'int'"),
        (_with({"name": "A", "fields": {"x": "list[A]"}}), "A holds itself: A > A"),
        (_with({"name": "A", "fields": {"x": "B"}}, {"name": "B", "base": "A"}), "A holds itself|B holds itself"),
        (_with({"name": "B"}, {"name": "A", "fields": {"x": "B"}}), "no class of type B has fields"),
        (_with({"name": "A", "doc": 'a"""b', "fields": {"x": "str"}}), "three quotes"),
    ],
)
def test_schemas_that_are_refused(model: Model, schema: Any, words: str) -> None:
    with pytest.raises(UsageError, match=f"classes: .*({words})"):
        constraints.classes(model, schema if isinstance(schema, str) else json.dumps(schema))


# --- speculation ---


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("kind", ["span", "graph", "classes"])
def test_speculation_changes_nothing(model: Model, kind: str, temperature: float) -> None:
    made = {
        "span": lambda: constraints.span(model, PASSAGE),
        "graph": lambda: constraints.graph(model, TRIPLES),
        "classes": lambda: constraints.classes(model, json.dumps(SCHEMA)),
    }
    texts = [
        "".join(
            model.session(speculate=spec).generate(
                PASSAGE, max_tokens=40, constraint=made[kind](), temperature=temperature, seed=5
            )
        )
        for spec in ("off", "copy", "auto")
    ]
    assert texts[0] == texts[1] == texts[2] != ""
