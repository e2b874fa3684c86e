"""Writes a table of the budgets that each head of a model needs into its bundle
(`edgedec/policies/_head_budgets.py`)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgedec.bundle.folder import Bundle
from edgedec.export.amend import add_files
from edgedec.policies._head_budgets import HEAD_BUDGETS


def put_budgets(bundle: Bundle, table: NDArray[np.float32]) -> Bundle:
    """Put a table into a bundle. -> the bundle as it is now."""
    return add_files(bundle, {HEAD_BUDGETS: table.astype("<f4").tobytes()}, lambda manifest: manifest)
