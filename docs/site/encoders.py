"""Writes the table of text encoders in docs/embeddings.md, from the files in `models/`.

python docs/site/encoders.py           # write it
python docs/site/encoders.py --check   # exit with 1 if it is not what the files say
"""

from __future__ import annotations

import sys
from pathlib import Path

from edgedec.models import FAMILY

PAGE = Path(__file__).parents[1] / "embeddings.md"
BEGIN, END = "<!-- encoders: docs/site/encoders.py -->\n", "<!-- /encoders -->\n"
HYPHENED = ("deberta_v2", "xlm_roberta")
# Decoders' files that read text encoders too, and of which kind.
ALSO = {
    "gemma3_text": "EmbeddingGemma: Gemma 3 whose rows see each other",
    "qwen3": "Qwen3-Embedding: the last token of a decoder, by its modules; classifiers (`Qwen3ForSequenceClassification`)",
}


def table() -> str:
    """A line a model type."""
    facts = FAMILY.all_facts()
    rows = {name: FAMILY.summary(name).removesuffix(".") for name in FAMILY.names() if facts[name].encodes} | ALSO
    lines = [f"| `{name.replace('_', '-') if name in HYPHENED else name}` | {what} |" for name, what in rows.items()]
    return "\n".join(["| `model_type` | |", "| --- | --- |", *lines]) + "\n"


def page(text: str) -> str:
    """The page with the table as it is now."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{table()}{END}{after}"


def main(arguments: list[str]) -> int:
    text = PAGE.read_text("utf-8")
    if "--check" in arguments:
        return int(page(text) != text)
    PAGE.write_text(page(text), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
