"""Groups of flags: what typer sees of them, and what the verb gets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from inspect import signature
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import pytest
import typer
from typer.testing import CliRunner

from edgedec import Sampling
from edgedec.cli import _flags as options
from edgedec.cli._flags.groups import grouped
from edgedec.decoding.config import OPTIONS

Size = Annotated[int, typer.Option("--size", min=1)]


@dataclass(frozen=True)
class Shape:
    size: Size = 3
    names: Annotated[list[str] | None, typer.Option("--name")] = None


@dataclass(frozen=True)
class Colour:
    red: Annotated[bool, typer.Option("--red")] = False


@dataclass(frozen=True)
class BigShape(Shape):
    """The same flags with a default of its own."""

    size: Size = 9


@dataclass(frozen=True)
class Other:
    size: Size = 1


@dataclass(frozen=True)
class Needed:
    size: Size


@dataclass(frozen=True)
class Bare:
    size: int = 3


@dataclass
class Thawed:
    size: Size = 3


def made(verb: Callable[..., Any], *args: str) -> tuple[int, str]:
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(verb)
    result = CliRunner().invoke(app, list(args))
    return result.exit_code, result.output


def test_a_group_stands_for_its_fields_where_it_stands() -> None:
    @grouped
    def verb(*, first: Annotated[str, typer.Argument()], shape: Shape, n: int = 1, colour: Colour) -> None:
        """Do it."""
        print(first, shape, n, colour)

    assert list(signature(verb).parameters) == ["first", "size", "names", "n", "red"]
    assert signature(verb).parameters["size"].default == 3
    assert get_type_hints(verb, include_extras=True)["size"] is Size
    assert (verb.__name__, verb.__doc__) == ("verb", "Do it.")
    code, printed = made(verb, "a", "--size", "5", "--name", "x", "--name", "y", "--red")
    assert code == 0
    assert printed == f"a {Shape(5, ['x', 'y'])} 1 {Colour(True)}\n"
    assert made(verb, "a", "--size", "0")[0] == 2


def test_a_verb_may_have_defaults_of_its_own_and_needed_flags() -> None:
    @grouped
    def big(*, shape: BigShape) -> None:
        print(shape.size, isinstance(shape, Shape))

    @grouped
    def needy(*, shape: Needed) -> None:
        print(shape.size)

    assert made(big) == (0, "9 True\n")
    assert list(signature(big).parameters) == ["size", "names"]
    assert made(needy)[0] == 2
    assert made(needy, "--size", "4") == (0, "4\n")


def test_a_parameter_may_be_named_as_a_field_of_its_group() -> None:
    @grouped
    def verb(*, red: Colour) -> bool:
        return red.red

    assert verb(red=True) is True


def _none(*, n: int = 1) -> None: ...
def _two(*, shape: Shape, other: Other) -> None: ...
def _again(*, size: Size = 2, shape: Shape) -> None: ...
def _bare(*, shape: Bare) -> None: ...
def _thawed(*, shape: Thawed) -> None: ...


@pytest.mark.parametrize(
    ("verb", "words"),
    [
        (_none, "_none: no parameter is a group"),
        (_two, "_two: size: comes twice"),
        (_again, "_again: size: comes twice"),
        (_bare, "Bare.size: is no option"),
        (_thawed, "Thawed must be a frozen dataclass"),
    ],
)
def test_mistakes_are_found_when_the_verb_is_made(verb: Callable[..., None], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        grouped(verb)


def test_every_option_of_a_generation_has_a_flag() -> None:
    assert {field.name for field in fields(options.SeededGeneration)} == set(OPTIONS)
    assert {field.name for field in fields(Sampling)} < set(OPTIONS)


def test_only_a_schema_may_stand_inline_and_several_constraints_are_a_product(tmp_path: Path) -> None:
    flags = options.ConstraintFlags
    file = tmp_path / "{odd"
    file.write_text("root ::= 'a'", encoding="utf-8")
    assert flags().text() is None
    assert flags(json_schema=' {"type": "null"}').text() == ("json_schema", ' {"type": "null"}')
    assert flags(json_schema=str(file)).text() == ("json_schema", "root ::= 'a'")
    assert flags(grammar=str(file)).text() == ("grammar", "root ::= 'a'")
    assert flags(regex="{a").text() == ("regex", "{a")
    kind, both = flags(regex="a", grammar=str(file)).text()
    assert kind == "product"
    assert "root ::= 'a'" in both
