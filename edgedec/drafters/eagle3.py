"""Drafts with an EAGLE-3 head: one layer that reads the target's states at three depths.

Layout and names of its tensors: `models/drafts/eagle3.py`.
"""

from __future__ import annotations

from edgedec.drafters import DrafterContext, DrafterFacts
from edgedec.drafters._heads.feature_tree import FeatureTree
from edgedec.drafters._options import Beam, Followers, TrainedLength

DRAFT = "eagle3"

FACTS = DrafterFacts(auto=5, draft=DRAFT, guides=True, paper="EAGLE-3")


def make(host: DrafterContext, length: TrainedLength = 0, beam: Beam = 5, k: Followers = 8) -> FeatureTree:
    return FeatureTree(host, DRAFT, length, beam, k)
