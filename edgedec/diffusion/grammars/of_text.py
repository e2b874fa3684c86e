"""The rules of a grammar in Lark's notation (rule `start`) or llama.cpp's GBNF (rule `root`).

Supported: rules and terminals, alternatives, groups, `?`, `*`, `+`, `{m,n}`, `~ n` and `~ m..n`, texts in quotes,
classes in brackets, patterns in slashes (without flags), comments. Refused by name: directives (%ignore, %import, …),
templates, priorities, and case-insensitive texts.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from edgedec.diffusion.grammars.of_regex import of_regex
from edgedec.diffusion.grammars.rules import EMPTY, Expr, RuleBook

_TOKEN = re.compile(
    r"""\s*(?:(?P<comment>(?://|\#)[^\n]*)
    |(?P<rule>[?!]?[A-Za-z_][\w-]*\s*(?:::=|:(?!:)))
    |(?P<name>[A-Za-z_][\w-]*)
    |(?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    |(?P<set>\[(?:[^\]\\]|\\.)*\])
    |(?P<pattern>/(?:[^/\\]|\\.)+/)
    |(?P<times>\{\s*\d+\s*(?:,\s*\d*\s*)?\}|~\s*\d+(?:\s*\.\.\s*\d+)?)
    |(?P<sign>[()|?*+])
    )""",
    re.VERBOSE,
)


@dataclass
class _Token:
    kind: str
    text: str


class TextRules:
    """A recursive-descent reader of the notation."""

    def __init__(self, book: RuleBook, text: str) -> None:
        self._book = book
        self._tokens = list(self._split(text))
        self._at = 0
        self._names: dict[str, int] = {}

    def text(self) -> Expr:
        """The expression of whole texts."""
        defined = set[str]()
        while (token := self._next()) is not None:
            if token.kind != "rule":
                raise self._book.error(f"{token.text!r} where a rule should begin")
            name = token.text.rstrip(": =").lstrip("?!").strip()
            if name in defined:
                raise self._book.error(f"rule {name} is defined twice")
            defined.add(name)
            self._book.define(self._rule(name), [self._alternatives()])
        lacking = sorted(set(self._names) - defined)
        if lacking:
            raise self._book.error(f"there is no rule {lacking[0]}")
        start = next((name for name in ("root", "start") if name in defined), None)
        if start is None:
            raise self._book.error("there is no rule start (Lark) or root (GBNF)")
        return (self._names[start],)

    def _split(self, text: str) -> list[_Token]:
        found, at, end = list[_Token](), 0, len(text.rstrip())
        while at < end:
            match = _TOKEN.match(text, at)
            if match is None or match.lastgroup is None:
                rest = text[at:].split()[0]
                raise self._book.error(f"{rest!r:.40} is not supported with gaps")
            if match.lastgroup != "comment":
                found.append(_Token(match.lastgroup, match[match.lastgroup]))
            at = match.end()
        return found

    def _rule(self, name: str) -> int:
        if name not in self._names:
            self._names[name] = self._book.name()
        return self._names[name]

    def _peek(self) -> _Token | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _next(self) -> _Token | None:
        token = self._peek()
        self._at += 1
        return token

    def _takes(self, sign: str) -> bool:
        token = self._peek()
        if token is None or (token.kind, token.text) != ("sign", sign):
            return False
        self._at += 1
        return True

    def _alternatives(self) -> Expr:
        found = [self._sequence()]
        while self._takes("|"):
            found.append(self._sequence())
        return self._book.either(found)

    def _sequence(self) -> Expr:
        found = EMPTY
        while (token := self._peek()) is not None and token.kind != "rule" and token.text not in ("|", ")"):
            found += self._repeated(self._atom())
        return found

    def _repeated(self, expr: Expr) -> Expr:
        book, token = self._book, self._peek()
        if token is None:
            return expr
        signs = {"?": (0, 1), "*": (0, None), "+": (1, None)}
        if token.kind == "sign" and token.text in signs:
            self._at += 1
            return self._repeated(book.repeat(expr, *signs[token.text]))
        if token.kind != "times":
            return expr
        self._at += 1
        numbers = [int(number) for number in re.findall(r"\d+", token.text)]
        high = None if token.text.endswith((",}", ", }")) else numbers[-1]
        return self._repeated(book.repeat(expr, numbers[0], high))

    def _atom(self) -> Expr:
        token = self._next()
        assert token is not None
        if token.kind == "name":
            return (self._rule(token.text),)
        if token.kind == "text":
            following = self._peek()
            if following is not None and (following.kind, following.text) == ("name", "i"):
                raise self._book.error(f"{token.text}i: texts without case are not supported with gaps")
            return self._book.literal(self._unquoted(token.text))
        if token.kind == "set":
            return of_regex(self._book, token.text)
        if token.kind == "pattern":
            return of_regex(self._book, token.text[1:-1].replace("\\/", "/"))
        if token.text == "(":
            found = self._alternatives()
            if not self._takes(")"):
                raise self._book.error("a closing parenthesis is missing")
            return found
        raise self._book.error(f"{token.text!r} is not expected there")

    def _unquoted(self, text: str) -> str:
        try:
            return str(ast.literal_eval(text.replace("\n", "\\n")))
        except (ValueError, SyntaxError):
            raise self._book.error(f"{text:.60}: not a text") from None
