"""Monitors: names after a trigger are those that an analysis knows; servers that die, hang or answer nonsense."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import edgedec
from edgedec import constraints
from edgedec.cli._app import app
from edgedec.constraints import given
from edgedec.constraints.automata.language_server import LanguageServer
from edgedec.constraints.automata.monitors import MonitorConstraint
from edgedec.constraints.automata.tokens import TokenTree
from edgedec.errors import UsageError
from edgedec.model import Model

pytest.importorskip("llguidance", reason="constraints need llguidance")

API = {
    "cat": ["purr", "purring", "extraordinarily_long_name", "x"],
    "dog": ["bark", "b2"],
    "purr": ["loud", "cat"],
    "fox": [],
}
SPELT = [
    b"cat",
    b".",
    b"pu",
    b"rr",
    b"purr",
    b"p",
    b"ing",
    b" ",
    b".x",
    b"x.",
    b"x",
    b"(",
    b"3.1",
    b". ",
    b"-",
    b">",
    b"->",
]
SPELT += [b">x", b"purr.", b"purr(", b"purr.x", b"\n", "é".encode(), b"z", b"purrs"]


@pytest.fixture(scope="module")
def model(nano: Path) -> Model:
    return edgedec.open(nano, threads=1)


def members(text: str) -> Sequence[str] | None:
    """The members of the name before the last point."""
    found = re.search(r"(\w+)\.$", text)
    return API.get(found[1]) if found else None


def small(trigger: str = ".", before: str = "") -> MonitorConstraint:
    ends = frozenset({len(SPELT)})
    asked: list[str] = []

    def analysis(text: str) -> Sequence[str] | None:
        asked.append(text)
        return members(text.replace("->", "."))

    found = MonitorConstraint(analysis, trigger, TokenTree(SPELT, len(SPELT) + 1, ends), before)
    vars(found)["asked"] = asked
    return found


def right(text: str, whole: bool) -> bool:
    """The oracle: is each name after a point a member, or the beginning of one at the end of a text that goes on?"""
    for point in re.finditer(r"\.", text):
        names = members(text[: point.end()])
        word = re.match(r"[^\W\d]\w*", text[point.end() :])
        if names and word:
            last = point.end() + word.end() == len(text) and not whole
            if not (any(n.startswith(word[0]) for n in names) if last else word[0] in names):
                return False
    return True


def test_masks_are_right_for_all_texts_of_four_tokens() -> None:
    """Against an oracle that reads the whole text; a token with a trigger and a name after it is left out."""
    found, seen, held = small(), 0, 0
    left: list[tuple[int, ...]] = [()]
    crossing = {token for token, text in enumerate(SPELT) if re.search(rb"\.[a-z]", text)}
    while left:
        path = left.pop()
        text = b"".join(SPELT[token] for token in path).decode()
        want = [token not in crossing and right(text + more.decode(), False) for token, more in enumerate(SPELT)]
        want.append(right(text, True))
        if not any(want):  # "cat.p" has no token that goes on
            with pytest.raises(UsageError, match="monitor: a dead end"):
                found.mask(path)
            continue
        mask = found.mask(path)
        assert mask.tolist() == want, text
        assert found.validate(range(len(want)), path) == want
        seen, held = seen + 1, held + (not all(want[token] for token in range(len(SPELT)) if token not in crossing))
        if len(path) < 4:
            left += [(*path, token) for token in np.flatnonzero(mask[: len(SPELT)]).tolist()][
                :: 1 if len(path) < 2 else 3
            ]
    assert seen > 500
    assert held > 30


@pytest.mark.parametrize(
    ("text", "allowed", "forbidden"),
    [
        (
            "cat.",
            ["p", "pu", "purr", "x", " ", "(", "purr.", "purr(", "\n"],
            ["cat", "z", "purrs", "purr.x", "ing", "é"],
        ),
        ("cat.purr", ["ing", "(", ".", " "], ["x", "z", "rr"]),
        ("cat.pu", ["rr"], [".", " ", "("]),
        ("fox.", ["z", "cat"], [".x"]),  # nothing is known of it
        ("zebra.", ["z", "cat"], [".x"]),
        ("cat.purr.", ["cat", " "], ["x", "pu"]),
        ("cat", [".", "z", "3.1", ". "], [".x", "purr.x"]),
    ],
)
def test_what_may_follow(text: str, allowed: list[str], forbidden: list[str]) -> None:
    found = small(before=text) if text.endswith(".") else small()
    if not text.endswith("."):
        for sign in re.findall(r"cat|\.|purr|pu", text):
            found.accept(SPELT.index(sign.encode()))
    mask = found.mask(())
    assert all(mask[SPELT.index(sign.encode())] for sign in allowed)
    assert not any(mask[SPELT.index(sign.encode())] for sign in forbidden)


def test_triggers_of_two_signs_in_two_tokens() -> None:
    found = small("->")
    for sign in (b"cat", b"-"):
        found.accept(SPELT.index(sign))
    assert not found.validate([SPELT.index(b">x")])[0]
    assert found.mask(())[SPELT.index(b">")]
    assert not found.mask(())[SPELT.index(b">x")]
    found.accept(SPELT.index(b">"))
    assert found.validate([SPELT.index(b"purr"), SPELT.index(b"z")]) == [True, False]
    assert found.mask(())[[SPELT.index(b"pu"), SPELT.index(b"cat")]].tolist() == [True, False]


def test_an_analysis_is_asked_once_for_a_place() -> None:
    found = small()
    for sign in (b"cat", b"."):
        found.accept(SPELT.index(sign))
    for _ in range(3):
        found.mask(())
        found.fork().mask([SPELT.index(b"pu")])
        found.mask([SPELT.index(b"pu"), SPELT.index(b"rr")])
    assert vars(found)["asked"] == ["cat."]
    assert not found.done
    assert found.may_end()


def test_an_analysis_that_fails_is_one_line(model: Model) -> None:
    def fails(text: str) -> list[str]:
        raise KeyError("no such\nthing")

    found = constraints.monitor(model, fails, before="cat.")
    with pytest.raises(UsageError, match=r"^monitor: the analysis failed: KeyError: .*thing'$"):
        found.mask(())
    with pytest.raises(UsageError, match="needs a trigger"):
        constraints.monitor(model, members, trigger="")


def walked(model: Model, found: MonitorConstraint, draw: random.Random, n: int) -> str:
    """A random text of words with points after them, and of any tokens that are allowed."""
    words = [
        model.tokenizer.encode(text, special=False, around=False)
        for text in ("cat.", "dog.", "fox.", "purr.", "(", " ")
    ]
    taken: list[int] = []
    while len(taken) < n:
        word = words[draw.randrange(len(words))]
        if not found.validate(word[:1])[0] or draw.random() < 0.5:
            mask = found.mask(())
            mask[list(model.eos)] = False
            word = [int(draw.choice(np.flatnonzero(mask).tolist()))]
        for token in word:
            if not found.validate([token])[0]:
                break
            found.accept(token)
            taken.append(token)
    return model.tokenizer.decode(taken)


def test_no_unknown_member_in_random_texts(model: Model) -> None:
    draw, points = random.Random(7), 0
    found = constraints.monitor(model, members)
    for _ in range(25):
        found.reset()
        text = walked(model, found, draw, 60)
        points += len(re.findall(r"\b(cat|dog|purr)\.[^\W\d]", text))
        assert right(text, False), text
    assert points > 3


def test_two_monitors(model: Model) -> None:
    colons = constraints.monitor(model, lambda text: ["red", "blue"], trigger="::")
    both = constraints.product(["a", "b"], [constraints.monitor(model, members), colons])
    for text, fine in [
        ("cat.purr::red", True),
        ("cat.purr::green", False),
        ("cat.bark::red", False),
        ("a::blue.x", True),
    ]:
        both.reset()
        allowed = True
        for token in model.tokenizer.encode(text, special=False, around=False):
            allowed = allowed and both.validate([token])[0]
            if allowed:
                both.accept(token)
        # A token of the vocabulary may hold a trigger and a name: then it is spelt otherwise.
        assert allowed == fine or re.search(r"\.[a-z]|::[a-z]", "|".join(model.tokenizer.texts(4096))), text


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_speculation_changes_nothing_under_a_monitor(model: Model, temperature: float) -> None:
    texts = [
        "".join(
            model.session(speculate=spec).generate(
                "the cat.",
                constraint=constraints.monitor(model, members, before="cat."),
                max_tokens=30,
                temperature=temperature,
                seed=4,
            )
        )
        for spec in ("off", "auto")
    ]
    assert texts[0] == texts[1] != ""


# --- language servers ---

SERVER = r"""
import json, sys, time
def read():
    length = 0
    while (line := sys.stdin.buffer.readline()).strip():
        length = int(line.split(b":")[1])
    return json.loads(sys.stdin.buffer.read(length)) if length else None
