"""docs/troubleshooting.md has every message: found in the sources, and given by what really fails."""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

import edgedec
from edgedec.errors import EdgedecError

ROOT = Path(__file__).parents[2]
SITE = ROOT / "docs" / "site"
# Errors whose text is another's, passed on: what the argument looks like.
HANDED = re.compile(r"\b(?:args|code|dead|error|field|it|key|messages?|name|status|wh(?:at|y))\b")
PASSED = re.compile(r"\b(?:error|wrong|why|reason|lacking|detail|message|lines|warnings|said)\b")
SYSTEM = tuple(map(os.strerror, range(1, 130)))


@cache
def site() -> SimpleNamespace:
    """The modules that write the page."""
    sys.path.insert(0, str(SITE))
    try:
        import message_kinds
        import other_messages
        import python_messages
        import python_sources
        import python_texts
        import troubleshooting
    finally:
        sys.path.remove(str(SITE))
    return SimpleNamespace(
        kinds=message_kinds,
        thrown=other_messages,
        raised=python_messages,
        sources=python_sources,
        texts=python_texts,
        troubleshooting=troubleshooting,
    )


@cache
def rows() -> list[tuple[re.Pattern[str], str, str]]:
    """(pattern, message, section) of every row of the page."""
    found = []
    for section in re.split(r"^## ", site().troubleshooting.PAGE.read_text("utf-8"), flags=re.MULTILINE)[1:]:
        for cell in re.findall(r"^\| (.*?) \| .*`[^`]*` \|$", section, re.MULTILINE):
            text = re.sub(r"\\(.)", r"\1", cell)
            pattern = ".*".join(re.escape(part) for part in text.split("…"))
            found.append((re.compile(pattern, re.DOTALL), text, section.partition("\n")[0]))
    return found


def shown(message: str, section: str = "") -> str:
    """The row that a message is in: the one with the most words."""
    line = " ".join(message.split())
    found = [text for pattern, text, of in rows() if section in ("", of) and pattern.fullmatch(line)]
    best = max(found, key=len, default="")
    if len(best.replace("…", "").strip(" :")) >= 7 or line.endswith(SYSTEM):
        return best or line
    _, _, rest = line.partition(": ")
    assert rest, f"not on the page: {message}"
    return shown(rest, section)


def test_the_page_is_what_the_sources_say() -> None:
    page = site().troubleshooting
    assert page.page() == page.PAGE.read_text("utf-8"), "messages have changed: python docs/site/troubleshooting.py"
    assert len(rows()) > 1000
    assert {section for _, _, section in rows()} >= {
        "APIError",
        "LimitExceeded",
        "C",
        "JavaScript",
        "Kotlin",
        "Reasons",
    }


def everything() -> Any:
    return site().sources.Sources.read(ROOT, site().troubleshooting.SOURCES)


def test_every_kind_that_is_raised_has_its_section() -> None:
    """Or a reason why nobody sees it."""
    kinds, known = site().kinds, set[str]()
    for table in (kinds.KINDS, kinds.REASONS, kinds.INTERNAL):
        assert not known & set(table)
        known |= set(table)
    raised = set()
    for module in everything().modules.values():
        for node in module.around:
            call = node.exc if isinstance(node, ast.Raise) else None
            if isinstance(call, ast.Call) and (name := site().sources.last(call.func))[:1].isupper():
                raised.add(name)
    assert raised - known == set()
    assert {name for name in vars(edgedec.errors) if name[:1].isupper()} <= known


def test_every_error_of_the_sources_is_on_the_page() -> None:
    """Each place that makes an error has a row, or passes another's text on."""
    code, kinds = everything(), site().kinds
    texts, missing = site().texts.Texts(code), []
    for error in site().raised.made(code, {*kinds.KINDS, *kinds.REASONS}):
        if "testing/conformance" in error.where or error.message is None:
            continue
        said = [text for text, _ in site().raised.said(error, texts)]
        if any(map(site().raised.has_words, said)):
            continue
        if not PASSED.search(ast.unparse(error.message)):
            missing.append(f"{error.where}: {ast.unparse(error.node)[:150]}")
    assert missing == []


# Thrown, and not an error of ours: the language's own, jumps; and functions that make one of ours.
OTHERS = {
    "C": {"std"},
    "JavaScript": {"failure"},
    "Kotlin": {"IOException", "IndexOutOfBoundsException", "Jump", "unknown"},
}


