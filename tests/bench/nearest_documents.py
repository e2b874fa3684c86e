"""Whether a datastore drafts better from the documents nearest to the prompt first: tokens a call, by counts.

    python tests/bench/nearest_documents.py TOKENIZER ENCODER TEXTS.jsonl [TESTS [DOCUMENTS]]

TEXTS: a question and its answer a line (MBPP's text and code, GSM8K's question and answer). The first TESTS answers
(60) are drafted as they stand, after their questions, by the datastore of DOCUMENTS later lines (3,000), seven guesses
a call. "near N": from the N documents whose questions are nearest to this one by the encoder's vectors; from all where
these have no match; "as long": from them only where no other match is longer. "any N": of N drawn documents.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

import edgedec
from edgedec.decoding.context import Context
from edgedec.drafters.datastore import DatastoreDrafter
from edgedec.encoding.numeric import unit
from edgedec.storage.datastore import Datastore, write_datastore
from edgedec.testing.fakes import FakeRuntime, tiny_spec
from edgedec.text.tokenizer import Tokenizer

NODES, NEAR, DIGEST = 7, (4, 16, 64, 256), "00" * 32
Ids = list[int]
Draft = Callable[[Ids], int]


def main(tokenizer: str, encoder: str, texts: str, tests: int = 60, documents: int = 3000) -> None:
    words, model = Tokenizer.load(Path(tokenizer)), edgedec.open(encoder, threads=1)
    lines = [[*json.loads(line).values()] for line in Path(texts).read_text("utf-8").splitlines()]
    pairs = [[part for part in line if isinstance(part, str)][:2] for line in lines]
    asked, told = pairs[:tests], pairs[tests : tests + documents]
    vectors = unit(model.embed([question for question, _ in told], truncate=True))
    queries = unit(model.embed([question for question, _ in asked], truncate=True))
    ids = [
        (words.encode(f"{question}\n", special=False), words.encode(answer, special=False)) for question, answer in told
    ]
    everything, rng, counts = Store([q + a for q, a in ids], words.vocab_size), np.random.default_rng(0), {}
    for (question, answer), query in zip(asked, queries, strict=True):
        order = np.argsort(-(vectors @ query), kind="stable")
        near = {f"near {n}": order[:n] for n in NEAR} | {"any 16": rng.choice(len(ids), 16, replace=False)}
        stores = {name: Store([ids[i][0] + ids[i][1] for i in of], words.vocab_size) for name, of in near.items()}
        begun, rest = words.encode(f"{question}\n", special=False), words.encode(answer, special=False)
        for name, store in stores.items():
            for way, longer in ((name, False), (f"{name} as long", True)):
                counts.setdefault(way, []).append(calls(begun, rest, store, everything, longer))
        counts.setdefault("all", []).append(calls(begun, rest, everything, everything, True))
    tokens = sum(len(words.encode(answer, special=False)) for _, answer in asked)
    for way, found in counts.items():
        print(f"{way:18} {tokens / sum(found):.3f} tokens a call, {sum(found)} calls for {tokens} tokens")


class Store:
    """Documents, and how many tokens of a text a draft from them has right."""

    def __init__(self, documents: Sequence[Ids], vocab: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "store"
            write_datastore(path, DIGEST, vocab, documents)
            self._found = Datastore(path, DIGEST, vocab)
        self._drafter = DatastoreDrafter(self._found)
        self._runtime = FakeRuntime(tiny_spec())

    def longest(self, ids: Ids) -> int:
        """The longest match of a text's end."""
        return max((n for n, _ in self._found.find(ids, 1)), default=0)

    def right(self, ids: Ids, rest: Ids) -> int:
        draft = self._drafter.propose(Context(ids, len(ids), self._runtime.new_cache(1)), NODES, 0.0)
        node, n = -1, 0
        tree = {(parent, token): i for i, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True))}
        while n < len(rest) and (node, rest[n]) in tree:
            node, n = tree[node, rest[n]], n + 1
        return n


def calls(begun: Ids, rest: Ids, first: Store, everything: Store, longer: bool) -> int:
    """The calls that an answer takes."""
    at = n = 0
    while at < len(rest):
        ids = [*begun, *rest[:at]]
        found = first.longest(ids)
        enough = found >= max(everything.longest(ids) if longer else 0, 2)
        at += 1 + (first if enough else everything).right(ids, rest[at:-1])
        n += 1
    return n


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    main(*sys.argv[1:4], *map(int, sys.argv[4:]))
