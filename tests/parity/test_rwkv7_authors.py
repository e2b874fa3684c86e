"""RWKV-7 against its authors' own code, where their package `rwkv` is installed: a chain of tokens, the same weights
by their names."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("rwkv", reason="needs the authors' package rwkv")
import rwkv7  # noqa: E402

from edgedec.export.checkpoint import open_checkpoint  # noqa: E402
from edgedec.models import architecture  # noqa: E402
from edgedec.runtime import Rows, logits_of  # noqa: E402
from edgedec.runtimes.reference import Reference  # noqa: E402

TOKENS = [1, 7, 3, 99, 42, 42, 5, 0, 63, 17, 88, 2, 31, 54, 9, 77]
LAYER = {
    "attn_norm": "ln1",
    "ffn_norm": "ln2",
    "pre_norm": "ln0",
    "attn.g_norm": "att.ln_x",
    "attn.r_proj": "att.receptance",
    "attn.k_proj": "att.key",
    "attn.v_proj": "att.value",
    "attn.o_proj": "att.output",
}


def theirs(name: str, weight: Any) -> tuple[str, Any]:
    """A tensor by the authors' name, as they store it."""
    if not name.startswith("model.layers."):
        outer = {"model.embeddings": "emb", "model.norm": "ln_out", "lm_head": "head"}
        module, kind = name.rsplit(".", 1)
        return f"{outer[module]}.{kind}", weight
    number, rest = name.removeprefix("model.layers.").split(".", 1)
    for own, other in LAYER.items():
        if rest.startswith(f"{own}."):
            return f"blocks.{number}.{other}{rest.removeprefix(own)}", weight
    part, _, rest = rest.partition(".")
    if "_lora" in rest:
        letter, place = rest[0], rest.split(".", 2)[2]
        order = {"0.weight": 1, "2.weight": 2, "2.bias": 0}[place]
        return f"blocks.{number}.att.{letter}{order}", weight if order == 0 else weight.t().contiguous()
    return f"blocks.{number}.{'att' if part == 'attn' else part}.{rest}", weight


def test_logits_are_those_of_the_authors(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = rwkv7.Rwkv7Config(hidden_size=128, head_dim=64, intermediate_size=160)
    model = rwkv7.Rwkv7ForCausalLM(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            middle = 1.0 if name.endswith("norm.weight") else 0.0
            weight.copy_(
                middle + (0.3 if weight.ndim < 2 else 2.0 / weight.shape[-1] ** 0.5) * torch.randn_like(weight)
            )
    model.save_pretrained(tmp_path / "checkpoint")
    torch.save(dict(theirs(*pair) for pair in model.state_dict().items()), tmp_path / "model.pth")
    with mock.patch.dict(os.environ, {"RWKV_V7_ON": "1", "RWKV_JIT_ON": "0", "RWKV_CUDA_ON": "0"}):
        from rwkv.model import RWKV

        found, state, expected = RWKV(str(tmp_path / "model"), "cpu fp32"), None, []
        for token in TOKENS:
            logits, state = found.forward([token], state)
            expected.append(logits.float().numpy())
    checkpoint = open_checkpoint(tmp_path / "checkpoint")
    spec = architecture(checkpoint.config).spec(json.loads((tmp_path / "checkpoint" / "config.json").read_text()))
    sources = checkpoint.weights(spec)
    runtime = Reference(spec, lambda name, start, stop: checkpoint.read(sources[name], start, stop))
    mine = logits_of(runtime, Rows.chain(TOKENS, 0), runtime.new_cache(32))
    assert np.std(expected) > 0.1
    np.testing.assert_allclose(mine, expected, atol=2e-4, rtol=2e-4)
