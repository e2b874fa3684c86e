"""Blocks of the pages that are neither commands nor Python: each language is checked by what reads it."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from readme.shown import PAGES, ROOT, blocks, fences
from typer.testing import CliRunner

KOTLIN = ROOT / "android_demo" / "edgedec-kotlin" / "src" / "test"
# Where each language is checked. Blocks of `python NAME` are a page's own parts or fragments.
CHECKED = {
    "sh": "test_blocks.py runs its commands",
    "python": "test_blocks.py runs it",
    "python fragment": "test_a_fragment_is_python",
    "diff": "a test of the page applies it",
    "json": "test_json_is_json",
    "toml": "test_the_configuration_is_read",
    "c": "test_c_compiles",
    "js": "test_javascript_is_read_by_node",
    "kotlin": "test_kotlin_and_java_stand_in_a_compiled_test",
    "java": "test_kotlin_and_java_stand_in_a_compiled_test",
    "text": "test_text_is_no_program",
}
APPLIED = {"extending.md": "test_add_a_block_kind.py"}
OWN = {"embed.md": "test_embed_docs.py"}
_COMMAND = re.compile(r"^(?:\$ )?(?:edgedec (?!.*: )|python |pip |make |[A-Z_]{4,}=\S+ )", re.MULTILINE)


def shown(language: str) -> list[object]:
    """The blocks of a language, named by page and number."""
    found = [(page, at, text) for page in PAGES for at, text in enumerate(blocks(page, language))]
    return [pytest.param(page, text, id=f"{page.name}-{at}") for page, at, text in found]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}-{page.name}")
def test_every_block_is_of_a_language_that_is_checked(page: Path) -> None:
    for language, _ in fences(page):
        assert language in CHECKED or (page.name in OWN and language.startswith("python ")), f"{page.name}: {language}"
    if blocks(page, "diff"):
        assert "diff" in (Path(__file__).parent / APPLIED[page.name]).read_text("utf-8")


@pytest.mark.parametrize(("page", "text"), shown("text"))
def test_text_is_no_program(page: Path, text: str) -> None:
    """A command in a block of text would be one that nobody runs."""
    assert _COMMAND.search(text) is None


@pytest.mark.parametrize(("page", "text"), shown("json"))
def test_json_is_json(page: Path, text: str) -> None:
    """One value, or one a line."""
    try:
        found = [json.loads(text)]
    except ValueError:
        found = [json.loads(line) for line in text.splitlines()]
    assert all(isinstance(value, dict) and value for value in found)


@pytest.mark.parametrize(("page", "text"), shown("toml"))
def test_the_configuration_is_read(page: Path, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By every command, and its values are those that are used."""
    from edgedec.cli import _app
    from edgedec.cli._defaults import defaults

    file = tmp_path / "config.toml"
    file.write_text(text, "utf-8")
    monkeypatch.setenv("EDGEDEC_CONFIG", str(file))
    verbs = {name: lambda name=name: _app.Verbs().get_command(None, name) for name in _app.VERBS}
    found = {verb: defaults(verb, make(), verbs) for verb, make in verbs.items()}
    assert found["run"]["model"] == "/models/smol"
    assert found["run"] | found["serve"] != found["run"]
    shown = CliRunner().invoke(_app.app, ["run", "-p", "x"])
    assert shown.exit_code == 1
    assert "/models/smol" in shown.stderr


@pytest.mark.parametrize(("page", "text"), shown("python fragment"))
def test_a_fragment_is_python(page: Path, text: str) -> None:
    assert ast.parse(text).body


@pytest.mark.parametrize(("page", "text"), shown("c"))
def test_c_compiles(page: Path, text: str, tmp_path: Path) -> None:
    """Against the header, without a warning."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler")
    source = tmp_path / "shown.c"
    source.write_text(text, "utf-8")
    strict = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I", str(ROOT / "kernels/lib/include")]
    done = subprocess.run([compiler, *strict, str(source)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("page", "text"), shown("js"))
def test_javascript_is_read_by_node(page: Path, text: str, tmp_path: Path) -> None:
    """Its grammar; and what it imports of edgedec, the package exports."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node")
    (tmp_path / "shown.mjs").write_text(text, "utf-8")
    done = subprocess.run([node, "--check", tmp_path / "shown.mjs"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    exports = json.loads((ROOT / "runtimes/web/package.json").read_text("utf-8"))["exports"]
    for names, part in re.findall(r'import \{([^}]*)\} from "edgedec([^"]*)"', text):
        file = ROOT / "runtimes/web" / exports[f".{part}"]["default"]
        for name in names.split(","):
            assert re.search(rf"export .*\b{name.strip()}\b", file.read_text("utf-8")), f"{file.name}: {name}"


@pytest.mark.parametrize(
    ("page", "text", "suffix"),
    [pytest.param(*found.values, suffix, id=f"{found.id}.{suffix}")  # type: ignore[attr-defined]
     for language, suffix in (("kotlin", "kt"), ("java", "java")) for found in shown(language)],
)  # fmt: skip
def test_kotlin_and_java_stand_in_a_compiled_test(page: Path, text: str, suffix: str) -> None:
    """Word for word in a test of the Kotlin library, which `make android TESTS=--test` compiles and runs."""
    tests = [" ".join(path.read_text("utf-8").split()) for path in KOTLIN.rglob(f"*.{suffix}")]
    assert any(" ".join(text.split()) in test for test in tests)


@pytest.mark.parametrize(
    ("language", "text"),
    [("c", "int main(void) { return edgedec_no_such(); }"), ("js", "const a = ;")],
)
def test_what_is_wrong_is_found(language: str, text: str, tmp_path: Path) -> None:
    check = {"c": test_c_compiles, "js": test_javascript_is_read_by_node}[language]
    with pytest.raises(AssertionError):
        check(Path("page.md"), text, tmp_path)
