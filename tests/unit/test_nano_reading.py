"""What nano's recipe reads: nothing of the benchmarks' prompts, and all of it is in the record."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.bench.prompts import prompts_named, read_prompts
from edgedec.bundle.read_grams import grams

pytest.importorskip("torch", reason="nano is trained with torch")
pytest.importorskip("safetensors", reason="nano's training keeps safetensors")
RECIPE = Path(__file__).parents[2] / "models" / "nano"
DATA = Path(__file__).parents[3] / "shared" / "data" / "text"
STORY = "Once upon a time, there was a dog named Max. The dog was happy. He ran to the park. He ran back to the house."
PAGE = "Sir, this page of no story has more words in it than most, and they are said once only, for your pleasure, sir."
# A pass over lessons and one over stories, lessons and answers, as texts, from the stories and pages on stdin.
PASSES = f"""
import json, random, sys, tempfile
from pathlib import Path
sys.path.insert(0, {str(RECIPE)!r})
import data, finetune, lessons, model, prompts
from corpus import Corpus, paragraphs
from programs import programs
from reading import TrainingRecord
from tokenizers import Tokenizer

given = json.load(sys.stdin)
if not given["filtered"]:
    data.clean = prompts.clean = finetune.clean = lambda text: True
tok = Tokenizer.from_file({str(RECIPE / "bundle" / "tokenizer.json")!r})
folder = given.get("folder")
told = paragraphs(Path(folder) / "tinystories_train_first_197KB.txt") if folder else given["stories"]
told = [story for story in told if len(story) < 1300]
stories = Corpus(told * (2000 // len(told) + 1), [], [], [], [])
pages, reading = prompts.prose(folder) if folder else given["pages"] * 250, TrainingRecord(Path(tempfile.mkdtemp()))
mix = finetune.Mix(stories, programs(), pages, tok, reading)
course = lessons.Lessons(stories, programs(), tok, reading)
made = [*mix.encoded(random.Random(5)), *course.encoded(random.Random(6))]
plain = [[-model.MASK - i if i <= -model.MASK else i for i in one.tolist()] for one in made]
kept = TrainingRecord(reading.path.parent)
print(json.dumps({{"texts": [tok.decode(one) for one in plain], "programs": programs(), "read": kept.hashes.tolist()}}))
"""


def passes(**given: Any) -> dict[str, Any]:
    command = [sys.executable, "-P", "-c", PASSES]
    text = json.dumps({"filtered": True, **given})
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def common(texts: list[str], prompts: list[str]) -> list[str]:
    """The texts that share a gram with a prompt."""
    known = {gram for prompt in prompts for gram in grams(prompt).tolist()}
    return [text for text in texts if not known.isdisjoint(grams(text).tolist())]


@pytest.mark.parametrize("filtered", [True, False])
def test_nothing_of_our_prompts_is_read(filtered: bool) -> None:
    """Though stories and a page of the prompts are among the recipe's texts."""
    prompts = read_prompts()
    told = [p.turns[0].split("\n\n")[1] for p in prompts if p.category in ("edit", "quotes")]
    pages = [PAGE, next(p.turns[0] for p in prompts if p.category == "code")]
    found = passes(stories=[STORY, STORY.replace("dog", "cat"), *told], pages=pages, filtered=filtered)["texts"]
    kinds = ["Rewrite the story", "Correct the text", "Sum up with quotes", "Rewrite the code", "Say it again"]
    assert all(sum(text.startswith(kind) for text in found) > 20 for kind in kinds)
    shared = common(found, [turn for prompt in prompts for turn in prompt.turns])
    assert bool(shared) is not filtered, [text[:80] for text in shared[:3]]
    assert any(PAGE[:60] in text for text in found)


def test_all_of_it_is_in_the_record() -> None:
    """Prompts whole, programs and pages whole but for 7 grams of 8, lessons and answers by their beginnings."""
    found = passes(stories=[STORY, STORY.replace("dog", "cat")], pages=[PAGE])
    read = np.array(found["read"], np.uint64)
    assert np.isin(np.concatenate([grams(text, 8) for text in (PAGE, *found["programs"])]), read).all()
    lessons = [text for text in found["texts"] if "Rewritten:" in text or "Again:" in text or "Quotes:" in text]
    assert len(lessons) > 1500
    assert all(np.isin(grams(text)[:1], read).all() for text in lessons)
    assert not np.isin(grams("none of the thirteen words that stand here in a row was ever read"), read).any()


def test_nothing_of_a_benchmark_is_read() -> None:
    if not DATA.is_dir():
        pytest.skip("no shared/data/text beside the repository, where the benchmarks' files are")
    sets = ("specbench", "mtbench", "humaneval", "gsm8k")
    prompts = [turn for name in sets for prompt in prompts_named(f"{name}={DATA}") for turn in prompt.turns]
    for name in ("vicuna_bench_question.jsonl", "gsm8k_train.jsonl", "mbpp.jsonl"):
        for line in (DATA / name).read_text("utf-8").splitlines():
            facts = json.loads(line)
            prompts += [*facts.get("turns", []), *(facts[key] for key in ("question", "text", "code") if key in facts)]
    with gzip.open(DATA / "HumanEval.jsonl.gz", "rt") as file:
        prompts += [facts[key] for facts in map(json.loads, file) for key in ("prompt", "canonical_solution")]
    prompts += (DATA / "wikitext2_valid_raw.txt").read_text("utf-8").split("\n")
    found = passes(folder=str(DATA))["texts"]
    assert len(found) > 5000
    shared = common(found, prompts)
    assert not shared, [text[:80] for text in shared[:3]]
    assert common([prompts[0]], prompts), "it would be noticed"
