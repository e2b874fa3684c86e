"""Write unicode_tables.h: categories, white space and NFC as the `tokenizers` library has them, so that text becomes the same
tokens. Run it again when that library knows a newer Unicode.

    python kernels/lib/unicode.py
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, normalizers, pre_tokenizers

CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co".split()
POINTS = [point for point in range(0x110000) if not 0xD800 <= point < 0xE000]
HANGUL = range(0xAC00, 0xD7A4)


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
    by_category = [
        (first, last, number) for number, name in enumerate(CATEGORIES) for first, last in ranges(matched(rf"\p{{{name}}}"))
    ]
    nfd, nfc = normalizers.NFD().normalize_str, normalizers.NFC().normalize_str
    parts = {point: nfd(chr(point)) for point in POINTS if point not in HANGUL and nfd(chr(point)) != chr(point)}
    flat: list[int] = []
    places = []
    for point, text in parts.items():
        places.append((point, len(flat), len(text)))
        flat += map(ord, text)
    pairs = []
    for point, text in parts.items():
        if len(text) > 1 and nfc(text) == chr(point):
            first = nfc(text[:-1])
            assert len(first) == 1
            pairs.append((ord(first), ord(text[-1]), point))
    classes = [(point, unicodedata.combining(chr(point))) for point in POINTS if unicodedata.combining(chr(point))]
    runs: list[list[int]] = []
    for point, value in classes:
        if runs and runs[-1][1] == point - 1 and runs[-1][2] == value:
            runs[-1][1] = point
        else:
            runs.append([point, point, value])
    text = f"""// Made by unicode.py; not to be edited.
#pragma once
#include <cstdint>

namespace edgedec::lib::unicode {{

// First, last, category (of {" ".join(CATEGORIES)}).
struct CategoryRange {{
  uint32_t first, last;
  uint8_t category;
}};
constexpr CategoryRange CATEGORIES[] = {{
{rows(f"{{{a},{b},{c}}}" for a, b, c in sorted(by_category))}
}};

struct Range {{
  uint32_t first, last;
}};
constexpr Range SPACES[] = {{
{rows(f"{{{a},{b}}}" for a, b in ranges(matched(chr(92) + "s")))}
}};

struct CombiningRange {{
  uint32_t first, last;
  uint8_t value;
}};
constexpr CombiningRange COMBINING[] = {{
{rows(f"{{{a},{b},{c}}}" for a, b, c in runs)}
}};

// A character's canonical decomposition: `size` of PARTS from `at` on.
struct Decomposition {{
  uint32_t point;
  uint16_t at;
  uint8_t size;
}};
constexpr Decomposition DECOMPOSITIONS[] = {{
{rows(f"{{{a},{b},{c}}}" for a, b, c in places)}
}};
constexpr uint32_t PARTS[] = {{
{rows(map(str, flat))}
}};

// Sorted by both.
struct Composition {{
  uint32_t first, second, point;
}};
constexpr Composition COMPOSITIONS[] = {{
{rows(f"{{{a},{b},{c}}}" for a, b, c in sorted(pairs))}
}};

}}  // namespace edgedec::lib::unicode
"""
    Path(__file__).with_name("unicode_tables.h").write_text(text, "utf-8")


if __name__ == "__main__":
    main()
