"""M2R2 (S14): leave the target early, with velocity adapters beside its first layers (`models/drafts/m2r2.py`).

`exit` after the layers that the bundle's adapters were trained for; nothing is computed twice.
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
