"""The grammar of a constraint: of its kind and text, as the user gave it."""

from __future__ import annotations

import json
from functools import lru_cache

from edgedec.decoding.constraint import Constraint, ConstraintSource
from edgedec.diffusion.grammars.of_regex import of_regex
from edgedec.diffusion.grammars.of_schema import SchemaRules
from edgedec.diffusion.grammars.of_text import TextRules
from edgedec.diffusion.grammars.rules import ANY, Expr, Grammar, RuleBook


def grammar_of(constraint: Constraint, alphabet: int = ANY) -> Grammar:
    """The grammar that a constraint follows, of texts in some bytes (a mask) only; UsageError for one that is not
    supported with gaps."""
    source: ConstraintSource | None = getattr(constraint, "source", None)
    if source is None:
        raise RuleBook(type(constraint).__name__).error("only constraints with a grammar of their own fit gaps")
    return _made(source.kind, source.text, source.whitespace, alphabet)


@lru_cache(maxsize=16)
def _made(kind: str, text: str, whitespace: str, alphabet: int) -> Grammar:
    book = RuleBook(kind, alphabet)
    try:
        return book.grammar(_expression(book, kind, text, whitespace))
    except RecursionError:
        raise book.error("is nested too deeply") from None


def _expression(book: RuleBook, kind: str, text: str, whitespace: str) -> Expr:
    if kind == "json schema":
        return SchemaRules(book, json.loads(text), whitespace).text()
    if kind == "regex":
        return of_regex(book, text)
    return TextRules(book, text).text()  # grammars, and choices, which are one
