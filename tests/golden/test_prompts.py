"""Whatever is typed, nano answers with words and sentences of little stories.

`prompts.json` holds odd prompts: greetings, questions, orders, pictures, other scripts, programs, numbers, noise. The
judge is a bigram model of real stories: for each of their frequent words, which words follow and how often
(`stories.json.xz`, with the scores that real stories held out have). An answer must be likelier a word than a
quarter of the real stories: shuffled words, even frequent ones, are not.

    python tests/golden/test_prompts.py TEXTS     writes the judge anew
    python tests/golden/test_prompts.py                         prints the answers, to be read
"""

from __future__ import annotations

import json
import lzma
import math
import random
import re
import sys
from collections import Counter
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import edgedec
from edgedec.kernels.cpu import loader

HERE = Path(__file__).parent
PROMPTS: list[str] = json.loads((HERE / "prompts.json").read_text("utf-8"))
JUDGE = HERE / "stories.json.xz"
WORDS, TOKENS = 3000, 90
TEXT = re.compile(r"[A-Za-z0-9 \n.,!?'\":;-]*")
WORD = re.compile(r"[a-z]+(?:'[a-z]+)?|[.!?]")
NOISE = (
    "hile shadow bircer woods slowly knot presentberries added book caterpillar mailbox sharp volcano lights stubborn",
    "sil successful butterflies noticed nearby shouted war shin fl walking should favorite lemon just brother animal",
)


@dataclass(frozen=True)
class Judge:
    """How likely words are in stories: after their predecessors, and by themselves."""

    alone: dict[str, int]
    after: dict[str, dict[str, int]]
    quantiles: list[float]  # of real stories' scores, 0 to 100 per cent

    @classmethod
    def load(cls) -> Judge:
        return cls(**json.loads(lzma.decompress(JUDGE.read_bytes())))

    def score(self, text: str) -> float:
        """Mean log-probability of a word, in nats; a word that stories do not use is as likely as half a sighting."""
        words, total = [".", *WORD.findall(text.lower())], sum(self.alone.values())
        logs = []
        for a, b in pairwise(words):
            here = self.after.get(a, {})
            single = (self.alone.get(b, 0) + 0.5) / total
            logs.append(math.log(0.7 * here.get(b, 0) / (sum(here.values()) or 1) + 0.3 * single))
        return sum(logs) / max(1, len(logs))


@cache
def judge() -> Judge:
    return Judge.load()


@cache
def answers() -> dict[str, str]:
    """By the suggested sampling, one seed a prompt, as a chat."""
    model = edgedec.open("nano", threads=1)
    session, found = model.session(speculate="off"), {}
    for i, prompt in enumerate(PROMPTS):
        ids = model.chat_ids([{"role": "user", "content": prompt}])
        sampling = model.sampling.__class__(**vars(model.sampling) | {"seed": i})
        pieces = session.tokens(ids, max_tokens=TOKENS, sampling=sampling)
        found[prompt] = model.tokenizer.decode([int(t) for t in pieces if int(t) not in model.eos])
    return found


needs_native = pytest.mark.skipif(loader.why_not() is not None, reason=f"native engine: {loader.why_not()}")


@needs_native
@pytest.mark.parametrize("prompt", PROMPTS)
def test_any_prompt_gets_a_story(prompt: str, nano: Any) -> None:
    text = answers()[prompt]
    assert TEXT.fullmatch(text), f"odd characters: {text!r}"
    assert len(text.split()) >= 20
    assert re.search(r"[.!?]", text)
    assert judge().score(text) >= judge().quantiles[25], text


@needs_native
def test_most_are_as_likely_as_real_stories(nano: Any) -> None:
    scores = sorted(judge().score(text) for text in answers().values())
    assert len(scores) >= 60
    assert scores[len(scores) // 2] >= judge().quantiles[50]


def test_the_judge_knows_noise() -> None:
    """It refuses random words, and real sentences whose words are shuffled."""
    least = judge().quantiles[25]
    told = "Once upon a time, there was a little dog named Max. He loved to play in the park with his friends. One day,"
    assert judge().score(told) > least
    words = told.split()
    random.Random(0).shuffle(words)
    assert judge().score(" ".join(words)) < least
    for noise in NOISE:
        assert judge().score(noise) < least


def write(folder: Path) -> None:
    sys.path.insert(0, str(HERE.parents[1] / "models" / "nano"))
    import corpus

    stories = corpus.load(folder)
    texts = [WORD.findall(s.lower()) for s in stories.real]
    alone = dict(Counter(w for t in texts for w in t).most_common(WORDS))
    pairs = Counter(pair for t in texts for pair in pairwise([".", *t]) if pair[0] in alone and pair[1] in alone)
    after: dict[str, dict[str, int]] = {}
    for (a, b), n in pairs.items():
        if n > 2:
            after.setdefault(a, {})[b] = n
    found = Judge(alone, after, [])
    scores = sorted(found.score(" ".join(s.split()[:70])) for s in stories.held_real)
    quantiles = [round(scores[min(len(scores) - 1, i * len(scores) // 100)], 4) for i in range(101)]
    JUDGE.write_bytes(lzma.compress(json.dumps(vars(found) | {"quantiles": quantiles}).encode(), preset=9))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        write(Path(sys.argv[1]))
    for prompt, text in answers().items():
        print(f"{judge().score(text):6.2f}  {prompt!r}\n        {text!r}\n")
