"""docs/extending.md, "Add an architecture", followed literally: its file reads a config, its excerpt is true."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from readme.shown import section

import edgedec.models
from edgedec.models import FAMILY, architecture

ROOT = Path(__file__).parents[2]
PAGE = section(ROOT / "docs" / "extending.md", "Add an architecture")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.S)
CONFIG = {
    "model_type": "mymodel",
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 72,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}


def test_the_page_s_file_is_an_architecture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mymodel.py").write_text(BLOCKS[0], "utf-8")
    monkeypatch.setattr(edgedec.models, "__path__", [*edgedec.models.__path__, str(tmp_path)])
    monkeypatch.setitem(vars(FAMILY), "shipped", (*FAMILY.shipped, "mymodel"))
    monkeypatch.delitem(sys.modules, "edgedec.models.mymodel", raising=False)
    found = architecture(CONFIG)
    spec = found.spec(CONFIG)
    assert (spec.n_layers, spec.blocks[0].qk_norm) == (2, "head")
    assert "blocks.0.q_norm" in found.weights(spec, CONFIG)


def test_the_excerpt_stands_in_the_file() -> None:
    assert BLOCKS[1] in (ROOT / "models" / "mixtral.py").read_text("utf-8")
