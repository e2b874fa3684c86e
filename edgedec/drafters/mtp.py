"""Drafts with the multi-token-prediction layer that a checkpoint carries.

Layout and names of its tensors: `models/drafts/mtp.py`.
"""

from __future__ import annotations

from edgedec.drafters import DrafterContext, DrafterFacts
from edgedec.drafters._heads.feature_tree import FeatureTree
from edgedec.drafters._options import Beam, Followers, TrainedLength

DRAFT = "mtp"

FACTS = DrafterFacts(auto=6, draft=DRAFT, guides=True, paper="Multi-token prediction")


def make(host: DrafterContext, length: TrainedLength = 0, beam: Beam = 4, k: Followers = 4) -> FeatureTree:
    return FeatureTree(host, DRAFT, length, beam, k)
