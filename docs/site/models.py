"""Writes docs/models.md, the table of all model types, and how many there are in README.md, from the files in `models/`.

python docs/site/models.py           # write both
python docs/site/models.py --check   # exit with 1 if they are not what the files say
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from edgedec.models import FAMILY, architecture
from edgedec.runtime import lacking_kinds
from edgedec.runtimes import cuda, native, opencl, ort
from edgedec.runtimes.tvm.support import library_lacks
from edgedec.spec import ModelSpec
from edgedec.spec.newer import NEWER

ROOT = Path(__file__).parents[2]
PAGE, README = ROOT / "docs" / "models.md", ROOT / "README.md"
sys.path.insert(0, str(ROOT / "tests"))
import clibrary  # noqa: E402
import zoo_golden  # noqa: E402

HEAD = """# Models

The types that `edgedec export` reads, by the `model_type` of a checkpoint's `config.json`; [encoders](embeddings.md#models) and [diffusion models](diffusion.md#models) have
pages of their own, [UniXcoder](embeddings.md#code-search-with-unixcoder) is of both kinds. Small random models of each decoder, with unequal sizes and no fact at its neutral value, are compared with transformers: logits to 1e-4, 64 greedy tokens
(`tests/parity`, and `tests/zoo_golden.py` without torch). RWKV-7, MiniCPM, BlockFFN, SmallThinker and Phi-4-mini-flash, which transformers does not have, are
compared with ports of their formulas (`tests/rwkv7.py`, `tests/minicpm.py`, `tests/smallthinker.py`, `tests/phi4flash.py`), RWKV-7 also with its authors' package `rwkv` where that is installed; its vocabulary "World" (`rwkv_vocab_*.txt`) becomes a `tokenizer.json` that makes the same tokens. An engine that lacks what a model needs refuses it in one line. "CUDA" stands for OpenCL as well; "TVM" is
compiled libraries. GGUF files have fewer architectures ([which](export.md#gguf-files)); any other decoder goes through [optimum's ONNX](export.md#onnx-decoders-of-optimum). To add
a type, see [extending](extending.md#add-an-architecture).

"""
COUNT = re.compile(r"^\| models \| [^|]*\|", re.M)
LINKED = re.compile(r"\[\d+ types of decoders\]\(docs/models.md\): ")
# Types whose small models have another name in the zoo, are the text models of others, or have all of a type's blocks.
ZOO = {"qwen3_5_moe": "qwen3_5_moe_text", "mimo": "qwen2", "nemotron_h": "nemotron_h_experts", "minicpm": "blockffn"}
ZOO["gemma3n"] = "gemma3n_text"


def table() -> str:
    """A line a type of decoder."""
    lines = ["| `model_type` | | blocks | engines |", "| --- | --- | --- | --- |"]
    for name in decoders():
        spec = _spec(name)
        kinds = ", ".join(kind for kind in spec.kinds)
        lines.append(f"| `{name}` | {FAMILY.summary(name).removesuffix('.')} | {kinds} | {', '.join(_engines(spec))} |")
    return "\n".join(lines) + "\n"


def decoders() -> list[str]:
    facts = FAMILY.all_facts()
    return [name for name in FAMILY.names() if not facts[name].encodes and facts[name].diffusion is None]


def _spec(name: str) -> ModelSpec:
    config: dict[str, Any] = zoo_golden.golden(ZOO.get(name, name)).config
    return architecture(config).spec(config)


def _engines(spec: ModelSpec) -> list[str]:
    bundle: Any = SimpleNamespace(spec=spec)
    lacks = {
        "CPU": lacking_kinds(bundle, native.KINDS, facts=NEWER),
        "ONNX Runtime": lacking_kinds(bundle, ort.KINDS, facts=ort.FACTS_OF_MODELS),
        "libedgedec": None if clibrary.library_runs(spec) else "kinds or facts",
        "CUDA": lacking_kinds(bundle, cuda.KINDS, facts=cuda.FACTS_OF_MODELS)
        or lacking_kinds(bundle, opencl.KINDS, facts=opencl.FACTS_OF_MODELS),
        "TVM": library_lacks(spec),
    }
    return [engine for engine, why in lacks.items() if why is None]


def counted(readme: str) -> str:
    """The README with the numbers as they are now."""
    facts = FAMILY.all_facts()
    encoders, fill = sum(f.encodes for f in facts.values()), sum(f.diffusion is not None for f in facts.values())
    line = f"| models | [{len(decoders())} types of decoders](docs/models.md), {encoders} of text encoders, {fill} of diffusion models |"
    return COUNT.sub(line, LINKED.sub(f"[{len(decoders())} types of decoders](docs/models.md): ", readme), count=1)


def main(check: bool) -> int:
    found = {PAGE: HEAD + table(), README: counted(README.read_text("utf-8"))}
    if check:
        return int(any(not file.is_file() or file.read_text("utf-8") != text for file, text in found.items()))
    for file, text in found.items():
        file.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv))