def write(**m):
    body = json.dumps({"jsonrpc": "2.0", **m}).encode()
    sys.stdout.buffer.write(b"Content-Length: %d\r\nContent-Type: x\r\n\r\n" % len(body) + body)
    sys.stdout.buffer.flush()
mode, text, asked = sys.argv[1], "", 0
while (m := read()):
    if m["method"] == "initialize":
        if mode == "dies": sys.exit(3)
        write(id=99, method="workspace/configuration", params={})
        write(method="window/logMessage", params={})
        assert read() == {"jsonrpc": "2.0", "id": 99, "result": None}
        write(id=m["id"], result={"capabilities": {}})
    elif m["method"] == "textDocument/didOpen": text = m["params"]["textDocument"]["text"]
    elif m["method"] == "textDocument/didChange": text = m["params"]["contentChanges"][0]["text"]
    elif m["method"] == "textDocument/completion":
        asked += 1
        if mode == "hangs": time.sleep(60)
        if mode == "ends" : sys.exit(4)
        if mode == "nonsense": sys.stdout.buffer.write(b"hello\n\n"); sys.stdout.buffer.flush(); time.sleep(60)
        if mode == "refuses": write(id=m["id"], error={"code": 1, "message": "no"}); continue
        at = m["params"]["position"]
        lines = text.split("\n")
        assert at == {"line": len(lines) - 1, "character": len(lines[-1].encode("utf-16-le")) // 2}, (at, text)
        items = [{"label": "purr(loud)"}, {"label": "x", "insertText": "xylophone"}, {"label": "+"}, 5]
        write(id=m["id"], result=items if asked % 2 else {"items": items})
"""


@pytest.fixture
def command(tmp_path: Path) -> str:
    (tmp_path / "server.py").write_text(SERVER, "utf-8")
    return f"{sys.executable} {tmp_path / 'server.py'}"


def test_a_language_server_completes(command: str) -> None:
    server = LanguageServer(f"{command} fine", "file:///a.py", "python", 20)
    for text in ("cat.", "a\né😀.", "\n\n", ""):
        assert server.names(text) == ["purr", "xylophone"]
    server.close()


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("dies", r"ended \(exit code 3\)"),
        ("ends", r"ended \(exit code 4\)"),
        ("hangs", r"gave no answer to textDocument/completion in 1 s"),
        ("nonsense", r"ended \(it wrote something that is no message\)"),
        ("refuses", r"refused textDocument/completion: .*\"no\""),
    ],
)
def test_servers_that_fail_are_one_line(model: Model, command: str, mode: str, words: str) -> None:
    seconds = 1 if mode == "hangs" else 20
    rules = f"monitor:command='{command} {mode}',seconds={seconds}+grammar:text='start: /c[.]z/'"
    with pytest.raises(UsageError, match=rf"^monitor: the language server .* {words}") as caught:
        "".join(model.session().generate("cat.", constraint=rules))
    assert "\n" not in str(caught.value)


def test_a_command_that_is_none(model: Model) -> None:
    with pytest.raises(UsageError, match="monitor: the language server 'no-such-server' cannot be started"):
        model.session().generate("a", constraint="monitor:command=no-such-server")
    with pytest.raises(UsageError, match="cannot be started"):
        model.session().generate("a", constraint="monitor:command=")


def test_a_text_by_a_language_server(model: Model, command: str, nano: Path) -> None:
    words = f"monitor:command='{command} fine'+grammar:text='start: /cat\\.[a-z]+;/'"
    text = "".join(model.session().generate("Once", constraint=words, max_tokens=30))
    assert text in ("cat.purr;", "cat.xylophone;")
    flags = ["run", "-m", str(nano), "-p", "Once", "--no-echo", "-t", "1", "--monitor", f"{command} fine"]
    result = CliRunner().invoke(app, [*flags, "--regex", r"cat\.[a-z]+;"])
    assert result.stdout.strip() == text


def test_no_request_starts_a_program() -> None:
    assert "monitor" not in given.fields()
    assert "monitor" not in given.text_options()
    assert "monitor" in given.flag_options()
    assert given.read({"monitor": "touch /tmp/x"}) is None
