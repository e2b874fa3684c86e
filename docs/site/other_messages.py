"""Every message of the C library, of the JavaScript client and page, and of the Kotlin library: the words between the quotes of
each error that is made, read without a compiler."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from python_messages import Message, has_words
from python_texts import ANY

_QUOTES = "\"'`"
_OPEN, _CLOSE = "([{", ")]}"


@dataclass(frozen=True)
class Maker:
    """A call that makes an error: which argument is the message, what stands around it, where its status is; phrase: what
    has one word is the name of something, not a message."""

    message: int = 0
    form: str = "{}"
    status: int | str = ""
    phrase: bool = False


@dataclass(frozen=True)
class Language:
    """kind: the section of the page. reasons: functions that return the end of a message, in that form. own: makers of
    single files."""

    kind: str
    files: tuple[str, ...]
    makers: dict[str, Maker]
    reasons: dict[str, str] = field(default_factory=dict)
    own: dict[str, dict[str, Maker]] = field(default_factory=dict)


_REGEX = ": a regular expression that this library does not read ({}, at character …)"
_NAMED = ": {} is not known to this library; give tokens instead of text"
C = Language(
    "C",
    ("kernels/lib/*.cpp", "kernels/wasm/*.cpp", "kernels/lib/*.h", "kernels/wasm/*.h"),
    {
        "Failure": Maker(1, status=0),
        "corrupt": Maker(status="EDGEDEC_CORRUPT"),
        "fail": Maker(form=ANY + ": {}"),
        "refuse": Maker(form="constraint: {}", status="EDGEDEC_USAGE"),
        "unknown": Maker(1, ANY + _NAMED, "EDGEDEC_TEXT"),
        "failed": Maker(1, status=0),
    },
    {"refusal": "the engine refuses the call: {}"},
    {"regex.cpp": {"fail": Maker(form=ANY + _REGEX)}},
)
JAVASCRIPT = Language(
    "JavaScript",
    ("runtimes/web/*.js", "runtimes/web/page/*.js", "edgedec/server/page.html"),
    {"EdgedecError": Maker(status=1), "Error": Maker(), "Trouble": Maker()},
    {"unthreaded": "threads: {}"},
)
_KOTLIN = (
    "Edgedec",
    "NotFound",
    "Corrupt",
    "Unsafe",
    "Unavailable",
    "Usage",
    "ContextFull",
    "Session",
    "Text",
    "Cancelled",
)
KOTLIN = Language(
    "Kotlin",
    ("android_demo/edgedec-kotlin/src/main/**/*.kt", "android_demo/app/src/main/**/*.kt"),
    {
        **{f"{name}Exception": Maker(status=f"{name}Exception") for name in _KOTLIN},
        "TemplateError": Maker(status="TextException"),
        "fail": Maker(phrase=True),
    },
    {"unavailable": ANY + ": {}", "libraryMissing": ANY + ": {}"},
    own={
        "PackedInput.kt": {"fail": Maker(form=ANY + ": {}", status="CorruptException")},
        "Manifest.kt": {
            "fail": Maker(
                form=ANY + ": {} is missing or malformed; export the bundle again",
                status="CorruptException",
                phrase=True,
            )
        },
        "TemplateParser.kt": {"fail": Maker(status="TextException", phrase=True)},
    },
)
LANGUAGES = (C, JAVASCRIPT, KOTLIN)


def messages(root: Path, language: Language) -> Iterator[Message]:
    """The messages of one language, file by file."""
    for pattern in language.files:
        for path in sorted(root.glob(pattern)):
            file = path.relative_to(root).as_posix()
            here = replace(language, makers=language.makers | language.own.get(path.name, {}))
            for text, status in thrown(path.read_text("utf-8"), here):
                yield Message(language.kind, text, file, status)


def thrown(source: str, language: Language) -> Iterator[tuple[str, str]]:
    """(message, status) of every error that a source makes.

    >>> list(thrown('throw Failure(EDGEDEC_IO, path + ": is gone");', C))
    [('…: is gone', 'EDGEDEC_IO')]
    """
    for maker, given in made(source, language):
        for text in words(constant(given[maker.message].strip(), source)):
            if has_words(text) and (" " in text or not maker.phrase):
                yield maker.form.format(text), _status(maker, given)
    for name, form in language.reasons.items():
        for found in re.finditer(rf"\b{name}\b[^;={{]*(?:by lazy |=> )?{{", source):
            for literal in literals(inside(source, found.end() - 1)):
                if " " in literal:
                    yield form.format(literal), ""


def made(source: str, language: Language) -> Iterator[tuple[Maker, list[str]]]:
    """Every call that makes an error, and its arguments."""
    names = "|".join(language.makers)
    for found in re.finditer(rf"(?<![\w.])({names})\(", source):
        maker, given = language.makers[found[1]], arguments(source, found.end() - 1)
        if len(given) > maker.message:
            yield maker, given


def constant(name: str, source: str) -> str:
    """What a name of JavaScript stands for, if that is a string of the same file."""
    found = re.search(rf"\bconst {name} = ([\"'`])", source) if re.fullmatch(r"[A-Z_]+", name) else None
    return source[found.start(1) : _quoted(source, found.start(1))] if found else name


def _status(maker: Maker, given: list[str]) -> str:
    if isinstance(maker.status, str):
        return maker.status
    status = given[maker.status].strip() if maker.status < len(given) else ""
    return status.strip("\"'") if re.fullmatch(r"EDGEDEC_\w+|[\"']\w+[\"']", status) else ""


def inside(source: str, at: int) -> str:
    """What stands in the bracket that opens at `at`."""
    return source[at + 1 : _end(source, at)]


def _end(source: str, at: int) -> int:
    """Where the bracket that opens at `at` closes."""
    depth = 0
    while at < len(source):
        if source[at] in _QUOTES:
            at = _quoted(source, at)
            continue
        depth += (source[at] in _OPEN) - (source[at] in _CLOSE)
        if not depth:
            return at
        at += 1
    return at


def _quoted(source: str, at: int) -> int:
    """The index after the string that begins at `at`; a bracket in `${…}` may hold strings of its own."""
    quote = source[at]
    at += 1
    while at < len(source) and source[at] != quote:
        if source[at] == "\\":
            at += 1
        elif source.startswith("${", at):
            at = _end(source, at + 1)
        at += 1
    return at + 1


def arguments(source: str, at: int) -> list[str]:
    """The arguments of the call whose bracket opens at `at`."""
    text, found, begin, i = inside(source, at), list[str](), 0, 0
    while i < len(text):
        if text[i] in _QUOTES:
            i = _quoted(text, i)
        elif text[i] in _OPEN:
            i = _end(text, i) + 1
        else:
            if text[i] == ",":
                found.append(text[begin:i])
                begin = i + 1
            i += 1
    return [*found, text[begin:]]


def words(expression: str) -> list[str]:
    """What an expression may say: its strings, with … for what stands between them; each side of a choice."""
    expression = re.sub(r'std::string\(("(?:[^"\\]|\\.)*")\)', r"\1", expression)
    if choice := _choice(expression):
        return [text for branch in choice for text in words(branch)]
    parts = list(_parts(expression))
    spelt = "".join(_spelt(text) if text else ANY if re.search(r"\w", part) else "" for text, part in parts)
    return [re.sub(f"{ANY}( ?{ANY})+", ANY, " ".join(spelt.split()))]


def _choice(expression: str) -> list[str]:
    """Both sides of `… ? … : …`; nothing if it is none."""
    marks, i = [], 0
    while i < len(expression):
        if expression[i] in _QUOTES:
            i = _quoted(expression, i)
        elif expression[i] in _OPEN:
            i = _end(expression, i) + 1
        elif re.match(r"\?[.:?]|::|->", expression[i:]):
            i += 2
        else:
            marks += [i] if expression[i] == ("?" if not marks else ":") else []
            i += 1
    return [expression[marks[0] + 1 : marks[1]], expression[marks[1] + 1 :]] if len(marks) > 1 else []


def _parts(expression: str) -> Iterator[tuple[str, str]]:
    """(string, "") and ("", what is none), in order."""
    begin = i = 0
    while i < len(expression):
        if expression[i] in _QUOTES:
            if begin < i:
                yield "", expression[begin:i]
            end = _quoted(expression, i)
            yield expression[i + 1 : end - 1] or " ", ""
            begin = i = end
        elif expression[i] in _OPEN:
            i = _end(expression, i) + 1
        else:
            i += 1
    if begin < len(expression):
        yield "", expression[begin:]


def literals(source: str) -> list[str]:
    """Every string of a piece of code."""
    found, i = [], 0
    while i < len(source):
        if source[i] in _QUOTES:
            end = _quoted(source, i)
            found.append(_spelt(source[i + 1 : end - 1]))
            i = end
        else:
            i += 1
    return found


def _spelt(literal: str) -> str:
    """A string's text; `${…}` and Kotlin's `$name` are …."""
    made, i = "", 0
    while i < len(literal):
        if literal.startswith("${", i):
            i = _end(literal, i + 1) + 1
            made += ANY
        elif name := re.compile(r"\$[A-Za-z_]\w*").match(literal, i):
            i = name.end()
            made += ANY
        elif literal[i] == "\\" and i + 1 < len(literal):
            made += {"n": " ", "t": " "}.get(literal[i + 1], literal[i + 1])
            i += 2
        else:
            made += literal[i]
            i += 1
    return made
