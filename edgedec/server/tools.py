"""Functions that a model may call: written into its prompt, its text constrained to their schemas, the call parsed.

A call is the JSON object {"name": ..., "arguments": {...}}; several stand on lines of their own. If a call is required
the whole text is constrained to calls; otherwise a text that begins with "{" is. Models that were trained to write
<tool_call>{...}</tool_call>, once or more, after other text perhaps, are read as well.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from edgedec import constraints
from edgedec.constraints.bounded import BoundedConstraint
from edgedec.constraints.kinds.json_schema import wants_bounds
from edgedec.server.api import Tools
from edgedec.server.calls import CallPiece, CallReader, FunctionCall, beginnings

if TYPE_CHECKING:
    from edgedec.constraints.matcher import GrammarConstraint
    from edgedec.model import Model

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
# The most calls in one turn.
MOST_CALLS = 16
# Any other text: it does not begin with a brace.
_FREE = "FREE: /(?s:\\s*[^{\\s].*)?/\n"
_EXACT = {"whitespace_flexible": True, "whitespace_pattern": " ", "lenient": False, "coerce_one_of": False}
_INTRODUCTION = (
    "You may call functions. To call one, answer with nothing but a JSON object: "
    '{"name": its name, "arguments": its arguments}. The functions:'
)
_SEVERAL = "To call several, write one such object a line."
_DECODER = json.JSONDecoder()


def constraint(model: Model, tools: Tools, answer: str = "") -> GrammarConstraint:
    """The constraint of the text; UsageError names what in a schema is not supported. answer: the schema of a text that
    calls nothing; "": any text."""
    schema = call_schema(tools.schemas)
    if tools.choice == "required" and not tools.parallel:
        return constraints.json_schema(model, schema, bounded=all(map(wants_bounds, tools.schemas.values())))
    calls = f'call ("\\n" call){{0,{MOST_CALLS - 1}}}' if tools.parallel else "call"
    free, start = ("", "calls") if tools.choice == "required" else (_FREE, "FREE | calls")
    if answer:
        free, start = f"answer: {_json(json.loads(answer))}\n", "answer | calls"
    found = constraints.grammar(model, f"start: {start}\n{free}calls: {calls}\ncall: {_json(schema)}")
    if not all(map(wants_bounds, tools.schemas.values())):
        return found
    return BoundedConstraint.of(found, model, free=tools.choice != "required")


def _json(schema: Mapping[str, Any]) -> str:
    """A schema as Lark has it."""
    return "%json " + json.dumps({**schema, "x-guidance": _EXACT})


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


def prompt(
    model: Model,
    messages: Sequence[Mapping[str, Any]],
    tools: Tools | None,
    variables: Mapping[str, Any] = MappingProxyType({}),
    answers: bool = True,
) -> str:
    """The chat as the template writes it; a template without tools gets them in a system message. answers: up to where
    the model's answer begins."""
    write = partial(model.chat_prompt, add_generation_prompt=answers, variables=variables)
    if tools is None:
        return write(messages)
    text = write(messages, tools=tools.described)
    if text != write(messages):
        return text
    lines = [
        _INTRODUCTION,
        *([_SEVERAL] if tools.parallel else []),
        *(json.dumps(tool["function"]) for tool in tools.described),
    ]
    first = {"role": "system", "content": "\n".join(lines)}
    if messages[0]["role"] == "system":
        first["content"] = f"{messages[0]['content']}\n\n{first['content']}"
        messages = messages[1:]
    return write([first, *messages])


def may_be_call(text: str) -> bool:
    """Whether this may be the beginning of a call, which is held back until that is decided."""
    opening = text.lstrip()
    return opening.startswith(("{", _OPEN)) or _OPEN.startswith(opening)


