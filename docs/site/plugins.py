"""Writes docs/plugins.md: every plug-in with its options, as the sources declare them.

python docs/site/plugins.py           # write it
python docs/site/plugins.py --check   # exit with 1 if it is not what the sources say
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from edgedec import families
from edgedec.plugins import Family, PluginOption

PAGE = Path(__file__).parents[2] / "docs" / "plugins.md"
HEAD = """# Plug-ins

Made from the sources by `docs/site/plugins.py`. A family is a package, a plug-in one of its files, an option an argument of the file's `make`. As text they
are written `NAME:OPTION=VALUE,…`, several joined by `+`, a value with `+` or `,` in quotes (`path='/c++/m'`; a quote inside is doubled), lists as JSON (`early=[2,4]`).
JSON works too: `{"name": "copy", "ngram": 3}`, or a list of such. `edgedec plugins FAMILY NAME` prints what an option means.
A package adds a plug-in by an entry point of the group in brackets: [architecture](architecture.md#plug-ins).
"""
# What a user names by hand, and where; of the others names are listed.
NAMED = {
    "drafters": "`--spec`, `speculate=`: [speculative decoding](speculation.md)",
    "policies": "`--cache`, `cache=`, lossy: [long contexts](long-context.md)",
    "verifiers": "the option `verify` of drafters",
    "processors": "`--processors`, `processors=`: [sampling](sampling.md)",
    "fusion": "`--fuse`, `fuse=`: [fusion](fusion.md)",
    "constraints": "`--regex`, `--choices`, … : [structured output](constraints.md)",
    "searches": "`--search`, `search=`: [search](search.md)",
    "schedules": "`--diffusion schedule=…`: [diffusion](diffusion.md)",
    "blocks": "`--diffusion blocks=…`: [diffusion](diffusion.md)",
    "keeping": "`--diffusion keep=…`: [diffusion](diffusion.md)",
    "verify": "`--diffusion verify=…`: [diffusion](diffusion.md)",
    "fits": "`--diffusion fits=…`: [diffusion](diffusion.md)",
    "ends": "`--diffusion ends=…`: [diffusion](diffusion.md)",
    "passes": "`--passes` of `export` and `quantize`: [quantization](quantization.md)",
}


def page() -> str:
    return HEAD + "".join(_named(name, where) for name, where in NAMED.items()) + _others()


def _named(name: str, where: str) -> str:
    """A section: the plug-ins, then what their options mean."""
    family = families.family(name)
    rows = [f"- `{plugin}`: {family.summary(plugin)}{_given(family, plugin)}\n" for plugin in family.names()]
    return f"\n## {name.capitalize()}\n\n{where} (`{family.package}`).\n\n" + "".join(rows) + _meanings(family)


def _own(family: Family[Any], plugin: str) -> list[PluginOption]:
    """The options of a plug-in that not all of the family have."""
    return [option for key, option in family.options(plugin).items() if key not in family.common]


def _given(family: Family[Any], plugin: str) -> str:
    """The options with their defaults."""
    return "".join(f" `{option.name}{_default(option)}`" for option in _own(family, plugin))


def _default(option: PluginOption) -> str:
    if option.required:
        return "=…"
    if isinstance(option.default, bool):
        return f"={str(option.default).lower()}"
    return "" if option.default in ("", (), None) else f"={option.default}"


def _meanings(family: Family[Any]) -> str:
    """A line for each option, with the plug-ins that have it where it means something else in others."""
    found = dict[tuple[str, str], list[str]]()
    allowed = dict[tuple[str, str], str]()
    for plugin in family.names():
        for option in _own(family, plugin):
            found.setdefault((option.name, option.opt.help), []).append(plugin)
            allowed.setdefault((option.name, option.opt.help), option.opt.range())
    every = [f"- `{key}`, of all: {option.opt.help}\n" for key, option in family.common.items()]
    names = [name for name, _ in found]
    lines = [
        _line(name, text, found[name, text] if names.count(name) > 1 else [], allowed[name, text])
        for name, text in sorted(found)
    ]
    return "\nOptions:\n\n" + "".join([*every, *lines]) if every or lines else ""


def _line(name: str, text: str, plugins: list[str], allowed: str) -> str:
    """What an option means; plugins: of which, if not of all that have it."""
    of = f" ({', '.join(plugins)})" if plugins else ""
    return f"- `{name}`{of}: {text}" + (f" ({allowed})" if allowed.count(" ") > 1 else "") + "\n"


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
