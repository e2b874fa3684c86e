"""A small text encoder to begin with, and how well one finds texts: what docs/embeddings.md says of `train-embedder`.

    python tests/bench/embedder_texts.py start FOLDER TEXTS.jsonl … [--tokens 1500] [--hidden 64] [--layers 2]
    python tests/bench/embedder_texts.py find BUNDLE … --texts UNSEEN.jsonl [--limit 400]

`start` writes a config of BERT and a WordPiece vocabulary of the texts, and no weights. `find` takes the last sentence
of each text with three or more out, and looks for the text without it by its embedding.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def texts(files: list[Path]) -> list[str]:
    return [json.loads(line)["text"] for file in files for line in file.read_text("utf-8").splitlines() if line]


def start(folder: Path, files: list[Path], tokens: int, hidden: int, layers: int) -> None:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=tokens, special_tokens=SPECIAL, show_progress=False)
    made.train_from_iterator(texts(files), trainer)
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    folder.mkdir(parents=True)
    made.save(str(folder / "tokenizer.json"))
    sizes = {"vocab_size": tokens, "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": 4}
    config = {"model_type": "bert", **sizes, "intermediate_size": 4 * hidden, "max_position_embeddings": 128}
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (folder / "config.json").write_text(
        json.dumps({**config, **dropout, "hidden_act": "gelu", "initializer_range": 0.1, "type_vocab_size": 2})
    )


def find(bundle: str, given: list[str]) -> None:
    import torch

    import edgedec
    from edgedec.export.embedder_retrieval import retrieval

    model = edgedec.open(bundle)
    split = [re.split(r"(?<=[.!?])\s+", text.strip()) for text in given]
    pairs = [(parts[-1], " ".join(parts[:-1])) for parts in split if len(parts) > 2]
    asked, held = (model.embed(list(side), truncate=True) for side in zip(*pairs, strict=True))
    found = retrieval(torch.from_numpy(asked), torch.from_numpy(held))
    print(f"{bundle}: of {found.texts} texts {found.first:.1%} first, MRR {found.mrr:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    does = parser.add_subparsers(dest="does", required=True)
    begin = does.add_parser("start")
    begin.add_argument("folder", type=Path)
    begin.add_argument("files", type=Path, nargs="+")
    for name, value in (("tokens", 1500), ("hidden", 64), ("layers", 2)):
        begin.add_argument(f"--{name}", type=int, default=value)
    search = does.add_parser("find")
    search.add_argument("bundles", nargs="+")
    search.add_argument("--texts", type=Path, required=True)
    search.add_argument("--limit", type=int, default=400)
    given = parser.parse_args()
    if given.does == "start":
        start(given.folder, given.files, given.tokens, given.hidden, given.layers)
    else:
        for bundle in given.bundles:
            find(bundle, texts([given.texts])[: given.limit])


if __name__ == "__main__":
    main()
