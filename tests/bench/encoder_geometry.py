"""Writes a text encoder of real geometry with random weights in the forms that each engine reads, for measuring speed
beside them: a checkpoint, an int8 ONNX graph made as the hub's are, a GGUF file of Q8_0.

    python tests/bench/encoder_geometry.py minilm OUT
    edgedec export OUT/checkpoint -o OUT/bundle
    edgedec bench embed -m OUT/bundle --peer onnx:OUT/int8.onnx --peer llama.cpp:OUT/q8_0.gguf \\
        --tokens 16,128,512 --texts 1,64 -t 2

The graph is optimized by onnxruntime's own optimizer for BERT (fused attention, layer norms, GELU) and its matrices are
quantized dynamically by its quantizer, which is what fastembed's and transformers.js's int8 files are.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import encoder_checkpoints
import gguf_encoders
from ggufs import add_value, finish, gguf

# all-MiniLM-L6-v2 and bge-base-en-v1.5.
GEOMETRIES: dict[str, dict[str, Any]] = {
    "minilm": {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
    "bge-base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
}


def write(geometry: str, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(1)
    config = transformers.BertConfig(**GEOMETRIES[geometry], architectures=["BertModel"], attn_implementation="eager")
    model = transformers.BertModel(config, add_pooling_layer=False).eval()
    model.save_pretrained(out / "checkpoint")
    words = gguf_encoders.padded(config.vocab_size)
    encoder_checkpoints.tokenizer(out / "checkpoint" / "tokenizer.json", words)
    _modules(out / "checkpoint", config.hidden_size)
    _onnx(model, out)
    _gguf(model, config, words, out / "q8_0.gguf")


def _modules(folder: Path, width: int) -> None:
    """The mean of the rows, of length 1."""
    kinds = ("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(
        json.dumps({"word_embedding_dimension": width, "pooling_mode_mean_tokens": True})
    )


class _States(torch.nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, seen: torch.Tensor, types: torch.Tensor) -> Any:
        return self.model(input_ids=ids, attention_mask=seen, token_type_ids=types).last_hidden_state


def _onnx(model: Any, out: Path) -> None:
    from onnx import TensorProto
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.transformers.optimizer import optimize_model

    ids = torch.ones(2, 8, dtype=torch.int64)
    names = ["input_ids", "attention_mask", "token_type_ids"]
    shape = {0: "texts", 1: "tokens"}
    torch.onnx.export(
        _States(model),
        (ids, ids, ids),
        str(out / "f32.onnx"),
        input_names=names,
        output_names=["last_hidden_state"],
        dynamic_axes=dict.fromkeys([*names, "last_hidden_state"], shape),
        opset_version=17,
        dynamo=False,
    )
    config = model.config
    made = optimize_model(
        str(out / "f32.onnx"), "bert", num_heads=config.num_attention_heads, hidden_size=config.hidden_size
    )
    print("fused:", made.get_fused_operator_statistics(), file=sys.stderr)
    made.save_model_to_file(str(out / "optimized.onnx"))
    more = {"DefaultTensorType": TensorProto.FLOAT}
    quantize_dynamic(
        out / "optimized.onnx", out / "int8.onnx", per_channel=True, weight_type=QuantType.QInt8, extra_options=more
    )
    for name in ("f32.onnx", "optimized.onnx"):
        (out / name).unlink()


def _gguf(model: Any, config: Any, words: list[str], path: Path) -> None:
    values = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    facts = config.to_dict()
    writer = gguf.GGUFWriter(path, "bert")
    for key, value in gguf_encoders.facts(facts, "bert").items():
        add_value(writer, f"bert.{key}", value)
    for key, value in (gguf_encoders.vocabulary(words) | {"tokenizer.ggml.token_type_count": 2}).items():
        add_value(writer, key, value)
    for name, tensor in gguf_encoders.converted(values, facts, "bert").items():
        tensor = np.ascontiguousarray(tensor, np.float32)
        if tensor.ndim == 2 and "position" not in name and "token_types" not in name:
            number = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quantize(tensor, number), raw_dtype=number)
        else:
            writer.add_tensor(name, tensor)
    finish(writer)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("geometry", choices=sorted(GEOMETRIES))
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    write(arguments.geometry, arguments.out)
