"""How near a converted model stays to the program that made the format: KL divergence, nats a token.

    python tests/bench/reader_kl.py [gguf] [checkpoints]

Random models of five architectures, 64 tokens of text. GGUF: llama.cpp quantizes the file and runs it; beside its
logits those of the bundle on the CPU engine. Checkpoints: transformers on the floats that the format means.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "parity"))
import quantized_models as q
import readings as r
import torch
from test_quantized_unpacked import BITSANDBYTES, ROUNDED

from edgedec.export.exporter import ExportOptions, export
from edgedec.runtime import RuntimeOptions, open_runtime

IDS = np.random.default_rng(1).integers(3, 101, 64).tolist()
# llama.cpp's names of files all of whose matrices are of one type: that type, or the base of the mix.
TYPES = ("Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K_M", "Q4_K_M", "Q5_K_M", "Q6_K", "IQ4_NL", "IQ4_XS")
EXACT = ("F32", "F16", "Q8_0", "Q4_0")


def ours(source: Path, weights: str | None) -> Any:
    """The bundle's logits on the CPU engine, exported as asked."""
    with tempfile.TemporaryDirectory() as folder:
        options = ExportOptions(weights=weights, check=False, runtimes=("native",))
        bundle = export(str(source), Path(folder) / "b", options)
        return r.all_logits(open_runtime("native", bundle, RuntimeOptions(threads=1)), IDS)


def gguf(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """(type, a cell for each model) of types that are kept, then of types that are rounded anew."""
    floats = {name: r.write(make(), folder / f"{name}.gguf") for name, make in r.MODELS.items()}
    for kind in EXACT:
        cells = []
        for name, make in r.MODELS.items():
            path = r.write(make(), folder / f"{name}-{kind}.gguf", kind)
            weights = {"F32": "f32", "F16": "f16"}.get(kind)
            cells.append(f"{r.kl(r.llama_cpp_logits(path, IDS), ours(path, weights)):.1e}")
        yield kind, cells
    for kind in TYPES:
        cells = []
        for name, source in floats.items():
            path = r.quantized_by_llama_cpp(f"MOSTLY_{kind}", source, folder / f"{name}-{kind}.gguf", pure=True)
            theirs = r.llama_cpp_logits(path, IDS)
            cells.append(f"{r.kl(theirs, ours(path, None)):.4f}, {r.kl(theirs, ours(path, 'int8')):.4f}")
        yield kind, cells


def checkpoints(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """(format, a cell for each model)."""
    cases = ROUNDED | {name: (q.four_bits(name), q.four_bits_settings(name)) for name in BITSANDBYTES}
    for name, (store, settings) in cases.items():
        cells = []
        for kind in r.MODELS:
            saved = q.save(folder / f"{name}-{kind}".replace(", ", "-"), store, settings, kind)
            with torch.no_grad():
                theirs = saved.model(torch.tensor([IDS])).logits[0].numpy()
            cells.append(
                f"{r.kl(theirs, ours(saved.folder, None)):.4f}, {r.kl(theirs, ours(saved.folder, 'int4')):.4f}"
            )
        yield name, cells


def main(tables: list[str]) -> None:
    makers = {"gguf": gguf, "checkpoints": checkpoints}
    for table in tables or makers:
        print(f"| {table} | {' | '.join(r.MODELS)} |\n| --- |{' --- |' * len(r.MODELS)}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            for name, cells in makers[table](Path(folder)):
                print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", metavar="gguf|checkpoints", help="both if none is named")
    main(parser.parse_args().tables)
