"""Measures a finished Hugging Face folder on held-out stories and samples six stories with fixed seeds.

python models/nano/samples.py --work build/nano
"""

import argparse
import json
import math
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).resolve().parent))

import data

import export

OPENINGS = (
    "Once upon a time, there was a little dragon named Max.",
    "One day, Lily found a magic key in the garden.",
    "Tom and his robot wanted to bake a cake.",
    "The old owl could not sleep.",
    "Once there was a shy cloud who",
    "Once upon a time",
)


def measure(weights, tok, stories):
    """-> loss in nats a token, perplexity a token, bits a byte, nats a character."""
    encoded = data.encode(tok, stories)
    loss, tokens, size = export.mean_loss(weights, encoded), sum(map(len, encoded)), sum(map(len, stories))
    nats = loss * tokens / size
    return {
        "stories": len(stories),
        "tokens": tokens,
        "loss": loss,
        "perplexity": math.exp(loss),
        "nats_per_character": nats,
        "perplexity_per_character": math.exp(nats),
        "bits_per_byte": nats / math.log(2),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="the recipe's work folder")
    work = parser.parse_args().work
    weights = export.stacked(load_file(work / "hf" / "model.safetensors"))
    stories, tok = data.prepare(None, work)
    for name in ("held_real", "held_sampled"):
        print(name, json.dumps({k: round(v, 4) for k, v in measure(weights, tok, getattr(stories, name)).items()}))
    for seed, opening in enumerate(OPENINGS):
        for temperature in (0, export.SAMPLING["temperature"]):
            told = export.story(weights, tok, opening, temperature, seed)
            print(f"\n### T = {temperature}" + (f", seed {seed}" if temperature else ", greedy") + f"\n\n{told}")


if __name__ == "__main__":
    torch.set_num_threads(2)
    main()
