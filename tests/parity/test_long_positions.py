"""Scaled ropes at positions near 64K, against transformers: texts are short, their positions are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.bundle import Bundle
from edgedec.errors import CheckpointError
from edgedec.export.exporter import ExportOptions, export
from edgedec.kernels.cpu.loader import why_not
from edgedec.runtime import ALL_LOGITS, Call, Rows, Runtime, RuntimeOptions, forward_one, open_runtime, suit

torch = pytest.importorskip("torch", reason="needs torch to build the models compared with")
transformers = pytest.importorskip("transformers", reason="needs transformers to compare with")

CONTEXT = 65536
SIZES = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 16384}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0, 1.05, 1.1, 1.2, 1.3, 1.4, 1.6, 1.8],
    "long_factor": [1.0, 1.4, 2.0, 3.5, 6.0, 10.0, 14.0, 16.0],
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama3": ("Llama", {"max_position_embeddings": 131072, "rope_parameters": LLAMA3}),
    "yarn": ("Qwen2", {"max_position_embeddings": CONTEXT, "rope_parameters": YARN}),
    "dynamic": ("Llama", {"max_position_embeddings": 16384, "rope_parameters": DYNAMIC}),
    "longrope": (
        "Phi3",
        {
            "max_position_embeddings": 131072,
            "original_max_position_embeddings": 4096,
            "rope_parameters": LONGROPE,
        },
    ),
}
# A beginning, a middle and an end: keys are up to 64K positions away from the queries.
POSITIONS = [*range(8), *range(30000, 30008), *range(CONTEXT - 16, CONTEXT)]
TOKENS = np.random.default_rng(0).integers(3, 97, len(POSITIONS)).tolist()


def build(name: str) -> Any:
    family, changes = MODELS[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**SIZES | changes)
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_((1.0 if weight.ndim == 1 else 0.0) + torch.randn_like(weight) * 0.5 / weight.shape[-1] ** 0.25)
    model.config._attn_implementation = "eager"
    return model.eval()


def expected(model: Any) -> np.ndarray[Any, Any]:
    """Of one forward, so that the rope is that of the whole text."""
    ids, places = torch.tensor([TOKENS]), torch.tensor([POSITIONS])
    mask = torch.ones_like(ids)  # otherwise gaps in the positions begin another text
    with torch.no_grad():
        logits = model(ids, position_ids=places, attention_mask=mask).logits[0]
    return np.asarray(logits, np.float32)


def found(runtime: Runtime) -> np.ndarray[Any, Any]:
    """Read in three chunks, from the cache on."""
    cache, logits = runtime.new_cache(len(TOKENS)), []
    suit(cache, CONTEXT)  # few tokens, of which the last is that of a long text
    for at, stop in ((0, 8), (8, 20), (20, len(TOKENS))):
        n = stop - at
        rows = Rows(np.array(TOKENS[at:stop]), np.array(POSITIONS[at:stop]), np.arange(-1, n - 1))
        logits.append(forward_one(runtime, Call(rows, cache, outputs=ALL_LOGITS)).logits)
        cache.commit(range(n))
    assert cache.positions(next(iter(runtime.spec.attention))).tolist() == POSITIONS
    return np.concatenate(logits)


@pytest.fixture(scope="module", params=MODELS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Bundle, Path]:
    folder = tmp_path_factory.mktemp("long") / request.param
    model = build(request.param)
    model.save_pretrained(folder)
    options = ExportOptions(weights="f32", context=CONTEXT, check=False)
    return model, export(str(folder), folder / "bundle", options), folder


@pytest.mark.parametrize("engine", ["reference", "native", "ort"])
def test_logits_near_64k_are_those_of_transformers(made: tuple[Any, Bundle, Path], engine: str) -> None:
    if engine == "native" and (reason := why_not()):
        pytest.skip(f"native engine: {reason}")
    model, bundle, _ = made
    assert bundle.spec.context_length == CONTEXT
    wanted, got = expected(model), found(open_runtime(engine, bundle, RuntimeOptions(threads=1)))
    # transformers multiplies position and frequency in float32: near 64K an angle is off by up to 0.004.
    spread = wanted.std()
    assert np.abs(got - wanted).max() < 0.02 * spread
    near = np.abs(got[:8] - wanted[:8]).max()
    assert near < 2e-4 * spread
    # Another rope is not within this tolerance: the same text, four positions shifted by one.
    moved = [p - (i >= len(POSITIONS) - 4) for i, p in enumerate(POSITIONS)]
    with torch.no_grad():
        logits = model(
            torch.tensor([TOKENS]), position_ids=torch.tensor([moved]), attention_mask=torch.ones(1, len(TOKENS))
        ).logits[0]
    assert np.abs(np.asarray(logits[-4:]) - wanted[-4:]).max() > 0.05 * spread


def test_a_dynamic_rope_is_stretched_by_what_was_asked_for(made: tuple[Any, Bundle, Path]) -> None:
    _, bundle, folder = made
    if folder.name != "dynamic":
        pytest.skip("of the dynamic rope only")
    usual = export(str(folder), folder / "usual", ExportOptions(weights="f32", check=False))
    assert usual.spec.context_length == 16384
    assert usual.spec.ropes[0].inv_freq[-1] > 2 * bundle.spec.ropes[0].inv_freq[-1]
    with pytest.raises(CheckpointError, match=r"is 16384 \(its dynamic rope reaches 65536\); a context of 65537"):
        export(str(folder), folder / "more", ExportOptions(weights="f32", check=False, context=65537))
