"""A model's vocabulary as llguidance wants it: the bytes of every token, and which tokens end a text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from edgedec.errors import RuntimeUnavailable, TextError
from edgedec.extras import install_command
from edgedec.text.tokenizer import one_line

if TYPE_CHECKING:
    import llguidance

    from edgedec.model import Model

# The end of a text for models that have no token for it: beyond the logits, so that it is never drawn.
_END = "<|edgedec: the end|>"


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """`known`: how many tokens have a meaning; logits may be wider, and `size` is their width."""

    tokenizer: llguidance.LLTokenizer
    eos: frozenset[int]
    known: int
    size: int


def vocabulary(model: Model) -> Vocabulary:
    """Built once for a bundle: a large vocabulary takes a while to sort."""
    name = model.bundle.manifest.text.tokenizer
    if name is None:
        raise TextError(f"{model.bundle.path}: the bundle has no tokenizer; a constraint on its text needs one")
    library()
    file = model.bundle.file(name)
    return _vocabulary(str(file), file.stat().st_mtime_ns, tuple(sorted(model.eos)), model.spec.vocab_size)


@lru_cache(maxsize=4)
def _vocabulary(file: str, changed: int, eos: tuple[int, ...], size: int) -> Vocabulary:
    with open(file, encoding="utf-8") as opened:
        content: dict[str, Any] = json.load(opened)
    # Settings of the training run, which would cut or pad a text without a word.
    content |= {"truncation": None, "padding": None}
    vocab = content["model"]["vocab"]
    spelt = range(len(vocab)) if isinstance(vocab, list) else vocab.values()
    known = 1 + max([*spelt, *(token["id"] for token in content["added_tokens"])])
    if not eos:
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        content["added_tokens"].append({"id": known, "content": _END, "special": True, **flags})
    try:
        tokenizer = library().LLTokenizer(json.dumps(content), None, list(eos or (known,)))
    except ValueError as error:
        raise TextError(f"{file}: no constraint can follow this tokenizer: {one_line(error)}") from None
    return Vocabulary(tokenizer, frozenset(eos), min(known, size), size)


def library() -> Any:
    """llguidance, which is imported when first needed."""
    try:
        import llguidance
    except ImportError as error:
        raise RuntimeUnavailable(
            f"constraints need the package llguidance ({one_line(error)}): {install_command('constraints')}"
        ) from None
    return llguidance
