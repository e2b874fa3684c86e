"""Writes the record of what the shipped nano has read, which the recipe of that time did not write.

python models/nano/shipped.py --text TEXTS --work build/nano-shipped

That recipe read files of benchmarks: the programs of MBPP, Spec-Bench's first turns, questions of GSM8K and WikiText.
To be deleted when nano is trained anew.
"""

import json
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import corpus as corpora
import finetune
import lessons
import recipe
from reading import TrainingRecord

# So many passes over lessons, and over lessons and answers, make the tokens that it was trained on.
LESSONS, ANSWERS = 10, 8
HEADS = ("hydra", "medusa", "eagle3")


def early(text, real):
    """The better half of the stories sampled at temperature 0.9, which it read in its first 5 million tokens."""
    sampled = corpora.unique(corpora.sampled(text / "stories_sampled_t09.txt.xz"))
    ranked = corpora.rank([s for s in sampled if corpora.plausible(s)], real)
    return ranked[: len(ranked) // 2]


def programs(text):
    """MBPP's solutions, and the tests that belong to them."""
    for problem in lines(text / "mbpp.jsonl"):
        code = problem["code"] + "\n\n" + "\n".join(problem["test_list"])
        yield code.replace("\r", "").replace("\t", "    ")


def pages(text):
    """Questions, instructions, an encyclopedia."""
    yield from (question["turns"][0] for question in lines(text / "spec_bench_question.jsonl"))
    yield from (question["question"] for question in lines(text / "gsm8k_train.jsonl")[:2000])
    yield from (t for t in (text / "wikitext2_valid_raw.txt").read_text("utf-8").split("\n") if len(t) > 200)


def lines(path):
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def record(text, work):
    stories, code, reading = corpora.load(text), list(programs(text)), TrainingRecord(work)
    reading.whole(stories.real + stories.clean + early(text, stories.real) + code)
    course = lessons.Lessons(stories, [c for c in code if len(c) < 1000], None, reading)
    mix = finetune.Mix(stories, course.code, list(pages(text)), None, reading)
    for seed in range(LESSONS):
        reading.openings(course.taught(random.Random(seed)))
    for seed in range(ANSWERS):
        rng = random.Random(seed)
        talks = [mix.answers.conversation(rng) for _ in range(1600)]
        reading.whole(turns[0] for turns in talks).openings(turn for turns in talks for turn in turns)
        reading.openings(mix.repeated(rng))
    return reading


if __name__ == "__main__":
    args = recipe.arguments()
    reading = record(args.text, args.work)
    reading.save()
    reading.put(recipe.HERE / "bundle", ("model", *HEADS))
