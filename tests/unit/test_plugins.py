"""Families of plug-ins: words are read as they are written, options have their types, and what is wrong is named."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedec import families
from edgedec.errors import EdgedecError, RuntimeUnavailable, UsageError
from edgedec.plugins import Family, Opt, PluginChoice
from edgedec.plugins.about import about, all_about, schema
from edgedec.plugins.options import options_of_make
from edgedec.plugins.words import parse, quoted, spelt

ECHO = '''"""Says it again.

More of it.
"""
from typing import Annotated, Literal
from {package} import EchoFacts
from edgedec.plugins import Opt

FACTS = EchoFacts(rank=3)

def make(
    host,
    times: Annotated[int, Opt("How often.", 1, 9, aliases=("count",))] = 2,
    loud: Annotated[bool, Opt("In capitals.")] = False,
    mood: Annotated[Literal["calm", "glad"], Opt("The mood.")] = "calm",
    path: Annotated[str, Opt("A file.")] = "",
    scale: Annotated[float, Opt("A factor.", above=0, high=2)] = 1.0,
    layers: Annotated[tuple[int, ...], Opt("Some layers.")] = (),
    limit: Annotated[int | None, Opt("No limit if left out.", 0)] = None,
):
    return host, times, loud, mood, path, scale, layers, limit
'''
STORE = '''"""Keeps."""
from typing import Annotated
from edgedec.plugins import Opt

def even(value):
    return "even" if value % 2 else None

def make(host, path: Annotated[str, Opt("The file.")], even: Annotated[int, Opt("Even.", must=even)] = 0):
    return path
'''
NAMES = iter(range(10**6))


@dataclass(frozen=True)
class EchoFacts:
    rank: int | None = None


def every(fixed: Annotated[int, Opt("Of all.", 0)] = 0) -> None: ...


@pytest.fixture
def family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Family[EchoFacts]:
    """Two plug-ins, a helper and a package, in a package of their own."""
    package = f"plugin_family_{next(NAMES)}"
    folder = tmp_path / package
    (folder / "nested").mkdir(parents=True)
    (folder / "__init__.py").write_text("from test_plugins_facts import EchoFacts\n", "utf-8")
    (tmp_path / "test_plugins_facts.py").write_text("EchoFacts = None\n", "utf-8")
    (folder / "nested" / "__init__.py").write_text('"""A package."""\ndef make(host): return "nested"\n', "utf-8")
    (folder / "echo.py").write_text(ECHO.format(package=package), "utf-8")
    (folder / "keep_all.py").write_text(STORE, "utf-8")
    (folder / "_helper.py").write_text("raise AssertionError('no plug-in')\n", "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    import test_plugins_facts

    monkeypatch.setattr(test_plugins_facts, "EchoFacts", EchoFacts)
    return Family(
        package, "thing", where="thing", flag="--thing", facts=EchoFacts, words={"none": "Nothing."}, common=every,
        aliases={"shout": "echo"},
    )  # fmt: skip


def test_the_files_of_a_package_are_its_plugins(family: Family[EchoFacts]) -> None:
    assert family.names() == family.shipped == ("echo", "keep_all")
    assert family.summary("echo") == "Says it again."
    assert family.facts("echo") == EchoFacts(3)
    assert family.facts("keep_all") == EchoFacts()
    assert family.all_facts() == {"echo": EchoFacts(3), "keep_all": EchoFacts()}
    assert "echo" in family
    assert "shout" in family
    assert "nested" not in family


def test_packages_are_plugins_where_a_family_says_so(family: Family[EchoFacts]) -> None:
    assert Family(family.package, "thing", packages=True).names() == ("echo", "keep_all", "nested")
    assert Family(family.package, "thing", packages=True).make("nested", None) == "nested"


@pytest.mark.parametrize(
    ("given", "key", "value"),
    [
        ("echo:times=4", "times", 4),
        ("echo:count=4", "times", 4),  # an older name
        ("echo:loud=false", "loud", False),
        ("echo:loud=0", "loud", False),
        ("echo:loud=True", "loud", True),
        ('echo:path="a,b+c"', "path", "a,b+c"),
        ("echo:path='/c++/m,2'", "path", "/c++/m,2"),
        ("echo:path='it''s'", "path", "it's"),
        ("echo:path=12", "path", "12"),
        ("echo:layers=[1, 2]", "layers", (1, 2)),
        ("echo:layers=[]", "layers", ()),
        ("echo:scale=2", "scale", 2.0),
        ("echo:mood=glad", "mood", "glad"),
        ("echo:fixed=7", "fixed", 7),
        ("shout:times=4", "times", 4),
        ({"name": "echo", "times": 4}, "times", 4),
        ('{"name": "echo", "loud": false}', "loud", False),
        ([{"name": "echo", "layers": [3]}], "layers", (3,)),
        ({"name": "echo", "limit": None}, "limit", None),
        ({"name": "echo", "scale": 1}, "scale", 1.0),
        ({"name": "echo", "times": 2.0}, "times", 2),
    ],
)
def test_options_have_their_types(family: Family[EchoFacts], given: Any, key: str, value: object) -> None:
    ((_, options),) = family.parse(given)
    assert options == {key: value}
    assert type(options[key]) is type(value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("echo:times=0", "thing echo: times=0: must be from 1 to 9"),
        ("echo:times=many", "thing echo: times=many: must be a whole number"),
        ("echo:times=1.5", "thing echo: times=1.5: must be a whole number"),
        ({"name": "echo", "times": True}, "thing echo: times=True: must be a whole number"),
        ({"name": "echo", "times": 2.5}, "thing echo: times=2.5: must be a whole number"),
        ({"name": "echo", "times": None}, "thing echo: times=None: must be a whole number"),
        ("echo:loud=maybe", "thing echo: loud=maybe: must be true or false"),
        ({"name": "echo", "loud": 0.0}, "thing echo: loud=0.0: must be true or false"),
        ("echo:mood=grim", "thing echo: mood=grim: must be one of calm, glad"),
        ("echo:scale=0", "thing echo: scale=0: must be above 0, up to 2"),
        ("echo:scale=nan", "thing echo: scale=nan: must be a finite number"),
        ({"name": "echo", "scale": 10**400}, "a finite number"),
        ({"name": "echo", "path": 3}, "thing echo: path=3: must be text"),
        ("echo:layers=3", "thing echo: layers=3: must be a list, as in [1, 2]"),
        ("echo:layers=[true]", "thing echo: layers=[True]: must be a whole number"),
        ("echo:tims=3", "thing echo: no option 'tims' (did you mean times?); there are: fixed, times, loud,"),
        ("echo:mole=3", "thing echo: no option 'mole'; there are: fixed"),
        ("keen", "--thing: no thing 'keen'; there are: none, echo, keep_all"),
        ("echo:times=1,times=2", "--thing echo:times=1,times=2: times is given twice"),
        ("echo:times=1,count=2", "thing echo: count and times are one option; give it once"),
        ("echos", "--thing: no thing 'echos' (did you mean echo?); there are: none, echo, keep_all"),
        ("keep_all", "thing keep_all: needs path=…: The file."),
        ("keep-all:path=x,even=3", "thing keep-all: even=3: must be even"),
        ("none:times=3", "thing none: takes no options"),
        ("echo:path=/c++/m", "--thing echo:path=/c++/m: a name is missing; a value with + or , stands in quotes"),
        ("echo:times", "--thing echo:times: 'times' must be OPTION=VALUE"),
        ("echo:path='a", "--thing echo:path='a: a closing ' is missing"),
        ("echo:path='a'b", "--thing echo:path='a'b: 'b' is not expected"),
        ("echo:layers=[1,", "--thing echo:layers=[1,: not JSON"),
        ("", "--thing : a name is missing"),
        ('[{"name": "echo"', '--thing [{"name": "echo": not JSON'),
        ('{"name": "echo", "times": 1, "times": 2}', "--thing times is given twice"),
        ([{"nam": "echo"}], 'must be text or an object with "name" and options'),
        ([3], 'must be text or an object with "name" and options'),
    ],
)
def test_what_is_wrong_is_named(family: Family[EchoFacts], given: Any, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        family.parse(given)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_at_most_two_names_are_suggested(family: Family[EchoFacts]) -> None:
    near = Family(family.package, "thing", words={"echa": "One.", "echi": "Another.", "echu": "A third."})
    assert "(did you mean echu or echo?)" in near.unknown("ech")


def test_a_family_has_an_error_of_its_own(family: Family[EchoFacts]) -> None:
    kind: type[EdgedecError] = RuntimeUnavailable
    with pytest.raises(RuntimeUnavailable, match=r"^no thing 'nothing'; there are: echo, keep_all$"):
        Family(family.package, "thing", error=kind).file("nothing")


def test_making_one(family: Family[EchoFacts]) -> None:
    plain = Family(family.package, "thing")
    assert plain.make("echo", "host") == ("host", 2, False, "calm", "", 1.0, (), None)
    assert plain.make("echo", "host", {"times": "3", "limit": 4}) == ("host", 3, False, "calm", "", 1.0, (), 4)
    assert plain.make("keep-all", "host", {"path": "a"}) == "a"


def test_other_distributions_add_plugins(family: Family[EchoFacts], monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def found(group: str) -> list[EntryPoint]:
        asked.append(group)
        return [EntryPoint("zebra", f"{family.package}.echo", group), EntryPoint("echo", "nowhere", group)]

    monkeypatch.setattr("edgedec.plugins.family.entry_points", found)
    assert family.names() == ("echo", "keep_all", "zebra")
    assert family.facts("zebra") == EchoFacts(3)
    assert family.summary("echo") == "Says it again."  # what ships goes first
    assert family.parse("zebra:times=5") == [PluginChoice("zebra", {"times": 5})]
    assert asked == [family.package]


def test_a_shipped_plugin_is_found_without_those_of_others(
    family: Family[EchoFacts], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgedec.plugins.family.entry_points", lambda group: pytest.fail("reads all distributions"))
    assert family.parse("echo:times=3+none") == [PluginChoice("echo", {"times": 3}), PluginChoice("none", {})]
    assert family.file("echo").__name__.endswith(".echo")


def test_facts_of_another_kind_are_refused(family: Family[EchoFacts]) -> None:
    @dataclass(frozen=True)
    class Other:
        pass

    with pytest.raises(TypeError, match="FACTS must be Other"):
        Family(family.package, "thing", facts=Other).facts("echo")


def test_an_option_without_type_or_help_is_a_mistake_of_its_author() -> None:
    def bare(host: object, n: int = 3) -> None: ...
    def strange(host: object, n: Annotated[dict[str, int], Opt("?")]) -> None: ...
    def either(host: object, n: Annotated[int | str, Opt("?")] = 3) -> None: ...

    for make in (bare, strange, either):
        with pytest.raises(TypeError, match=r"Annotated|no type of an option|one type"):
            options_of_make(make)


@pytest.mark.parametrize(
    ("opt", "words", "inside", "outside"),
    [
        (Opt("", 1, 8), "from 1 to 8", (1, 8), (0, 9)),
        (Opt("", 0, below=1), "from 0 to below 1", (0, 0.99), (1, -0.1)),
        (Opt("", above=0, high=1), "above 0, up to 1", (0.1, 1), (0, 1.1)),
        (Opt("", above=0, below=1), "above 0, up to below 1", (0.5,), (0, 1)),
        (Opt("", 3), "3 or more", (3, 99), (2,)),
        (Opt("", above=3), "above 3", (3.1,), (3,)),
        (Opt("", high=3), "up to 3", (3, -9), (3.1,)),
        (Opt("", 0, 1 << 20), "from 0 to 1048576", (1 << 20,), (-1,)),
        (Opt("", 0.5, 1.5), "from 0.5 to 1.5", (1,), (2,)),
        (Opt("", below=3), "below 3", (2.9,), (3,)),
        (Opt(""), "", (-1e9, 1e9), ()),
    ],
)
def test_ranges(opt: Opt, words: str, inside: tuple[float, ...], outside: tuple[float, ...]) -> None:
    assert opt.range() == words
    assert [opt.wrong(value) for value in inside] == [None] * len(inside)
    assert [opt.wrong(value) for value in outside] == [f"must be {words}"] * len(outside)
    assert Opt("", 5).wrong(True) is None  # a boolean has no range


def test_descriptions(family: Family[EchoFacts]) -> None:
    found = about(family, "echo")
    assert (found["name"], found["summary"], found["facts"]) == ("echo", "Says it again.", {"rank": 3})
    options = {option["name"]: option for option in found["options"]}
    assert list(options) == ["fixed", "times", "loud", "mood", "path", "scale", "layers", "limit"]
    assert options["times"] == {
        "name": "times", "type": "integer", "minimum": 1, "maximum": 9, "default": 2, "description": "How often.",
    }  # fmt: skip
    assert options["scale"]["exclusiveMinimum"] == 0
    assert options["mood"]["enum"] == ["calm", "glad"]
    assert options["layers"]["items"] == {"type": "integer"}
    assert "default" not in options["limit"]
    assert [entry["name"] for entry in all_about(family)] == ["echo", "keep_all"]
    assert all_about(family)[1]["options"][1]["required"] is True
    json.dumps(all_about(family))


@pytest.mark.parametrize(
    ("value", "valid"),
    [
        ("echo:times=3", True),
        ({"name": "echo", "times": 3, "layers": [1]}, True),
        (["echo", {"name": "keep_all", "path": "a"}], True),
        ({"name": "echo", "times": 30}, False),
        ({"name": "echo", "time": 3}, False),
        ({"name": "keep_all"}, False),
        (["echo"] * 16, True),
        (["echo"] * 17, False),
        ("x" * 4096, True),
        ("x" * 4097, False),
        ("x", True),
        ("", False),
        (3, False),
    ],
)
def test_the_schema_says_what_is_valid(family: Family[EchoFacts], value: object, valid: bool) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    assert jsonschema.Draft202012Validator(schema(family)).is_valid(value) is valid


VALUES = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
KEYS = st.text("abcdefgh_", min_size=1, max_size=6)


@given(
    st.lists(st.tuples(KEYS, st.dictionaries(KEYS, VALUES, max_size=3)), min_size=1, max_size=4), st.sampled_from("'\"")
)
def test_quoted_words_come_back_as_they_were(choices: list[tuple[str, dict[str, str]]], quote: str) -> None:
    def quoted(value: str) -> str:
        return quote + value.replace(quote, quote * 2) + quote

    words = "+".join(
        name + (":" if options else "") + ",".join(f"{key}={quoted(value)}" for key, value in options.items())
        for name, options in choices
    )
    assert parse(words) == [PluginChoice(name, options) for name, options in choices]
    assert parse(json.dumps([{"name": name, **options} for name, options in choices if "name" not in options])) == [
        PluginChoice(name, options) for name, options in choices if "name" not in options
    ]


@given(VALUES)
def test_a_value_is_quoted_where_it_must_be(value: str) -> None:
    assert parse(f"a:x={quoted(value)},y=1+b") == [PluginChoice("a", {"x": value, "y": "1"}), PluginChoice("b", {})]


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused_in_one_line(text: str) -> None:
    try:
        found = parse(text, "--x ")
    except UsageError as error:
        assert "must be" in str(error) or "missing" in str(error) or "not" in str(error) or "twice" in str(error)  # noqa: PT017
    else:
        assert all(name.strip() == name and name for name, _ in found)


@pytest.mark.parametrize("family", families.PACKAGES)
def test_every_plugin_describes_itself(family: str) -> None:
    if family in ("students", "recipes"):
        pytest.importorskip("torch", reason="these are trained with torch")
    known = families.family(family)
    for name in known.names():
        found = about(known, name)
        assert len(found["summary"]) > 10, name
        assert all(option["description"].endswith(".") for option in found["options"]), name
        for option in known.options(name).values():
            if not option.required:
                assert option.read(option.default) == option.default, f"{name}: {option.name}: its own default is wrong"
        json.dumps(found)


def test_the_drafters_of_auto_have_this_order() -> None:
    """Cheapest first; docs/speculation.md names them in this order."""
    ranks = {name: facts.auto for name, facts in families.family("drafters").all_facts().items() if facts.auto}
    tables, heads = ["copy", "suffix", "recycling", "trigram"], ["eagle3", "mtp", "eagle", "hydrapp", "hydra", "medusa"]
    assert sorted(ranks, key=lambda name: ranks[name] or 0) == [*tables, *heads, "model", "longspec", "sparse"]
    assert len(set(ranks.values())) == len(ranks)


def test_options_in_words_come_back() -> None:
    options = {"path": "a,b+c", "width": 8, "share": 0.5, "sizes": (1, 2), "on": True, "plain": "./small"}
    words = spelt(options)
    assert words == ":path='a,b+c',width=8,share=0.5,sizes=[1, 2],on=True,plain=./small"
    (back,) = parse(f"a{words}")
    assert {key: str(value) for key, value in back.options.items()} == {
        key: str(list(value) if isinstance(value, tuple) else value) for key, value in options.items()
    }
    assert spelt({}) == ""
