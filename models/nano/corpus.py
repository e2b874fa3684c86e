"""Reads the story files, cleans them, and splits them into training and held-out stories."""

import hashlib
import itertools
import lzma
import math
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from names import renamed
from truecase import TrueCaser, words_of

END = "<|endoftext|>"
MOJIBAKE = [
    ("â€œ", '"'),
    ("â€™", "'"),
    ("â€˜", "'"),
    ("â€¦", "..."),
    ("â€“", "-"),
    ("â€”", "-"),
    ("â€", '"'),
    ("ã©", "e"),
    ("ã±", "n"),
    ("“", '"'),
    ("”", '"'),
    ("’", "'"),
    ("‘", "'"),
    ("—", "-"),
    ("–", "-"),
    ("…", "..."),
    ("é", "e"),
    ("``", '"'),
    ("''", '"'),
]
LETTERS = re.compile(r"[a-z]+(?:'[a-z]+)*")
NAME = re.compile(r"(?<=[a-z,] )[A-Z][a-z]+")
OPENER = re.compile(r'"?(once|one|there|long|in a|it was a|a long|at the)\b', re.I)
STUTTER = re.compile(r"\b(?!very|that|soon|many|knock|tick)([a-z]{4,}) \1\b")
ALLOWED = re.compile(r"[A-Za-z0-9 \n.,!?'\":;-]+")


@dataclass(frozen=True)
class Corpus:
    """Cleaned stories by origin; the held-out ones are in none of the training lists."""

    real: list
    clean: list  # sampled at temperature 0.65
    best: list  # the most coherent part of `clean`
    held_real: list
    held_sampled: list


