"""What the files of `edgedec.search.strategies` declare of themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class SearchFacts:
    """lossy: is the text another than that of plain decoding? streams: when text is delivered: at the end, or part by
    part as it is committed. operator: options that run programs or open files; a server takes them only if its operator
    says so. fixed: it finds the same texts with any seed, and has the option rank. code: it always runs code. paper:
    where the rule is from; rests: what the rule rests on."""

    lossy: bool = True
    streams: Literal["end", "commit"] = "end"
    operator: tuple[str, ...] = ()
    code: bool = False
    fixed: bool = False
    paper: str = ""
    rests: str = ""
