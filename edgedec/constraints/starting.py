"""What the first constraint of a model would wait for, and texts beside it: made before it comes."""

from __future__ import annotations

from contextlib import suppress

from edgedec.constraints.place import pieces
from edgedec.constraints.vocabulary import vocabulary
from edgedec.errors import EdgedecError
from edgedec.opened import OpenedModel


def start(model: OpenedModel) -> None:
    """Start the process that compiles a model's grammars, without waiting for it, and read the vocabulary. Where no
    constraint can be followed, the first one's error has the reason."""
    with suppress(EdgedecError):
        vocabulary(model).start()
        pieces(model.tokenizer, model.spec.vocab_size)
