"""LoRA adapters of PEFT checkpoints: the logits of PEFT, merged and unmerged; any number of them in one call."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from zoo import small_llama

from edgedec.bundle.adapter import LoraAdapter, open_adapter, save_adapter
from edgedec.errors import CheckpointError, UsageError
from edgedec.runtime import ALL_LOGITS, Call, Rows, Runtime

torch = pytest.importorskip("torch", reason="PEFT needs torch")
peft = pytest.importorskip("peft", reason="PEFT makes the adapters")
transformers = pytest.importorskip("transformers", reason="the base model is built with transformers")
pytest.importorskip("onnx", reason="exporting needs onnx")

IDS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3]
ALL_LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
ENGINES = ("reference", "native")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random little Llama with grouped queries."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("base")
    transformers.LlamaForCausalLM(small_llama()).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def bundle_folder(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from edgedec.export.exporter import ExportOptions, export

    out = tmp_path_factory.mktemp("bundles") / "base"
    export(str(base), out, ExportOptions(weights="f32", check=False))
    return out


@pytest.fixture(scope="module")
def train(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Path, Any]]:
    """A PEFT adapter with random weights in both of its matrices, and the model that it is on."""

    def make(seed: int = 0, targets: list[str] = ALL_LINEAR, **settings: Any) -> tuple[Path, Any]:
        torch.manual_seed(seed)
        model = transformers.LlamaForCausalLM.from_pretrained(base)
        options: dict[str, Any] = {"r": 4, "lora_alpha": 16, "target_modules": targets} | settings
        adapted = peft.get_peft_model(model, peft.LoraConfig(**options))
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                torch.nn.init.normal_(parameter, std=0.2)
        folder = tmp_path_factory.mktemp("lora") / "adapter"
        adapted.save_pretrained(folder)
        return folder, adapted.eval()

    return make


def converted(folder: Path, bundle_folder: Path) -> LoraAdapter:
    from edgedec.bundle import Bundle
    from edgedec.export.adapter import read_peft

    bundle = Bundle.open(bundle_folder)
    path = folder.with_suffix(".lora")
    save_adapter(path, "test", bundle.spec, read_peft(folder, bundle))
    return open_adapter(path, bundle.spec)


def opened(engine: str, folder: Path) -> Runtime:
    from edgedec.bundle import Bundle
    from edgedec.errors import RuntimeUnavailable
    from edgedec.runtime import open_runtime

    try:
        return open_runtime(engine, Bundle.open(folder))
    except RuntimeUnavailable as error:
        pytest.skip(str(error))


def logits(runtime: Runtime, adapter: LoraAdapter | None) -> Any:
    call = Call(Rows.chain(IDS, 0), runtime.new_cache(64), outputs=ALL_LOGITS, adapter=adapter)
    return runtime.forward([call])[0].logits


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"use_rslora": True, "lora_alpha": 4},
        {"r": 6, "alpha_pattern": {"q_proj": 5}},
        {"targets": ["q_proj", "v_proj"]},
        {"targets": ["k_proj", "down_proj"]},
    ],
    ids=["all", "rslora", "alpha-pattern", "q-v", "k-down"],
)
def test_an_adapter_gives_the_logits_of_peft(
    engine: str, settings: dict[str, Any], bundle_folder: Path, train: Callable[..., tuple[Path, Any]]
) -> None:
    folder, adapted = train(**settings)
    with torch.no_grad():
        unmerged = adapted(torch.tensor([IDS])).logits[0].numpy()
        plain = adapted.get_base_model()
        with adapted.disable_adapter():
            without = adapted(torch.tensor([IDS])).logits[0].numpy()
        merged = adapted.merge_and_unload()(torch.tensor([IDS])).logits[0].numpy()
    assert plain is not None
    runtime, adapter = opened(engine, bundle_folder), converted(folder, bundle_folder)
    found = logits(runtime, adapter)
    assert np.abs(unmerged - without).max() > 0.05  # the adapter does something
    np.testing.assert_allclose(found, unmerged, atol=1e-4)
    np.testing.assert_allclose(found, merged, atol=1e-4)
    np.testing.assert_allclose(logits(runtime, None), without, atol=1e-4)


@pytest.mark.parametrize("engine", ENGINES)
def test_many_adapters_share_a_call(engine: str, bundle_folder: Path, train: Callable[..., tuple[Path, Any]]) -> None:
    runtime = opened(engine, bundle_folder)
    adapters = [None, *(converted(train(seed)[0], bundle_folder) for seed in (1, 2)), None]
    calls = [Call(Rows.chain(IDS, 0), runtime.new_cache(64), outputs=ALL_LOGITS, adapter=a) for a in adapters]
    together = [result.logits for result in runtime.forward(calls)]
    alone = [logits(runtime, adapter) for adapter in adapters]
    for a, b in zip(together, alone, strict=True):
        if runtime.capabilities.batch_invariant:
            assert a is not None
            assert a.tobytes() == b.tobytes()
        else:
            np.testing.assert_allclose(a, b, atol=1e-5)
    assert together[0] is not None
    assert together[1] is not None
    assert np.abs(together[0] - together[1]).max() > 0.05


def test_what_cannot_be_kept_is_refused(
    bundle_folder: Path, train: Callable[..., tuple[Path, Any]], tmp_path: Path
) -> None:
    folder, _ = train()
    config = json.loads((folder / "adapter_config.json").read_text())
    for change, word in ({"use_dora": True}, "use_dora"), ({"peft_type": "IA3"}, "IA3"), ({"bias": "all"}, "bias"):
        (folder / "adapter_config.json").write_text(json.dumps(config | change))
        with pytest.raises(CheckpointError, match=word):
            converted(folder, bundle_folder)
    broken = tmp_path / "broken.lora"
    broken.write_bytes(b"EDGELORA" + bytes(100))
    from edgedec.bundle import Bundle

    with pytest.raises(UsageError, match=r"damaged|cut short"):
        open_adapter(broken, Bundle.open(bundle_folder).spec)


def test_experts_embeddings_and_heads_are_not_adapted(tmp_path: Path) -> None:
    """A matrix that no runtime would add anything to is refused, not left out."""
    from edgedec.bundle.adapter import LowRank, adaptable
    from edgedec.spec import Attention, ModelSpec, Moe

    layer = (Attention(2, 1, 16, 0.25, rope=None), Moe(4, 2, 16, shared_size=16))
    spec = ModelSpec("test", 32, 16, 64, (layer,), 1e-5, False).check()
    assert {"blocks.0.qkv", "blocks.1.shared_down"} <= adaptable(spec)
    for name in ("blocks.1.gate_up", "embed", "head"):
        rows, columns = spec.tensors()[name]
        low = LowRank(np.ones((1, columns), np.float32), np.ones((rows, 1), np.float32))
        save_adapter(tmp_path / "a.lora", "test", spec, {name: low})
        with pytest.raises(UsageError, match=name):
            open_adapter(tmp_path / "a.lora", spec)
