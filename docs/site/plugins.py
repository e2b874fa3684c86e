"""Writes docs/plugins.md: every plug-in with its options, as the sources declare them.

python docs/site/plugins.py           # write it
python docs/site/plugins.py --check   # exit with 1 if it is not what the sources say
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from edgedec import families
from edgedec.plugins import Family, PluginOption

PAGE = Path(__file__).parents[2] / "docs" / "plugins.md"
HEAD = """# Plug-ins

Made from the sources by `docs/site/plugins.py`. A family is a package, a plug-in one of its files, an option an argument of the file's `make`. They are named in
words: `NAME:OPTION=VALUE,…`, several joined by `+`, a value with `+` or `,` in quotes (`path='/c++/m'`), lists as JSON. Python, the server and
batch files take JSON as well: `{"name": "copy", "ngram": 3}`. `edgedec plugins FAMILY NAME` prints what an option means.
A package adds a plug-in by an entry point of the group in brackets: [architecture](architecture.md#plug-ins).
"""
# What a user names by hand, and where; of the others names are listed.
NAMED = {
    "drafters": "`--spec`, `speculate=`: [speculative decoding](speculation.md)",
    "policies": "`--cache`, `cache=`, lossy: [long contexts](long-context.md)",
    "verifiers": "the option `verify` of drafters",
    "processors": "`--processors`, `processors=`: [sampling](sampling.md)",
    "constraints": "`--regex`, `--grammar`, … : [structured output](constraints.md)",
}


def page() -> str:
    return HEAD + "".join(_named(name, where) for name, where in NAMED.items()) + _others()


def _named(name: str, where: str) -> str:
    """A section: a table of the plug-ins, then one of their options."""
    family = families.family(name)
    rows = [f"| `{plugin}` | {family.summary(plugin)} | {_given(family, plugin)} |\n" for plugin in family.names()]
    title = f"\n## {name.capitalize()}\n\n{where} (`{family.package}`).\n\n"
    return title + "| name | | options |\n| --- | --- | --- |\n" + "".join(rows) + _meanings(family)


def _given(family: Family[Any], plugin: str) -> str:
    """The options with their defaults."""
    own = family.options(plugin).values()
    return " ".join(f"`{option.name}={_default(option)}`" for option in own)


def _default(option: PluginOption) -> str:
    value = "…" if option.required else option.default
    return {True: "true", False: "false"}.get(value, value) if isinstance(value, bool) else f"{value or ''}"


def _meanings(family: Family[Any]) -> str:
    """A line for each option: what it means, where that is the same for all plug-ins that have it."""
    found = dict[tuple[str, str, str], list[str]]()
    for plugin in family.names():
        for option in family.options(plugin).values():
            found.setdefault((option.name, option.opt.help, option.opt.range()), []).append(plugin)
    if not found:
        return ""
    return "\n| option | | |\n| --- | --- | --- |\n" + "".join(_meaning(family, found))


def _meaning(family: Family[Any], found: dict[tuple[str, str, str], list[str]]) -> Iterator[str]:
    names = [name for name, _, _ in found]
    for (name, text, allowed), plugins in sorted(found.items()):
        of = "" if names.count(name) == 1 else f" ({', '.join(plugins)})"
        yield f"| `{name}`{of} | {text} | {allowed} |\n"


def _others() -> str:
    lines = [
        f"| {name} | {', '.join(families.family(name).names())} |\n" for name in families.PACKAGES if name not in NAMED
    ]
    return "\n## Others\n\n| family | |\n| --- | --- |\n" + "".join(lines)


def main(check: bool) -> int:
    if check:
        return int(not PAGE.is_file() or page() != PAGE.read_text("utf-8"))
    PAGE.write_text(page(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv))
