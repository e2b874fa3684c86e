"""Objects of a schema's classes, as a list of constructor calls whose strings are spans of a passage."""

from __future__ import annotations

import json
from typing import Annotated, Any

from edgedec.constraints._facts import ConstraintFacts
from edgedec.constraints.automata.classes import ClassesScript, Schema
from edgedec.constraints.automata.script import ScriptConstraint
from edgedec.constraints.automata.tokens import token_tree
from edgedec.constraints.kinds.span import check_passage
from edgedec.constraints.vocabulary import vocabulary
from edgedec.errors import UsageError
from edgedec.opened import OpenedModel
from edgedec.plugins import Opt
from edgedec.text.tokenizer import one_line

FACTS = ConstraintFacts(text="schema", inline=r"\s*\{", json=True, files=("schema",))
_TASK = "Extract what the sentence says as a list of objects of these classes. Each string is copied from the sentence."


def make(
    host: OpenedModel,
    schema: Annotated[
        str,
        Opt('The text lists objects of classes, strings from a passage: {"passage": "…", "classes": [{"name": …}]}.'),
    ],
) -> ScriptConstraint:
    """Objects of a schema's classes (KnowCoder); `class_prompt` has the prompt for it."""
    classes, passage = _read(schema)
    return ScriptConstraint("classes", ClassesScript(classes, passage), token_tree(vocabulary(host)))


def class_prompt(schema: str) -> str:
    """The prompt of a schema and its passage: the classes as Python, the task, the passage."""
    classes, passage = _read(schema)
    return f'{classes.prompt()}\n"""\n{_TASK}\n"""\nsentence = {json.dumps(passage, ensure_ascii=False)}\nresults = '


def _read(text: str) -> tuple[Schema, str]:
    try:
        given: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"classes: not JSON: {one_line(error)}") from None
    if not isinstance(given, dict) or set(given) != {"passage", "classes"}:
        raise UsageError("classes: must be an object with a passage and classes")
    check_passage("classes", given["passage"])
    return Schema.read(given["classes"]), given["passage"]
