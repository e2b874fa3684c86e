"""The tokens after which a sequence breaker of DRY is complete, as in llama.cpp: a token that contains it, or a token
that ends with its beginning and those that spell the rest; and the tokens of words."""

from __future__ import annotations

from collections.abc import Sequence
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


def word_tokens(tokenizer: Tokenizer, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """The tokens of each word, at the beginning of a text and after a space, as vLLM has them of `bad_words`."""
    spellings = [text for word in words for text in (word.lstrip(), " " + word.lstrip())]
    found = [tuple(tokenizer.encode(text, around=False)) for text in spellings]
    return tuple(dict.fromkeys(tokens for tokens in found if tokens))
