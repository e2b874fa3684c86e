"""Grammars that ship: of JSON, Python, Go and SQL, each a subset that its file states, in Lark's notation.

SynCode (Ugare et al., 2024; text and code): a token is kept if and only if the text with it can be completed to one of
the grammar. Its own masks come from the automata of terminals and an LR parser, and keep either too much or too little.
Here the matcher is an Earley parser over a lexer of longest matches (llguidance), so masks are exact for the grammar as
that lexer cuts it. A layout by indentation, for which SynCode's lexer makes INDENT and DEDENT, is in the grammar: rules
are copied for each level of blocks. The grammars are our own.
"""

from __future__ import annotations

import re
from functools import cache, partial
from pathlib import Path

_FOLDER = Path(__file__).parent
_PART = re.compile(r"^// (levels|copies) (.+)\n((?:.*\n)*?)// end\n", re.MULTILINE)
# A word in any case, in ASCII: a matcher's own rule takes other letters that fold to these, such as the long s.
_FOLDED = re.compile(r'"([a-z]+)"i\b')
_COPIED, _INDENT = re.compile(r"([A-Za-z_]+)@"), "    "


@cache
def shipped() -> tuple[str, ...]:
    """The names of the grammars that ship."""
    return tuple(sorted(file.stem for file in _FOLDER.glob("*.lark")))


@cache
def shipped_grammar(name: str) -> str:
    """The text of a grammar that ships, in Lark's notation."""
    text = _PART.sub(_repeated, (_FOLDER / f"{name}.lark").read_text("utf-8"))
    return _FOLDED.sub(lambda word: "/" + "".join(f"[{sign}{sign.upper()}]" for sign in word[1]) + "/", text)


def _repeated(part: re.Match[str]) -> str:
    return _levels(part[3], int(part[2])) if part[1] == "levels" else _copies(part[3], part[2])


def _copies(rules: str, ends: str) -> str:
    """Rules with each of these endings in place of @.

    >>> _copies("a@: B@ a@", "_o _i")
    'a_o: B_O a_oa_i: B_I a_i'
    """

    def named(found: re.Match[str], end: str) -> str:
        return found[1] + (end.upper() if found[1].isupper() else end)

    return "".join(_COPIED.sub(partial(named, end=end), rules) for end in ends.split())


def _levels(rules: str, deepest: int) -> str:
    """Rules with each level in place of %; a rule that mentions %+ at the deepest level has only its other forms.

    >>> print(_levels("a%: INDENT% b | a%+\\n", 1))
    a_0: b | a_1
    a_1: "    " b
    <BLANKLINE>
    """
    found = ""
    for level in range(deepest + 1):
        copy = rules if level < deepest else re.sub(r" \| [^|\n]*%\+[^|\n]*", "", rules)
        copy = copy.replace("%+", f"_{level + 1}")
        copy = copy.replace("INDENT%", f'"{_INDENT * level}"' if level else "").replace("%", f"_{level}")
        found += re.sub(r"(?<=[:|]) +", " ", copy)
    return found
