"""Grammars that ship: nothing of a corpus is masked, and what they let end is read by the languages' own parsers."""

# ruff: noqa: E501  (texts of other languages)

from __future__ import annotations

import ast
import json
import os
import random
import sqlite3
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import edgedec
from edgedec import constraints
from edgedec.constraints import grammars
from edgedec.constraints.grammars import shipped, shipped_grammar
from edgedec.constraints.matcher import GrammarConstraint
from edgedec.model import Model

pytest.importorskip("llguidance", reason="constraints need llguidance")

ROOT = Path(__file__).parents[2]
SLOW = bool(os.environ.get("EDGEDEC_SLOW_TESTS"))
SQL = [
    "SELECT name, count(*) AS n FROM people AS p LEFT JOIN pets ON p.id = pets.owner WHERE age >= 18 AND name LIKE 'A%' "
    "GROUP BY name HAVING count(*) > 1 ORDER BY n DESC, name LIMIT 10 OFFSET 5;",
    "with t (a) as (select 1 union all select a + 1 from t where a < 5) select distinct * from t",
    "INSERT INTO people (id, name) VALUES (1, 'O''Neil'), (2, NULL); UPDATE people SET age = age + 1 WHERE id IN (1, 2);",
    "CREATE TABLE IF NOT EXISTS \"my table\" (id INTEGER PRIMARY KEY, name VARCHAR(20) NOT NULL DEFAULT 'x')",
    "DELETE FROM people WHERE NOT EXISTS (SELECT 1 FROM pets) OR age BETWEEN 3 AND 4",
    "SELECT CASE WHEN a IS NOT NULL THEN -a ELSE cast(b AS text) || 'x' END FROM t, (SELECT 1) AS u",
    "DROP TABLE IF EXISTS people",
]
GO = [
    'package main\n\nimport (\n\t"fmt"\n\tstr "strings"\n)\n\n// Pair is two.\ntype Pair struct {\n\tA, B int\n\tName string `json:"n"`\n}\n\n'
    "func (p *Pair) Sum(more ...int) (int, error) {\n\ttotal := p.A + p.B\n\tfor i, m := range more {\n\t\tif m < 0 {\n"
    '\t\t\treturn 0, fmt.Errorf("bad %d", i)\n\t\t} else if m == 0 {\n\t\t\tcontinue\n\t\t}\n\t\ttotal += m\n\t}\n'
    "\treturn total, nil\n}\n",
    'package a\n\nconst (\n\tX = iota\n\tY\n)\n\nvar m = map[string][]int{\n\t"a": {1, 2},\n\t"b": nil,\n}\n\n'
    "func f() {\n\tswitch x := g(); {\n\tcase x > 1:\n\t\tgo h(x)\n\tdefault:\n\t\tdefer k.L()\n\t}\n}\n".replace(
        "switch x := g(); {", "switch x {"
    ),
    "package a\n\ntype S interface {\n\tLen() int\n\tLess(i, j int) bool\n}\n\nfunc w(c chan int) {\n\tfor i := 0; i < 10; i++ {\n"
    "\t\tc <- i\n\t}\n\tf := func(a []byte) bool {\n\t\treturn len(a[1:]) > 0 && !done\n\t}\n\t_ = f\n}\n",
]
BAD = {
    "json": ['{"a": 1,}', "01", '"\\x"', "[1 2]", "nul", "'a'", "{1: 2}"],
    "python": [
        "a, b := c\n",
        "x = y := 1\n",
        "return a := b\n",
        "for i in a := b:\n    pass\n",
        "if x:\npass\n",
        "if x:\n    pass\n  y\n",
        "if x:\n    pass\n        y\n",
        "x = = 1\n",
        "f(a=1, 2)\n",
        "1 = x\n",
        "def f(a=1, b): pass\n",
        "b'a' 'b'\n",
        "try:\n    pass\nelse:\n    pass\n",
        'f"{x!z}"\n',
        "x = 'a\nb'\n",
        "(a, b\n",
        "a not b\n",
        "class = 1\n",
        "lambda x\n",
        "import a.b as c.d\n",
        "return x y\n",
        "else:\n    pass\n",
        "01\n",
        '"\\xq0"\n',
        "a ifb else c\n",
        "x = yield = 1\n",
        "f() = 1\n",
    ],
    "sql": [
        "ſelect 1",
        "SELECT",
        "SELECT FROM t",
        "SELECT a WHERE",
        "SELEC 1",
        "INSERT INTO t VALUES",
        "SELECT (1",
        "SELECT 'a",
        "DELETE t",
    ],
    "go": [
        "package a\nfunc f() {\n",
        "package a\nfunc f() { return 1 }\n",
        "func f() {}\n",
        "package a\nvar x = = 1\n",
        "package a\nfunc f()\n{\n}\n",
    ],
}
GOOD = {
    "json": [json.dumps({"a": [1, -2.5e3, None, True], "é\n": {"": []}}, indent=2), "1", ' "\\u00e9" '],
    "sql": SQL,
    "go": GO,
}
PYTHON = [
    "async def f(a, /, b: int = 1, *c, d, e=2, **g) -> None:\n    async with a as b, c:\n        await x\n",
    "for i, (a, *b) in x:\n    pass\nelse:\n    del a[0], b\n",
    "try:\n    pass\nexcept (A, B) as e:\n    raise C from e\nexcept:\n    pass\nelse:\n    x\nfinally:\n    y\n",
    "x: int = 1; y = z = lambda a, *b, c=1, **d: (yield)\n",
    "f\"{a!r:>{w}} {{}} {b=} {'c'}\" f'{d[\"e\"]}'\n",
    "@a.b(c)\nclass A(B, metaclass=C):\n\n    # comment\n    def f(self): return {**a, 'b': 1}\n\n\n",
    "x = [a for b in c if d for e in f] if not g else {h: i for h in j}\n",
    "while (n := n - 1) >= 0 and a is not b not in c: continue\n",
    "(a := b), [c := d, e], {f := g}, h[i := j], k(l := m)\n",
    "x[1:2, ..., ::3] += b'a\\x00' rb'c'\n",
    "global a, b\nassert x, 'y'\nfrom . import a as b, c\nfrom ..a.b import (c,\n    d)\nimport a.b as c, d\n",
    "print(*a, sep='', **b)\n",
    "if a:\n    if b:\n        c\n\n    # d\n    elif e:\n        f\ng\n",
]


