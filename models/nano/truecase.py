"""Gives lower-cased stories their capitals back, from statistics of cased text.

A word that starts a sentence or a quotation is capitalised by rule. Any other word is decided
by what cased stories did with the same word between the same neighbours, backing off to fewer
neighbours; a word introduced as a name ("a dog named spot") is a name for the rest of its story.
"""

import re
from collections import Counter

from names import NAMES

TOKEN = re.compile(r"[A-Za-z]+(?:'[A-Za-z]+)*|\n+|[^\sA-Za-z]| +")
WORD = re.compile(r"[A-Za-z]")
SPEECH = {
    "said",
    "asked",
    "cried",
    "shouted",
    "replied",
    "exclaimed",
    "yelled",
    "answered",
    "whispered",
    "called",
    "laughed",
    "screamed",
    "thought",
    "says",
    "asks",
    "barked",
    "meowed",
    "begged",
    "suggested",
    "explained",
    "cheered",
    "squeaked",
}
DETERMINERS = {
    "a",
    "an",
    "the",
    "his",
    "her",
    "their",
    "my",
    "your",
    "our",
    "its",
    "this",
    "that",
    "some",
    "very",
    "so",
    "too",
    "more",
}
CONTINUE = {"and", "but", "because", "or", "so", "then", "when", "if", "as"}


def words_of(text):
    """Tokens without blanks: words, punctuation marks, newline runs."""
    return [t for t in TOKEN.findall(text) if t.strip(" ")]


def starts(tokens):
    """Flags the tokens that open a sentence or a quotation.

    tokens: list of n strings -> list of n bools. `said . " yes ! " he said` flags `yes`, not `he`.
    """
    flags, fresh, quoted, pending = [], True, False, False
    for i, tok in enumerate(tokens):
        if WORD.match(tok):
            flags.append(fresh and not (pending and speech_tag(tokens, i)))
            fresh = pending = False
            continue
        flags.append(False)
        if tok[0] == "\n":
            fresh, quoted, pending = True, False, False
        elif tok == '"':
            closing, quoted = quoted, not quoted
            if closing:
                pending = fresh and tokens[i - 1] in "!?"
            else:
                fresh = fresh or not resumes(tokens, i)
        elif tok in ".!?":
            fresh, pending = True, False
        elif tok != "'":
            fresh = False
    return flags


def resumes(tokens, i):
    """Whether the quotation opened at i goes on a broken sentence (`," he said, "and ...`)."""
    return i + 1 < len(tokens) and tokens[i + 1].lower() in CONTINUE


def speech_tag(tokens, i):
    """Whether the words from i on tell who spoke: `said tom`, `her mom asked`."""
    for tok in tokens[i : i + 4]:
        if not WORD.match(tok):
            return False
        if tok.lower() in SPEECH:
            return True
    return False


class TrueCaser:
    """Counts of capitalised and plain uses by context, learned from cased stories."""

    def __init__(self, cased_stories, least=3):
        self.upper, self.total, self.least = Counter(), Counter(), least
        for story in cased_stories:
            tokens = words_of(story)
            for i, start in enumerate(starts(tokens)):
                if WORD.match(tokens[i]) and not start:
                    self._count(tokens, i)

    def _count(self, tokens, i):
        cap = tokens[i][0].isupper()
        for key in contexts(tokens, i):
            self.total[key] += 1
            self.upper[key] += cap

    def restore(self, story):
        """Lower-cased story -> the same characters with capitals."""
        pieces = TOKEN.findall(story)
        places = [i for i, p in enumerate(pieces) if p.strip(" ")]
        tokens = [pieces[i] for i in places]
        names = introduced(tokens)
        for i, start in enumerate(starts(tokens)):
            if WORD.match(tokens[i]) and (start or self._capital(tokens, i, names)):
                pieces[places[i]] = tokens[i][0].upper() + tokens[i][1:]
        return "".join(pieces)

    def _capital(self, tokens, i, names):
        word = tokens[i]
        if word == "i" or word.startswith("i'"):
            return True
        if stem(word) in names and (i == 0 or tokens[i - 1].lower() not in DETERMINERS):
            return True
        for key in contexts(tokens, i):
            if self.total[key] >= self.least:
                return self.upper[key] * 2 > self.total[key]
        return stem(word) in NAMES


def stem(word):
    return word.lower().removesuffix("'s")


def contexts(tokens, i):
    """Keys for tokens[i], most specific first: both neighbours, either one, none."""
    word = stem(tokens[i])
    left = tokens[i - 1].lower() if i else "\n"
    right = tokens[i + 1].lower() if i + 1 < len(tokens) else "\n"
    return [(left, word, right), (left, word, None), (None, word, right), (None, word, None)]


def introduced(tokens):
    """Words the story itself brings in as names: `named spot`, `name was spot`."""
    names = set()
    for a, b, c in zip(tokens, tokens[1:], tokens[2:]):
        if a.lower() == "named" and b.isalpha():
            names.add(b.lower())
        elif a.lower() == "name" and b.lower() in ("is", "was") and c.isalpha():
            names.add(c.lower())
    return names - DETERMINERS - {"after", "it", "him", "them", "not"}
