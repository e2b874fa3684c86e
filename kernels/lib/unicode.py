"""Write unicode_tables.h: categories, white space and NFC as in the `tokenizers` library, so that texts give the same
tokens. Run it again when that library supports a newer Unicode.

    python kernels/lib/unicode.py
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path

from tokenizers import Regex, normalizers, pre_tokenizers

CATEGORIES = [
    "Lu",
    "Ll",
    "Lt",
    "Lm",
    "Lo",
    "Mn",
    "Mc",
    "Me",
    "Nd",
    "Nl",
    "No",
    "Pc",
    "Pd",
    "Ps",
    "Pe",
    "Pi",
    "Pf",
    "Po",
    "Sm",
    "Sc",
    "Sk",
    "So",
    "Zs",
    "Zl",
    "Zp",
    "Cc",
    "Cf",
    "Co",
]
POINTS = [point for point in range(0x110000) if not 0xD800 <= point < 0xE000]
HANGUL = range(0xAC00, 0xD7A4)


TEMPLATE = """// Made by unicode.py; not to be edited.
#pragma once
#include <cstdint>

namespace edgedec::lib::unicode {

// First, last, category (of @CATEGORIES@).
struct CategoryRange {
  uint32_t first, last;
  uint8_t category;
};
constexpr CategoryRange CATEGORIES[] = {
@BY_CATEGORY@
};

struct Range {
  uint32_t first, last;
};
constexpr Range SPACES[] = {
@SPACES@
};

struct CombiningRange {
  uint32_t first, last;
  uint8_t value;
};
constexpr CombiningRange COMBINING[] = {
@COMBINING@
};

// A character's canonical decomposition: `size` of PARTS from `at` on.
struct Decomposition {
  uint32_t point;
  uint16_t at;
  uint8_t size;
};
constexpr Decomposition DECOMPOSITIONS[] = {
@DECOMPOSITIONS@
};
constexpr uint32_t PARTS[] = {
@PARTS@
};

// Sorted by both.
struct Composition {
  uint32_t first, second, point;
};
constexpr Composition COMPOSITIONS[] = {
@COMPOSITIONS@
};

}  // namespace edgedec::lib::unicode
"""


def matched(pattern: str) -> set[int]:
    """The characters that a pattern of one character matches."""
    found, others = set(), pre_tokenizers.Split(Regex(pattern), "removed")
    for start in range(0, len(POINTS), 4096):
        part = POINTS[start : start + 4096]
        kept = {c for piece, _ in others.pre_tokenize_str("".join(map(chr, part))) for c in piece}
        found |= {point for point in part if chr(point) not in kept}
    return found


def ranges(points: Iterable[int]) -> list[tuple[int, int]]:
    """Sorted points as inclusive ranges."""
    found: list[list[int]] = []
    for point in sorted(points):
        if found and point == found[-1][1] + 1:
            found[-1][1] = point
        else:
            found.append([point, point])
    return [(first, last) for first, last in found]


def rows(values: Iterable[str], width: int = 116) -> str:
    """Comma-separated values in lines."""
    lines, line = [], "   "
    for value in values:
        if len(line) + len(value) + 2 > width:
            lines.append(line)
            line = "   "
        line += f" {value},"
    return "\n".join([*lines, line])


def main() -> None:
    parts = decompositions()
    places, flat = placed(parts)
    tables = {
        "CATEGORIES": " ".join(CATEGORIES),
        "BY_CATEGORY": numbers(sorted(categories())),
        "SPACES": numbers(ranges(matched(r"\s"))),
        "COMBINING": numbers(combining()),
        "DECOMPOSITIONS": numbers(places),
        "PARTS": rows(map(str, flat)),
        "COMPOSITIONS": numbers(sorted(compositions(parts))),
    }
    text = TEMPLATE
    for name, table in tables.items():
        text = text.replace(f"@{name}@", table)
    Path(__file__).with_name("unicode_tables.h").write_text(text, "utf-8")


def categories() -> list[tuple[int, int, int]]:
    """First, last and category of ranges."""
    return [
        (first, last, number)
        for number, name in enumerate(CATEGORIES)
        for first, last in ranges(matched(rf"\p{{{name}}}"))
    ]


def combining() -> list[tuple[int, ...]]:
    """First, last and combining class of ranges of characters that have one."""
    runs: list[list[int]] = []
    for point in POINTS:
        value = unicodedata.combining(chr(point))
        if value and runs and runs[-1][1] == point - 1 and runs[-1][2] == value:
            runs[-1][1] = point
        elif value:
            runs.append([point, point, value])
    return [tuple(run) for run in runs]


def decompositions() -> dict[int, str]:
    """The decompositions of characters, without Korean syllables, which are computed."""
    nfd = normalizers.NFD().normalize_str
    return {point: nfd(chr(point)) for point in POINTS if point not in HANGUL and nfd(chr(point)) != chr(point)}


def placed(parts: dict[int, str]) -> tuple[list[tuple[int, int, int]], list[int]]:
    """All parts in one list; each character with the place of its own there and how many they are."""
    places, flat = list[tuple[int, int, int]](), list[int]()
    for point, text in parts.items():
        places.append((point, len(flat), len(text)))
        flat += map(ord, text)
    return places, flat


def compositions(parts: dict[int, str]) -> Iterator[tuple[int, int, int]]:
    """Pairs of characters and their composition."""
    nfc = normalizers.NFC().normalize_str
    for point, text in parts.items():
        if len(text) > 1 and nfc(text) == chr(point):
            first = nfc(text[:-1])
            assert len(first) == 1
            yield ord(first), ord(text[-1]), point


def numbers(values: Iterable[Iterable[int]]) -> str:
    """Tuples of numbers as initializers in C."""
    return rows(f"{{{','.join(map(str, value))}}}" for value in values)


if __name__ == "__main__":
    main()
