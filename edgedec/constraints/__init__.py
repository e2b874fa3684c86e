"""Constraints: which tokens may come next.

`json_schema`, `json_object`, `regex`, `grammar` and `choices` create them for a model; any object with the methods of
`Constraint` works as well. Each kind is a file of `edgedec.constraints.kinds`.
"""

from edgedec.constraints._facts import FAMILY, ConstraintFacts
from edgedec.constraints.kinds.choices import choices
from edgedec.constraints.kinds.classes import make as classes
from edgedec.constraints.kinds.grammar import make as grammar
from edgedec.constraints.kinds.graph import make as graph
from edgedec.constraints.kinds.json_object import make as json_object
from edgedec.constraints.kinds.json_schema import json_schema
from edgedec.constraints.kinds.monitor import monitor
from edgedec.constraints.kinds.product import product
from edgedec.constraints.kinds.regex import make as regex
from edgedec.constraints.kinds.span import make as span
from edgedec.decoding.constraint import Constraint

__all__ = [
    "FAMILY",
    "Constraint",
    "ConstraintFacts",
    "choices",
    "classes",
    "grammar",
    "graph",
    "json_object",
    "json_schema",
    "monitor",
    "product",
    "regex",
    "span",
]
