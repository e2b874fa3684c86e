"""M2R2 (S14): leave the target early, with velocity adapters beside its first layers (`models/drafts/m2r2.py`).

`exit` after the layers that the bundle's adapters were trained for; nothing is computed twice.
"""

from __future__ import annotations

from edgedec.drafters import DrafterContext
from edgedec.drafters._heads.reader import facts_of
from edgedec.drafters._slices.exit_adapters import VELOCITY as DRAFT
from edgedec.drafters.exit import Exit
from edgedec.drafters.exit import make as make_exit

__all__ = ["DRAFT", "make"]


def make(host: DrafterContext, gamma: int = 0, threshold: float = 0.0, width: int = 3, trim: float = 0.25) -> Exit:
    """gamma: the longest draft; 0: the usual. threshold: the least confidence to draft a token with; width: tokens of a
    level; trim: the share of the vocabulary that a draft chooses from at most."""
    facts = facts_of(host, DRAFT)
    return make_exit(host, len(facts.features), gamma or facts.depth, threshold, width, trim, DRAFT)
