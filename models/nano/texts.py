"""Writes the texts that nano's draft heads learn from: stories, lessons and answers, as in its last training.

`edgedec train-heads` records what it reads itself.

python models/nano/texts.py --text TEXTS --work build/nano -o build/nano/heads.txt
"""

import argparse
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import corpus as corpora
import data
import finetune
import prompts
from programs import programs
from reading import TrainingRecord, clean

END, SEED = "<|endoftext|>", 23


def texts(stories, mix, rng):
    yield from corpora.final_mix(stories, rng)[:900]
    yield from rng.sample(list(mix.twice(rng)), 550)
    yield from ("".join(mix.answers.conversation(rng)) for _ in range(700))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, required=True, help="the folder of shared texts")
    parser.add_argument("--work", type=Path, required=True, help="the recipe's work folder")
    parser.add_argument("-o", "--out", type=Path, required=True, help="where the texts go")
    args = parser.parse_args()
    stories, tok = data.prepare(args.text, args.work)
    rng = random.Random(SEED)
    mix = finetune.Mix(stories, programs(), prompts.prose(args.text), tok, TrainingRecord(args.work))
    found = list(filter(clean, texts(stories, mix, rng)))
    rng.shuffle(found)
    args.out.write_text(END.join(found), "utf-8")


if __name__ == "__main__":
    main()
