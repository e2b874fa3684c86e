"""Writes the file of a new plug-in and its test.

    python -m edgedec.testing.new drafter echo

In a checkout of edgedec the files go where they belong, and the tables of docs/plugins.md are written anew. Anywhere
else they go into the current folder, and the lines for pyproject.toml are printed: a plug-in of another distribution is
an entry point.
"""

from __future__ import annotations

import argparse
import keyword
import re
import subprocess
import sys
from pathlib import Path
from string import Template

from edgedec.errors import EdgedecError, UsageError
from edgedec.testing.new.skeletons import SKELETONS, Skeleton

_NAME = re.compile(r"[a-z][a-z0-9_]*")


def main(arguments: list[str]) -> int:
    """The exit code: 0, or 1 with one line on stderr."""
    parser = argparse.ArgumentParser("python -m edgedec.testing.new", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("family", choices=sorted(SKELETONS), help="what to make")
    parser.add_argument("name", help="its name, which is the file's")
    given = parser.parse_args(arguments)
    try:
        for line in write(SKELETONS[given.family], given.name, Path.cwd()):
            print(line)
    except (EdgedecError, OSError) as error:
        print(f"new: {error}", file=sys.stderr)
        return 1
    return 0


def write(skeleton: Skeleton, name: str, folder: Path) -> list[str]:
    """Write both files below `folder`; what to do next, as lines."""
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise UsageError(f"{name!r}: must be lower-case letters, digits and _, as in echo")
    checkout = (folder / skeleton.folder / "__init__.py").is_file()
    file, test = skeleton.places(name) if checkout else (f"{name}.py", f"test_{name}.py")
    for place in (file, test):
        if (folder / place).exists():
            raise UsageError(f"{place}: exists; choose another name")
    values = {"name": name, "kind": "".join(part.capitalize() for part in name.split("_"))}
    written = {file: skeleton.file, test: skeleton.test}
    for place, text in written.items():
        (folder / place).write_text(Template(text).substitute(values), "utf-8")
    if checkout:
        _write_tables(folder)
        return [f"wrote {file} and {test}", f"next: make `pytest {test}` pass; it fails until {file} does something"]
    group = skeleton.folder.replace("/", ".")
    return [
        f"wrote {file} and {test}; in pyproject.toml of the distribution that has {file}:",
        f'[project.entry-points."{group}"]',
        f'{name} = "{name}"',
        f"then install it, and make `pytest {test}` pass",
    ]


def _write_tables(checkout: Path) -> None:
    """The tables of the docs, with the new plug-in."""
    script = checkout / "docs" / "site" / "plugins.py"
    if script.is_file():
        subprocess.run([sys.executable, str(script)], check=True, cwd=checkout)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
