"""Translation of a verb's arguments before they are parsed: llama.cpp's flags become edgedec's, and no flag is misread.

Click reads `-ngl 99` as `-n gl` and `99`. Here a flag of one dash is taken whole: ours, llama.cpp's, or an error that
says so; its value may follow `=` (`-ngl=99`), or stand against it where it cannot be mistaken (`-ngl99`, `-m./smol`).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

import typer

from edgedec.cli._llama_flags.table import FLAGS, Foreign, is_switch
from edgedec.errors import UsageError

# Verbs that take llama.cpp's flags; `bench` has llama-bench's.
VERBS = ("run", "chat", "serve", "batch", "bench")
# A number against any flag of one dash, a path against one of one letter.
_ATTACHED = re.compile(r"(-[A-Za-z]+)(-?\d.*)|(-[A-Za-z])([./~].*)")
# Flags that have another name in another verb; a chat does not echo in any case.
_ELSEWHERE = {("batch", "--slots"): "--batch-size", ("chat", "--no-echo"): ""}
# Numbers that mean something else in llama.cpp: as many threads as cores, up to the end of the context, all tokens.
_MEANT = {
    ("-t", "-1"): "0",
    ("--threads", "-1"): "0",
    ("-n", "-2"): "-1",
    ("--n-predict", "-2"): "-1",
    ("--top-k", "-1"): "0",
}
# What -e is for.
_PROMPTS, _PROMPTS_IN_ONE = ("-p", "--prompt", "--system"), ("--prompt=", "--system=")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"'}


@dataclass
class Reading:
    """The translated arguments of `verb`, in order, and the resulting verb."""

    verb: str
    flags: dict[str, int]
    done: list[str] = field(default_factory=list)
    becomes: str = ""
    kv: dict[str, str] = field(default_factory=dict)
    drafters: list[str] = field(default_factory=list)
    escape: bool = False


def flags_of(command: Any) -> dict[str, int]:
    """Every flag of a command, and how many values it takes."""
    return {
        name: 0 if getattr(param, "is_flag", False) or getattr(param, "count", False) else param.nargs
        for param in command.params
        for name in (*getattr(param, "opts", ()), *getattr(param, "secondary_opts", ()))
        if name.startswith("-")
    }


def translate(verb: str, command: Any, arguments: Sequence[str]) -> tuple[str, list[str]]:
    """The resulting verb, and its arguments with edgedec's flags."""
    read = Reading(verb, {**flags_of(command), "--help": 0, "-h": 0})
    rest = list(arguments)
    while rest:
        if rest[0] == "--" or (hasattr(command, "commands") and not rest[0].startswith("-")):
            read.done += rest  # those of a command below this one
            break
        _take(read, rest)
    if read.kv:
        read.done += ["--kv", _one_format(read.kv)]
    if read.drafters:
        read.done += ["--spec", "+".join(read.drafters)]
    return read.becomes or verb, _unescaped(read.done) if read.escape else read.done


def _take(read: Reading, rest: list[str]) -> None:
    """Move one flag with its values, or one value, from `rest` to what is read."""
    word = rest.pop(0)
    flag, value = _parts(read, word)
    if flag in read.flags:
        _own(read, flag, value, rest)
    elif read.verb in VERBS and flag in ("-e", "--escape"):
        if value is not None:
            raise typer.BadParameter(f"{flag}={value}: {flag} takes no value")
        read.escape = True
    elif read.verb in VERBS and flag in FLAGS:
        _foreign(read, flag, FLAGS[flag], _values(read, FLAGS[flag], rest, flag, value))
    elif not word.startswith("-") or word == "-" or re.fullmatch(r"-[\d.]+", word):
        _positional(read, word)
    else:
        raise typer.BadParameter(f"No such option: {flag}{_similar(read, flag)}")


def _parts(read: Reading, word: str) -> tuple[str, str | None]:
    """A flag and the value in the same word, if there is one."""
    if not word.startswith("-") or _known(read, word):
        return word, None
    flag, equals, value = word.partition("=")
    if equals and (flag.startswith("--") or _known(read, flag)):
        return flag, value
    found = _ATTACHED.fullmatch(word)
    flag, value = (found[1] or found[3], found[2] or found[4]) if found else (word, "")
    takes = read.flags[flag] if flag in read.flags else FLAGS[flag].values if _known(read, flag) else 0
    return (flag, value) if takes == 1 and found else (word, None)


def _known(read: Reading, flag: str) -> bool:
    return flag in read.flags or (read.verb in VERBS and flag in FLAGS)


