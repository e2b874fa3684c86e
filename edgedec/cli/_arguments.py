"""The arguments of a verb before they are parsed: llama.cpp's flags become ours, and no flag is read as another.

Click reads `-ngl 99` as `-n gl` and `99`. Here a flag of one dash is taken whole: ours, llama.cpp's, or an error that
says so; a value may stand against a short flag where it cannot be mistaken (`-n128`, `-m./smol`).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

import typer

from edgedec.cli._llama import FLAGS, Foreign, is_switch
from edgedec.errors import UsageError

# Verbs that take llama.cpp's flags; `bench` has llama-bench's.
VERBS = ("run", "chat", "serve", "batch", "bench")
_ATTACHED = re.compile(r"(-[A-Za-z])=?([\d./~-].*)")
# What stands for a flag of ours in another verb; a chat echoes nothing anyway.
_ELSEWHERE = {("batch", "--slots"): "--batch-size", ("chat", "--no-echo"): ""}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"'}


@dataclass
class Reading:
    """What is read of the arguments of `verb`: ours, in order, and the verb that is meant."""

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
    """The verb that is meant, and its arguments in our flags."""
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
    flag, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
    if flag in read.flags:
        read.done.append(word)
        count = 0 if equals else read.flags[flag]
        read.done += [rest.pop(0) for _ in range(min(count, len(rest)))]
    elif read.verb in VERBS and flag in ("-e", "--escape"):
        read.escape = True
    elif read.verb in VERBS and flag in FLAGS:
        _foreign(read, flag, FLAGS[flag], [value] if equals else _values(FLAGS[flag], rest, flag))
    elif not word.startswith("-") or word == "-" or re.fullmatch(r"-[\d.]+", word):
        _positional(read, word)
    elif attached := _attached(read, word):
        read.done += attached
    else:
        raise typer.BadParameter(f"No such option: {flag}{_similar(read, flag)}")


def _values(known: Foreign, rest: list[str], flag: str) -> list[str]:
    if known.values == "switch":
        return [rest.pop(0)] if rest and is_switch(rest[0]) else []
    if len(rest) < known.values:
        raise typer.BadParameter(f"Option {flag!r} requires {known.values} argument{'s' * (known.values > 1)}")
    return [rest.pop(0) for _ in range(known.values)]


def _foreign(read: Reading, flag: str, known: Foreign, values: Sequence[str]) -> None:
    """A flag of llama.cpp, as ours."""
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
    """Our flag in the place of llama.cpp's."""
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
    """The format of keys and values, which is one here."""
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


def _attached(read: Reading, word: str) -> list[str]:
    """-n128 -> -n 128; nothing if it is not so. A value that begins with a letter could be another flag."""
    found = _ATTACHED.fullmatch(word)
    return [found[1], found[2]] if found and read.flags.get(found[1]) == 1 else []


def _similar(read: Reading, word: str) -> str:
    near = get_close_matches(word, [*read.flags, *(FLAGS if read.verb in VERBS else ())], n=2)
    if word[:2] in read.flags and read.flags[word[:2]] == 1:
        near = [f"{word[:2]} {word[2:]}", *near]
    return f" (did you mean {' or '.join(near)}?)" if near else ""


def _unescaped(arguments: Sequence[str]) -> list[str]:
    """llama.cpp's -e: \\n, \\t, \\r, \\', \\" and \\\\ in the prompt stand for those characters."""
    return list(_with_prompts_unescaped(arguments))


def _with_prompts_unescaped(arguments: Sequence[str]) -> Iterator[str]:
    before = ""
    for word in arguments:
        prompt = before in ("-p", "--prompt", "--system")
        yield re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[0]), word) if prompt else word
        before = word
