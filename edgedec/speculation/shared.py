"""State that the sessions of one thread share, besides the drafters' tables: the budget and the calibrations."""

from __future__ import annotations

from dataclasses import dataclass, field

from edgedec.speculation.budget import Budget
from edgedec.trees.calibration import SharedCalibrations


@dataclass
class SharedLearning:
    """Not for two threads at once."""

    calibrations: SharedCalibrations = field(default_factory=SharedCalibrations)
    budget: Budget = field(default_factory=Budget)
