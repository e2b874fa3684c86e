"""The family of constraints, and the declarations of its files, those of `edgedec.constraints.kinds`."""

from __future__ import annotations

from dataclasses import dataclass

from edgedec.plugins import Family


@dataclass(frozen=True)
class ConstraintFacts:
    """text: the option that is set by a flag, a request's field or a batch's column with the kind's name; "": there is
    no such flag, field or column. inline: a regular expression that matches the beginning of a flag's value if the
    value is the text itself and not a file's name; "": it always is the text. json: whether a field may hold the text
    as a JSON value, an object or a boolean. guided: vLLM's name, as in `guided_regex` and `structured_outputs:
    {"regex": …}`. flag, request: false where no flag, or no request's field and batch's column gives the text.
    files: options that hold a file's text, and in words of the user's own the file's name."""

    text: str = ""
    inline: str = ""
    json: bool = False
    guided: str = ""
    flag: bool = True
    request: bool = True
    files: tuple[str, ...] = ()


FAMILY = Family("edgedec.constraints.kinds", "constraint", facts=ConstraintFacts)
