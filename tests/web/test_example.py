"""What stands beside the library: the example, the package, the types."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from weblibrary import NODE, ROOT, WEB, library_folder, needs_web

import edgedec

EXAMPLE = ROOT / "examples" / "js" / "story.mjs"


@needs_web
def test_the_example_tells_pythons_story(nano: Path, tmp_path: Path) -> None:
    """In the shape of the checkout, with the modules where they belong."""
    shutil.copytree(library_folder(), tmp_path / "runtimes" / "web")
    (tmp_path / "examples" / "js").mkdir(parents=True)
    script = shutil.copy(EXAMPLE, tmp_path / "examples" / "js")
    done = subprocess.run([str(NODE), script, nano, "One day"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    session = edgedec.open(nano, engine="native").session(speculate="off")
    assert done.stdout == "One day" + "".join(session.generate("One day", max_tokens=150)) + "\n"


def test_the_package_lists_what_is_there() -> None:
    package = json.loads((WEB / "package.json").read_text("utf-8"))
    (version,) = re.findall(r'"(.+)"', (ROOT / "edgedec" / "version.py").read_text("utf-8").splitlines()[-1])
    assert package["version"] == version
    for entry in package["exports"].values():
        for path in entry.values() if isinstance(entry, dict) else [entry]:
            assert path.endswith(".wasm") or (WEB / path).is_file(), path


@pytest.mark.parametrize("name", ["edgedec", "client", "ort"])
def test_types_name_what_is_exported(name: str) -> None:
    types = (WEB / f"{name}.d.ts").read_text("utf-8")
    code = (WEB / f"{name}.js").read_text("utf-8")
    declared = set(re.findall(r"^export (?:declare )?(?:async )?(?:function|class) (\w+)", types, re.M))
    declared |= {
        word.strip() for inside in re.findall(r"^export \{([^}]*)\}", types, re.M) for word in inside.split(",")
    }
    exported = set(re.findall(r"^export (?:async )?(?:function\*?|class|const) (\w+)", code, re.M))
    exported |= {
        word.strip() for inside in re.findall(r"^export \{([^}]*)\}", code, re.M) for word in inside.split(",")
    }
    assert declared == exported


@pytest.mark.parametrize("name", ["Model", "Session"])
def test_types_name_every_member(name: str) -> None:
    def members(text: str, pattern: str) -> set[str]:
        (body,) = re.findall(rf"^export class {name} .*?\n(.*?)^}}", text, re.M | re.S)
        return set(re.findall(pattern, body, re.M)) - {"constructor", "handle"}

    types = members((WEB / "edgedec.d.ts").read_text("utf-8"), r"^  (?:private |readonly )?(\w+)[?(:]")
    code = members((WEB / "edgedec.js").read_text("utf-8"), r"^  (?:async )?(?:get )?\*?(\w+)\([^)]*\) \{")
    code |= members((WEB / "edgedec.js").read_text("utf-8"), r"^    this\.([a-z]\w+) =")
    if name == "Model":
        code |= set(
            re.findall(r"(\w+): \d", re.findall(r"^const STRINGS = .*$", (WEB / "edgedec.js").read_text(), re.M)[0])
        )
    assert types == code
