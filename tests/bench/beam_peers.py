"""Beam search beside that of transformers, at the geometry of a 135M model, in turns.

python tests/bench/beam_peers.py [--width 8] [--tokens 32] [--rounds 5] [--threads 2]

Ours has the weights at 4 bits, transformers random ones in float32, which on a CPU is its fastest. The texts differ;
every beam of both runs to the last token.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from statistics import median
from time import perf_counter

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import edgedec
from edgedec.cli.bench._flags import padded

PROMPT = "Once upon a time"


def ours(width: int, tokens: int, threads: int) -> Callable[[], None]:
    model = edgedec.open(padded("nano", "smollm-135m", lambda *_: None).path, threads=threads)
    ids = model.tokenizer.encode(PROMPT)

    def run() -> None:
        session = model.session(speculate="off")
        options = {"temperature": 0.0, "repetition_penalty": 1.0, "ignore_eos": True}
        assert len(list(session.tokens(ids, search=f"beam:width={width}", max_tokens=tokens, **options))) == tokens

    return run


def theirs(width: int, tokens: int, threads: int) -> Callable[[], None]:
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    sizes = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "vocab_size": 49152}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=9, num_key_value_heads=3)).eval()
    ids = torch.tensor([[1, 5, 9, 13, 17]])

    def run() -> None:
        with torch.inference_mode():
            found = model.generate(
                ids, num_beams=width, do_sample=False, max_new_tokens=tokens, min_new_tokens=tokens, pad_token_id=0
            )
        assert found.shape[1] == 5 + tokens

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, usual in (("width", 8), ("tokens", 32), ("rounds", 5), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    wanted = parser.parse_args()
    options = (wanted.width, wanted.tokens, wanted.threads)
    ways = {"edgedec": ours(*options), "transformers": theirs(*options)}
    taken = {way: list[float]() for way in ways}
    for turn in range(wanted.rounds + 1):
        for way, run in ways.items():
            start = perf_counter()
            run()
            if turn:
                taken[way].append(1000 * (perf_counter() - start) / wanted.tokens)
    for way, times in taken.items():
        print(f"{way:14} {median(times):7.2f} ms a token ({min(times):.2f} to {max(times):.2f})")
    ratios = [b / a for a, b in zip(*taken.values(), strict=True)]
    print(f"{median(ratios):.1f} times as fast ({min(ratios):.1f} to {max(ratios):.1f})")


if __name__ == "__main__":
    main()
