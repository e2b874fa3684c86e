"""Rows in groups that see each other, and embeddings as input: equal to transformers with a 4-D mask."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from zoo import small_llama

from edgedec.bundle import Bundle
from edgedec.errors import RuntimeUnavailable
from edgedec.runtime import ALL_LOGITS, Call, Rows, Runtime, open_runtime

torch = pytest.importorskip("torch", reason="transformers needs torch")
transformers = pytest.importorskip("transformers", reason="the oracle is transformers")
pytest.importorskip("onnx", reason="exporting needs onnx")

PROMPT, BLOCK = [3, 1, 4, 1, 5, 9, 2], [6, 5, 3, 5, 8, 9]
# Two groups among the rows after the prompt; the last row is of none.
GROUPS = [0, 0, 0, 1, 1, -1]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    torch.manual_seed(1)
    from edgedec.export.exporter import ExportOptions, export

    folder = tmp_path_factory.mktemp("groups")
    model = transformers.LlamaForCausalLM(small_llama()).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder / "checkpoint")
    export(str(folder / "checkpoint"), folder / "bundle", ExportOptions(weights="f32", check=False))
    return model, folder / "bundle"


def opened(engine: str, folder: Path) -> Runtime:
    try:
        runtime = open_runtime(engine, Bundle.open(folder))
    except RuntimeUnavailable as error:
        pytest.skip(str(error))
    return runtime


def visibility() -> Any:
    """[n, n]: what each row of prompt and block sees, written down without our code."""
    n, p = len(PROMPT) + len(BLOCK), len(PROMPT)
    sees = np.tri(n, dtype=bool)
    for i, group in enumerate(GROUPS):
        last = max((j for j, other in enumerate(GROUPS) if other == group), default=i) if group >= 0 else i
        sees[p + i, : p + last + 1] = True
    return sees


def expected(model: Any, **inputs: Any) -> Any:
    mask = torch.where(torch.tensor(visibility()), 0.0, torch.finfo(torch.float32).min)[None, None]
    with torch.no_grad():
        return model(attention_mask=mask, **inputs).logits[0].numpy()


@pytest.mark.parametrize("engine", ["reference", "ort", "native"])
def test_rows_in_groups_are_those_of_a_4d_mask(engine: str, base: tuple[Any, Path]) -> None:
    model, folder = base
    runtime = opened(engine, folder)
    want = expected(model, input_ids=torch.tensor([PROMPT + BLOCK]))
    causal = model(torch.tensor([PROMPT + BLOCK])).logits[0].detach().numpy()
    assert np.abs(want - causal)[len(PROMPT) :].max() > 0.01  # the groups matter
    cache = runtime.new_cache(64)
    runtime.forward([Call(Rows.chain(PROMPT, 0), cache)])
    cache.commit(range(len(PROMPT)))
    chain = Rows.chain(BLOCK, len(PROMPT))
    rows = Rows(chain.tokens, chain.positions, chain.parents, groups=np.array(GROUPS))
    found = runtime.forward([Call(rows, cache, outputs=ALL_LOGITS)])[0].logits
    np.testing.assert_allclose(found, want[len(PROMPT) :], atol=1e-4)


@pytest.mark.parametrize("engine", ["reference", "ort", "native"])
def test_embeddings_take_the_place_of_tokens(engine: str, base: tuple[Any, Path]) -> None:
    model, folder = base
    runtime = opened(engine, folder)
    values = np.random.default_rng(0).standard_normal((9, 48)).astype(np.float32)
    with torch.no_grad():
        want = model(inputs_embeds=torch.tensor(values[None])).logits[0].numpy()
    call = Call(Rows.embedded(values, 0), runtime.new_cache(64), outputs=ALL_LOGITS)
    np.testing.assert_allclose(runtime.forward([call])[0].logits, want, atol=1e-4)
