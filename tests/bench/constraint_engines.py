"""Engines that hold a text to a JSON schema, behind one face: ours, and those of other packages. No whitespace."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

import edgedec
from edgedec.constraints import json_schema
from edgedec.constraints.vocabulary import vocabulary


class Follower(Protocol):
    """One schema: `mask` is what is timed, in whatever form the engine gives it."""

    def mask(self) -> None: ...

    def allows(self, token: int) -> bool: ...

    def accept(self, token: int) -> None: ...

    def reset(self) -> None: ...


Engine = Callable[[Any], Follower]


class Ours:
    def __init__(self, model: edgedec.Model, schema: Any) -> None:
        self._constraint = json_schema(model, schema, whitespace="none")

    def mask(self) -> None:
        self._mask = self._constraint.mask(())

    def allows(self, token: int) -> bool:
        return bool(self._mask[token])

    def accept(self, token: int) -> None:
        self._constraint.accept(token)

    def reset(self) -> None:
        self._constraint.reset()


class Bits:
    """What is allowed, a bit a token."""

    def __init__(self, size: int) -> None:
        self.bits = np.zeros((1, -(-size // 32)), np.int32)

    def allows(self, token: int) -> bool:
        return bool(self.bits[0, token // 32] >> (token % 32) & 1)


class XGrammar(Bits):
    def __init__(self, size: int, matcher: Any) -> None:
        super().__init__(size)
        self._matcher = matcher

    def mask(self) -> None:
        self._matcher.fill_next_token_bitmask(self.bits)

    def accept(self, token: int) -> None:
        self._matcher.accept_token(token)

    def reset(self) -> None:
        self._matcher.reset()


class Outlines(Bits):
    def __init__(self, size: int, guide: Any) -> None:
        super().__init__(size)
        self._guide = guide

    def mask(self) -> None:
        self._guide.write_mask_into(self.bits.ctypes.data, self.bits.size, 4)

    def accept(self, token: int) -> None:
        self._guide.advance(token, return_tokens=False)

    def reset(self) -> None:
        self._guide.reset()


class Enforcer:
    def __init__(self, enforcer: Any) -> None:
        self._enforcer = enforcer
        self._ids: list[int] = []

    def mask(self) -> None:
        self._allowed = self._enforcer.get_allowed_tokens(self._ids)

    def allows(self, token: int) -> bool:
        return bool(self._allowed.is_token_allowed(token))

    def accept(self, token: int) -> None:
        self._ids.append(token)

    def reset(self) -> None:
        self._ids.clear()


def ours(model: edgedec.Model) -> Engine:
    json_schema(model, True)  # the vocabulary is read
    return lambda schema: Ours(model, schema)


def xgrammar(model: edgedec.Model, strict: bool) -> Engine:
    import xgrammar as library

    size = model.spec.vocab_size
    info = library.TokenizerInfo(spelt(model), vocab_size=size, stop_token_ids=sorted(model.eos))
    compiler = library.GrammarCompiler(info, max_threads=1, cache_enabled=False)
    how = {"any_whitespace": False, "separators": (",", ":"), "strict_mode": strict}
    return lambda schema: XGrammar(
        size, library.GrammarMatcher(compiler.compile_json_schema(json.dumps(schema), **how))
    )


def outlines(model: edgedec.Model) -> Engine:
    import outlines_core as library
    from outlines_core.json_schema import build_regex_from_schema

    places: dict[bytes, list[int]] = defaultdict(list)
    for i, text in enumerate(spelt(model)):
        if text and i not in model.eos:
            places[text].append(i)
    words = library.Vocabulary(min(model.eos), dict(places))

    def compiled(schema: Any) -> Follower:
        pattern = build_regex_from_schema(json.dumps(schema), "")
        return Outlines(model.spec.vocab_size, library.Guide(library.Index(pattern, words)))

    return compiled


def enforcer(model: edgedec.Model) -> Engine:
    from lmformatenforcer import JsonSchemaParser, TokenEnforcer
    from lmformatenforcer.tokenenforcer import TokenEnforcerTokenizerData

    decode = model.tokenizer.decode
    tokens = [(i, decode([i]), False) for i in range(model.spec.vocab_size) if i not in model.eos and decode([i])]
    data = TokenEnforcerTokenizerData(tokens, decode, sorted(model.eos), True, model.spec.vocab_size)
    return lambda schema: Enforcer(TokenEnforcer(data, JsonSchemaParser(schema)))


ENGINES: dict[str, tuple[str, Callable[[edgedec.Model], Engine]]] = {
    "edgedec": ("llguidance", ours),
    "xgrammar": ("xgrammar", lambda model: xgrammar(model, strict=False)),
    "xgrammar-strict": ("xgrammar", lambda model: xgrammar(model, strict=True)),
    "outlines-core": ("outlines_core", outlines),
    "lm-format-enforcer": ("lm-format-enforcer", enforcer),
}


def spelt(model: edgedec.Model) -> list[bytes]:
    """The bytes of every token; none of those that are marks."""
    tokenizer = vocabulary(model).tokenizer
    texts = [tokenizer.decode_bytes([i]) for i in range(model.spec.vocab_size)]
    return [b"" if tokenizer.is_special_token(i) else text for i, text in enumerate(texts)]
