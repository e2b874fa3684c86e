"""The same schemas and texts for several constraint engines: what compiles, what a mask costs, what may pass.

    PYTHONPATH=tests python tests/bench/constraint_peers.py SCHEMAS.jsonl [--limit 5] [--engines edgedec xgrammar]
    PYTHONPATH=tests python tests/bench/constraint_peers.py JSON-Schema-Test-Suite/tests/draft2020-12

The peers are those of xgrammar, outlines-core and lm-format-enforcer that are installed. SCHEMAS.jsonl: the texts are
nano's under edgedec's own constraint (`jsonschema_bench.py --spec auto --temp 0.7`), finished and valid by the package
jsonschema; schemas without such a text are only compiled. A folder of the test suite: its instances, keys in any order.
No whitespace, one thread; a mask is in the form that an engine gives it. The times are medians, 99th percentiles and
the largest. "valid passed", "invalid held": of the texts whose schema compiled. Needs an operating system that forks.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

import jsonschema
import numpy as np
from constraint_engines import ENGINES, Engine, Follower
from jsonschema_bench import PROMPT, closing
from schemas import collection, orders, suite

import edgedec
from edgedec.constraints import json_schema
from edgedec.errors import UsageError
from edgedec.sampling import Sampling

MEMORY = 8 << 30


def texts(model: edgedec.Model, found: Sequence[tuple[str, Any]]) -> dict[str, list[int]]:
    """What nano writes: the ids of texts that ended and are valid, by schema."""
    session, prompt, bias = model.session(), model.tokenizer.encode(PROMPT), closing(model, 10.0)
    made = {}
    for number, (name, schema) in enumerate(found):
        sampling = Sampling(temperature=0.7, seed=number, logit_bias=bias)
        try:
            constraint = json_schema(model, schema, whitespace="none")
            ids = list(session.tokens(prompt, max_tokens=200, constraint=constraint, sampling=sampling))
        except UsageError:
            continue
        kept = [int(i) for i in ids if i not in model.eos]
        if session.finish_reason == "eos" and valid(schema, model.tokenizer.decode(kept)):
            made[name] = kept
    return made


def valid(schema: Any, text: str) -> bool:
    validator = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        return bool(validator(schema).is_valid(json.loads(text)))
    except Exception:  # whatever a validator stumbles over, a broken reference or pattern
        return False


@dataclass
class Tally:
    """Of one engine. `told`, `passed`: texts that are valid; `wrong`, `stopped`: those that are not."""

    compiled: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    compiles: list[float] = field(default_factory=list)
    masks: list[float] = field(default_factory=list)
    told: int = 0
    passed: int = 0
    wrong: int = 0
    stopped: int = 0


@dataclass(frozen=True)
class Case:
    """A schema and texts: each (its spellings as tokens, is it valid); it passes if one spelling does."""

    group: str
    schema: Any
    texts: tuple[tuple[list[list[int]], bool], ...]


class Worker:
    """A process that compiles and follows; another takes its place when it dies or took too much time."""

    def __init__(self, engine: Engine, eos: frozenset[int], limit: float) -> None:
        self._given = engine, eos, limit
        self._process: Any = None

    def ask(self, tally: Tally, case: Case) -> None:
        if self._process is None:
            self._start()
        self._pipe.send((case.schema, [spellings for spellings, _ in case.texts]))
        try:
            compiled = self._pipe.recv()
            if isinstance(compiled, str):
                tally.failed[compiled] += 1
                return
            tally.compiles.append(compiled)
            tally.compiled[case.group] += 1
            for _, valid in case.texts:
                self._judge(tally, valid, *self._pipe.recv())
        except EOFError:
            self._process.join()
            slow = self._process.exitcode == -signal.SIGPROF
            tally.failed["too slow" if slow else "crashed or out of memory"] += 1
            self._process = None

    def _judge(self, tally: Tally, valid: bool, masks: list[float], passed: bool) -> None:
        tally.masks += masks
        tally.told, tally.passed = tally.told + valid, tally.passed + (valid and passed)
        tally.wrong, tally.stopped = tally.wrong + (not valid), tally.stopped + (not valid and not passed)

    def _start(self) -> None:
        context = multiprocessing.get_context("fork")
        self._pipe, there = context.Pipe()
        self._process = context.Process(target=serve, args=(*self._given, there), daemon=True)
        self._process.start()
        there.close()

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None


def serve(engine: Engine, eos: frozenset[int], limit: float, pipe: Any) -> None:
    """The other side of `Worker`: seconds of compiling or a refusal, then (seconds of masks, passed) of each text.

    A timer that counts the process's own time ends it, however busy the machine is.
    """
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    while True:
        schema, texts = pipe.recv()
        signal.setitimer(signal.ITIMER_PROF, limit)
        began = perf_counter()
        try:
            follower = engine(schema)
        except MemoryError:
            return
        except Exception as error:  # each engine has errors of its own
            pipe.send(f"refused: {type(error).__name__}: {str(error)[:80]}")
            continue
        pipe.send(perf_counter() - began)
        for spellings in texts:
            pipe.send(followed(follower, spellings, eos))


def followed(follower: Follower, spellings: list[list[int]], eos: frozenset[int]) -> tuple[list[float], bool]:
    masks: list[float] = []
    for ids in spellings:
        try:
            follower.reset()
            if passes(follower, ids, eos, masks):
                return masks, True
        except Exception:  # it fails in the middle of a text
            return masks, False
    return masks, False


def passes(follower: Follower, ids: list[int], eos: frozenset[int], masks: list[float]) -> bool:
    for token in [*ids, None]:
        began = perf_counter()
        follower.mask()
        masks.append(perf_counter() - began)
        if token is None:
            break
        if not follower.allows(token):
            return False
        follower.accept(token)
    return any(follower.allows(end) for end in eos)


def from_collection(model: edgedec.Model, file: Path, every: int) -> list[Case]:
    found = collection(file)[::every]
    made = texts(model, found)
    print(f"{len(made)} texts of {sum(map(len, made.values()))} tokens\n")
    return [Case(name.split("/")[0], schema, (([made[name]], True),) if name in made else ()) for name, schema in found]


def from_suite(model: edgedec.Model, folder: Path, every: int) -> list[Case]:
    def spellings(instance: Any) -> list[list[int]]:
        plain = (json.dumps(order, ensure_ascii=False, separators=(",", ":")) for order in orders(instance))
        return [model.tokenizer.encode(text, special=False, around=False) for text in islice(plain, 24)]

    return [
        Case(group.feature, group.schema, tuple((spellings(instance), valid) for _, instance, valid in group.tests))
        for group in islice(suite(folder), 0, None, every)
    ]


def show(name: str, package: str, tally: Tally, n: int) -> None:
    compiles, masks = np.array(tally.compiles or [np.nan]) * 1e3, np.array(tally.masks or [np.nan]) * 1e6
    failed = Counter[str]()
    for why, count in tally.failed.items():
        failed[why.split(":")[0]] += count
    print(
        f"| {name} ({package} {version(package)}) | {len(tally.compiles)} of {n} "
        f"| {', '.join(f'{why} {count}' for why, count in failed.most_common())} "
        f"| {np.median(compiles):.2f} | {np.percentile(compiles, 99):.0f} "
        f"| {np.median(masks):.1f} | {np.percentile(masks, 99):.0f} | {masks.max():.0f} "
        f"| {tally.passed} of {tally.told} | {tally.stopped} of {tally.wrong} |",
        flush=True,
    )


def run(model: edgedec.Model, cases: Sequence[Case], names: Sequence[str], limit: float) -> None:
    print("| engine | compiled | not | compile, ms | p99 | mask, us | p99 | largest | valid passed | invalid held |")
    print(f"|{' --- |' * 10}")
    tallies = {}
    for name in names:
        package, make = ENGINES[name]
        try:
            worker, tally = Worker(make(model), frozenset(model.eos), limit), Tally()
        except ImportError as error:
            print(f"| {name} | not installed: {error} |")
            continue
        for case in cases:
            worker.ask(tally, case)
        worker.stop()
        show(name, package, tally, len(cases))
        tallies[name] = tally
    totals = Counter(case.group for case in cases)
    print(f"\n| compiled | schemas | {' | '.join(tallies)} |\n| --- | --- |{' --- |' * len(tallies)}")
    for group, n in sorted(totals.items()):
        print(f"| {group} | {n} | {' | '.join(f'{tally.compiled[group] / n:.2f}' for tally in tallies.values())} |")
    for name, tally in tallies.items():
        print(f"\n{name}:", *(f"\n  {count} {why}" for why, count in tally.failed.most_common(8)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--engines", nargs="+", choices=list(ENGINES), default=list(ENGINES))
    parser.add_argument("--limit", type=float, default=5.0, help="CPU seconds for a schema and its texts")
    parser.add_argument("--every", type=int, default=1, help="of the schemas, take each so-manieth")
    arguments = parser.parse_args()
    opened = edgedec.open("nano", threads=1)
    read = from_suite if arguments.path.is_dir() else from_collection
    run(opened, read(opened, arguments.path, arguments.every), arguments.engines, arguments.limit)
