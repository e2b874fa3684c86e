"""A chat template as a table of the texts between messages, for programs without Jinja.

Most templates write a text between messages that depends only on the roles on both sides. Such a template can be
written as a table; any other is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from edgedec.bundle.folder import Bundle
from edgedec.errors import TextError
from edgedec.text.template import render_chat

_TALKS: tuple[tuple[str, ...], ...] = (
    ("user",),
    ("user", "assistant", "user"),
    ("user", "assistant", "user", "assistant", "user"),
)
_SYSTEM_TALKS: tuple[tuple[str, ...], ...] = (("system", "user"), ("system", "user", "assistant", "user"))


def chat_table(bundle: Bundle) -> dict[str, str]:
    """{"user>assistant": what stands between them, ">user": before the first, "user>": after the last, "trim": roles
    whose messages lose the blanks around them}. A bundle without a template: the texts one after another."""
    text = bundle.manifest.text
    if text.chat_template is None:
        return {">user": text.bos_token, "user>assistant": "", "assistant>user": "", "user>": "", "trim": ""}
    names = {"bos_token": text.bos_token, "eos_token": text.eos_token}
    found = _Found({}, {})
    try:
        for roles in _TALKS:
            found = found.after(roles, text.chat_template, names)
    except TextError as error:
        raise _refused(bundle, str(error)) from None
    with suppress(TextError):  # a template may reject system messages, or place them differently
        with_system = found
        for roles in _SYSTEM_TALKS:
            with_system = with_system.after(roles, text.chat_template, names)
        found = with_system
    return found.between | {"trim": " ".join(role for role, cut in found.trimmed.items() if cut)}


@dataclass(frozen=True)
class _Found:
    """The table so far, from some conversations. trimmed: by role."""

    between: dict[str, str]
    trimmed: dict[str, bool]

    def after(self, roles: Sequence[str], template: str, names: dict[str, str]) -> _Found:
        """The table with one more conversation; TextError if it contradicts the others."""
        parts = _between(template, roles, names)
        between, trimmed = dict(self.between), dict(self.trimmed)
        for at, role in enumerate(roles):
            cut = "\t" not in parts[at][-1:] + parts[at + 1][:1]
            if trimmed.setdefault(role, cut) != cut:
                raise TextError("it trims some messages")
        for pair, part in zip(_pairs(roles), parts, strict=True):
            if between.setdefault(pair, part.strip("\t")) != part.strip("\t"):
                raise TextError(f"what stands at {pair} depends on more than the two roles")
        return _Found(between, trimmed)


def _pairs(roles: Sequence[str]) -> list[str]:
    return [f"{a}>{b}" for a, b in zip(("", *roles), (*roles, ""), strict=True)]


def _between(template: str, roles: Sequence[str], names: dict[str, str]) -> list[str]:
    """The texts before, between and after messages whose contents are marks with a tab on both sides. Where a tab is
    missing, the template trims messages."""
    marks = [f"Mark {i} of\n\n<it>" for i in range(len(roles))]
    messages = [{"role": role, "content": f"\t{mark}\t"} for role, mark in zip(roles, marks, strict=True)]
    rest, parts = render_chat(template, messages, bos_token=names["bos_token"], eos_token=names["eos_token"]), []
    for mark in marks:
        before, found, rest = rest.partition(mark)
        if not found:
            raise TextError("it leaves out a message, or changes it")
        parts.append(before)
    return [*parts, rest]


def _refused(bundle: Bundle, why: str) -> TextError:
    return TextError(
        f"{bundle.manifest.name}: its chat template is no plain sequence of messages ({why}), and a page has no Jinja; "
        "give the bundle a simpler template, or use the npm library with a template of your own"
    )