def load(folder, held_share=0.03):
    """The stories sampled at 0.9 are too incoherent to learn from; they only show where capitals go."""
    folder = Path(folder)
    cased = paragraphs(folder / "tinystories_train_first_197KB.txt")
    t065 = unique(sampled(folder / "stories_sampled_t065.txt.xz"))
    t09 = unique(sampled(folder / "stories_sampled_t09.txt.xz"))
    real = unique(restore_real(folder / "tinystories_4MB.txt", cased, cased + t065 + t09))
    real = [s for s in real if plausible(s, loops=0.3)]
    train, held = split(real, held_share)
    known = vocabulary(train, t065)
    t065 = [s for s in t065 if plausible(s) and acceptable(s, known)]
    clean, held_sampled = split(t065, held_share)
    ranked = rank(clean, train)
    return Corpus(
        train,
        ranked[: len(ranked) * 9 // 10],
        ranked[: len(ranked) * 4 // 10],
        held,
        held_sampled,
    )


def clean_text(text):
    for bad, good in MOJIBAKE:
        text = text.replace(bad, good)
    text = re.sub(r"[ \t]+", " ", text.replace("\r", ""))
    text = re.sub(r" *\n[ \n]*", "\n\n", text.strip())
    text = re.sub(r" +([.,!?;:])", r"\1", text)
    text = re.sub(r'"([.,])', r'\1"', text)
    return re.sub(r'([.,!?])"(?=[A-Za-z])', r'\1" ', text)


def sampled(path):
    return [clean_text(s) for s in lzma.open(path, "rt", encoding="utf-8").read().split(END)[:-1]]


def paragraphs(path):
    text = path.read_text(encoding="utf-8", errors="ignore")
    return [clean_text(p) for p in re.split(r"\n\s*\n", text)[:-1]]


def restore_real(path, cased, examples):
    """The lower-cased stories with capitals: the original's where it is here, else restored ones."""
    original = {p.lower(): p for p in cased}
    caser = TrueCaser(examples)
    for story in joined(path.read_text(encoding="utf-8", errors="ignore")):
        parts = story.split("\n\n")
        if all(p in original for p in parts):
            yield "\n\n".join(original[p] for p in parts)
        else:
            yield caser.restore(story)


def joined(text):
    """Stories of the lower-cased file: one newline between stories, two between paragraphs.

    Some stories have one newline between paragraphs too: a short piece that opens no story goes
    to the story before it.
    """
    stories = []
    for piece in re.split(r"(?<!\n)\n(?!\n)", text):
        piece = mended(clean_text(piece))
        if stories and len(piece) < 200 and "\n" not in piece and not OPENER.match(piece):
            stories[-1] += "\n\n" + piece
        elif piece:
            stories.append(piece)
    return stories


def mended(story):
    """Closes quotations left open at a paragraph's end and stops a last sentence that is whole."""
    parts = [p + '"' if p.count('"') % 2 and p[-1:] in ".!?" else p for p in story.split("\n\n")]
    return re.sub(r"\bthe end$", "the end.", "\n\n".join(parts))


def unique(stories):
    return list(dict.fromkeys(stories))


def split(stories, share):
    """Each story is assigned by its own hash, so changes to other stories do not move it."""
    fate = [int(hashlib.sha256(s.encode()).hexdigest()[:8], 16) / 2**32 for s in stories]
    return ([s for s, f in zip(stories, fate) if f >= share], [s for s, f in zip(stories, fate) if f < share])


def plausible(story, loops=0.12):
    """Whole, plain and not stuck in a loop (`loops`: share of repeated four-word runs allowed)."""
    if not 120 <= len(story) <= 4000 or not ALLOWED.fullmatch(story):
        return False
    if story[-1] not in '.!?"' or (story[-1] == '"' and story[-2] not in ".!?") or story.count('"') % 2:
        return False
    if not story[0].isupper() and story[0] != '"':
        return False
    return not repetitive(story, loops)


def repetitive(story, loops):
    sentences = [s for s in re.split(r'[.!?"\n]+\s*', story.lower()) if len(s) > 15]
    words = LETTERS.findall(story.lower())
    grams = Counter(zip(words, words[1:], words[2:], words[3:]))
    stutter = STUTTER.search(story.lower())
    again = sum(c - 1 for c in grams.values())
    return bool(stutter) or len(set(sentences)) < (1 - loops) * len(sentences) or again > loops * max(1, len(words))


def vocabulary(real, sampled_stories, often=25):
    """Words real stories use at least twice, and what the sampled ones use very often (names)."""
    count = Counter(w for s in real for w in LETTERS.findall(s.lower()))
    extra = Counter(w for s in sampled_stories for w in LETTERS.findall(s.lower()))
    return {w for w, c in count.items() if c > 1} | {w for w, c in extra.items() if c >= often}


def acceptable(story, known):
    """Whether a story has known words only and introduces no new name in its last part."""
    if any(w not in known for w in LETTERS.findall(story.lower())):
        return False
    late = set(NAME.findall(story[len(story) * 6 // 10 :])) - {"I", "Mom", "Dad", "Mommy", "Daddy", "Yes", "Mum"}
    return all(name in story[: len(story) * 6 // 10] for name in late)


def rank(stories, real):
    """Most coherent first: mean log-probability of a word after its two predecessors, in real stories."""
    one, two, three = Counter(), Counter(), Counter()
    for story in real:
        w = ["\n", "\n"] + [t.lower() for t in words_of(story)]
        one.update(w), two.update(itertools.pairwise(w)), three.update(zip(w, w[1:], w[2:]))
    total = sum(one.values())

    def score(story):
        w = ["\n", "\n"] + [t.lower() for t in words_of(story)]
        logs = [
            math.log(
                0.6 * three[a, b, c] / (two[a, b] or 1)
                + 0.3 * two[b, c] / (one[b] or 1)
                + 0.1 * (one[c] + 1) / (total + 1)
            )
            for a, b, c in zip(w, w[1:], w[2:])
        ]
        return sum(logs) / len(logs) - 0.6 * common_opening(story)

    return sorted(stories, key=score, reverse=True)


def common_opening(story):
    return story.startswith("Once upon a time, there was a little girl named Lily")


def main_mix(corpus, rng):
    """One pass: every real story twice, once under other names, and the sampled ones once."""
    return shuffled(twice(corpus.real, rng) + corpus.clean, rng)


def final_mix(corpus, rng):
    """What the learning rate decays on: real stories and the most coherent sampled ones."""
    return shuffled(twice(corpus.real, rng) + corpus.best, rng)


def twice(stories, rng):
    """Renaming multiplies the real stories and teaches to keep to the names a story began with."""
    return stories + [renamed(s, rng) for s in stories]


def shuffled(stories, rng):
    rng.shuffle(stories)
    return stories