@pytest.mark.parametrize("kind", OTHERS)
def test_every_error_of_another_language_is_on_the_page(kind: str) -> None:
    """What is thrown is of a known name, and has words, or passes another's on."""
    thrown = site().thrown
    (language,) = (language for language in thrown.LANGUAGES if language.kind == kind)
    found = list(thrown.messages(ROOT, language))
    assert len(found) > 40
    assert all("${" not in message.text and "std::" not in message.text for message in found)
    for path in (path for pattern in language.files for path in ROOT.glob(pattern)):
        source = path.read_text("utf-8")
        names = set(re.findall(r"\bthrow (?:new )?(?:[\w.]+\.)?(\w+)(?:\(|::)", source))
        assert names <= {*language.makers, *OTHERS[kind]}, path.name
        for maker, given in thrown.made(source, language):
            argument = given[maker.message]
            said = any(map(site().raised.has_words, thrown.words(thrown.constant(argument.strip(), source))))
            assert said or not argument.strip('" ') or HANDED.search(argument), f"{path.name}: {argument}"


SOURCE = """
GONE = "it is gone"
def f(x):
    raise UsageError(f"seed {x}: must be " "0")
def g(x):
    raise KeyError("none of ours")
def h(x):
    raise errors.TextError("nothing " + x)
def fail(path, why):
    return CheckpointError(f"{path}: {why}")
def i(path, n):
    what = "too long" if n else "too short, really"
    raise fail(path, what)
def j(path):
    raise fail(path, GONE)
def k(status, error: type[EdgedecError]):
    if status:
        raise APIError(400, "give the key")
    raise error("damaged file")
class A:
    def _bad(self, why):
        return CheckpointError(f"{self.path}: {why}")
    def read(self):
        raise self._bad("is cut short")
def parts(at, wrong):
    raise wrong("bytes are left")
def l(path):
    parts(0, lambda why: UsageError(f"{path}: damaged ({why})"))
def pair(n):
    return "here", f"must be {n} or more"
def m(n):
    found = pair(n)
    place, what = found
    raise UsageError(f"{place}: {what}")
def n():
    for name, text in (("a", "one of these"), ("b", "one of those")):
        raise UsageError(text)
"""


def test_messages_of_a_source() -> None:
    of = site().sources
    code = of.Sources([of.Module.of("edgedec/some.py", SOURCE)])
    found = {(m.kind, m.text) for m in site().raised.messages(code, site().kinds.KINDS)}
    assert found == {
        ("UsageError", "seed …: must be 0"),
        ("TextError", "nothing …"),
        ("CheckpointError", "…: too long"),
        ("CheckpointError", "…: too short, really"),
        ("CheckpointError", "…: it is gone"),
        ("APIError", "give the key"),
        ("EdgedecError", "damaged file"),
        ("CheckpointError", "…: is cut short"),
        ("UsageError", "…: damaged (bytes are left)"),
        ("UsageError", "…: must be … or more"),
        ("UsageError", "one of these"),
        ("UsageError", "one of those"),
    }


def test_messages_of_other_languages() -> None:
    thrown = site().thrown
    c = 'Failure(EDGEDEC_IO, path + ": cannot be read (" + std::to_string(f(", ")) + ")"); corrupt(w + ".x: bad");'
    assert list(thrown.thrown(c, thrown.C)) == [
        ("…: cannot be read (…)", "EDGEDEC_IO"),
        ("….x: bad", "EDGEDEC_CORRUPT"),
    ]
    js = 'new EdgedecError(`${url}: not one of ${names.join(", ")}, it is`, "usage"); new Error("no bundle is open")'
    assert list(thrown.thrown(js, thrown.JAVASCRIPT)) == [
        ("…: not one of …, it is", "usage"),
        ("no bundle is open", ""),
    ]
    kotlin = 'x ?: throw TextException("${bundle.folder}: has no $what; give tokens")'
    assert list(thrown.thrown(kotlin, thrown.KOTLIN)) == [("…: has no …; give tokens", "TextException")]


# -- what really fails

