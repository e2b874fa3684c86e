"""Chains of arithmetic, reasoned in tokens, in latent rows of r tokens, and not at all: steps and right answers.

python tests/bench/latent_reasoning.py build/latent

makes a small Llama and problems such as "3+4*7+2*5=", computed from left to right, of which the last digit is kept
after each operation; the steps are "3+4=7", "7*7=9" and so on. `edgedec train-latent` trains it to write the steps
(cot), from there to reason in rows that stand for 1 to 5 tokens of them (colar), and from right answers in rows of 3
(grpo), and the same network to answer at once (direct). The table is of problems that no training read; answers are
compared with what Python computes. What is there already is not made again.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

SEPARATOR, END = "###", "<end>"
PATTERN = r"###|\(Thinking speed: |<end>|[\s\S]"
WORDS = [END, SEPARATOR, "(Thinking speed: ", ")", "\n", *"0123456789", *"+*=", "?"]
OPERATIONS: dict[str, Callable[[int, int], int]] = {"+": lambda a, b: (a + b) % 10, "*": lambda a, b: a * b % 10}
CONFIG = {"hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 3, "num_attention_heads": 4}
LONGEST = 64
# Where it begins, the updates and the learning rate. Latent rows in two trainings, each with a rate that falls to zero.
TRAININGS = {
    "cot": ("start", 500, 3e-3),
    "begun": ("cot", 500, 2e-3),
    "colar": ("begun", 500, 2e-3),
    "direct": ("start", 500, 3e-3),
    "grpo": ("colar", 200, 1e-5),
}
ASKED = ("cot", "colar", "direct", "grpo")


def problem(draw: random.Random, length: int) -> dict[str, Any]:
    """A problem with so many operations, its steps and its answer."""
    value = draw.randrange(10)
    question, steps = str(value), list[str]()
    for _ in range(length):
        sign, other = draw.choice("+*"), draw.randrange(10)
        after = OPERATIONS[sign](value, other)
        question += f"{sign}{other}"
        steps.append(f"{value}{sign}{other}={after}")
        value = after
    return {"prompt": f"{question}=", "parts": steps, "answer": str(value)}


def write_problems(path: Path, n: int, length: int, seed: int, without: frozenset[str]) -> None:
    draw = random.Random(seed)
    made = [one for one in (problem(draw, length) for _ in range(n)) if one["prompt"] not in without]
    path.write_text("".join(json.dumps(one) + "\n" for one in made))


def write_start(folder: Path) -> None:
    """A Llama with random weights, and its tokenizer."""
    import torch
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    ends: dict[str, Any] = {"bos_token_id": None, "eos_token_id": 0, "pad_token_id": None}
    config = LlamaConfig(vocab_size=len(WORDS), max_position_embeddings=256, tie_word_embeddings=True, **CONFIG, **ends)
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(PATTERN), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": END, "add_bos_token": False}))


def edgedec(*words: str) -> None:
    # -P: the installed edgedec, not the folder of that name where this is started.
    subprocess.run([sys.executable, "-P", "-m", "edgedec", *words], check=True, stdout=subprocess.DEVNULL)


def train(folder: Path, name: str) -> None:
    """The checkpoint of a training, and the bundle of one that is asked."""
    start, updates, rate = TRAININGS[name]
    plan = f"--method {name if name in ASKED else 'colar'} --steps {updates} --rate {rate} --together 64 --length 96"
    plan += f" --width 256 --minutes 600 -t 1 --work {folder / name}.work"
    plan += " --most 3 --batch 8" if name == "grpo" else ""
    if not (folder / name).exists():
        data, out = folder / "train.jsonl", folder / name
        edgedec("train-latent", str(folder / start), str(data), "-o", str(out), *plan.split())
    if name in ASKED and not (folder / f"{name}.bundle").exists():
        made = ["-o", str(folder / f"{name}.bundle"), "--weights", "f32", "--for", "native", "--no-check"]
        edgedec("export", str(folder / name), *made)


def told(session: Any, prompt: str) -> tuple[str, int]:
    """Greedy decoding -> the answer, and the tokens before it."""
    ids = session.model.tokenizer.encode(prompt)
    text = "".join(session.generate(ids, temperature=0.0, repetition_penalty=1.0, max_tokens=LONGEST))
    thought, _, answer = text.rpartition(SEPARATOR)
    return answer, len(session.model.tokenizer.encode(thought))


def thought(session: Any, prompt: str, r: int, seed: int) -> tuple[str, int]:
    """The answer after latent rows, and their number."""
    greedy = {"temperature": 0.0, "repetition_penalty": 1.0, "max_tokens": 4, "seed": seed}
    found = session.search(f"colar:r={r}", prompt, **greedy)
    return found.text, found.report["latents"]


def row(name: str, results: list[tuple[bool, int]]) -> str:
    """A line of the table: the share of right answers with its 95% interval, and the mean of the steps."""
    n, share = len(results), sum(right for right, _ in results) / len(results)
    middle = (share + 1.92 / n) / (1 + 3.84 / n)
    half = 1.96 * math.sqrt(share * (1 - share) / n + 0.96 / n**2) / (1 + 3.84 / n)
    steps = sum(steps for _, steps in results) / n
    return f"| {name} | {steps:.1f} | {share:.0%} | {max(0, middle - half):.0%} to {middle + half:.0%} |"


def table(folder: Path, n: int) -> None:
    import edgedec as package

    problems = [json.loads(line) for line in (folder / "test.jsonl").read_text().splitlines()[:n]]
    models = {name: package.open(folder / f"{name}.bundle", threads=1) for name in ASKED}

    def ask(name: str, answer: Callable[[Any, str, int], tuple[str, int]]) -> list[tuple[bool, int]]:
        found = [(one["answer"], *answer(models[name].session(), one["prompt"], i)) for i, one in enumerate(problems)]
        return [(right == text, steps) for right, text, steps in found]

    print("| reasoning | steps | right | 95% |\n| --- | --- | --- | --- |")
    print(row("in tokens", ask("cot", lambda s, p, i: told(s, f"{p}(Thinking speed: 1){SEPARATOR}"))))
    for r in (1, 2, 3, 5):
        print(row(f"`colar:r={r}`", ask("colar", lambda s, p, i, r=r: thought(s, p, r, i))))
    print(row("`colar:r=3` after grpo", ask("grpo", lambda s, p, i: thought(s, p, 3, i))))
    print(row("none", ask("direct", lambda s, p, i: told(s, f"{p}{SEPARATOR}"))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where everything goes")
    parser.add_argument("--operations", type=int, default=4, help="of a problem (default 4)")
    parser.add_argument("--problems", type=int, default=200, help="of the table (default 200)")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    if not (args.folder / "train.jsonl").exists():
        write_problems(args.folder / "test.jsonl", args.problems, args.operations, 1, frozenset())
        asked = {json.loads(line)["prompt"] for line in (args.folder / "test.jsonl").read_text().splitlines()}
        write_problems(args.folder / "train.jsonl", 50_000, args.operations, 2, frozenset(asked))
        write_start(args.folder / "start")
    for name in TRAININGS:
        train(args.folder, name)
    table(args.folder, args.problems)


if __name__ == "__main__":
    main()
