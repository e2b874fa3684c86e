"""The check for invalid Unicode: text with half of a surrogate pair."""

from __future__ import annotations

from edgedec.errors import TextError


def check_unicode(text: str) -> None:
    """TextError for half of a surrogate pair: JSON that cuts an emoji in two, bytes that are no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        found = ord(text[error.start])
        raise TextError(
            f"character {error.start + 1} is no Unicode (U+{found:04X}: half an emoji, or a byte that is not UTF-8); "
            "remove it"
        ) from None
