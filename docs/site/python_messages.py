"""Every message of the Python sources: of each error that is made, also where a function or its caller gives the words."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from python_sources import Module, Sources, argument, last
from python_texts import ANY, MARK, MARKED, Place, Texts, is_phrase

# A message that a function is handed is followed through so many callers.
_CALLERS = 5
# Parameters that hold words for people, not the name of a file or a tensor.
_WORDS = ("message", "problem", "reason", "said", "text", "what", "why", "wrong")
# The argument that is the message, where it is not the first.
_POSITION = {"APIError": 1}


@dataclass(frozen=True)
class Message:
    """What an error says; status: the HTTP status, or the C library's."""

    kind: str
    text: str
    file: str
    status: str = ""


@dataclass(frozen=True)
class Made:
    """A place where an error is made."""

    kind: str
    node: ast.Call
    place: Place

    @property
    def where(self) -> str:
        return f"{self.place.module.file}:{self.node.lineno}"

    @property
    def message(self) -> ast.expr | None:
        at = _POSITION.get(self.kind, 0)
        named = [keyword.value for keyword in self.node.keywords if keyword.arg == "message"]
        return (self.node.args[at:] or named or [None])[0]

    @property
    def status(self) -> str:
        first = self.node.args[0] if self.kind in _POSITION and self.node.args else None
        return str(first.value) if isinstance(first, ast.Constant) else ""


def made(sources: Sources, kinds: Collection[str]) -> Iterator[Made]:
    """Every error of these kinds that the sources make, whether it is raised there or returned."""
    for module in sources.modules.values():
        for node in module.around:
            if isinstance(node, ast.Call) and (kind := _kind(node, module, kinds)):
                yield Made(kind, node, Place(module, module.around[node]))


def _kind(node: ast.Call, module: Module, kinds: Collection[str]) -> str:
    name = last(node.func)
    if name == "print":
        stream = [keyword.value for keyword in node.keywords if keyword.arg == "file"]
        return "print" if "print" in kinds and stream and ast.unparse(stream[0]) == "sys.stderr" else ""
    if name in kinds:
        return name
    owner = Place(module, module.around[node]).owner(name) if isinstance(node.func, ast.Name) else None
    kind = [arg.annotation for arg in owner.args.args if arg.arg == name] if owner else []
    # A class that is handed in, as readers of files take the error of what they read.
    return "EdgedecError" if kind and kind[0] and re.match(r"type\[\w*Error\]", ast.unparse(kind[0])) else ""


def messages(sources: Sources, kinds: Collection[str]) -> Iterator[Message]:
    """The messages, without those that are another's passed on."""
    texts = Texts(sources)
    for error in made(sources, kinds):
        for text, module in said(error, texts):
            if has_words(text) and (error.kind != "print" or _is_note(text)):
                yield Message(error.kind, text, module.file, error.status)


def said(error: Made, texts: Texts) -> list[tuple[str, Module]]:
    """What an error may say, and the file that has the words."""
    if error.message is None:
        return []
    found = []
    for text in texts.of(error.message, error.place):
        spelt = list(_from_callers(text, error.place, texts, _CALLERS)) or [(text, error.place)]
        found += [(_plain(words), place.module) for words, place in spelt]
    return found


def _from_callers(text: str, place: Place, texts: Texts, deep: int) -> Iterator[tuple[str, Place]]:
    """The text with what callers give for the parameters in it; nothing if none gives words."""
    names = [name for name in MARKED.findall(text) if name in _WORDS]
    owner = place.owner(names[0]) if names else None
    if owner is None or not deep:
        return
    for module, call in texts.sources.callers(place.module, owner):
        outer = Place(module, module.around[call])
        own = [name for name in names if place.owner(name) is owner]
        for filled in _filled(text, own, owner, call, outer, texts):
            yield from list(_from_callers(filled, outer, texts, deep - 1)) or [(filled, outer)]


def _filled(text: str, names: list[str], owner: ast.AST, call: ast.Call, outer: Place, texts: Texts) -> Iterator[str]:
    """The text with a call's arguments; nothing if none of them has words."""
    made, words = [text], False
    for name in dict.fromkeys(names):
        given = texts.of(argument(call, owner, name), outer)  # type: ignore[arg-type]
        kept = [part for part in given if is_phrase(part)] or [ANY]
        words = words or kept != [ANY]
        made = [one.replace(f"{MARK}{name}{MARK}", part) for one in made for part in kept]
    if words:
        yield from made[:40]


def _plain(text: str) -> str:
    text = " ".join(MARKED.sub(ANY, text).split())
    return re.sub(f"{ANY}( ?{ANY})+", ANY, text)


def _is_note(text: str) -> bool:
    """Of what is printed: what says who speaks, but no address."""
    return text.startswith("edgedec") and "://" not in text


def has_words(text: str) -> bool:
    """Says something, beside what only a run knows."""
    return bool(re.search(r"[A-Za-z]{3}", text))
