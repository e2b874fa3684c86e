"""The constraint, the logits processors, the fusions and the methods of diffusion decoding of a request."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from edgedec.constraints import given
from edgedec.constraints.given import GivenConstraint
from edgedec.errors import UsageError
from edgedec.fusion import COMMANDS, FILES, check_fusion
from edgedec.processors import check_processors
from edgedec.server.errors import APIError


def of_format(form: Mapping[str, Any], field: str) -> GivenConstraint | None:
    """The constraint of a format {"type": …, "schema": …}, which stands in `field`; None for any text."""
    if form["type"] == "text":
        return None
    text = json.dumps(form["schema"]) if form["type"] == "json_schema" else ""
    return GivenConstraint(form["type"], text, field)


def shaping_of(body: Mapping[str, Any], form: GivenConstraint | None, choice: str = "") -> dict[str, Any]:
    """The members `constraint`, `processors`, `fuse` and `diffusion` of a TextRequest. form: the constraint of the
    endpoint's own format; choice: auto or required if the model may or must call functions."""
    constraint = given.joined([one for one in (form, _given(body)) if one is not None])
    if choice and constraint is not None:
        constraint = with_tools(constraint, form, choice)
    processors, fuse = body.get("processors", ()), body.get("fuse")
    try:
        check_processors(processors)
        if fuse is not None:
            check_fusion(fuse, FILES | COMMANDS, "in a request; start the server with --fuse instead")
    except UsageError as error:
        name = "fuse" if str(error).startswith("fuse") else "processors"
        raise APIError(400, str(error), name, "invalid_value") from None
    return {"constraint": constraint, "processors": processors, "fuse": fuse, "diffusion": body.get("diffusion")}


def with_tools(constraint: GivenConstraint, form: GivenConstraint | None, choice: str) -> GivenConstraint | None:
    """The constraint of a text that calls nothing; a format has no effect on a text that must be a call."""
    if constraint != form:
        field = constraint.field
        raise APIError(400, f"{field}: cannot be combined with tools", field, "invalid_value")
    return None if choice == "required" else constraint


def _given(body: Mapping[str, Any]) -> GivenConstraint | None:
    try:
        return given.read(body)
    except UsageError as error:
        name = str(error).partition(":")[0].partition(" ")[0]
        raise APIError(400, str(error), name, "invalid_value") from None
