"""JSON Schema as others see it: the official test suite, and schemas from practice, each judged by `jsonschema`.

A sample; `tests/bench/jsonschema_bench.py` does it all.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from schemas import Group, accepts, collection, feature, follows, orders, suite

import edgedec
from edgedec.constraints import json_schema
from edgedec.errors import UsageError
from edgedec.model import Model
from edgedec.sampling import Sampling

pytest.importorskip("llguidance", reason="constraints need llguidance")

SAMPLE, TOKENS = 40, 60
# Followed whatever the schema; of the others some are refused by name.
CORE = ["anchor", "anyOf", "const", "default", "enum", "items", "minimum", "maximum", "pattern", "prefixItems"]
CORE += ["properties", "required", "type", "exclusiveMaximum", "exclusiveMinimum", "infinite-loop-detection"]
# Valid instances that are never generated: one number has many spellings, a member's name may need an order.
NARROWER = {"const": 4, "enum": 4, "type": 1}
REFUSED = {"not": "not", "contains": "contains", "uniqueItems": "uniqueItems", "dependentRequired": "dependentRequired"}


@pytest.fixture(scope="module")
def model(nano: Path) -> Model:
    return edgedec.open(nano, threads=1)


@pytest.fixture(scope="module")
def groups(data: Path) -> list[Group]:
    folder = data / "jsonschema" / "suite" / "draft2020-12"
    if not folder.is_dir():
        pytest.skip("no JSON Schema Test Suite at hand")
    return list(suite(folder))


def test_the_suite_knows_no_invalid_instance_that_could_be_generated(model: Model, groups: list[Group]) -> None:
    taken: list[tuple[str, str]] = []
    refused: Counter[str] = Counter()
    tried = missed = 0
    for group in groups:
        try:
            constraint = json_schema(model, group.schema, whitespace="any")
        except UsageError:
            refused[group.feature] += 1
            continue
        for description, instance, valid in group.tests:
            found = accepts(model, constraint, instance)
            tried += 1
            missed += valid and not found
            if found and not valid:
                taken.append((group.feature, description))
    assert taken == []
    assert tried > 500
    assert missed < tried / 20
    assert refused.total() < len(groups) * 0.6


@pytest.mark.parametrize("name", CORE)
def test_a_core_feature_is_followed(model: Model, groups: list[Group], name: str) -> None:
    mine, missed = [group for group in groups if group.feature == name], 0
    followed = 0
    for group in mine:
        try:
            constraint = json_schema(model, group.schema, whitespace="any")
        except UsageError:
            continue
        followed += 1
        for description, instance, valid in group.tests:
            found = accepts(model, constraint, instance)
            assert valid or not found, (group.description, description)
            missed += valid and not found
    assert followed >= len(mine) - 1
    assert followed > 0
    assert missed <= NARROWER.get(name, 0)


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_grammar_can_hold_is_refused_by_its_name(model: Model, groups: list[Group], name: str) -> None:
    for group in groups:
        if group.feature == name and isinstance(group.schema, dict) and name in group.schema:
            with pytest.raises(UsageError, match=REFUSED[name]):
                json_schema(model, group.schema)


def test_what_is_finished_validates(model: Model, data: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    file = data / "jsonschema" / "bench_dev.jsonl"
    if not file.is_file():
        pytest.skip("no schemas from practice at hand")
    found = collection(file)
    spelt = {i: model.tokenizer.decode([i]) for i in range(model.tokenizer.vocab_size)}
    bias = {i: 10.0 for i, text in spelt.items() if text and set(text) <= set('"]}')}
    bias |= {i: -10.0 for i, text in spelt.items() if "," in text}
    session, compiled, finished = model.session(), 0, 0
    for number, (name, schema) in enumerate(found[:: len(found) // SAMPLE]):
        try:
            constraint = json_schema(model, schema, whitespace="none")
        except UsageError:
            continue
        compiled += 1
        sampling = Sampling(temperature=0.7, seed=number, logit_bias=bias)
        text = "".join(session.generate("Once", max_tokens=TOKENS, sampling=sampling, constraint=constraint))
        if session.finish_reason == "eos":
            finished += 1
            validator = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
            wrong = [error.message for error in validator(schema).iter_errors(json.loads(text))]
            assert wrong == [], (name, text)
    assert compiled > SAMPLE * 0.75
    assert finished > SAMPLE // 3


def test_instances_are_tried_in_every_order_of_their_keys(model: Model) -> None:
    assert list(orders({"a": 1, "b": [{"c": 2, "d": 3}]})) == [
        {"a": 1, "b": [{"c": 2, "d": 3}]},
        {"a": 1, "b": [{"d": 3, "c": 2}]},
        {"b": [{"c": 2, "d": 3}], "a": 1},
        {"b": [{"d": 3, "c": 2}], "a": 1},
    ]
    constraint = json_schema(model, {"properties": {"a": {}, "b": {}}, "required": ["a", "b"], "type": "object"})
    assert not follows(model, constraint, '{"b": 1, "a": 2}')
    assert accepts(model, constraint, {"b": 1, "a": 2})
    assert not accepts(model, constraint, {"b": 1})


def test_refusals_are_counted_by_feature() -> None:
    assert feature('json schema: Unimplemented keys: ["if","then"]') == "if, then"
    assert feature("json schema: oneOf constraints are not supported. Enable …") == "oneOf"
    assert feature("json schema: something new") == "something new"
