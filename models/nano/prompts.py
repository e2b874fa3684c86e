"""Odd prompts and answers to them: to any input nano answers with a friendly sentence and a story.

Each document is a prompt as nano's chat template writes it, an answer, and now and then more turns. The prompt is
read and not learned: only the answer counts in the loss.
"""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import data
import model
import numpy as np
from names import renamed
from reading import clean

# Typical first prompts of users, and nano's sentences before its story.
p = SimpleNamespace(**json.loads(Path(__file__).with_name("phrases.json").read_text("utf-8")))
SHORT = 1300  # characters of a story that answers
LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = (
    "dragon",
    "castle",
    "tiger",
    "bug",
    "boat",
    "river",
    "robot",
    "horse",
    "pizza",
    "bridge",
    "tower",
    "house",
    "cow",
)
SYSTEM = (
    "You are a helpful assistant.",
    "You are nano, a storyteller.",
    "Be brief.",
    "Answer in one sentence.",
    "You are a poet.",
)
BEGINS = re.compile(r"(Once|One|There|Long ago|In a|It was a|A|The|Every)\b|[A-Z][a-z]+ (was|loved|had|liked|and|is)\b")
NAMED = re.compile(r"\b(?:named|called) ([A-Z][a-z]+)")


def styled(text, rng):
    """As people type: capital or not, with or without an end, shouted, with slips."""
    way = rng.random()
    text = text[:1].upper() + text[1:] if way < 0.6 else text
    text = text.upper() if way > 0.94 else text
    text = slip(text, rng) if rng.random() < 0.08 else text
    return text + rng.choice(("", "", ".", "!", "?", "?", "!!", "...", " :)", " ")) if text[-1:].isalnum() else text


def slip(text, rng):
    """Two neighbouring letters exchanged, or one dropped."""
    i = rng.randrange(max(1, len(text) - 1))
    return text[:i] + text[i + 1 : i + 2] + rng.choice((text[i : i + 1], "")) + text[i + 2 :]


def filled(text, rng):
    text = text.replace("{place}", rng.choice(p.places)).replace("{thing}", rng.choice((*p.pictures, *WORDS)))
    while "{topic}" in text:
        text = text.replace("{topic}", rng.choice(p.topics), 1)
    while "{n}" in text:
        text = text.replace("{n}", str(rng.randrange(10 ** rng.randint(1, 4))), 1)
    return text


def gibberish(rng):
    kind = rng.randrange(5)
    if kind == 0:
        return " ".join("".join(rng.choices(LETTERS, k=rng.randint(1, 9))) for _ in range(rng.randint(1, 5)))
    if kind == 1:
        return "".join(rng.choices("!?.,;:#$%&*()[]{}<>/\\|@^~_-+=\"'`", k=rng.randint(1, 12)))
    if kind == 2:
        return rng.choice(LETTERS + " \n") * rng.randint(1, 30)
    if kind == 3:
        return "".join(rng.choices("asdfghjklqwertyuiopzxcvbnm", k=rng.randint(3, 14)))
    blocks = ((0xA1, 0x250), (0x370, 0x600), (0x4E00, 0x9000))
    return "".join(chr(rng.randrange(*rng.choice(blocks))) for _ in range(rng.randint(1, 12)))


def numbers(rng):
    n, m = rng.randrange(10 ** rng.randint(1, 6)), rng.randrange(1, 1000)
    forms = (
        *(f"{n}", f"{n} + {m}", f"{n}*{m}=", f"{n} {m} {n + m}", f"{n}.{m}", f"1, 2, 3, {m}", f"{m}%", f"${n}"),
        *(f"{m}/{m + 3}/20{m % 90 + 10}", f"+{m} {n}", f"x = {n}", f"[{n}, {m}]", f"0x{n:x}", f"{m}:{m % 60:02d}"),
        *("3.14159", "1 2 3 4 5"),
    )
    return rng.choice(forms)


def snippet(code, rng):
    """Some lines of a program, or what else one pastes."""
    if rng.random() < 0.5:
        return rng.choice(p.pasted)
    lines = rng.choice(code).split("\n")
    at = rng.randrange(len(lines))
    return "\n".join(lines[at : at + rng.randint(1, 12)]).strip() or "pass"


def emoji(rng):
    picture = rng.choice(list(p.pictures))
    if rng.random() < 0.6:
        return rng.choice(p.pictures[picture].split(" ")), picture
    return "".join(rng.choices(p.emoji, k=rng.randint(1, 4))), ""


