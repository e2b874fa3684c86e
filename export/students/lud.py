"""Pads of lexical unit decoding (LUD): prompt tokens that are trained on the spans that the target is sure of.

The paper fine-tunes the model itself: spans whose tokens it predicts above a threshold become units, and sequences are
rebuilt with pads inside them. Here the pads alone are trained, through the frozen target, on the target's own
distribution at the same places: a pad is shown only rows where the target gives the next token, and each after it up to
the pad's own, 0.7 or more (the paper's threshold was not to be found). The layout is edgedec's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from edgedec.export.students import StudentFacts
from edgedec.export.students.prompt import PromptStudent

FACTS = StudentFacts(length=128, sure=0.7)


class LudStudent(PromptStudent):
    def published(self) -> dict[str, Tensor]:
        return {"units.weight": self.size * self.prompts.weight.detach()}

    def config(self) -> Mapping[str, Any]:
        return {**super().config(), "architectures": ["LexicalUnitPads"]}


STUDENT = LudStudent
