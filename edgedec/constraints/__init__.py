"""Constraints: what the next token may be.

`json_schema`, `json_object`, `regex`, `grammar` and `choices` make them for a model; anything else with the methods
of `Constraint` will do as well.
"""

from edgedec.constraints.kinds import choices, grammar, json_object, json_schema, regex
from edgedec.decoding.constraint import Constraint

__all__ = ["Constraint", "choices", "grammar", "json_object", "json_schema", "regex"]
