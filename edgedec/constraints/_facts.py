"""What the files of `edgedec.constraints.kinds` declare of themselves."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ConstraintFacts:
    """text: the option that a flag, a request's field or a batch's column named like the kind gives; "": there is no
    such flag, field or column. inline: a regular expression that a flag's value begins with if it is the text itself,
    and no file's name; "": it always is. json: may a field hold the text as a JSON value, an object or a boolean?
    guided: vLLM's name, as in `guided_regex` and `structured_outputs: {"regex": …}`."""

    text: str = ""
    inline: str = ""
    json: bool = False
    guided: str = ""
