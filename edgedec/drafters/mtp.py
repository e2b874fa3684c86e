"""The multi-token-prediction layer that a checkpoint carries beside the model (models/drafts/mtp.py)."""

from __future__ import annotations

from edgedec.drafters import DrafterContext
from edgedec.drafters._heads.feature_tree import FeatureTree

# Its rank in `auto`: of the drafters that need a head only the first whose head the bundle has is used.
AUTO = 6
DRAFT = "mtp"


def make(host: DrafterContext, depth: int = 0, beam: int = 4, k: int = 4) -> FeatureTree:
    """depth: how many tokens ahead at most; 0: what the head was made for. beam: nodes run at once. k: tokens tried
    after each."""
    return FeatureTree(host, DRAFT, depth, beam, k)
