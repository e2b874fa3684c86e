"""Renders a bundle's chat template, in a worker process: imports nothing but jinja2 and the standard library."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    import jinja2

LARGEST_CHAT = 4 << 20  # characters a chat template may write
LARGEST_POWER = 1 << 10  # base and exponent of ** in one


def setup(message: dict[str, Any]) -> None:
    import jinja2.sandbox  # noqa: F401 (a forked worker has it at hand)


def handle(message: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes]:
    """The chat, as UTF-8 in which halves of surrogate pairs may stand, as they may in messages."""
    return {}, render(message["template"], json.loads(blob)).encode("utf-8", "surrogatepass")


def render(template: str, values: dict[str, Any]) -> str:
    """The text of a template with these values; ValueError has the template's error."""
    import jinja2

    pieces: list[str] = []
    size = 0
    try:
        for piece in _compiled(template).generate(**values):
            size += len(piece)
            if size > LARGEST_CHAT:
                raise jinja2.TemplateError(f"writes more than {LARGEST_CHAT} characters")
            pieces.append(piece)
    except MemoryError:
        raise
    except Exception as e:  # a template may raise anything
        line = f", line {e.lineno}" if isinstance(e, jinja2.TemplateSyntaxError) else ""
        said = " ".join(str(e)[:2000].split())[:300] or type(e).__name__
        raise ValueError(f"chat template{line}: {said}") from e
    return "".join(pieces)


def _generation() -> type[jinja2.ext.Extension]:
    from jinja2 import ext, nodes
    from jinja2.parser import Parser

    class Generation(ext.Extension):
        """{% generation %} marks the assistant's text for training; here it is just its content."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Parser) -> nodes.Node:
            line = next(parser.stream).lineno
            return nodes.Scope(parser.parse_statements(("name:endgeneration",), True), lineno=line)

    return Generation


def _sandbox() -> type[jinja2.sandbox.ImmutableSandboxedEnvironment]:
    from jinja2 import sandbox
    from jinja2.exceptions import SecurityError

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

    return Sandbox


@lru_cache(maxsize=8)
def _compiled(template: str) -> jinja2.Template:
    """The template, with the names and filters that Hugging Face gives to chat templates."""
    from datetime import datetime

    from jinja2 import ext
    from jinja2.exceptions import TemplateError

    def raise_exception(message: object) -> None:
        raise TemplateError(str(message))

    def to_json(value: object, ensure_ascii: bool = False, **how: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **how)

    def strftime_now(form: str) -> str:
        return datetime.now().strftime(form)

    env = _sandbox()(trim_blocks=True, lstrip_blocks=True, extensions=[_generation(), ext.loopcontrols])
    env.filters["tojson"] = to_json
    env.globals |= {"raise_exception": raise_exception, "strftime_now": strftime_now}
    return env.from_string(template)
