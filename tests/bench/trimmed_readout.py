"""VocabTrim: what a trimmed readout costs, and how many guesses of an exit it loses.

    python tests/bench/trimmed_readout.py -m BUNDLE --layer 4 [--text FILE]

Cost: the head on one row, all of it and parts, in turns; processor seconds of one thread, medians. Loss: the text's
latter half is read; of the exit's likeliest tokens, those that are what the model says, with all tokens and with the N
that the model said most often in the first half.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from time import process_time

import numpy as np

import edgedec
from edgedec.drafters._usage import covering
from edgedec.runtime import Call, Outputs, Readout, Rows, Runtime, forward_one

_ROUNDS, _WINDOW = 15, 256


def head_seconds(runtime: Runtime, readouts: dict[str, Readout | None]) -> dict[str, float]:
    """Medians by name."""
    cache = runtime.new_cache(1)
    hidden = np.random.default_rng(0).standard_normal((1, runtime.spec.hidden_size), np.float32)
    took: dict[str, list[float]] = {name: [] for name in readouts}
    for _ in range(_ROUNDS):
        for name, readout in readouts.items():
            began = process_time()
            forward_one(runtime, Call(Rows.chain([0], 0), cache, (), hidden, Outputs(top=16, readout=readout)))
            took[name].append(process_time() - began)
    return {name: sorted(seconds)[_ROUNDS // 2] for name, seconds in took.items()}


def read(model: edgedec.Model, text: str, layer: int) -> tuple[np.ndarray, np.ndarray]:
    """The states after a layer [n, hidden_size], and what the model says after each row [n]."""
    runtime, ids = model.runtime, model.tokenizer.encode(text)
    block = runtime.spec.span(0, layer).stop - 1
    states, said = [], []
    for at in range(0, len(ids) - 1, _WINDOW):
        rows = Rows.chain(ids[at : at + _WINDOW], 0)
        result = forward_one(runtime, Call(rows, runtime.new_cache(_WINDOW), outputs=Outputs(top=1, hidden=(block,))))
        states.append(result.hidden[block])
        said.append(result.ids[:, 0])
    return np.concatenate(states), np.concatenate(said)


def accepted(runtime: Runtime, states: np.ndarray, said: np.ndarray, readout: Readout | None) -> float:
    """How often the likeliest token of a state is what the model says."""
    right = 0
    for at in range(0, len(states), _WINDOW):
        part = states[at : at + _WINDOW]
        rows = Rows.chain([0] * len(part), 0)
        outputs = Outputs(top=1, readout=readout)
        found = forward_one(runtime, Call(rows, runtime.new_cache(len(part)), (), part, outputs))
        right += int((found.ids[:, 0] == said[at : at + _WINDOW]).sum())
    return right / len(states)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", default="nano")
    parser.add_argument("--layer", type=int, default=4)
    parser.add_argument("--text", type=Path, help="text of the kind that the model writes")
    asked = parser.parse_args()
    model = edgedec.open(asked.model, threads=1)
    runtime, vocab = model.runtime, model.spec.vocab_size
    parts: dict[str, Readout | None] = {"all": None}
    parts |= {f"1/{n}": Readout(range(vocab // n)) for n in (2, 4, 8, 16)}
    seconds = head_seconds(runtime, parts)
    for name, took in seconds.items():
        print(f"head, {name:>5} of {vocab} tokens: {1e3 * took:.3f} ms, {seconds['all'] / took:.1f} times as fast")
    if asked.text is None:
        return
    states, said = read(model, asked.text.read_text(), asked.layer)
    half = len(said) // 2
    counts = np.bincount(said[:half], minlength=vocab)
    for n in (vocab, vocab // 2, vocab // 4, vocab // 8):
        readout = None if n == vocab else Readout(np.argsort(-counts, kind="stable")[:n])
        rate = accepted(runtime, states[half:], said[half:], readout)
        print(f"exit after layer {asked.layer}, {n} tokens: {rate:.1%} of {len(said) - half} guesses right")
    print(f"{len(covering(counts, least=1))} tokens are 99.8% of what was said in the first half")


if __name__ == "__main__":
    main()