@pytest.fixture(scope="module")
def model(nano: Path) -> Model:
    return edgedec.open(nano, threads=1)


def first_masked(model: Model, found: GrammarConstraint, text: str) -> str | None:
    """What a constraint stops at; None if it takes the whole text and lets it end there."""
    found.reset()
    tokens = model.tokenizer.encode(text, special=False, around=False)
    for i, token in enumerate(tokens):
        if not found.validate([token])[0]:
            return model.tokenizer.decode(tokens[max(i - 20, 0) : i + 3])
        found.accept(token)
    return None if found.may_end() else "the end"


def ours(every: int) -> list[Path]:
    """Python files of the project, each `every`th."""
    return sorted((ROOT / "edgedec").rglob("*.py"))[::every]


# --- what they take ---


def test_what_ships() -> None:
    assert shipped() == ("go", "json", "python", "sql")
    for name in shipped():
        assert "%" not in "".join(line for line in shipped_grammar(name).splitlines() if "stmt" in line)


def test_no_token_of_our_own_files_is_masked(model: Model) -> None:
    found = constraints.grammar(model, "python")
    files = ours(1 if SLOW else 41)
    masked = {file.name: stop for file in files if (stop := first_masked(model, found, file.read_text("utf-8")))}
    # A token of the vocabulary in the text: tokenizers make it that token.
    masked = {name: stop for name, stop in masked.items() if "<|" not in stop}
    assert len(files) >= 8
    assert masked == {}


