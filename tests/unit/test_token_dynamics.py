"""The regime of Mamba-1 layers, from the signs of eigenvalues of S_C^T S_B."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from bundles import KINDS

from edgedec.bench.token_dynamics import Dynamics, dynamics
from edgedec.cli import main
from edgedec.testing.conformance.bundles import random_weights, write_bundle

SIZE, INNER = 6, 40


def forced(signs: np.ndarray, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """As the authors force a layer: S_B = diag(signs) S_C."""
    s_c = np.random.default_rng(seed).standard_normal((SIZE, INNER))
    return signs[:, None] * s_c, s_c


def by_hand(s_b: np.ndarray, s_c: np.ndarray) -> Dynamics:
    """Of the whole matrix [inner, inner], all but SIZE of whose eigenvalues are zero."""
    real = np.linalg.eigvals(s_c.T @ s_b).real
    return Dynamics(int((real > 1e-8).sum()), int((real < -1e-8).sum()))


@pytest.mark.parametrize("together", range(SIZE + 1))
def test_the_signs_are_those_that_were_forced(together: int) -> None:
    """S_C has independent rows, so S_B S_C^T has as many negative eigenvalues as there are negative signs."""
    signs = np.array([-1.0] * together + [1.0] * (SIZE - together)) * np.linspace(0.7, 2.0, SIZE)
    found = dynamics(*forced(signs, together))
    assert found == by_hand(*forced(signs, together)) == Dynamics(SIZE - together, together)
    assert found.regime == {0: "divergent", SIZE: "convergent"}.get(together, "mixed")


def test_other_products_of_the_two_have_other_signs() -> None:
    """S_B^T S_B or S_C^T S_C are never below zero, so neither would tell regimes apart."""
    s_b, s_c = forced(np.full(SIZE, -1.0))
    assert dynamics(s_b, s_b).regime == dynamics(s_c, s_c).regime == "divergent"
    assert dynamics(s_b, s_c).regime == "convergent"


def test_inspect_shows_them_by_layer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """B and C are the rows of x_proj after those of the time step: these are made to say the opposite."""
    spec = KINDS["selective state spaces"]
    s_c = np.random.default_rng(1).standard_normal((10, 56)).astype(np.float32)
    weights = random_weights(spec) | {"blocks.0.x_proj": np.concatenate([s_c[:5], -s_c, s_c])}
    write_bundle(tmp_path / "bundle", spec, weights)
    assert main(["inspect", str(tmp_path / "bundle"), "--dynamics", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["dynamics"]
    assert [row["layer"] for row in rows] == [0, 2]
    assert rows[0] == {"layer": 0, "block": 0, "apart": 0, "together": 10, "regime": "convergent"}
    assert rows[1]["apart"] + rows[1]["together"] == 16
    assert main(["inspect", str(tmp_path / "bundle"), "--dynamics"]) == 0
    assert "convergent" in capsys.readouterr().out


def test_a_model_without_such_layers_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "nano", "--dynamics"]) == 1
    assert "has no blocks of Mamba-1" in capsys.readouterr().err
