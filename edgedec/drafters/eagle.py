"""Drafts with an EAGLE or EAGLE-2 head: layers on the target's last state, read by its own readout.

Layout and names of its tensors: `models/drafts/eagle.py`.
"""

from __future__ import annotations

from edgedec.drafters import DrafterContext, DrafterFacts
from edgedec.drafters._heads.feature_tree import FeatureTree
from edgedec.drafters._options import Beam, Followers, TrainedLength

DRAFT = "eagle"

FACTS = DrafterFacts(auto=7, draft=DRAFT, guides=True, paper="EAGLE; EAGLE-2")


def make(host: DrafterContext, length: TrainedLength = 0, beam: Beam = 8, k: Followers = 8) -> FeatureTree:
    return FeatureTree(host, DRAFT, length, beam, k)
