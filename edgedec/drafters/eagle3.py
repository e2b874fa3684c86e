"""EAGLE-3: one layer that reads the target's states at three depths (models/drafts/eagle3.py)."""

from __future__ import annotations

from edgedec.drafters import DrafterContext
from edgedec.drafters._heads.feature_tree import FeatureTree

# Its rank in `auto`: of the drafters that need a head only the first whose head the bundle has is used.
AUTO = 5
DRAFT = "eagle3"


def make(host: DrafterContext, depth: int = 0, beam: int = 5, k: int = 8) -> FeatureTree:
    """depth: how many tokens ahead at most; 0: what the head was made for. beam: nodes run at once. k: tokens tried
    after each."""
    return FeatureTree(host, DRAFT, depth, beam, k)
