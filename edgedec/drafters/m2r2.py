"""Drafts with the target's first layers and M2R2 velocity adapters beside them.

`exit` after the layers that the bundle's adapters were trained for; nothing is computed twice.

Layout and names of its tensors: `models/drafts/m2r2.py`.
"""

from __future__ import annotations

from edgedec.drafters import DrafterContext, DrafterFacts
from edgedec.drafters._heads.reader import facts_of
from edgedec.drafters._options import Threshold, TrainedLength, Trim, Width
from edgedec.drafters._slices.exit_adapters import VELOCITY as DRAFT
from edgedec.drafters.exit import Exit
from edgedec.drafters.exit import make as make_exit

FACTS = DrafterFacts(draft=DRAFT, guides=True, paper="M2R2: Mixture of Multi-Rate Residuals")


def make(
    host: DrafterContext, length: TrainedLength = 0, threshold: Threshold = 0.0, width: Width = 3, trim: Trim = 0.25
) -> Exit:
    facts = facts_of(host, DRAFT)
    return make_exit(host, len(facts.features), length or facts.depth, threshold, width, trim, "m2r2")