COMMANDS: dict[str, list[str]] = {
    "no bundle": ["run", "-m", "nowhere", "-p", "x"],
    "no such option": ["run", "-p", "x", "--nope"],
    "a prompt alone": ["run", "Once"],
    "a value out of range": ["run", "-p", "x", "--temp", "-3"],
    "a drafter that is none": ["run", "-p", "x", "--spec", "nope"],
    "an engine that is none": ["run", "-p", "x", "--engine", "nope"],
    "a policy that is none": ["run", "-p", "x", "--cache", "nope"],
    "a full context": ["run", "-p", "Once upon a time " * 80, "-c", "64"],
    "two prompts": ["run", "-p", "x", "-f", "y"],
    "no checkpoint": ["export", "nowhere", "-o", "out"],
    "no graph": ["import", "nowhere", "-o", "out"],
    "no adapter": ["run", "-p", "x", "--lora", "nowhere"],
    "a file of jobs that is none": ["batch", "nowhere.jsonl", "-o", "out.jsonl"],
    "a flag of llama.cpp": ["run", "-p", "x", "--mirostat", "2"],
    "formats that differ": ["run", "-p", "x", "-ctk", "f16", "-ctv", "f32"],
    "a datastore that is none": ["run", "-p", "x", "--spec", "datastore:path=nowhere"],
    "a bias that is none": ["run", "-p", "x", "--logit-bias", "a"],
    "a device that is none": ["run", "-p", "x", "--device", "nope"],
    "a signature with nothing": ["sign", "nano"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_what_a_command_says_is_on_the_page(name: str, nano: Path, tmp_path: Path, monkeypatch: Any) -> None:
    from edgedec.cli import _app

    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(_app.app, COMMANDS[name], input="")
    assert result.exit_code in (1, 2), result.output
    said = re.sub(r" \(see edgedec [\w ]*--help\)$", "", result.stderr.strip().splitlines()[-1].partition(": ")[2])
    assert shown(said)


def bodies() -> Iterator[tuple[str, dict[str, Any]]]:
    ask = {"prompt": "Once", "max_tokens": 2}
    yield "/v1/completions", {**ask, "temperature": "hot"}
    yield "/v1/completions", {**ask, "nope": 1}
    yield "/v1/completions", {**ask, "model": "gone"}
    yield "/v1/completions", {**ask, "best_of": 1, "n": 2}
    yield "/v1/completions", {**ask, "prompt": "Once upon a time " * 400}
    yield "/v1/completions", {**ask, "temperature": 1e9, "top_p": 7}
    yield "/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "tool_choice": "required"}
    yield "/v1/chat/completions", {"messages": []}
    yield "/v1/responses", {"input": ""}
    yield "/v1/embeddings", {"input": [[999_999]]}
    yield "/api/chat", {"messages": "x"}
    yield "/api/generate", {"model": "nano", "prompt": "x", "options": {"repeat_last_n": 5, "repeat_penalty": 1.2}}


def test_what_the_server_answers_is_on_the_page(nano: Path) -> None:
    for package in ("httpx", "starlette", "uvicorn"):
        pytest.importorskip(package, reason="an extra")
    import httpx
    from serving import serving

    with (
        serving(edgedec.open(nano, threads=1), slots=2, context=256) as (place, _),
        httpx.Client(base_url=place) as ask,
    ):
        for path, body in bodies():
            answer = ask.post(path, json=body)
            assert answer.status_code != 200, body
            error = answer.json()["error"]
            assert answer.status_code in (400, 404), (body, error)
            assert shown(error if isinstance(error, str) else error["message"])
        assert shown(ask.post("/v1/completions", content="{").json()["error"]["message"])


def test_what_a_guest_that_exceeds_its_limits_says_is_on_the_page(nano: Path) -> None:
    pytest.importorskip("llguidance", reason="an extra")
    from hostile import CONSTRAINTS

    from edgedec import constraints

    model = edgedec.open(nano, threads=1)
    for name in ("repeated", "brackets", "long"):
        kind, text = CONSTRAINTS[name]
        with pytest.raises(EdgedecError) as caught:
            getattr(constraints, kind)(model, text)
        assert shown(str(caught.value))


def test_what_a_damaged_bundle_says_is_on_the_page(nano: Path, tmp_path: Path) -> None:
    import shutil

    for damage in ("{", "{}", '{"format": "edgedec-bundle", "version": 99}'):
        folder = Path(shutil.copytree(nano, tmp_path / str(len(damage))))
        (folder / "edgedec.json").write_text(damage)
        with pytest.raises(EdgedecError) as caught:
            edgedec.open(folder)
        assert shown(str(caught.value))
