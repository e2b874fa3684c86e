"""The tokens after which a sequence breaker of DRY is complete, as in llama.cpp: a token that contains it, or a token
that ends with its beginning and those that spell the rest."""

from __future__ import annotations

from functools import lru_cache

from edgedec.text.tokenizer import Tokenizer

# llama.cpp's limits: characters of a breaker, and tokens after the first.
_CHARACTERS, _TAIL = 40, 20


@lru_cache(maxsize=8)
def breaker_tokens(tokenizer: Tokenizer, size: int, texts: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
    """The sequences of tokens for these texts, of a vocabulary of so many tokens."""
    found = dict[tuple[int, ...], None]()
    words = tokenizer.texts(size)
    for text in (text[:_CHARACTERS] for text in texts):
        for token, word in enumerate(words):
            if text in word:
                found[(token,)] = None
                continue
            for n in range(1, min(len(text), len(word) + 1)):
                if word.endswith(text[:n]):
                    rest = tokenizer.encode(text[n:], special=False, around=False)[:_TAIL]
                    found[(token, *rest)] = None
    return tuple(found)