def _own(read: Reading, flag: str, value: str | None, rest: list[str]) -> None:
    """Read one of edgedec's flags, with its values."""
    if value is None:
        given = [rest.pop(0) for _ in range(min(read.flags[flag], len(rest)))]
        read.done += [flag, *(_meant(read, flag, each) for each in given)]
    elif flag.startswith("--"):
        read.done.append(f"{flag}={_meant(read, flag, value)}")
    elif read.flags[flag] == 1:
        read.done += [flag, _meant(read, flag, value)]
    else:
        raise typer.BadParameter(f"{flag}={value}: {flag} takes no value")


def _meant(read: Reading, flag: str, value: str) -> str:
    return _MEANT.get((flag, value), value) if read.verb in VERBS else value


def _values(read: Reading, known: Foreign, rest: list[str], flag: str, value: str | None) -> list[str]:
    """The values of a flag of llama.cpp: in its own word, or the next words that are no flags."""
    if known.values == "switch":
        value = rest.pop(0) if value is None and rest and is_switch(rest[0]) else value
        if value is not None and not is_switch(value):
            raise typer.BadParameter(f"{flag}={value}: must be on, off or auto")
        return [] if value is None else [value]
    if value is not None and known.values == 0:
        raise typer.BadParameter(f"{flag}={value}: {flag} takes no value")
    given = [] if value is None else [value]
    while len(given) < known.values and rest and not _known(read, rest[0]):
        given.append(rest.pop(0))
    if len(given) < known.values and not known.instead:
        raise typer.BadParameter(f"Option {flag!r} requires {known.values} argument{'s' * (known.values > 1)}")
    return given


def _foreign(read: Reading, flag: str, known: Foreign, values: Sequence[str]) -> None:
    """Translate a flag of llama.cpp."""
    shown = " ".join([flag, *values])
    if known.instead:
        raise typer.BadParameter(f"{shown}: {known.instead}")
    if known.verb and read.verb not in ("run", known.verb):
        raise typer.BadParameter(f"{flag}: is a flag of edgedec {known.verb}")
    read.becomes = known.verb or read.becomes
    try:
        made = known.convert(values[0]) if values else None
    except UsageError as error:
        raise typer.BadParameter(f"{flag}: {error}") from None
    if known.note and (made is not None or not values):
        print(f"edgedec {read.verb}: {shown}: {known.note}", file=sys.stderr)
    if known.to:
        _ours(read, flag, known, made)


def _ours(read: Reading, flag: str, known: Foreign, value: str | None) -> None:
    """Insert edgedec's flag in place of llama.cpp's."""
    to = _ELSEWHERE.get((read.verb, known.to), known.to.partition("=")[0])
    if known.to == "--kv":
        read.kv[flag] = str(value)
    elif known.to == "--spec":
        read.drafters.append(str(value))
    elif not to:
        pass
    elif to not in read.flags and not read.becomes:
        others = "; edgedec serve and edgedec batch run many texts at a time" if to == "--slots" else ""
        raise typer.BadParameter(f"{flag}: edgedec {read.verb} has no {to}{others}")
    elif value is not None or known.values == 0:
        given = known.to if "=" in known.to else to
        read.done += [given] if value is None else [given, value]


def _one_format(found: dict[str, str]) -> str:
    """The common format of keys and values, which edgedec requires."""
    formats = set(found.values())
    if len(formats) > 1:
        given = " and ".join(found)
        raise typer.BadParameter(f"{given} differ: keys and values have one format here, as in --kv int8")
    return formats.pop()


def _positional(read: Reading, word: str) -> None:
    if read.verb in ("run", "chat"):
        text = word if len(word) <= 40 else f"{word[:39]}…"
        raise typer.BadParameter(f'{text!r} stands alone; a prompt needs its flag: edgedec {read.verb} -p "{text}"')
    read.done.append(word)


def _similar(read: Reading, word: str) -> str:
    near = get_close_matches(word, [*read.flags, *(FLAGS if read.verb in VERBS else ())], n=2)
    if word[:2] in ("-p", "-m", "-f") and word[:2] in read.flags:  # those that take a text
        near = [f"{word[:2]} {word[2:]}", *near]
    return f" (did you mean {' or '.join(near)}?)" if near else ""


def _unescaped(arguments: Sequence[str]) -> list[str]:
    """llama.cpp's -e: \\n, \\t, \\r, \\', \\" and \\\\ in the prompt stand for those characters."""
    return list(_with_prompts_unescaped(arguments))


def _with_prompts_unescaped(arguments: Sequence[str]) -> Iterator[str]:
    before = ""
    for word in arguments:
        prompt = before in _PROMPTS or word.startswith(_PROMPTS_IN_ONE)
        yield re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[0]), word) if prompt else word
        before = word