class CallSplitter:
    """A splitter of a text into visible text and possible calls, which are held until the end. answers: a text that
    begins with a brace may be an answer in JSON.

    >>> split = CallSplitter({"f": {}}, required=False)
    >>> split.push("Yes. <tool"), split.push('_call>{"name": "f", "arguments": {}}</tool_call>')
    ('Yes. ', '')
    >>> split.end()
    ('', [FunctionCall(name='f', arguments='{}')])
    """

    def __init__(self, schemas: Mapping[str, Mapping[str, Any]], required: bool, answers: bool = False) -> None:
        self._schemas, self._required, self._answers = schemas, required, answers
        self.unfinished = False
        self._shown, self._held = False, ""
        # For a text that is constrained to calls from its first brace on.
        self.reader = CallReader(schemas)
        self.pieces: list[CallPiece] = []

    def push(self, text: str) -> str:
        """The visible text; `pieces` has the additions to calls that are certain."""
        self._held += text
        whole = not self._shown and self._held.lstrip().startswith("{")
        fresh = text if self.reader.fed else self._held
        self.pieces = self.reader.push(fresh) if whole else []
        answer = whole and self._answers and self.reader.other
        if self._required or (not self._shown and not answer and may_be_call(self._held)):
            return ""
        cut = opening(self._held, _OPEN)
        shown, self._held = self._held[:cut], self._held[cut:]
        self._shown = self._shown or bool(shown)
        return shown

    def end(self, cut: bool = False) -> tuple[str, list[FunctionCall]]:
        """The rest of the text, and the calls that it ended in. cut: by a limit, so that the last call may have only
        the beginning of its arguments; `unfinished` then says so."""
        calls, rest = _read(self._held, self._schemas)
        if not cut or not rest:
            return ("", calls) if calls else (self._held, [])
        if self.reader.inside:
            begun = [self.reader.last]
        elif self._answers and not self.reader.begun:
            return self._held, []
        else:
            begun = beginnings(rest, self._schemas)
        self.unfinished = bool(begun)
        if not calls and not begun:
            return self._held, []
        # A call whose name is not certain yet is left out.
        return "", [*calls, *(begun if len(begun) == 1 else ())]


def opening(text: str, mark: str) -> int:
    """Where the mark begins in a text, or the beginning of it at the text's end; the text's length if neither does.

    >>> opening("a <b> c", "<b>"), opening("a <", "<b>"), opening("a", "<b>")
    (2, 2, 1)
    """
    if mark in text:
        return text.index(mark)
    sizes = range(min(len(mark) - 1, len(text)), 0, -1)
    return len(text) - next((n for n in sizes if text.endswith(mark[:n])), 0)


def read_calls(text: str, schemas: Mapping[str, Mapping[str, Any]]) -> list[FunctionCall]:
    """The calls in a text that consists of calls; empty for other texts. A truncated object at the end is left out.

    >>> read_calls('{"name": "f", "arguments": {}}\\n{"name": "f", "argu', {"f": {}})
    [FunctionCall(name='f', arguments='{}')]
    """
    return _read(text, schemas)[0]


def _read(text: str, schemas: Mapping[str, Mapping[str, Any]]) -> tuple[list[FunctionCall], str]:
    """The calls in a text that consists of calls, and the truncated object at its end."""
    found: list[FunctionCall] = []
    rest = _skip(text)
    while rest:
        try:
            value, end = _DECODER.raw_decode(rest)
        except (ValueError, RecursionError):
            break
        calls = [_call(item, schemas) for item in (value if isinstance(value, list) else [value])]
        if None in calls:
            return [], ""
        found += [call for call in calls if call is not None]
        rest = _skip(rest[end:])
    return found, rest


def _skip(text: str) -> str:
    """The text without separators between calls."""
    while (stripped := text.strip().removeprefix(_OPEN).removeprefix(_CLOSE)) != text:
        text = stripped
    return text


def _call(call: Any, schemas: Mapping[str, Mapping[str, Any]]) -> FunctionCall | None:
    if not isinstance(call, dict) or not isinstance(call.get("name"), str) or call["name"] not in schemas:
        return None
    arguments = call.get("arguments", call.get("parameters"))
    return FunctionCall(call["name"], json.dumps(arguments)) if isinstance(arguments, dict) else None


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