class Answers:
    """Stories to answer with, found by what they are about."""

    def __init__(self, stories, code, other):
        self.code, self.other = code, other
        self.short = [s for s in stories.real + stories.best if len(s) < SHORT and BEGINS.match(s)]
        self.by_word = {w: [s for s in self.short if about(s, w)] for w in (*p.pictures, *WORDS)}
        self.by_word = {w: found for w, found in self.by_word.items() if len(found) >= 5}

        shares = {self.greeting: 12, self.question: 15, self.order: 11, self.wish: 8, self.topic: 40, self.picture: 9}
        shares |= {self.foreign: 10, self.program: 10, self.sum: 5, self.noise: 7, self.page: 4}
        self.kinds, self.shares = list(shares), list(shares.values())

    def story(self, rng, word=""):
        told = rng.choice(self.by_word.get(word) or self.short)
        return renamed(told, rng) if rng.random() < 0.5 else told

    def turn(self, rng):
        """-> prompt, answer: the answer is a friendly sentence and a story, or the story alone."""
        prompt, friendly, word = self.asked(rng)
        story = self.story(rng, word)
        if prompt == "{story}":
            prompt, story = self.named(story, rng)
        first = rng.choice(friendly) if rng.random() < 0.92 else ""
        return prompt, "\n\n" + (first + "\n\n" if first else "") + story

    def asked(self, rng):
        """-> prompt, friendly sentences to choose from, what the story is about ("": anything)."""
        return rng.choices(self.kinds, self.shares)[0](rng)

    def greeting(self, rng):
        return styled(rng.choice(p.greetings), rng), p.hello, ""

    def question(self, rng):
        question = rng.choice(p.questions)
        return styled(filled(question, rng), rng), p.who if re.search(r"\byou(r|)\b", question) else p.asked, ""

    def order(self, rng):
        return styled(filled(rng.choice(p.orders), rng), rng), p.told, ""

    def wish(self, rng):
        return styled(rng.choice(p.telling), rng), p.glad, ""

    def topic(self, rng):
        return "{story}", p.glad, rng.choice(list(self.by_word)) if rng.random() < 0.75 and self.by_word else ""

    def picture(self, rng):
        picture, word = emoji(rng)
        return picture * rng.choice((1, 1, 1, 2, 3)), p.glad if word else p.hello, word

    def foreign(self, rng):
        return rng.choice(p.foreign) + rng.choice(("", "", "!", "?", "。")), p.lost + p.hello, ""

    def program(self, rng):
        return snippet(self.code, rng), p.code, ""

    def sum(self, rng):
        return numbers(rng), p.sums, ""

    def noise(self, rng):
        return gibberish(rng), p.lost, ""

    def page(self, rng):
        return clipped(rng.choice(self.other), rng), p.told, ""

    def named(self, story, rng):
        """A request for a story about a character or a thing in it -> prompt, story.

        In half of those about a thing it is replaced by another one, so that the thing has to be read from the prompt.
        """
        found, words = NAMED.search(story), [w for w in self.by_word if about(story, w)]
        subject = (
            found.group(1) if found and (not words or rng.random() < 0.15) else rng.choice(words or ["a little girl"])
        )
        if subject in self.by_word:
            if rng.random() < 0.5:
                story, subject = recast(story, subject, rng.choice((*p.pictures, *WORDS)))
            subject = rng.choice(
                (f"a {subject}", f"a {subject}", f"{subject}s", f"the {subject}", subject, f"a little {subject}")
            )
        return styled(rng.choice(p.about).replace("{x}", subject), rng), story

    def conversation(self, rng):
        """-> [prompt, answer, prompt, answer, …] as the chat template joins them."""
        turns = list(self.turn(rng))
        if rng.random() < 0.08:
            turns[0] = rng.choice(SYSTEM) + "\n\n" + turns[0]
        while rng.random() < 0.2 and sum(map(len, turns)) < 1500:
            prompt, answer = self.turn(rng)
            # In a later call the template writes two newlines more between the turns; all four are read only.
            turns[-2:] = [turns[-2] + "\n\n\n\n", turns[-1].removeprefix("\n\n")]
            turns += ["\n\n" + prompt, answer]
        return turns

    def opening(self, rng):
        """A story with its first words typed carelessly -> [opening, rest]."""
        story = self.story(rng)
        words = re.findall(r"\S+\s*", story)
        n = rng.choice((1, 2, 3, 4, 5, 7, 9, 12))
        first, rest = "".join(words[:n]), "".join(words[n:])
        gap = first[len(first.rstrip()) :]
        first = rng.choice((str.lower, str.lower, str.upper, str))(first.rstrip())
        return [first, gap + rest]


def about(story, word):
    """Whether the word is in the story's first words and comes back."""
    found = [m.start() for m in re.finditer(rf"\b{word}s?\b", story)]
    return len(found) > 1 and found[0] < 90


def recast(story, word, other):
    """The story with one thing for another -> story, other."""
    return re.sub(rf"\b{word}(s?)\b", rf"{other}\1", story), other


def clipped(text, rng):
    text = " ".join(text.split())
    return text[: rng.randint(20, 400)].rsplit(" ", 1)[0]


def prose(folder):
    """Texts that are no stories: speeches of Shakespeare's."""
    return [t for t in (Path(folder) / "tinyshakespeare.txt").read_text("utf-8").split("\n\n") if len(t) > 120]


def encoded(tok, turns):
    """[given, learned, given, learned, …] -> int16 tokens; given ones are stored below -MASK."""
    parts = [np.array([0], np.int16)]
    for i, text in enumerate(turns):
        ids = np.array(tok.encode(text, add_special_tokens=False).ids, np.int16)
        parts.append(ids if i % 2 else -model.MASK - ids)
    return np.concatenate(parts)


def documents(answers, tok, rng, n, careless, reading):
    """n conversations and so many stories that begin carelessly, as tokens."""
    made = [answers.conversation(rng) for _ in range(n)] + [answers.opening(rng) for _ in range(careless)]
    made = [turns for turns in made if clean("".join(turns)) and all(map(clean, turns))]
    reading.whole(turns[0] for turns in made[:n]).openings(turn for turns in made for turn in turns)
    return [encoded(tok, turns)[: data.LONGEST] for turns in made]
