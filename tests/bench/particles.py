"""Tokens a second of particles (`--search smc`), all texts together, checks included; the best of some rounds.

python tests/bench/particles.py [MODEL] [--particles 64] [--tokens 40] [--rounds 5]
"""

from __future__ import annotations

import argparse
from time import perf_counter, process_time
from typing import Any

import edgedec
from edgedec import constraints

PASSAGE = "Once upon a time there was a little girl who lived in a big house by the sea with her dog and her cat. " * 3
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def taken(model: edgedec.Model, rule: Any, n: int, tokens: int) -> tuple[float, float, int, int]:
    """Seconds, processor seconds, tokens and checks of one search."""
    session, clock, own = model.session(speculate="off"), perf_counter(), process_time()
    found = session.search(
        {"name": "smc", "n": n}, "Once upon a time ", max_tokens=tokens, temperature=1.0, seed=1, constraint=rule
    )
    drawn = int(str(found.report["tokens"]))
    return perf_counter() - clock, process_time() - own, drawn, session.stats.checks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="nano")
    parser.add_argument("--particles", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=5)
    wanted = parser.parse_args()
    model = edgedec.open(wanted.model, threads=1)
    rules = {"span": constraints.span(model, PASSAGE), "json": constraints.json_schema(model, SCHEMA)}
    for name, rule in rules.items():
        found = [taken(model, rule, wanted.particles, wanted.tokens) for _ in range(wanted.rounds)]
        clock, own = max(one[2] / one[0] for one in found), max(one[2] / one[1] for one in found)
        checks = found[0][3] / found[0][2]
        print(f"{name:5} {clock:7.0f} tokens/s, {own:7.0f} a processor second, {checks:.2f} checks a token")


if __name__ == "__main__":
    main()
