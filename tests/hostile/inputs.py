"""Schemas, patterns, grammars, templates and tokenizers as an attacker would write them."""

from __future__ import annotations

import json
import random
from typing import Any


def chain(n: int) -> str:
    """A schema whose references lead to each other."""
    defs: dict[str, Any] = {f"a{i}": {"$ref": f"#/$defs/a{i + 1}"} for i in range(n)}
    return json.dumps({"$ref": "#/$defs/a0", "$defs": {**defs, f"a{n}": {"type": "integer"}}})


def nested(n: int) -> str:
    return '{"type":"object","properties":{"a":' * n + '{"type":"integer"}' + '},"required":["a"]}' * n


def optional(n: int) -> str:
    return json.dumps({"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(n)}})


def repeated(n: int, before: str = "") -> str:
    """A pattern of n * n * n characters."""
    return f"{before}((a{{{n}}}){{{n}}}){{{n}}}"


def terminals(n: int) -> str:
    """A grammar whose terminals lead to each other."""
    return "start: T0\n" + "".join(f'T{i}: T{i + 1} "a"\n' for i in range(n)) + f'T{n}: "b"'


def rules(n: int) -> str:
    return terminals(n).replace("T", "t")


# (kind, text): each took the process down, or held gigabytes, or a core for seconds.
CONSTRAINTS: dict[str, tuple[str, str]] = {
    "references": ("json_schema", chain(20_000)),
    "references, fewer": ("json_schema", chain(9_000)),
    "nested objects": ("json_schema", nested(20_000)),
    "optional properties": ("json_schema", optional(30_000)),
    "optional properties, fewer": ("json_schema", optional(8_000)),
    "all of any": (
        "json_schema",
        json.dumps(
            {
                "allOf": [
                    {"anyOf": [{"type": "object", "properties": {f"p{i}{j}": {}}} for j in range(4)]} for i in range(12)
                ]
            }
        ),
    ),
    "repeated": ("regex", repeated(300)),
    "repeated in a schema": ("json_schema", json.dumps({"type": "string", "pattern": f"^{repeated(300)}$"})),
    "terminals": ("grammar", terminals(10_000)),
    "rules": ("grammar", rules(20_000)),
    "parentheses": ("regex", "(" * 20_000 + "a" + ")" * 20_000),
    "brackets": ("grammar", "start: " + "(" * 20_000 + '"a"' + ")" * 20_000),
    "long": ("regex", "a" * 1_000_000),
}

TEMPLATES: dict[str, str] = {
    "string + loop": "{% set ns = namespace(s='x' * 1000000) %}"
    "{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "join bomb": "{{ range(99999) | join('x' * 4000000) }}",
    "batch fill": "{{ [1] | batch(10 ** 9, 'x') | list | length }}",
    "format width": "{{ '{:>4000000000}'.format(1) }}",
    "percent width": "{{ '%4000000000d' | format(1) }}",
    "slice": "{{ [1] | slice(10 ** 9) | list | length }}",
    "center": "{{ 'x' | center(4000000000) }}",
    "pow loop": "{% for i in range(99999) %}{% for j in range(99999) %}"
    "{% set x = 1000 ** 1000 %}{% endfor %}{% endfor %}",
    "empty loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "nested lists": "{% set ns = namespace(a=[]) %}{% for i in range(99999) %}{% set ns.a = [ns.a, ns.a] %}{% endfor %}"
    "{{ ns.a | string | length }}",
    "replace": "{{ ('x' * 4000000) | replace('x', 'y' * 4000000) | length }}",
}

WORDS = [
    "a",
    "b",
    "name",
    "$ref",
    "#",
    "#/$defs/a",
    "#/properties/a",
    "^a+$",
    "(a|b)*",
    "\\d{3}",
    "é",
    "date",
    ".*.*.*a",
    "",
]
KINDS = ["object", "array", "string", "integer", "number", "boolean", "null"]


def schema(rng: random.Random, depth: int = 4) -> Any:
    """Something like a JSON schema."""
    if depth == 0 or rng.random() < 0.15:
        return rng.choice(
            [True, False, {}, {"type": rng.choice(KINDS)}, {"const": value(rng)}, {"$ref": rng.choice(WORDS)}]
        )
    made: dict[str, Any] = {}
    for _ in range(rng.randint(1, 4)):
        name = rng.choice(list(KEYWORDS))
        made[name] = KEYWORDS[name](rng, depth - 1)
    return made


def value(rng: random.Random) -> Any:
    return rng.choice([None, True, 0, -1, 1.5, 1e300, 10**30, "a", "é\u0000", [], {}, [1, "a"], {"a": {"b": []}}])


def number(rng: random.Random) -> Any:
    return rng.choice([0, 1, 2, 5, 100, 10**4, 10**6, 10**9, 10**18, 10**30, -1, 0.1, 1e-9, 1e300])


def several(rng: random.Random, depth: int) -> list[Any]:
    return [schema(rng, depth) for _ in range(rng.choice([0, 1, 2, 3, 12]))]


def named(rng: random.Random, depth: int) -> dict[str, Any]:
    return {rng.choice(WORDS) + str(i): schema(rng, depth) for i in range(rng.choice([0, 1, 3, 40]))}


def pattern(rng: random.Random, depth: int = 3) -> str:
    """Something like a regular expression."""
    if depth == 0:
        return rng.choice(
            ["a", "b", ".", r"\d", r"\w", r"\s", "[a-z]", "[^a]", r"\p{L}", "é", r"\x00", "x{2}", "^", "$", r"\b"]
        )
    left, right = pattern(rng, depth - 1), pattern(rng, depth - 1)
    n = rng.choice([0, 1, 3, 50, 300, 1000, 10**5])
    forms = [
        f"{left}{right}",
        f"({left}|{right})",
        f"({left})*",
        f"({left})+{right}",
        f"({left}){{{n}}}",
        f"({left}){{{n},}}",
    ]
    forms += [
        f"(?:{left})?{right}",
        f"({left}){{0,{n}}}{right}",
        f"(?i:{left})",
        f"(?={left}){right}",
        f"({left}",
        f"[{left}",
    ]
    return rng.choice(forms)


def lark(rng: random.Random) -> str:
    """Something like a grammar."""
    names = ["start", *(f"r{i}" for i in range(rng.randint(0, 6))), *(f"T{i}" for i in range(rng.randint(0, 4)))]

    def item() -> str:
        some = rng.choice(
            [rng.choice(names), '"a"', '"b"', "/" + pattern(rng, 2).replace("/", "") + "/", '""', "%json {}"]
        )
        return some + rng.choice(["", "", "*", "+", "?", "~3", "~0..1000", "{2,50}"])

    lines = [
        f"{name}: " + " | ".join(" ".join(item() for _ in range(rng.randint(1, 3))) for _ in range(rng.randint(1, 3)))
        for name in names
    ]
    return "\n".join(lines)


KEYWORDS: dict[str, Any] = {
    "type": lambda rng, depth: rng.choice([rng.choice(KINDS), [rng.choice(KINDS), "null"], 3]),
    "properties": named,
    "patternProperties": named,
    "$defs": named,
    "additionalProperties": schema,
    "required": lambda rng, depth: [rng.choice(WORDS) for _ in range(rng.randint(0, 4))],
    "items": schema,
    "prefixItems": several,
    "anyOf": several,
    "allOf": several,
    "oneOf": several,
    "not": schema,
    "enum": lambda rng, depth: [value(rng) for _ in range(rng.choice([0, 1, 5, 500]))],
    "const": lambda rng, depth: value(rng),
    "pattern": lambda rng, depth: pattern(rng),
    "format": lambda rng, depth: rng.choice(["date", "uuid", "email", "ipv6", "uri", "nonsense"]),
    "$ref": lambda rng, depth: rng.choice(["#", "#/$defs/a0", "#/properties/a0", "http://x/y", "#/nowhere"]),
    **dict.fromkeys(
        [
            "minLength",
            "maxLength",
            "minItems",
            "maxItems",
            "minimum",
            "maximum",
            "multipleOf",
            "minProperties",
            "maxProperties",
        ],
        lambda rng, depth: number(rng),
    ),
}


PARTS: list[Any] = [
    None,
    {"type": "Fuse"},
    {"type": "ByteFallback"},
    {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    {"type": "Strip", "strip_left": True, "strip_right": True},
    {"type": "Replace", "pattern": {"String": " "}, "content": "  "},
    {"type": "Replace", "pattern": {"Regex": "(a|b)*"}, "content": "x"},
    {"type": "Replace", "pattern": {"Regex": "(("}, "content": "x"},
    {"type": "Prepend", "prepend": "_"},
    {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
    {"type": "WordPiece", "prefix": "##", "cleanup": True},
    {"type": "BPEDecoder", "suffix": "</w>"},
    {"type": "CTC", "pad_token": "a", "word_delimiter_token": "|", "cleanup": True},
    {"type": "NFC"},
    {"type": "NFKD"},
    {"type": "Lowercase"},
    {"type": "Precompiled", "precompiled_charsmap": "AAAAAAA="},
    {"type": "Precompiled", "precompiled_charsmap": "ALQCAACEAAAAAACAAQAAgMz8AgC4BQAAhyIAgMzkAgC4PQAAeyIAgMzsAgC4BQAA"},
    {"type": "Whitespace"},
    {"type": "Digits", "individual_digits": True},
    {"type": "Split", "pattern": {"Regex": "a*?"}, "behavior": "MergedWithNext", "invert": True},
    {"type": "RobertaProcessing", "sep": ["a", 1], "cls": ["b", 10**9], "trim_offsets": True, "add_prefix_space": True},
    {"type": "BertProcessing", "sep": ["a", 1], "cls": ["b", 2]},
]


def tokenizer(rng: random.Random, content: dict[str, Any]) -> dict[str, Any]:
    """A tokenizer.json with a part exchanged, or a value somewhere."""
    made: dict[str, Any] = json.loads(json.dumps(content))
    for _ in range(rng.randint(1, 3)):
        name = rng.choice(
            ["normalizer", "pre_tokenizer", "post_processor", "decoder", "model", "added_tokens", "vocab"]
        )
        if name in made and name not in ("model", "added_tokens") and rng.random() < 0.7:
            made[name] = rng.choice(PARTS)
            continue
        place: Any = (
            made["model"]["vocab"] if name == "vocab" and isinstance(made.get("model"), dict) else made.get(name)
        )
        if isinstance(place, dict) and place:
            place[rng.choice(list(place)[:5000])] = rng.choice([value(rng), number(rng), "x" * 5000, -1])
        elif isinstance(place, list) and place:
            place[rng.randrange(len(place))] = rng.choice(
                [value(rng), {**place[0], "id": 7} if isinstance(place[0], dict) else 3]
            )
        else:
            made[name] = value(rng)
    return made
