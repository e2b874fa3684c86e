"""Completion of values that name plug-ins."""

from __future__ import annotations

from collections.abc import Callable

from edgedec import families


def plugins_of(family: str) -> Callable[[str], list[str]]:
    """Completes `NAME:OPTION=VALUE,…+NAME` of a family at the end of what is typed.

    >>> plugins_of("drafters")("copy+recy"), plugins_of("drafters")("copy:ngram=3,le")
    (['copy+recycling'], ['copy:ngram=3,length='])
    """

    def complete(incomplete: str) -> list[str]:
        known = families.family(family)
        before, plus, last = incomplete.rpartition("+")
        name, colon, rest = last.partition(":")
        if not colon:
            names = [*known.words, *known.names()]
            return [f"{before}{plus}{one}" for one in names if one.startswith(name)]
        given, comma, key = rest.rpartition(",")
        keys = known.options(name) if name in known else ()
        start = f"{before}{plus}{name}:{given}{comma}"
        return [f"{start}{one}=" for one in keys if one.startswith(key) and f"{one}=" not in given]

    return complete
