"""`edgedec plugins`: families of plug-ins, the plug-ins of one, and the options of a plug-in."""

from __future__ import annotations

import json as encoder
from collections.abc import Iterator
from importlib import import_module
from typing import Annotated, Any

import typer

from edgedec import families
from edgedec.cli import _flags as o
from edgedec.cli._output import print_json, print_table
from edgedec.errors import UsageError
from edgedec.plugins import Family
from edgedec.plugins.about import about

app = typer.Typer(add_completion=False, rich_markup_mode=None)


def _families(incomplete: str) -> list[str]:
    return [name for name in families.PACKAGES if name.startswith(incomplete)]


def _names(ctx: typer.Context, incomplete: str) -> list[str]:
    """The plug-ins of the family on the command line."""
    name = ctx.params.get("family")
    names = families.family(name).names() if name in families.PACKAGES else ()
    return [name for name in names if name.startswith(incomplete)]


@app.command()
def plugins(
    family: Annotated[
        str | None, typer.Argument(metavar="FAMILY", show_default=False, autocompletion=_families, help="A family.")
    ] = None,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", show_default=False, autocompletion=_names, help="A plug-in of it.")
    ] = None,
    json: o.Json = False,
) -> None:
    """List plug-ins by family, or the options of one.

    \b
    Examples:
      edgedec plugins
      edgedec plugins processors
      edgedec plugins processors dola
      edgedec plugins constraints --json
    """
    if family is None:
        _list_families(json)
        return
    found = families.family(family)
    if name is None:
        _list_plugins(found, json)
    elif name in found:
        _show(about(found, name), json)
    else:
        raise UsageError(found.unknown(name))


def _list_families(json: bool) -> None:
    found = {name: families.family(name) for name in families.PACKAGES}
    if json:
        print_json({name: list(family.names()) for name, family in found.items()})
        return
    rows = [(name, len(family.names()), _sentence(families.PACKAGES[name])) for name, family in found.items()]
    print_table(rows, ("family", "plug-ins", "what it is"))


def _sentence(package: str) -> str:
    """The first sentence of a package's docstring."""
    text = " ".join((import_module(package).__doc__ or "").partition("\n\n")[0].split())
    return text.partition(". ")[0].rstrip(".") + "."


def _list_plugins(family: Family[Any], json: bool) -> None:
    found = list(_described(family))
    if json:
        print_json(found)
    else:
        print_table([(item["name"], item["summary"]) for item in found], (family.title, "what it is"))


def _described(family: Family[Any]) -> Iterator[dict[str, Any]]:
    """The descriptions of a family's plug-ins; for one without its packages, the missing ones."""
    for name in family.names():
        try:
            yield about(family, name)
        except ImportError as error:
            yield {"name": name, "summary": f"cannot be imported here: {error}", "options": [], "facts": {}}


def _show(found: dict[str, Any], json: bool) -> None:
    if json:
        print_json(found)
        return
    print(f"{found['name']}: {found['summary']}")
    if found["options"]:
        rows = [
            (item["name"], _kind(item), _default(item), _range(item), item["description"]) for item in found["options"]
        ]
        print_table(rows, ("option", "type", "default", "range", "what it is"), "Options")
    if found["facts"]:
        print_table([(key, _plain(value)) for key, value in found["facts"].items()], title="Facts")


def _kind(option: dict[str, Any]) -> str:
    """The type of an option: "number", "list of integer", "one of a, b"."""
    if "enum" in option:
        return f"one of {', '.join(map(str, option['enum']))}"
    return f"list of {_kind(option['items'])}" if option["type"] == "array" else str(option["type"])


def _default(option: dict[str, Any]) -> str:
    return "required" if option.get("required") else _plain(option["default"]) if "default" in option else "-"


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else encoder.dumps(value, ensure_ascii=False)


def _range(option: dict[str, Any]) -> str:
    """The limits of an option in words."""
    words = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to", "exclusiveMaximum": "below"}
    return " ".join(f"{word} {option[key]:g}" for key, word in words.items() if key in option) or "-"
