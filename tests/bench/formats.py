"""What each weight and cache format costs in quality: exports a checkpoint in all of them.

    python tests/bench/formats.py CHECKPOINT TEXT

For every format a row: size, KL divergence and top-1 agreement with the float checkpoint (from the
export's own check), and perplexity of TEXT (its first 4096 tokens).
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import edgedec
from edgedec.bench.perplexity import perplexity
from edgedec.export.exporter import ExportOptions, export

WEIGHTS = {
    "f32": {"weights": "f32"},
    "int8": {"weights": "int8"},
    "int4, head int8": {"weights": "int4", "head": "int8", "embed": "int8"},
    "int4": {"weights": "int4"},
    "int4, block 128": {"weights": "int4", "block": 128},
}
KV = ("f32", "f16", "int8", "int4")
TOKENS = 4096


def main(checkpoint: str, text: Path) -> None:
    print("| weights | MB | KV cache | KL, nats a token | same top token | perplexity of the text |")
    print("| --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        for label, options in WEIGHTS.items():
            out = Path(folder) / label.replace(" ", "-").replace(",", "")
            bundle = export(checkpoint, out, ExportOptions(kv=KV, **options))
            size = (out / bundle.manifest.weights).stat().st_size / 1e6
            for kv in KV:
                model = edgedec.open(out, kv=kv)
                ids = model.tokenizer.encode(text.read_text("utf-8"))[:TOKENS]
                found = perplexity(model, ids, window=512, stride=256).value
                parity = bundle.manifest.parity
                print(f"| {label} | {size:.1f} | {kv} | {parity.kl[kv]:.2e} | {parity.top1[kv]:.1%} | {found:.3f} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("text", type=Path)
    arguments = parser.parse_args()
    main(arguments.checkpoint, arguments.text)
