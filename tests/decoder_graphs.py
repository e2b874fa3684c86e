"""Decoders in ONNX for tests: a tiny one made by hand, and those of optimum-onnx, in an environment of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from checkpoints import VOCAB, write_tokenizer

ROOT = Path(__file__).parents[1]
HEADS, WIDTH, LAYERS = 2, 4, 2


def write_decoder(folder: Path, *, tokenizer: bool = True, kv: str = "f32", drop: str = "") -> Path:
    """A folder as optimum writes it, of a decoder that is no transformer but has the cache of one.

    A layer keeps one value a token, and a row sees the sum up to itself. `drop`: an input to leave out ("past": all
    that is cached)."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    kind = {"f32": TensorProto.FLOAT, "f16": TensorProto.FLOAT16}[kv]
    dtype, rng = {"f32": np.float32, "f16": np.float16}[kv], np.random.default_rng(0)
    dims = HEADS * WIDTH
    constants = {
        "heads": np.array([0, 0, HEADS, WIDTH]),
        "flat": np.array([0, 0, dims]),
        "two": np.array([2]),
        "axis": np.array(2),
        "end": np.array([1 << 40]),
        "last": np.array([2]),
        "readout": (3 * rng.standard_normal((dims, VOCAB))).astype(dtype),
    }
    nodes, inputs, outputs = [], [], []
    sizes = ["batch", HEADS, "past", WIDTH], ["batch", HEADS, "past + tokens", WIDTH]
    total = []
    for layer in range(LAYERS):
        for part in ("key", "value"):
            p, name_ = f"{layer}.{part}", f"past_key_values.{layer}.{part}"
            constants[f"embed.{p}"] = rng.standard_normal((VOCAB, dims)).astype(dtype)
            nodes += [
                helper.make_node("Gather", [f"embed.{p}", "input_ids"], [f"e.{p}"]),
                helper.make_node("Reshape", [f"e.{p}", "heads"], [f"h.{p}"]),
                helper.make_node("Transpose", [f"h.{p}"], [f"t.{p}"], perm=[0, 2, 1, 3]),
                helper.make_node("Concat", [name_, f"t.{p}"], [f"present.{p}"], axis=2),
                helper.make_node("CumSum", [f"present.{p}", "axis"], [f"sum.{p}"]),
                helper.make_node("Shape", [name_], [f"past.{p}"], start=2, end=3),
                helper.make_node("Slice", [f"sum.{p}", f"past.{p}", "end", "last"], [f"new.{p}"]),
            ]
            total.append(f"new.{p}")
            inputs.append(helper.make_tensor_value_info(name_, kind, sizes[0]))
            outputs.append(helper.make_tensor_value_info(f"present.{p}", kind, sizes[1]))
    nodes += [
        helper.make_node("Sum", total, ["all"]),
        helper.make_node("Sin", ["all"], ["bent"]),
        helper.make_node("Transpose", ["bent"], ["turned"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["turned", "flat"], ["rows"]),
        helper.make_node("MatMul", ["rows", "readout"], ["logits"]),
    ]
    for each, length in (("input_ids", "tokens"), ("attention_mask", "past + tokens"), ("position_ids", "tokens")):
        if each != drop:
            inputs.append(helper.make_tensor_value_info(each, TensorProto.INT64, ["batch", length]))
    if drop == "past":
        inputs = [value for value in inputs if not value.name.startswith("past")]
        nodes.insert(
            0,
            helper.make_node(
                "Constant", [], ["none"], value=numpy_helper.from_array(np.zeros((1, HEADS, 0, WIDTH), dtype))
            ),
        )
        for node in nodes:
            node.input[:] = ["none" if each.startswith("past_key_values") else each for each in node.input]
    outputs.insert(0, helper.make_tensor_value_info("logits", kind, ["batch", "tokens", VOCAB]))
    held = [numpy_helper.from_array(np.asarray(value), key) for key, value in constants.items()]
    graph = helper.make_graph(nodes, "decoder", inputs, outputs, held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(model, str(folder / "model.onnx"))
    config: dict[str, Any] = {"model_type": "sums", "vocab_size": VOCAB, "hidden_size": dims, "n_positions": 320}
    (folder / "config.json").write_text(json.dumps(config | {"bos_token_id": VOCAB - 4, "eos_token_id": VOCAB - 3}))
    if tokenizer:
        write_tokenizer(folder)
    return folder


@cache
def optimum_python() -> Path | None:
    """The Python of an environment with optimum-onnx: beside EDGEDEC_OPTIMUM_CLI, in .venv-optimum, or on the path."""
    places = [
        os.environ.get("EDGEDEC_OPTIMUM_CLI"),
        ROOT / ".venv-optimum/bin/optimum-cli",
        shutil.which("optimum-cli"),
    ]
    found = [Path(place) for place in places if place and Path(place).is_file()]
    return found[0].parent / "python" if found else None


OPTIMUM_SCRIPT = """
import json, sys, warnings
from pathlib import Path
warnings.filterwarnings("ignore")
import torch, transformers as t
from optimum.exporters.onnx import main_export
from optimum.onnxruntime import ORTModelForCausalLM

job = json.loads(sys.argv[1])
found = {}
for kind, (config, values) in job["models"].items():
    torch.manual_seed(0)
    place, onnx = Path(job["folder"]) / kind, Path(job["folder"]) / f"{kind}-onnx"
    config = getattr(t, config)(**values)
    model = t.AutoModelForCausalLM.from_config(config).eval()
    for p in model.parameters():
        if p.ndim > 1:
            torch.nn.init.normal_(p, std=job["std"])
    model.save_pretrained(place)
    main_export(str(place), onnx, task="text-generation-with-past", do_validation=False)
    ort = ORTModelForCausalLM.from_pretrained(onnx)
    greedy = t.GenerationConfig(max_new_tokens=job["n"], do_sample=False, eos_token_id=None, pad_token_id=0)
    found[kind] = {}
    for name, each in (("ort", ort), ("torch", model)):
        each.generation_config.eos_token_id = None
        with torch.no_grad():
            ids = [each.generate(torch.tensor([p]), generation_config=greedy)[0].tolist() for p in job["prompts"]]
        found[kind][name] = [i[len(p):] for i, p in zip(ids, job["prompts"])]
    with torch.no_grad():
        found[kind]["logits"] = model(torch.tensor([job["prompts"][-1]])).logits[0].tolist()
(Path(job["folder"]) / "expected.json").write_text(json.dumps(found))
"""


def optimum_models(folder: Path, models: dict[str, Any], prompts: list[list[int]], n: int) -> dict[str, Any]:
    """Random checkpoints FOLDER/KIND and what optimum made of them, FOLDER/KIND-onnx: greedy tokens of ONNX Runtime
    (ORTModelForCausalLM) and of transformers after each prompt, and logits of the last prompt."""
    python = optimum_python()
    assert python is not None
    job = {"folder": str(folder), "models": models, "prompts": prompts, "n": n, "std": 0.25}
    command = [str(python), "-c", OPTIMUM_SCRIPT, json.dumps(job)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "2"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads((folder / "expected.json").read_text())
    return found
