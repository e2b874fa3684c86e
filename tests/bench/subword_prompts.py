"""What it costs to read prompts in fewer rows, by subwords that are joined: rows saved, time, what follows.

    python tests/bench/subword_prompts.py BUNDLE DATA NETWORK [TOKENS] [TEXTS]

DATA: .txt, or .jsonl with "text", cut into TEXTS prompts of TOKENS tokens and 32 more. NETWORK: a file of `edgedec
train-subwords`. For each share of the rows, with the network and with the mean of the parts: the share of rows saved;
the perplexity of the 32 tokens; KL(law after the whole prompt || law after this one) in nats a token; milliseconds
until the prompt is read (the median; one thread, a word's embedding made anew), of which so many to find the joins.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import NamedTuple

import numpy as np

import edgedec
from edgedec.export.exits_data import documents
from edgedec.policies.subwords import Subwords, _opened

AHEAD, SAVED = 32, (0.0, 0.1, 0.2, 0.4)


class Reading(NamedTuple):
    laws: np.ndarray
    rows: float
    seconds: float
    merging: float


def main(bundle: str, data: Path, network: str, tokens: int, texts: int) -> None:
    model = edgedec.open(bundle, engine="native", threads=1, prefix_tokens=0)
    ids = [token for text in documents(data) for token in model.tokenizer.encode(text)]
    prompts = [ids[at : at + tokens + AHEAD] for at in range(0, (tokens + AHEAD) * texts, tokens + AHEAD)]
    read(model, prompts[0], "full")
    whole = [read(model, prompt, "full") for prompt in prompts]
    for share in SAVED:
        for how in (f"path={network}", "by=mean") if share else ("by=mean",):
            found = [read(model, prompt, f"subwords:{how},keep={1 - share:g}") for prompt in prompts]
            nats = [-np.log(r.laws[np.arange(AHEAD), p[-AHEAD:]]) for r, p in zip(found, prompts, strict=True)]
            apart = [divergence(a.laws, b.laws) for a, b in zip(whole, found, strict=True)]
            ms, merging = (1e3 * median(r[i] for r in found) for i in (2, 3))
            print(
                f"{how.partition('=')[0] if share else 'whole':5} {1 - np.mean([r.rows for r in found]):5.1%} saved, "
                f"perplexity {np.exp(np.mean(nats)):7.1f}, KL {np.mean(apart):.3f}, "
                f"{ms:.1f} ms, of which {merging:.1f}",
                flush=True,
            )


def read(model: edgedec.Model, ids: Sequence[int], words: str) -> Reading:
    _opened.cache_clear()
    session, merging = model.session(cache=words, speculate="off"), 0.0
    policy = session._context.policy
    if isinstance(policy, Subwords):
        began = perf_counter()
        policy.sizes(ids[: -AHEAD - 1])
        merging = perf_counter() - began
    session.append(ids[:-AHEAD])
    began = perf_counter()
    laws = [session.next_probs()]
    seconds = perf_counter() - began
    rows = session._context.cache.slots(0) / session._context.cache.length
    for token in ids[-AHEAD:-1]:
        session.append([token])
        laws.append(session.next_probs())
    return Reading(np.stack(laws), rows, seconds, merging)


def divergence(whole: np.ndarray, law: np.ndarray) -> float:
    return float((whole * (np.log(whole + 1e-30) - np.log(law + 1e-30))).sum(-1).mean())


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    numbers = [int(n) for n in sys.argv[4:]] + [400, 12][len(sys.argv) - 4 :]
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], *numbers)
