"""Families of plug-ins: which there are, their options and facts, and making one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache, cached_property, lru_cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pkgutil import iter_modules
from types import ModuleType
from typing import Any, Generic, TypeVar, cast

from edgedec.errors import EdgedecError, UsageError
from edgedec.plugins.options import PluginOption, options_of_make
from edgedec.plugins.words import PluginChoice, Words, parse

F = TypeVar("F")


class NoFacts:
    """The facts of a family whose files declare none."""


class Family(Generic[F]):
    """The plug-ins of one package.

    title: what one is, for messages; where: what messages about options begin with (by default the title); flag: what
    messages about words begin with (by default the same). facts: a frozen dataclass, of which a file declares one as
    FACTS; its default where a file declares none. packages: may a plug-in be a package? error: of a name that there is
    none of. aliases: names that plug-ins had before. words: names that are no file, with their summaries. common: a
    function whose arguments are options that every plug-in of the family takes.
    """

    def __init__(
        self,
        package: str,
        title: str,
        *,
        where: str = "",
        flag: str = "",
        facts: type[F] = NoFacts,  # type: ignore[assignment]
        packages: bool = False,
        error: type[EdgedecError] = UsageError,
        aliases: Mapping[str, str] | None = None,
        words: Mapping[str, str] | None = None,
        common: Callable[..., object] | None = None,
    ) -> None:
        self.package, self.title, self.where = package, title, where or title
        self.flag = flag or self.where
        self.words, self.aliases = dict(words or {}), dict(aliases or {})
        self._facts, self._packages, self._error, self._common = facts, packages, error, common
        self._of: Callable[[str], dict[str, PluginOption]] = cache(self._options)
        self._parsed = lru_cache(256)(lambda words: tuple(parse(words, f"{self.flag} ")))

    @cached_property
    def shipped(self) -> tuple[str, ...]:
        """The plug-ins of the package itself, by file name."""
        path = import_module(self.package).__path__
        found = [m.name for m in iter_modules(path) if not m.name.startswith("_") and (self._packages or not m.ispkg)]
        return tuple(sorted(found))

    @cached_property
    def _added(self) -> dict[str, EntryPoint]:
        """The plug-ins of other distributions, by name; what ships goes first."""
        return {point.name: point for point in entry_points(group=self.package) if point.name not in self.shipped}

    def names(self) -> tuple[str, ...]:
        """All plug-ins, sorted."""
        return tuple(sorted({*self.shipped, *self._added}))

    def file(self, name: str) -> ModuleType:
        """The module of a plug-in; an error with the nearest names if there is none."""
        known = self._file_name(name)
        if known in self.shipped:
            path = f"{self.package}.{known}"
            # Every session looks at all drafters, and `import_module` takes microseconds also if the module is loaded.
            return sys.modules.get(path) or import_module(path)
        if known in self._added:
            return cast(ModuleType, self._added[known].load())
        raise self._error(f"{self.flag}: {self.unknown(name)}" if self.flag != self.title else self.unknown(name))

    def unknown(self, name: str) -> str:
        """What is said of a name that there is no plug-in of."""
        names = [*self.words, *self.names()]
        near = get_close_matches(name, names, 2, 0.6)
        meant = f" (did you mean {' or '.join(near)}?)" if near else ""
        return f"no {self.title} {name!r}{meant}; there are: {', '.join(names)}"

    def __contains__(self, name: object) -> bool:
        known = self._file_name(str(name))
        return known in self.shipped or known in self._added

    def _file_name(self, name: str) -> str:
        return self.aliases.get(name, name).replace("-", "_")

    def facts(self, name: str) -> F:
        """What a plug-in declares of itself."""
        found = vars(self.file(name)).get("FACTS")
        if found is None:
            return self._facts()
        if not isinstance(found, self._facts):
            raise TypeError(f"{self.package}.{name}: FACTS must be {self._facts.__name__}")
        return found

    def all_facts(self) -> dict[str, F]:
        """The facts of all plug-ins, by name."""
        return {name: self.facts(name) for name in self.names()}

    def summary(self, name: str) -> str:
        """The first sentence of a plug-in's file."""
        return " ".join((self.file(name).__doc__ or "").partition("\n\n")[0].split())

    def options(self, name: str) -> dict[str, PluginOption]:
        """The options of a plug-in by name, those of the family first."""
        return self._of(self._file_name(name))

    @cached_property
    def common(self) -> dict[str, PluginOption]:
        """The options that every plug-in of the family takes."""
        return {} if self._common is None else options_of_make(self._common, skip=0)

    def _options(self, name: str) -> dict[str, PluginOption]:
        make = vars(self.file(name)).get("make")
        return {**self.common, **({} if make is None else options_of_make(make))}

    def parse(self, words: Words) -> list[PluginChoice]:
        """The plug-ins that words name, with options of the right types."""
        choices: Sequence[PluginChoice] = (
            self._parsed(words) if isinstance(words, str) else parse(words, f"{self.flag} ")
        )
        return [PluginChoice(name, self.typed(name, options)) for name, options in choices]

    def typed(self, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """Options as given, checked, as the values that `make` takes; UsageError names the first that is wrong."""
        if name in self.words:
            if options:
                raise UsageError(f"{self.where} {name}: takes no options")
            return {}
        known = self.options(name)
        old = {alias: key for key, option in known.items() for alias in option.opt.aliases}
        found = dict[str, Any]()
        for given, value in options.items():
            key = old.get(given, given)
            if key not in known:
                raise UsageError(f"{self.where} {name}: {_no_option(given, known)}")
            if key in found:
                raise UsageError(f"{self.where} {name}: {given} and {key} are one option; give it once")
            try:
                found[key] = known[key].read(value)
            except ValueError as error:
                raise UsageError(f"{self.where} {name}: {given}={value}: {error}") from None
        lacking = [key for key, option in known.items() if option.required and key not in found]
        if lacking:
            raise UsageError(f"{self.where} {name}: needs {lacking[0]}=…: {known[lacking[0]].opt.help}")
        return found

    def make(self, name: str, host: Any, options: Mapping[str, Any] | None = None) -> Any:
        """What the plug-in's `make` returns. options: as given, text or JSON."""
        return self.file(name).make(host, **self.typed(name, options or {}))


def _no_option(key: str, known: Mapping[str, PluginOption]) -> str:
    near = get_close_matches(key, known, 1, 0.6)
    meant = f" (did you mean {near[0]}?)" if near else ""
    return f"no option {key!r}{meant}; there are: {', '.join(known) or 'none'}"
