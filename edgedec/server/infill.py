"""Infilling: the prompt for the text between two texts, for models that are trained for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgedec.errors import UsageError

if TYPE_CHECKING:
    from edgedec.text.tokenizer import Tokenizer

# The marks of prefix, suffix and middle, by family of models.
_MARKS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen 2.5 Coder, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, SmolLM, Granite
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),  # Code Llama
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek Coder
)


def marks(tokenizer: Tokenizer) -> tuple[int, int, int] | None:
    """The three tokens of a model that infills; None if it has none."""
    for names in _MARKS:
        before, after, middle = (tokenizer.id(name) for name in names)
        if before is not None and after is not None and middle is not None:
            return before, after, middle
    return None


def infill(tokenizer: Tokenizer, ids: tuple[int, ...], suffix: str) -> tuple[int, ...]:
    """The prompt of a text between `ids` and `suffix`."""
    found = marks(tokenizer)
    if found is None:
        raise UsageError("suffix: this model does not infill (its tokenizer has no such tokens); leave it out")
    before, after, middle = found
    return before, *ids, after, *tokenizer.encode(suffix, around=False), middle
