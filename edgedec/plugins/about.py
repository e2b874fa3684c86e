"""What people and programs may want to know of plug-ins: descriptions and JSON schemas."""

from __future__ import annotations

from dataclasses import asdict, is_dataclass
from typing import Any

from edgedec.plugins.family import Family


def about(family: Family[Any], name: str) -> dict[str, Any]:
    """A plug-in as an object fit for JSON: name, summary, options, facts but for functions."""
    facts = family.facts(name)
    known = _shown(asdict(facts)) if is_dataclass(facts) and not isinstance(facts, type) else {}
    return {
        "name": name,
        "summary": family.summary(name),
        "options": [
            {"name": key, **({"required": True} if option.required else {}), **option.schema()}
            for key, option in family.options(name).items()
        ],
        "facts": known,
    }


def _shown(value: Any) -> Any:
    """A value fit for JSON: without functions, and without fields that say nothing."""
    if isinstance(value, dict):
        fields = {key: _shown(field) for key, field in value.items() if not callable(field)}
        return {key: field for key, field in fields.items() if field not in (None, "", [], False)}
    return [_shown(item) for item in value] if isinstance(value, list | tuple) else value


def all_about(family: Family[Any]) -> list[dict[str, Any]]:
    """All plug-ins of a family."""
    return [about(family, name) for name in family.names()]


def schema(family: Family[Any]) -> dict[str, Any]:
    """JSON schema of a field that names plug-ins of a family: words, an object, or a list of these."""
    words = {"type": "string", "minLength": 1, "maxLength": 4096, "description": f"{family.title}: NAME:OPTION=VALUE,…"}
    objects = [
        {
            "type": "object",
            "title": name,
            "description": family.summary(name),
            "properties": {"name": {"const": name}}
            | {key: option.schema() for key, option in family.options(name).items()},
            "required": ["name", *(key for key, option in family.options(name).items() if option.required)],
            "additionalProperties": False,
        }
        for name in family.names()
    ]
    one = {"anyOf": [words, *objects]}
    return {"anyOf": [*one["anyOf"], {"type": "array", "maxItems": 16, "items": one}]}
