"""A small random UniXcoder as it is published: RoBERTa's type, and mode tokens in the vocabulary. Without torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import zoo_golden
from safetensors.numpy import load_file, save_file

MODES = ("<encoder-decoder>", "<encoder-only>", "<decoder-only>")
SPECIAL = ("<unk>", "<s>", "</s>", "<mask>", "<pad>", *MODES, "<mask0>")
BEGIN, END, MASK = 1, 2, 8
BOTH, ENCODER, DECODER = 5, 6, 7
LETTERS = "Ġabcdefghijklmnopqrstuvwxyz0123456789()[]{}<>=+-*/%.,:;!?_#'\"&|^~@ABCDEFGHIJKLMNOPQRSTUVWX"
SIZE = 101


def write(folder: Path, lacking: tuple[str, ...] = (), **changes: Any) -> Path:
    """The checkpoint, its weights those of the zoo's golden logits. lacking: tokens that its vocabulary has not;
    changes: of its config."""
    golden = zoo_golden.golden("unixcoder")
    zoo_golden.write(folder, golden.config, golden.tensors)
    tensors = {name.removeprefix("roberta."): value for name, value in load_file(folder / "model.safetensors").items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    published = {"model_type": "roberta", "architectures": ["RobertaModel"], "is_decoder": False}
    (folder / "config.json").write_text(json.dumps(golden.config | published | changes))
    write_tokenizer(folder, lacking)
    return folder


def write_tokenizer(folder: Path, lacking: tuple[str, ...] = ()) -> None:
    """A token a character; the mode tokens are in the vocabulary, and not among those that were added."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    tokens = [*SPECIAL, *LETTERS]
    vocabulary = {token: i for i, token in enumerate(tokens) if token not in lacking}
    raw = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    raw.add_special_tokens(list(SPECIAL[:5]))
    raw.post_processor = processors.RobertaProcessing(("</s>", END), ("<s>", BEGIN))
    raw.save(str(folder / "tokenizer.json"))


def ids_of(text: str) -> list[int]:
    """The tokens of a text without spaces and special tokens."""
    return [len(SPECIAL) + LETTERS.index(letter) for letter in text]
