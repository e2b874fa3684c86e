"""Masks of automata beside those of the grammar's matcher, in turns, at a vocabulary of 128k.

    PYTHONPATH=tests python tests/bench/automata_masks.py

Three automata (a span, a graph's query, objects of classes) follow random texts of their own; a choice among names is
followed by llguidance in this process, without the worker. `first`: masks as texts meet them; `again`: of the same
states, as all later drafts, forks and texts meet them.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import numpy as np

from edgedec.constraints.automata.classes import ClassesScript, Schema
from edgedec.constraints.automata.following import StateConstraint
from edgedec.constraints.automata.graph import QueryScript, TripleGraph
from edgedec.constraints.automata.script import ScriptConstraint
from edgedec.constraints.automata.tokens import TokenTree
from edgedec.constraints.kinds.span import _Whole

WORDS = (
    *("the", "a", "little", "fox", "dog", "bird", "tree", "house", "river", "Lily", "Tom"),
    *("found", "played", "saw", "big", "small", "red", "blue", "in", "on", "under", "near"),
)


def vocabulary(size: int, draw: random.Random) -> TokenTree:
    """Bytes, and words and parts of words of random letters, as many as a large tokenizer has."""
    spelt = {bytes([i]) for i in range(256)} | {f" {word}".encode() for word in WORDS} | {w.encode() for w in WORDS}
    letters = "etaoinshrdlucmfwypvbgkjqxz"
    while len(spelt) < size - 1:
        word = "".join(draw.choices(letters, range(26, 0, -1), k=draw.randint(2, 8)))
        spelt.add((draw.choice(["", " "]) + word).encode())
    return TokenTree([*sorted(spelt), None], size, frozenset({size - 1}))


def automata(tokens: TokenTree, draw: random.Random) -> dict[str, Callable[[], StateConstraint[Any]]]:
    passage = " ".join(draw.choices(WORDS, k=600))
    names = [f"{a} {b}" for a in WORDS for b in WORDS]
    triples = {(draw.choice(names), draw.choice(WORDS), draw.choice(names)) for _ in range(200)}
    graph = TripleGraph((f"<{h}>", f"<{r}>", f"<{t}>") for h, r, t in triples)
    schema = Schema.read([{"name": word.title(), "fields": {"name": "str", "at": "str"}} for word in WORDS[:12]])
    return {
        "span of 600 words": lambda: ScriptConstraint("span", _Whole(passage), tokens),
        "graph of 200 triples": lambda: ScriptConstraint("graph", QueryScript(graph, 3), tokens),
        "12 classes": lambda: ScriptConstraint("classes", ClassesScript(schema, passage), tokens),
    }


def timed(found: StateConstraint[Any]) -> tuple[np.ndarray[Any, Any], float]:
    began = perf_counter_ns()
    mask = found.mask(())
    return mask, (perf_counter_ns() - began) / 1000


def measure(make: Callable[[], StateConstraint[Any]], ends: frozenset[int], texts: int, draw: random.Random) -> Any:
    """Microseconds of masks met first, and again; the same texts by one constraint."""
    found, first, again = make(), list[float](), list[float]()
    for _ in range(texts):
        found.reset()
        path: list[int] = []
        while not found.done and len(path) < 60:
            mask, spent = timed(found)
            first.append(spent)
            may = [token for token in np.flatnonzero(mask).tolist() if token not in ends]
            path.append(may[draw.randrange(len(may))])
            found.accept(path[-1])
        found.reset()
        for token in path:
            again.append(timed(found)[1])
            found.accept(token)
    return first, again


def matcher(tokens: TokenTree, texts: int, draw: random.Random) -> list[float]:
    """Microseconds of llguidance's masks for a choice among the same names."""
    import llguidance

    vocab = {"".join(_BYTE[b] for b in text or b"<|end|>"): i for i, text in enumerate(tokens.bytes)}
    content = {
        "added_tokens": [{"id": tokens.size - 1, "content": "<|end|>", "special": True, "single_word": False,
                          "lstrip": False, "rstrip": False, "normalized": False}],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "model": {"type": "BPE", "vocab": vocab, "merges": [], "ignore_merges": True},
    }  # fmt: skip
    known = llguidance.LLTokenizer(json.dumps({"version": "1.0", **content}), None, [tokens.size - 1])
    names = [json.dumps(f"{a} {b}") for a in WORDS for b in WORDS]
    found = llguidance.LLMatcher(known, llguidance.LLMatcher.grammar_from_lark("start: " + " | ".join(names)))
    spent = []
    for _ in range(texts):
        found.reset()
        while not found.is_stopped():
            began = perf_counter_ns()
            bits = found.compute_bitmask()
            np.unpackbits(np.frombuffer(bits, np.uint8), count=tokens.size, bitorder="little").view(bool)
            spent.append((perf_counter_ns() - began) / 1000)
            may = np.flatnonzero(np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")).tolist()
            found.consume_token(may[draw.randrange(len(may))])
    return spent


def _byte_signs() -> list[str]:
    """GPT-2's sign of each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = iter(range(256, 512))
    return [chr(i) if i in plain else chr(next(rest)) for i in range(256)]


_BYTE = _byte_signs()


def shown(name: str, spent: list[float]) -> str:
    ordered = sorted(spent)
    return f"{name:34} {statistics.median(ordered):8.1f} {ordered[int(len(ordered) * 0.99)]:9.1f}  {len(ordered):6}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vocab", type=int, default=131_072)
    parser.add_argument("--texts", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    draw = random.Random(1)
    tokens = vocabulary(given.vocab, draw)
    results: dict[str, list[float]] = {}
    made = automata(tokens, draw)
    for _ in range(given.rounds):
        for name, make in made.items():
            first, again = measure(make, tokens.ends, given.texts, draw)
            results.setdefault(f"{name}, first", []).extend(first)
            results.setdefault(f"{name}, again", []).extend(again)
        results.setdefault("llguidance, one of 484 names", []).extend(matcher(tokens, given.texts, draw))
    print(f"{given.vocab:,} tokens; microseconds of a mask{'':12} median       p99   masks")
    for name, spent in results.items():
        print(shown(name, spent))


if __name__ == "__main__":
    main()
