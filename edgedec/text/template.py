"""Chat templates: a conversation as the model was trained to read it.

`jinja2` is imported where it is used: importing edgedec does not cost it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn

from edgedec.errors import TextError
from edgedec.text.tokenizer import one_line

if TYPE_CHECKING:
    import jinja2

LARGEST_CHAT = 4 << 20  # characters a chat template may write
LARGEST_POWER = 1 << 10  # base and exponent of ** in one


def render_chat(
    template: str,
    messages: Sequence[Mapping[str, object]],
    *,
    tools: Sequence[Mapping[str, object]] | None = None,
    add_generation_prompt: bool = True,
    **names: object,
) -> str:
    """A chat as the model's own Jinja template writes it; `names` are bos_token, eos_token and the like.

    The template is a stranger's program: it runs in Jinja's sandbox, sees plain data only, and
    may not write more than `LARGEST_CHAT`. Memory and time are not limited otherwise.
    """
    import jinja2

    values: dict[str, Any] = {"tools": _plain(tools), "documents": None}
    values |= {name: _plain(value) for name, value in names.items() if value is not None}
    values |= {"messages": _plain(messages), "add_generation_prompt": add_generation_prompt}
    pieces: list[str] = []
    size = 0
    try:
        for piece in _compiled(template).generate(**values):
            size += len(piece)
            if size > LARGEST_CHAT:
                raise jinja2.TemplateError(f"writes more than {LARGEST_CHAT} characters")
            pieces.append(piece)
    except Exception as e:  # a template may raise anything
        line = f", line {e.lineno}" if isinstance(e, jinja2.TemplateSyntaxError) else ""
        raise TextError(f"chat template{line}: {one_line(e)}") from e
    return "".join(pieces)


@lru_cache(maxsize=8)
def _compiled(template: str) -> jinja2.Template:
    """The template, with the names and filters that Hugging Face gives to chat templates."""
    from datetime import datetime

    from jinja2 import ext, nodes, sandbox
    from jinja2.exceptions import SecurityError, TemplateError
    from jinja2.parser import Parser

    class Generation(ext.Extension):
        """{% generation %} marks the assistant's text for training; here it is just its content."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Parser) -> nodes.Node:
            line = next(parser.stream).lineno
            return nodes.Scope(parser.parse_statements(("name:endgeneration",), True), lineno=line)

    class Sandbox(sandbox.ImmutableSandboxedEnvironment):
        """Refuses private attributes outright (Jinja lets them be printed, as nothing) and the
        arithmetic that makes something huge out of something small."""

        intercepted_binops = frozenset({"*", "**"})

        def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
            raise SecurityError(f"attribute {attribute!r} of a {type(obj).__name__} is unsafe")

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            length = max(len(x) if isinstance(x, str | list | tuple) else 0 for x in (left, right))
            times = max(x if isinstance(x, int) else 1 for x in (left, right))
            if length * times > LARGEST_CHAT or (operator == "**" and times > LARGEST_POWER):
                raise SecurityError(f"the result of {operator} would be too large")
            return super().call_binop(context, operator, left, right)

    def raise_exception(message: object) -> None:
        raise TemplateError(str(message))

    def to_json(value: object, ensure_ascii: bool = False, **how: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **how)

    def strftime_now(form: str) -> str:
        return datetime.now().strftime(form)

    env = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, ext.loopcontrols])
    env.filters["tojson"] = to_json
    env.globals |= {"raise_exception": raise_exception, "strftime_now": strftime_now}
    return env.from_string(template)


def _plain(value: object) -> Any:
    """A copy in exact JSON types: an object with methods is nothing for a stranger's template."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)  # str() of a str enum would be its name
    if isinstance(value, int | float):
        return int(value) if isinstance(value, int) else float(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [_plain(item) for item in value]
    raise TextError(f"messages: {type(value).__name__} is no plain data; use dicts, lists, strings and numbers")
