"""Small checkpoints of text encoders as sentence-transformers saves them: a tokenizer, modules, prompts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import encoders_golden
import numpy as np

WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *"abcdefghijklmnopqrstuvwxyz.,!?:",
    *(f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz"),
]
WORDS += ["the", "cat", "sat", "dog", "ran", "query", "passage", "who", "on", "mat", "##ing", "##s", "a1", "b1"]


def tokenizer(path: Path, words: list[str] = WORDS) -> Path:
    """A WordPiece tokenizer.json, as BERT has."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    made = Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.add_special_tokens(words[:5])
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    # What training saved, which must not cut anything.
    made.enable_truncation(7)
    made.save(str(path))
    return path


def sentence_encoder(
    folder: Path, *, pooling: str = "mean_tokens", normalize: bool = True, dense: int = 0, **more: Any
) -> Path:
    """A BERT with modules: pooling, a dense layer, normalisation; `more`: of config_sentence_transformers.json."""
    of = encoders_golden.golden("bert")
    encoders_golden.write(folder, of.config, of.tensors)
    tokenizer(folder / "tokenizer.json")
    modules = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}]
    modules.append({"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"})
    names = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
    modes = {f"pooling_mode_{name}": name in pooling.split("+") for name in names}
    if not pooling:
        modules.pop()
    _write(folder / "1_Pooling", "config.json", {"word_embedding_dimension": 48, **modes, "include_prompt": True})
    if dense:
        modules.append({"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"})
        _dense(folder / "2_Dense", dense)
    if normalize:
        modules.append({"idx": 3, "name": "3", "path": "3_Normalize", "type": "sentence_transformers.models.Normalize"})
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": {}, **more}))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 24, "do_lower_case": False}))
    return folder


def _dense(folder: Path, size: int) -> None:
    from safetensors.numpy import save_file

    tensors = encoders_golden.drawn({"linear.weight": [size, 48], "linear.bias": [size]})
    _write(
        folder,
        "config.json",
        {
            "in_features": 48,
            "out_features": size,
            "bias": True,
            "activation_function": "torch.nn.modules.activation.Tanh",
        },
    )
    save_file({name: np.ascontiguousarray(values) for name, values in tensors.items()}, folder / "model.safetensors")


def scorer(folder: Path, name: str = "bert-score", **config: Any) -> Path:
    """A classifier, or with one label a reranker."""
    of = encoders_golden.golden(name)
    tensors = dict(of.tensors)
    labels = len(config.get("id2label", of.config["id2label"]))
    tensors |= {"classifier.weight": [labels, 48], "classifier.bias": [labels]}
    encoders_golden.write(folder, of.config | config, tensors)
    tokenizer(folder / "tokenizer.json")
    return folder


def reranker(folder: Path, **config: Any) -> Path:
    return scorer(folder, id2label={"0": "LABEL_0"}, label2id={"LABEL_0": 0}, **config)


def _write(folder: Path, name: str, value: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(value))
