"""PLDR-LLM with and without its G-cache: outputs, and the time of a step.

    python tests/bench/power_law.py [--layers 5 --heads 14 --width 64 --text 64] [--rounds 5]

A random checkpoint of the geometry of the author's 110M. Without the cache the network that makes G runs at each step,
over the queries of the text so far (here numpy in float32); with it a step is the engine's call. Outputs: logits of the
text from which G was inferred, of the engine with the cache, and of the network run on the whole text.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
from safetensors.numpy import save_file

from edgedec.export.power_law import PowerLawModel, export_power_law
from edgedec.runtime import Rows, RuntimeOptions, logits_of, open_runtime

VOCAB, A_INNER, UNITS, DENSE = 2048, 170, 8, 2


def checkpoint(layers: int, heads: int, width: int, inner: int) -> dict[str, np.ndarray]:
    """Random tensors by the author's names; small exponents, as trained ones."""
    rng, hidden, found = np.random.default_rng(0), heads * width, dict[str, np.ndarray]()

    def put(name: str, *shape: int, scale: float, base: float = 0.0) -> None:
        found[name] = (base + scale * rng.standard_normal(shape)).astype(np.float32)

    def linear(name: str, inputs: int, outputs: int) -> None:
        put(f"{name}.weight", outputs, inputs, scale=0.5 * inputs**-0.5)
        put(f"{name}.bias", outputs, scale=0.05)

    def norm(name: str, size: int) -> None:
        put(f"{name}.weight", size, scale=0.1, base=1.0)
        put(f"{name}.bias", size, scale=0.1)

    def glu(name: str, size: int, within: int) -> None:
        linear(f"{name}.gluw1", size, within)
        linear(f"{name}.gluw2", size, within)
        linear(f"{name}.gluw3", within, size)

    put("decoder.embedding.weight", VOCAB, hidden, scale=hidden**-0.5)
    norm("decoder.layernorm1", hidden)
    for i in range(layers):
        p = f"decoder.dec_layers.{i}."
        for part in ("wq", "wk", "wv", "dense"):
            linear(f"{p}mha1.{part}", hidden, hidden)
        for part in ("Wlst", "blst", "pwlst", "alst", "balst"):
            put(f"{p}mha1.plgatt_layer.{part}", heads, width, width, scale=0.3 / width**0.5)
        norm(f"{p}mha1.layernorm1", width)
        for unit in range(UNITS):
            for dense in range(DENSE):
                glu(f"{p}mha1.reslayerAs.{unit}.denseAs.{dense}", width, A_INNER)
            norm(f"{p}mha1.reslayerAs.{unit}.layernormA", width)
        glu(f"{p}ffn", hidden, inner)
        norm(f"{p}layernorm1", hidden)
        norm(f"{p}layernorm2", hidden)
    linear("final_layer", hidden, VOCAB)
    return found


def uncached(model: PowerLawModel, ids: list[int]) -> np.ndarray:
    """Logits of a text [T, vocab], with the network of every layer run on it."""
    last = model.hidden_states(ids)
    return last @ model.get("final_layer.weight").T + model.get("final_layer.bias")


def timed(act: Callable[[], object], rounds: int) -> str:
    act()
    found = []
    for _ in range(rounds):
        began = perf_counter()
        act()
        found.append(1000 * (perf_counter() - began))
    return f"{median(found):8.2f} ms ({min(found):.2f} to {max(found):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, number in (("layers", 5), ("heads", 14), ("width", 64), ("text", 64), ("rounds", 5), ("inner", 2389)):
        parser.add_argument(f"--{name}", type=int, default=number)
    given = parser.parse_args()
    ids = [int(t) for t in np.random.default_rng(1).integers(0, VOCAB, given.text)]
    with tempfile.TemporaryDirectory() as place:
        folder, tensors = Path(place), checkpoint(given.layers, given.heads, given.width, given.inner)
        (folder / "config.json").write_text(json.dumps({"max_seq_len": 4 * given.text}))
        save_file(tensors, folder / "model.safetensors")
        exact = PowerLawModel({name: each.astype(np.float64) for name, each in tensors.items()}, 4 * given.text)
        expected = uncached(exact, ids)
        single, q = PowerLawModel(tensors, 0), np.random.default_rng(2)
        queries = q.standard_normal((given.heads, given.text, given.width)).astype(np.float32)

        def network() -> None:
            for i in range(given.layers):
                single._curvature(queries, f"decoder.dec_layers.{i}.mha1.")

        for weights in ("f32", "int8"):
            bundle = export_power_law(folder, folder / weights, ids, weights)  # type: ignore[arg-type]
            runtime = open_runtime("native", bundle, RuntimeOptions())
            cache = runtime.new_cache(2 * given.text)
            found = logits_of(runtime, Rows.chain(ids, 0), cache)
            cache.commit(range(given.text))
            same = (found.argmax(1) == expected.argmax(1)).mean()
            off = np.abs(found - expected).max() / np.abs(expected).max()
            print(
                f"{weights}: cached and uncached logits differ by {off:.1e} of the largest, "
                f"best token equal: {same:.0%}",
            )

            def step() -> None:
                logits_of(runtime, Rows.chain([1], given.text), cache)  # noqa: B023
                cache.rollback()  # noqa: B023

            print(f"{weights}: a step with the G-cache {timed(step, 4 * given.rounds)}")
        print(f"the network of all layers, once a step without it {timed(network, given.rounds)}")
        size = given.layers * given.heads * given.width**2 * 4
        print(f"the G-cache {size / 2**20:.2f} MiB, the network {sum_of(tensors) / 2**20:.2f} MiB (float32)")


def sum_of(tensors: dict[str, np.ndarray]) -> int:
    return sum(each.nbytes for name, each in tensors.items() if "reslayerAs" in name or "plgatt" in name)


if __name__ == "__main__":
    main()
