"""EAGLE-1 and EAGLE-2: layers on the target's last state, read by its own readout (models/drafts/eagle.py)."""

from __future__ import annotations

from edgedec.drafters import DrafterContext
from edgedec.drafters._heads.feature_tree import FeatureTree

# Its rank in `auto`: of the drafters that need a head only the first whose head the bundle has is used.
AUTO = 7
DRAFT = "eagle"


def make(host: DrafterContext, depth: int = 0, beam: int = 8, k: int = 8) -> FeatureTree:
    """depth: how many tokens ahead at most; 0: what the head was made for. beam: nodes run at once. k: tokens tried
    after each."""
    return FeatureTree(host, DRAFT, depth, beam, k)
