"""A model's vocabulary in llguidance's form: the bytes of every token, and the tokens that end a text."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgedec.constraints import _matcher_guest as guest
from edgedec.constraints.compiling import Grammars
from edgedec.constraints.hosts import LocalHost
from edgedec.constraints.remote import MatcherGroup
from edgedec.errors import LimitExceeded, RuntimeUnavailable, TextError, UsageError
from edgedec.extras import install_command
from edgedec.sandbox import GuestLimits, Sandbox, enabled
from edgedec.text.inspection import inspect
from edgedec.text.tokenizer import one_line

if TYPE_CHECKING:
    import llguidance

    from edgedec.opened import OpenedModel

# The end of a text for models that have no token for it: beyond the logits, so that it is never drawn.
_END = "<|edgedec: the end|>"
# Limits of compiling, and of each step; common schemas take some milliseconds and a few MiB.
_LIMITS = GuestLimits(seconds=2.0, memory=256)


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """`content`: a tokenizer.json; `ends`: its end tokens, or an artificial one; `known`: the number of tokens with a
    meaning; `size`: the width of the logits, which may be larger."""

    file: str
    content: str
    ends: tuple[int, ...]
    eos: frozenset[int]
    known: int
    size: int

    @cached_property
    def tokenizer(self) -> llguidance.LLTokenizer:
        """The tokenizer in this process; worker processes have their own."""
        return guest.tokenizer_of(self.content, list(self.ends))

    @cached_property
    def _sandbox(self) -> Sandbox:
        setup = {"tokenizer": self.content, "eos": list(self.ends)}
        return Sandbox(Path(guest.__file__), setup, _LIMITS)

    def start(self) -> None:
        """Start the process that compiles, without waiting for it."""
        if enabled():
            self._sandbox.start()

    @cached_property
    def grammars(self) -> Grammars:
        """The grammars that were compiled for it."""
        return Grammars(self.matchers)

    def matchers(self, what: str) -> MatcherGroup:
        """A group for the matchers of one grammar, in one worker process."""
        try:
            if not enabled():
                return MatcherGroup(what, LocalHost(guest.Matchers(self.tokenizer, guest.LIMITS)))
            return MatcherGroup(what, self._sandbox.worker())
        except LimitExceeded as error:
            raise UsageError(f"{what}: {error}") from None
        except (ValueError, RuntimeUnavailable) as error:
            raise TextError(f"{self.file}: no constraint can follow this tokenizer: {one_line(error)}") from None


def vocabulary(model: OpenedModel) -> Vocabulary:
    """The vocabulary of a bundle, built once, because sorting a large vocabulary takes a while."""
    name = model.bundle.manifest.text.tokenizer
    if name is None:
        raise TextError(f"{model.bundle.path}: the bundle has no tokenizer; a constraint on its text needs one")
    library()
    file = model.bundle.file(name)
    return _vocabulary(str(file), file.stat().st_mtime_ns, tuple(sorted(model.eos)), model.spec.vocab_size)


@lru_cache(maxsize=4)
def _vocabulary(file: str, changed: int, eos: tuple[int, ...], size: int) -> Vocabulary:
    try:
        content: dict[str, Any] = json.loads(Path(file).read_text("utf-8"))
        inspect(content)
        # Settings of the training run, which would cut or pad a text without a word.
        content |= {"truncation": None, "padding": None}
        vocab = content["model"]["vocab"]
        spelt = range(len(vocab)) if isinstance(vocab, list) else vocab.values()
        known = 1 + max([*spelt, *(token["id"] for token in content["added_tokens"])])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise TextError(f"{file}: no constraint can follow this tokenizer: {one_line(error)}") from None
    if not eos:
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        content["added_tokens"].append({"id": known, "content": _END, "special": True, **flags})
    return Vocabulary(file, json.dumps(content), tuple(eos or (known,)), frozenset(eos), min(known, size), size)


def library() -> None:
    """RuntimeUnavailable if llguidance is not installed; it is imported in worker processes only."""
    if sys.modules.get("llguidance", True) is None or importlib.util.find_spec("llguidance") is None:
        raise RuntimeUnavailable(f"constraints need the package llguidance: {install_command('constraints')}")