@pytest.mark.parametrize("text", PYTHON)
def test_python_of_all_kinds(model: Model, text: str) -> None:
    ast.parse(text)
    assert first_masked(model, constraints.grammar(model, "python"), text) is None


@pytest.mark.parametrize("name", ["json", "sql", "go"])
def test_small_sets_of_the_others(model: Model, name: str) -> None:
    found = constraints.grammar(model, name)
    for text in GOOD[name]:
        assert first_masked(model, found, text) is None


@pytest.mark.parametrize("name", ["json", "python", "sql", "go"])
def test_what_is_wrong_is_masked(model: Model, name: str) -> None:
    found = constraints.grammar(model, name)
    for text in BAD[name]:
        assert first_masked(model, found, text) is not None, text


# --- what they let end ---


def python_reads(text: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ast.parse(text)
    return True


def sqlite_reads(text: str) -> bool:
    """Whether SQLite finds no mistake of syntax: names need not exist."""
    base = sqlite3.connect(":memory:")
    try:
        base.executescript(text)
    except sqlite3.Error as error:
        said = str(error)
        return not any(word in said for word in ("syntax", "incomplete", "unrecognized"))
    return True


def json_reads(text: str) -> bool:
    json.loads(text)
    return True


def corpus(name: str) -> list[str]:
    return [file.read_text("utf-8") for file in ours(97)] if name == "python" else GOOD[name]


@pytest.mark.parametrize(("name", "reads"), [("python", python_reads), ("sql", sqlite_reads), ("json", json_reads)])
def test_what_may_end_is_read_by_the_language_itself(model: Model, name: str, reads: Callable[[str], bool]) -> None:
    """Random texts of a corpus' tokens: wherever the grammar lets one end, the language's own parser takes it."""
    draw, found, ends = random.Random(5), constraints.grammar(model, name), 0
    tokens = [token for text in corpus(name) for token in model.tokenizer.encode(text, special=False, around=False)]
    for _ in range(200 if SLOW else 16):
        found.reset()
        taken: list[int] = []
        for _ in range(60):
            some = [tokens[draw.randrange(len(tokens))] for _ in range(24)]
            fine = [token for token, valid in zip(some, found.validate(some), strict=True) if valid]
            rest = fine or np.flatnonzero(found.mask(())).tolist()
            rest = [token for token in rest if token not in model.eos]
            if not rest:
                break
            taken.append(rest[draw.randrange(len(rest))])
            found.accept(taken[-1])
            if found.may_end():
                ends += 1
                assert reads(model.tokenizer.decode(taken)), model.tokenizer.decode(taken)
    assert ends >= 10


# --- doors ---


def test_a_grammar_is_named(model: Model) -> None:
    found = "".join(
        model.session().generate("Once", max_tokens=30, constraint="grammar:text=sql", temperature=1, seed=4)
    )
    assert found.split()[0].lower() in ("select", "insert", "update", "delete", "create", "drop", "with", "--", "")
    assert constraints.given.inline("grammar", "python")
    assert not constraints.given.inline("grammar", "python.lark")


def test_levels_and_copies() -> None:
    text = grammars._levels('a%: INDENT% "x" | ":" y | ":" a%+\nb%: a%\n', 1)
    assert text == 'a_0: "x" | ":" y | ":" a_1\nb_0: a_0\na_1: "    " "x" | ":" y\nb_1: a_1\n'
    assert grammars._copies("a@: B@ c\n", "_o _i") == "a_o: B_O c\na_i: B_I c\n"


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_speculation_changes_nothing_under_a_layout(model: Model, temperature: float) -> None:
    texts = [
        "".join(
            model.session(speculate=spec).generate(
                "def f(x):\n", max_tokens=60, constraint="grammar:text=python", temperature=temperature, seed=2
            )
        )
        for spec in ("off", "auto")
    ]
    assert texts[0] == texts[1] != ""
