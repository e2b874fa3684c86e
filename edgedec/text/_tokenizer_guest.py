"""Tries out a tokenizer.json in a worker process: tokenizers and the standard library only."""

from __future__ import annotations

from typing import Any

# Of many scripts, and what patterns choke on. How many tokens a character may become, and characters a token.
TEXTS = (
    "",
    " ",
    "Hello, world! It's 2024-01-31, isn't it?\n\tTabs  and   spaces.",
    "Grüße, Ελλάδα, привет, שלום, مرحبا, नमस्ते, 你好，世界, こんにちは, 안녕",
    "🙂👩‍👩‍👧‍👦\u200b\ufeff\u0301\x00\x7f\ufffd𝔘𝔫𝔦",
    "def f(x):\n    return {'a': [x ** 2, \"b\"]}  # <|endoftext|> </s> [UNK] <0x41>",
    *(piece * 2000 for piece in ("a", " ", "1", "\n", "!", "é", "中", "aA1 ", "a a", "'s", "ab\n")),
)
TOKENS_A_CHARACTER, CHARACTERS_A_TOKEN = 16, 1 << 14


def setup(message: dict[str, Any]) -> None:
    import tokenizers  # noqa: F401


def handle(message: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes]:
    """Check the file (`blob`); ValueError has its error."""
    import tokenizers

    raw = step("read", lambda: tokenizers.Tokenizer.from_buffer(blob))
    raw.no_truncation()
    raw.no_padding()
    for text in TEXTS:
        for special in (False, True):
            ids = step(f"encode {text[:8]!r}", lambda t=text, s=special: raw.encode(t, add_special_tokens=s).ids)
            if len(ids) > TOKENS_A_CHARACTER * len(text) + 1024:
                raise ValueError(f"makes {len(ids)} tokens of {len(text)} characters")
            decoded(raw, ids)
    for token in raw.get_vocab(with_added_tokens=True).values():
        decoded(raw, [token])
    return {}, b""


def decoded(raw: Any, ids: list[int]) -> None:
    for skip in (True, False):
        text = step(f"decode {ids[:4]}", lambda s=skip: raw.decode(ids, skip_special_tokens=s))
        if len(text) > CHARACTERS_A_TOKEN * max(len(ids), 1):
            raise ValueError(f"makes {len(text)} characters of {len(ids)} tokens")


def step(what: str, run: Any) -> Any:
    try:
        return run()
    except MemoryError:
        raise
    except BaseException as error:  # the library panics, which is no Exception
        said = " ".join(str(error)[:2000].split())[:200]
        raise ValueError(f"fails to {what}: {said or type(error).__name__}") from None
