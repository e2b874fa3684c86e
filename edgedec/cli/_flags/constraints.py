"""Flags of constraints: one for each kind that has a text, as the kind's file declares it."""

from __future__ import annotations

from dataclasses import field, fields, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgedec.cli._flags.texts import read_text
from edgedec.constraints import FAMILY, given

if TYPE_CHECKING:
    import edgedec
    from edgedec.constraints import Constraint


class GivenFlags:
    """The constraint of the text: the product of those fields that are set."""

    def text(self) -> tuple[str, str] | None:
        """Kind and text of the given constraint; the text is read if it is a file."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]
        texts = {
            kind: value if given.inline(kind, value) else read_text(Path(value))
            for kind, value in values.items()
            if value is not None
        }
        found = given.joined([given.GivenConstraint(kind, text, _flag(kind)) for kind, text in texts.items()])
        return None if found is None else found[:2]

    def for_model(self, model: edgedec.Model) -> Constraint | None:
        """The constraint, compiled."""
        found = self.text()
        return None if found is None else given.compiled(model, *found)


def _flag(kind: str) -> str:
    return f"--{kind.replace('_', '-')}"


def _declared(kind: str) -> tuple[str, Any, Any]:
    """The flag of a kind as a field of a group; its help is the option's own."""
    option = given.flag_options()[kind]
    metavar = ("FILE|" if FAMILY.facts(kind).inline else "") + option.name.upper()
    flag = typer.Option(_flag(kind), metavar=metavar, help=option.opt.help, show_default=False)
    return kind, Annotated[str | None, flag], field(default=None)


if TYPE_CHECKING:

    class ConstraintFlags(GivenFlags):
        """The fields are those of the family, which a type checker cannot know."""

else:
    ConstraintFlags = make_dataclass(
        "ConstraintFlags", map(_declared, given.flag_options()), bases=(GivenFlags,), frozen=True
    )
    ConstraintFlags.__doc__ = GivenFlags.__doc__
