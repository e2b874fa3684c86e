"""How much of JSON Schema is followed, is it followed to the letter, and what does a mask cost?

    PYTHONPATH=tests python tests/bench/jsonschema_bench.py collection FILE.jsonl [--spec auto] [--tokens 200]
    PYTHONPATH=tests python tests/bench/jsonschema_bench.py suite FOLDER

collection: each line {"id": …, "schema": …}. Generates one text for each and validates what was finished with the
package jsonschema. suite: a draft's folder of the JSON Schema Test Suite; no text is generated, its instances are
fed to the matcher. Tables in Markdown.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import jsonschema
import numpy as np
from schemas import accepts, collection, feature, suite

import edgedec
from edgedec.constraints import json_schema
from edgedec.constraints.matcher import GrammarConstraint, Mask
from edgedec.errors import UsageError
from edgedec.sampling import Sampling

PROMPT = "Once upon a time"


class Timed(GrammarConstraint):
    """What a token costs: the mask, and taking it."""

    masks: list[float]
    accepts: list[float]

    def mask(self, path: Sequence[int]) -> Mask:
        began = perf_counter()
        found = super().mask(path)
        self.masks.append(perf_counter() - began)
        return found

    def accept(self, token: int) -> None:
        began = perf_counter()
        super().accept(token)
        self.accepts.append(perf_counter() - began)


@dataclass
class Tally:
    """Counts over a collection; times in seconds."""

    refused: Counter[str] = field(default_factory=Counter)
    finished: int = 0
    valid: int = 0
    unjudged: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    compiles: list[float] = field(default_factory=list)
    masks: list[float] = field(default_factory=list)
    accepts: list[float] = field(default_factory=list)
    tokens: int = 0
    calls: int = 0
    seconds: float = 0.0
    texts: Any = field(default_factory=hashlib.sha256)


def run_collection(file: Path, spec: str, tokens: int, temperature: float, close: float) -> None:
    model, tally = edgedec.open("nano", threads=1), Tally()
    session, prompt = model.session(speculate=spec), model.tokenizer.encode(PROMPT)
    found, bias = collection(file), closing(model, close)
    json_schema(model, True)  # the vocabulary is read
    for number, (name, schema) in enumerate(found):
        began = perf_counter()
        try:
            constraint = json_schema(model, schema, whitespace="none")
        except UsageError as error:
            tally.refused[feature(str(error))] += 1
            continue
        tally.compiles.append(perf_counter() - began)
        constraint.__class__ = Timed
        assert isinstance(constraint, Timed)
        constraint.masks, constraint.accepts = tally.masks, tally.accepts
        began, sampling = perf_counter(), Sampling(temperature=temperature, seed=number, logit_bias=bias)
        try:
            ids = list(session.tokens(prompt, max_tokens=tokens, constraint=constraint, sampling=sampling))
        except UsageError as error:
            tally.broken.append(f"{name}: {error}")
            continue
        tally.seconds += perf_counter() - began
        tally.texts.update(str([int(i) for i in ids]).encode())
        tally.tokens, tally.calls = tally.tokens + len(ids), tally.calls + session.stats.calls
        if session.finish_reason == "eos":
            tally.finished += 1
            judge(tally, name, schema, model.tokenizer.decode(ids))
    show(tally, len(found), spec)


def closing(model: edgedec.Model, bias: float) -> dict[int, float]:
    """A story model finds no end: what only closes something is made likelier, what has a comma less likely."""
    spelt = {i: model.tokenizer.decode([i]) for i in range(model.tokenizer.vocab_size)}
    closes = {i: bias for i, text in spelt.items() if text and set(text) <= set('"]}')}
    return closes | {i: -bias for i, text in spelt.items() if "," in text} if bias else {}


def judge(tally: Tally, name: str, schema: Any, text: str) -> None:
    validator = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        wrong = next(validator(schema).iter_errors(json.loads(text)), None)
    except Exception as error:  # whatever a validator stumbles over, a broken reference or pattern
        tally.unjudged[type(error).__name__] += 1
        if isinstance(error, json.JSONDecodeError):
            tally.broken.append(f"{name}: not JSON: {text[:200]}")
        return
    if wrong is None:
        tally.valid += 1
    else:
        tally.broken.append(f"{name}: {wrong.message[:200]} in {text[:200]}")


def show(tally: Tally, n: int, spec: str) -> None:
    compiled = len(tally.compiles)
    print(f"| schemas | compiled | finished | valid | not judged | tokens/call | us/token | spec {spec} |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    print(
        f"| {n} | {compiled} ({compiled / n:.1%}) | {tally.finished} | {tally.valid} | {tally.unjudged.total()} "
        f"| {tally.tokens / tally.calls:.2f} | {tally.seconds / tally.tokens * 1e6:.0f} | |\n"
    )
    print(f"All tokens, the same whatever --spec: sha256 {tally.texts.hexdigest()[:16]}\n")
    print("| refused for | schemas |\n| --- | --- |")
    print("\n".join(f"| {name} | {count} |" for name, count in tally.refused.most_common()))
    print("\n| microseconds | median | p99 | largest |\n| --- | --- | --- | --- |")
    for name, values in (("mask", tally.masks), ("accept", tally.accepts), ("compile", tally.compiles)):
        us = np.array(values) * 1e6
        print(f"| {name} | {np.median(us):.1f} | {np.percentile(us, 99):.0f} | {us.max():.0f} |")
    print("\n".join(["", *(f"not judged: {name} {count}" for name, count in tally.unjudged.items()), *tally.broken]))


def run_suite(folder: Path) -> None:
    model = edgedec.open("nano", threads=1)
    rows: dict[str, Counter[str]] = defaultdict(Counter)
    for group in suite(folder):
        for row in (rows[group.feature], rows["**all**"]):
            row["groups"] += 1
        try:
            constraint = json_schema(model, group.schema, whitespace="any")
        except UsageError:
            continue
        for row in (rows[group.feature], rows["**all**"]):
            row["compiled"] += 1
        for description, instance, valid in group.tests:
            taken = accepts(model, constraint, instance)
            for row in (rows[group.feature], rows["**all**"]):
                row["valid" if valid else "invalid"] += 1
                row["accepted" if valid else "refused"] += taken == valid
            if taken and not valid:
                print(f"accepted though invalid: {group.feature}: {group.description}: {description}")
    print("\n| feature | schemas compiled | valid instances accepted | invalid instances refused |")
    print("| --- | --- | --- | --- |")
    for name, row in sorted(rows.items()):
        print(
            f"| {name} | {row['compiled']} of {row['groups']} | {row['accepted']} of {row['valid']} "
            f"| {row['refused']} of {row['invalid']} |"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["collection", "suite"])
    parser.add_argument("path", type=Path)
    parser.add_argument("--spec", default="off")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--temp", type=float, default=0.7)
    parser.add_argument("--close", type=float, default=10.0, help="added to the logits of what closes something")
    arguments = parser.parse_args()
    if arguments.what == "suite":
        run_suite(arguments.path)
    else:
        run_collection(arguments.path, arguments.spec, arguments.tokens, arguments.temp, arguments.close)
