"""Stories -> token rows. A row starts at a story's start and is filled with whole stories."""

import json
import random

import corpus as corpora
import numpy as np
import tokenizer as tokenizers_
import torch
from reading import TrainingRecord, clean
from tokenizers import Tokenizer

LONGEST = 1024  # tokens of a document: what nano's context holds


def prepare(text, work):
    """Corpus and tokenizer, made once and kept in the work folder -> Corpus, Tokenizer."""
    kept, folder = work / "corpus.json", work / "tokenizer"
    if not kept.exists():
        stories = corpora.Corpus(*(list(filter(clean, part)) for part in vars(corpora.load(text)).values()))
        folder.mkdir(parents=True, exist_ok=True)
        tokenizers_.write(tokenizers_.train(stories.real * 2 + stories.clean), folder)
        kept.write_text(json.dumps(vars(stories)))
    stories = corpora.Corpus(**json.loads(kept.read_text()))
    TrainingRecord(work).whole(stories.real + stories.clean).save()
    return stories, Tokenizer.from_file(str(folder / "tokenizer.json"))


def encode(tok, stories):
    """-> one int16 array a story, begin token first; without those that have part of a prompt of the benchmark."""
    return [np.array(e.ids, np.int16) for e in tok.encode_batch(list(filter(clean, stories)))]


def rows(stories, length):
    """Encoded stories -> arrays of `length` tokens; the story that overflows a row is cut there.

    length 6, stories [0 a b] [0 c d e f] [0 g]: rows [0 a b 0 c d], [0 g 0 ...].
    """
    parts, room = [], length
    for story in stories:
        parts.append(story[:room])
        room -= len(parts[-1])
        if room == 0:
            yield np.concatenate(parts)
            parts, room = [], length


def closed(stories):
    """Encoded stories -> int64 [N, longest + 1]: begin/end token after each, then -100."""
    out = np.full((len(stories), max(map(len, stories)) + 1), -100, np.int64)
    for row, story in zip(out, stories):
        row[: len(story)], row[len(story)] = story, 0
    return torch.from_numpy(out)


class Feed:
    """Endless batches: shuffled passes over a mix of stories, reproducible from the seed."""

    def __init__(self, corpus, tok, seed):
        self.corpus, self.tok, self.rng = corpus, tok, random.Random(seed)
        self.state = self.rows = None

    def batch(self, mix, length, count):
        """mix: function of (corpus, rng) -> the stories of a pass. -> int64 [count, length + 1]"""
        if self.state != (mix, length):
            self.state, self.rows = (mix, length), self._endless(mix, length)
        return torch.from_numpy(np.stack([next(self.rows) for _ in range(count)]).astype(np.int64))

    def _endless(self, mix, length):
        while True:
            yield from rows(encode(self.tok, mix(self.corpus, self.rng)), length + 1)
