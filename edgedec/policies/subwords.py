"""Reads prompts in fewer rows: frequent neighbouring subwords of words are one row each (dynamic tokenization).

Feher et al. 2024 (arXiv:2411.18553). Before a prompt is read, the most frequent pair of neighbouring subwords is joined
everywhere, again and again (`text.subwords` has the rule): up to `merges` pairs, or until the share `keep` of the rows
is left. A joined row has one embedding, which a trained network makes of those of its parts, once for each word; with
`by=mean` it is their mean, which needs no training. With `texts=FILE` the pairs are counted over all texts of a file,
as over the batch of the paper, and not in the prompt itself: so no text depends on what runs beside it.

    tokens      One  day  Eliz  ab  eth  saw          keep=0.7: two joins
    rows        One  day      Elizabeth  saw
    positions    0    1           4       5

A joined row stands at the position of its last token. So the text keeps its length and distances, and the tokens that
are generated, which are never joined, follow as if every token had a row. The last token of a prompt has one of its
own. A text that is read again, because it changed or because the context slides, is joined as a prompt.

It is a policy because policies own how a prompt is read and which tokens have slots: forks, saved sessions, batches and
drafts then work as with any other one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Sequence
from functools import lru_cache
from math import ceil
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle.subwords import SubwordNetwork, open_subwords
from edgedec.cache import Cache
from edgedec.errors import UsageError
from edgedec.plugins import Opt
from edgedec.policies import PolicyFacts, PolicyHost
from edgedec.policies._eviction import BasePolicy, held
from edgedec.policies._joined import JoinedEmbeddings
from edgedec.runtime import Adapter, Call, Outputs, Rows
from edgedec.spec import ModelSpec
from edgedec.text.subwords import Joinable, Merging, Pair

# Fewer tokens than these are read as they are.
_LEAST = 8
# Bytes of a file of texts whose pairs are counted.
_MOST_TEXT = 64 << 20
# Tokens of a join without a network.
_LONGEST = 8
_EMBEDDING = Outputs(hidden=(-1,))
Hidden = NDArray[np.float32]

FACTS = PolicyFacts(
    ("embeddings", "slices", "selections", "hidden"),
    kinds=("attention", "mlp", "moe"),
    budget="keep",
    paper="Dynamic Tokenization",
)


def make(
    host: PolicyHost,
    keep: Annotated[float, Opt("Share of a prompt's rows that joining stops at.", above=0, high=1)] = 0.8,
    merges: Annotated[int, Opt("Pairs that are joined at most.", 0)] = 1 << 20,
    path: Annotated[str, Opt("File of `edgedec train-subwords`; by default BUNDLE.subwords.")] = "",
    by: Annotated[Literal["network", "mean"], Opt("What makes an embedding of several.")] = "network",
    texts: Annotated[str, Opt('Count over this file instead of the prompt: .txt, or .jsonl with "text".')] = "",
) -> Subwords:
    file = Path(path or f"{host.folder}.subwords")
    if path and not file.exists():
        raise UsageError(f"--cache subwords: path={path}: no such file; make it with edgedec train-subwords")
    if host.joinable is None:
        raise UsageError("--cache subwords: the bundle has no tokenizer, so nothing is known of its words")
    network = _opened(file, file.stat().st_mtime_ns, host.spec) if by == "network" and file.exists() else None
    joined = JoinedEmbeddings(None) if by == "mean" else None if network is None else network
    found = Subwords(host.spec, host.joinable, joined, keep, merges)
    found.absent = "" if joined is not None else str(file)
    if texts and joined is not None:
        counted = Path(texts)
        if not counted.is_file():
            raise UsageError(f"--cache subwords: texts={texts}: no such file")
        found.pairs = _counted(counted, counted.stat().st_mtime_ns, host.joinable(), keep, merges, found.longest)
    return found


class Subwords(BasePolicy):
    """pairs: those to join, in this order; None: those of each prompt. absent: the file of the network, if there is
    none: the text is then that of the whole cache."""

    pairs: Sequence[Pair] | None = None
    absent = ""

    def __init__(
        self,
        spec: ModelSpec,
        joinable: Callable[[], Joinable],
        joined: JoinedEmbeddings | None,
        keep: float,
        merges: int,
    ) -> None:
        self.spec, self._joinable, self._joined = spec, joinable, joined
        self._keep, self._merges = keep, merges
        self.longest = _LONGEST if joined is None or joined.network is None else joined.network.longest

    def prefill(
        self, cache: Cache, ids: Sequence[int], most: int, adapter: Adapter | None
    ) -> Generator[Call, Any, None]:
        """The prompt in chunks of joined rows; nothing if no rows are joined."""
        if self._joined is None or self._keep == 1 or len(ids) < _LEAST:
            return
        sizes = self.sizes(ids)
        if len(sizes) == len(ids):
            return
        ends = np.cumsum(sizes)
        own, at_own = yield from self._embeddings(cache, ids, most, adapter)
        done = 0
        for at in range(0, len(ends), most):
            chunk = ends[at : at + most]
            numbers = chunk - 1 - done
            places, parents = cache.length + numbers, np.arange(-1, len(chunk) - 1)
            tokens = np.asarray(ids, np.int64)[chunk - 1]
            part = slice(done, int(chunk[-1]))
            embeddings = self._joined.rows(tuple(ids[part]), own[at_own[part]], chunk - done)
            rows = Rows(tokens, places, parents, 0, None, numbers, embeddings)
            yield Call(rows, cache, adapter=adapter)
            cache.commit(range(int(chunk[-1]) - done))
            done = int(chunk[-1])

    def sizes(self, ids: Sequence[int]) -> list[int]:
        """How many tokens each row of a prompt has."""
        words = self._joinable()
        text = Merging([words.pieces(ids)], words.whole, self.longest)
        if self.pairs is None:
            text.learn(self._merges, ceil(self._keep * len(ids)))
        for pair in self.pairs or ():
            text.merge(pair)
        return text.sizes()[0]

    def _embeddings(
        self, cache: Cache, ids: Sequence[int], most: int, adapter: Adapter | None
    ) -> Generator[Call, Any, tuple[Hidden, NDArray[np.int64]]]:
        """Of each token that the text has [tokens, hidden_size], and which of them each of `ids` is."""
        tokens, at = np.unique(np.asarray(ids, np.int64), return_inverse=True)
        own = np.empty((len(tokens), self.spec.hidden_size), np.float32)
        aside = cache.fork(0)
        for i in range(0, len(tokens), most):
            done = yield Call(Rows.chain(tokens[i : i + most], 0), aside, (), None, _EMBEDDING, adapter)
            own[i : i + most] = done.result.hidden[-1]
        return own, at

    def report(self, cache: Cache) -> dict[str, Any]:
        absent = {"absent": self.absent} if self.absent else {}
        budget = {} if self.absent else {"budget": f"{self._keep:.0%} of a prompt's rows"}
        return {"policy": self.words, "lossy": not self.absent, **budget, **absent, **held(cache)}


@lru_cache(maxsize=4)
def _opened(path: Path, stamp: int, spec: ModelSpec) -> JoinedEmbeddings:
    """The network of a file that was written at `stamp`, and the embeddings that it made."""
    network: SubwordNetwork = open_subwords(path, spec)
    return JoinedEmbeddings(network)


@lru_cache(maxsize=4)
def _counted(path: Path, stamp: int, words: Joinable, keep: float, merges: int, longest: int) -> tuple[Pair, ...]:
    """The pairs that are joined over all texts of a file that was written at `stamp`."""
    texts = [words.pieces(words.encode(text)) for text in _texts(path)]
    return tuple(Merging(texts, words.whole, longest).learn(merges, ceil(keep * sum(map(len, texts)))))


def _texts(path: Path) -> list[str]:
    if path.stat().st_size > _MOST_TEXT:
        raise UsageError(f"--cache subwords: texts={path}: has more than {_MOST_TEXT >> 20} MiB; give a part of it")
    try:
        text = path.read_text("utf-8")
        if path.suffix != ".jsonl":
            return [text]
        found = [json.loads(line)["text"] for line in text.splitlines() if line.strip()]
    except (OSError, ValueError, TypeError, KeyError):
        found = [None]
    if not all(isinstance(one, str) for one in found):
        raise UsageError(f'--cache subwords: texts={path}: must be UTF-8 text, or JSON lines with a "text" each')
    return found
