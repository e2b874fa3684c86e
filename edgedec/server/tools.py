"""Functions that a model may call: written into its prompt, its text constrained to their schemas, the call parsed.

A call is the JSON object {"name": ..., "arguments": {...}}. If a call is required the whole text is constrained to it;
otherwise a text that begins with "{" is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from edgedec import constraints
from edgedec.server.api import Tools

if TYPE_CHECKING:
    from edgedec.constraints.matcher import GrammarConstraint
    from edgedec.model import Model

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
# Any other text: it does not begin with a brace.
_LARK = "start: FREE | call\nFREE: /(?s:\\s*[^{\\s].*)?/\ncall: %json "
_EXACT = {"whitespace_flexible": True, "whitespace_pattern": " ", "lenient": False, "coerce_one_of": False}
_INTRODUCTION = (
    "You may call functions. To call one, answer with nothing but a JSON object: "
    '{"name": its name, "arguments": its arguments}. The functions:'
)


def constraint(model: Model, tools: Tools) -> GrammarConstraint:
    """The constraint of the text; UsageError names what in a schema is not supported."""
    schema = call_schema(tools.schemas)
    if tools.choice == "required":
        return constraints.json_schema(model, schema)
    return constraints.grammar(model, _LARK + json.dumps({**schema, "x-guidance": _EXACT}))


def call_schema(schemas: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The schema of a call of one of the functions."""
    kept = {f"f{i}": _moved(schema, f"#/$defs/f{i}") for i, schema in enumerate(schemas.values())}
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": name}, "arguments": {"$ref": f"#/$defs/f{i}"}},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for i, name in enumerate(schemas)
    ]
    return {"$defs": kept, "anyOf": calls}


def prompt(model: Model, messages: Sequence[Mapping[str, Any]], tools: Tools | None) -> str:
    """The chat as the template writes it; a template without tools gets them in a system message."""
    if tools is None:
        return model.chat_prompt(messages)
    text = model.chat_prompt(messages, tools=tools.described)
    if text != model.chat_prompt(messages):
        return text
    lines = [_INTRODUCTION, *(json.dumps(tool["function"]) for tool in tools.described)]
    first = {"role": "system", "content": "\n".join(lines)}
    if messages[0]["role"] == "system":
        first["content"] = f"{messages[0]['content']}\n\n{first['content']}"
        messages = messages[1:]
    return model.chat_prompt([first, *messages])


def may_be_call(text: str) -> bool:
    """May this be the beginning of a call? Then it is held back until that is known."""
    opening = text.lstrip()
    return opening.startswith(("{", _OPEN)) or _OPEN.startswith(opening)


def read_call(text: str, schemas: Mapping[str, Mapping[str, Any]]) -> tuple[str, str] | None:
    """(name, arguments as JSON) of the call that a text is; None if it is none."""
    text = text.strip().removeprefix(_OPEN).removesuffix(_CLOSE)
    try:
        call = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str) or call["name"] not in schemas:
        return None
    arguments = call.get("arguments", call.get("parameters"))
    return (call["name"], json.dumps(arguments)) if isinstance(arguments, dict) else None


def _moved(schema: Any, to: str) -> Any:
    """The schema with its references to itself pointing to its new place."""
    if isinstance(schema, list):
        return [_moved(item, to) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    moved = {key: _moved(value, to) for key, value in schema.items()}
    reference = moved.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        moved["$ref"] = to + reference[1:]
    return moved
