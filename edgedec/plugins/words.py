"""Plug-ins in words: `name:key=value,key='a, b'+name`, or the same as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from edgedec.errors import UsageError

# What a program, a request or a configuration file may give in place of words.
Words = str | Mapping[str, Any] | Sequence[Mapping[str, Any] | str]
_PLAIN = re.compile(r"[^,+]*")
_KEY = re.compile(r"([^=,+]*)(=?)")
_NAME = re.compile(r"[^:+,]*")
_JSON = json.JSONDecoder()
_HINT = "a value with + or , stands in quotes, as in path='/c++/m'"


class PluginChoice(NamedTuple):
    """One plug-in with its options as given: text, or values of JSON."""

    name: str
    options: dict[str, Any]


def parse(words: Words, where: str = "") -> list[PluginChoice]:
    """The plug-ins that words name, in order; UsageError, which begins with `where`, for words that name none.

    >>> parse("model:path='/c++/m,2',length=4+copy")
    [PluginChoice('model', {'path': '/c++/m,2', 'length': '4'}), PluginChoice('copy', {})]
    >>> parse('[{"name": "copy", "ngram": 3}]')
    [PluginChoice('copy', {'ngram': 3})]
    """
    if isinstance(words, str) and words.lstrip()[:1] in ("[", "{"):
        words = _json(words, where)
    if isinstance(words, str):
        return list(_Reader(words, where).choices())
    items = [words] if isinstance(words, Mapping) else list(words)
    return [choice for item in items for choice in _items(item, where)]


def _items(item: Mapping[str, Any] | str, where: str) -> list[PluginChoice]:
    if isinstance(item, str):
        return parse(item, where)
    name = item.get("name") if isinstance(item, Mapping) else None
    if not isinstance(name, str):
        raise UsageError(f'{where}{item!r:.60}: must be text or an object with "name" and options')
    return [PluginChoice(name, {str(key): value for key, value in item.items() if key != "name"})]


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=lambda pairs: _unique(pairs, where))
    except UsageError:
        raise
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}{text:.60}: not JSON ({' '.join(str(error).split())})") from None


def _unique(pairs: list[tuple[str, Any]], where: str) -> dict[str, Any]:
    found = dict[str, Any]()
    for key, value in pairs:
        if key in found:
            raise UsageError(f"{where}{key} is given twice")
        found[key] = value
    return found


def quoted(value: str) -> str:
    """A value as words hold it: in quotes where it would end early or be read as something else.

    >>> quoted("/c++/m"), quoted("./small")
    ("'/c++/m'", './small')
    """
    plain = not set(value) & {"+", ","} and value[:1] not in ("'", '"', "[", "{") and value == value.strip()
    return value if plain else "'" + value.replace("'", "''") + "'"


def spelt(options: Mapping[str, Any]) -> str:
    """Options as words hold them, with what is before them.

    >>> spelt({"path": "a,b", "width": 8})
    ":path='a,b',width=8"
    """
    return "".join(f"{',' if i else ':'}{key}={_shown(value)}" for i, (key, value) in enumerate(options.items()))


def _shown(value: Any) -> str:
    return quoted(value) if isinstance(value, str) else json.dumps(value) if isinstance(value, tuple) else str(value)


class _Reader:
    """Reads words from left to right."""

    def __init__(self, text: str, where: str) -> None:
        self._text, self._where, self._at = text, where, 0

    def choices(self) -> Iterator[PluginChoice]:
        while True:
            name = self._take(_NAME)[0].strip()
            if not name:
                raise self._error("a name is missing; " + _HINT)
            yield PluginChoice(name, self._options())
            if self._at == len(self._text):
                return
            if self._text[self._at] != "+":
                raise self._error(f"{self._text[self._at :]!r} is not expected; " + _HINT)
            self._at += 1

    def _options(self) -> dict[str, Any]:
        """What stands between a name and the next `+`."""
        found = dict[str, Any]()
        if self._next() != ":":
            return found
        while self._next() in (":", ","):
            self._at += 1
            if self._next() in ("", "+", ","):  # "copy:" and a comma at the end are no mistake
                continue
            key, equals = self._take(_KEY).groups()
            if not equals:
                raise self._error(f"{key!r} must be OPTION=VALUE")
            if key.strip() in found:
                raise self._error(f"{key.strip()} is given twice")
            found[key.strip()] = self._value()
        return found

    def _value(self) -> Any:
        first = self._next()
        if first in ("'", '"'):
            return self._quoted(first)
        if first in ("[", "{"):
            try:
                value, self._at = _JSON.raw_decode(self._text, self._at)
            except (ValueError, RecursionError) as error:
                raise self._error(f"not JSON ({' '.join(str(error).split())})") from None
            return value
        return self._take(_PLAIN)[0].strip()

    def _quoted(self, quote: str) -> str:
        """Text in quotes; two quotes inside stand for one."""
        found = re.compile(f"{quote}((?:[^{quote}]|{quote}{quote})*){quote}").match(self._text, self._at)
        if found is None:
            raise self._error(f"a closing {quote} is missing")
        self._at = found.end()
        return found[1].replace(quote * 2, quote)

    def _take(self, pattern: re.Pattern[str]) -> re.Match[str]:
        found = pattern.match(self._text, self._at)
        assert found is not None  # the patterns match nothing, too
        self._at = found.end()
        return found

    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _error(self, why: str) -> UsageError:
        return UsageError(f"{self._where}{self._text}: {why}")
