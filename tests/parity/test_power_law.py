"""PLDR-LLM: a random checkpoint in the author's layout; logits are those of a torch module, cached and not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch for the model compared with")
import torch
from safetensors.torch import save_file
from torch.nn import functional as F  # noqa: N812

import edgedec
from edgedec.bundle import Bundle
from edgedec.bundle.adapter import LoraAdapter, LowRank
from edgedec.errors import BadTensor, CheckpointError, RuntimeUnavailable, UsageError
from edgedec.export.power_law import export_power_law, with_bias
from edgedec.runtime import ALL_LOGITS, Call, Rows, Runtime, RuntimeOptions, logits_of, open_runtime

HIDDEN, HEADS, DIM, INNER, A_INNER, VOCAB, LAYERS = 48, 3, 16, 64, 20, 61, 3
TEXT = [1, 7, 3, 44, 42, 42, 5, 0, 33, 17, 8, 2, 31, 54, 9, 27]
OTHER = [5, 60, 12, 12, 9, 30, 1, 2, 3, 50, 8]


def checkpoint() -> dict[str, torch.Tensor]:
    torch.manual_seed(4)
    found: dict[str, torch.Tensor] = {}

    def linear(name: str, inputs: int, outputs: int) -> None:
        found[f"{name}.weight"] = torch.randn(outputs, inputs) * inputs**-0.5
        found[f"{name}.bias"] = 0.1 * torch.randn(outputs)

    def norm(name: str, size: int) -> None:
        found[f"{name}.weight"], found[f"{name}.bias"] = 1 + 0.2 * torch.randn(size), 0.2 * torch.randn(size)

    def glu(name: str, size: int, inner: int) -> None:
        linear(f"{name}.gluw1", size, inner)
        linear(f"{name}.gluw2", size, inner)
        linear(f"{name}.gluw3", inner, size)

    found["decoder.embedding.weight"] = torch.randn(VOCAB, HIDDEN)
    norm("decoder.layernorm1", HIDDEN)
    for i in range(LAYERS):
        p = f"decoder.dec_layers.{i}."
        for part in ("wq", "wk", "wv", "dense"):
            linear(f"{p}mha1.{part}", HIDDEN, HIDDEN)
        for part in ("Wlst", "blst", "pwlst", "alst", "balst"):
            found[f"{p}mha1.plgatt_layer.{part}"] = 0.3 * torch.randn(HEADS, DIM, DIM)
        norm(f"{p}mha1.layernorm1", DIM)
        for j in range(2):
            for k in range(2):
                glu(f"{p}mha1.reslayerAs.{j}.denseAs.{k}", DIM, A_INNER)
            norm(f"{p}mha1.reslayerAs.{j}.layernormA", DIM)
        glu(f"{p}ffn", HIDDEN, INNER)
        norm(f"{p}layernorm1", HIDDEN)
        norm(f"{p}layernorm2", HIDDEN)
    linear("final_layer", HIDDEN, VOCAB)
    return found


class Oracle:
    """The whole of a text at once, no cache of keys; written from the author's equations."""

    def __init__(self, t: dict[str, torch.Tensor]) -> None:
        self.t = {name: tensor.double() for name, tensor in t.items()}

    def linear(self, x: Any, name: str) -> Any:
        return F.linear(x, self.t[f"{name}.weight"], self.t[f"{name}.bias"])

    def norm(self, x: Any, name: str) -> Any:
        return F.layer_norm(x, x.shape[-1:], self.t[f"{name}.weight"], self.t[f"{name}.bias"], 1e-6)

    def glu(self, x: Any, name: str) -> Any:
        return self.linear(F.silu(self.linear(x, f"{name}.gluw1")) * self.linear(x, f"{name}.gluw2"), f"{name}.gluw3")

    def turned(self, x: Any) -> Any:
        """Complex numbers of neighbouring channels, times e^(i position frequency)."""
        z = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2).contiguous())
        angle = torch.arange(x.shape[-2])[:, None] * 10000.0 ** (-torch.arange(0, DIM, 2) / DIM)
        return torch.view_as_real(z * torch.polar(torch.ones_like(angle), angle)).flatten(-2)

    def curvature(self, q: Any, p: str) -> Any:
        t, a = self.t, self.norm(q.mT @ q, f"{p}mha1.layernorm1")
        for j in range(2):
            y = a
            for k in range(2):
                y = self.glu(y, f"{p}mha1.reslayerAs.{j}.denseAs.{k}")
            a = self.norm(y + a, f"{p}mha1.reslayerAs.{j}.layernormA")
        g = f"{p}mha1.plgatt_layer."
        x = t[f"{g}Wlst"] @ a + t[f"{g}blst"]
        return t[f"{g}alst"] @ (x * F.silu(x) + 1e-9).pow(t[f"{g}pwlst"]) + t[f"{g}balst"]

    def logits(self, ids: list[int], known: list[Any] | None = None) -> tuple[Any, list[Any]]:
        """Of every row, and G of each layer: `known`, else what the whole text makes it."""
        x = self.norm(self.t["decoder.embedding.weight"][ids] * HIDDEN**0.5, "decoder.layernorm1")
        used = []
        for i in range(LAYERS):
            p = f"decoder.dec_layers.{i}."
            q, k, v = (
                self.linear(x, f"{p}mha1.{part}").view(len(ids), HEADS, DIM).transpose(0, 1)
                for part in ("wq", "wk", "wv")
            )
            q, k = self.turned(q), self.turned(k)
            used.append(self.curvature(q, p) if known is None else known[i])
            mask = torch.ones(len(ids), len(ids), dtype=torch.bool).triu(1)
            scores = (q @ used[-1] @ k.mT / DIM**0.5).masked_fill(mask, float("-inf"))
            mixed = (scores.softmax(-1) @ v).transpose(0, 1).reshape(len(ids), -1)
            x = self.norm(self.linear(mixed, f"{p}mha1.dense") + x, f"{p}layernorm1")
            x = self.norm(self.glu(x, f"{p}ffn") + x, f"{p}layernorm2")
        return self.linear(x, "final_layer"), used


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, torch.Tensor], Bundle]:
    folder, tensors = tmp_path_factory.mktemp("pldr"), checkpoint()
    (folder / "hf").mkdir()
    (folder / "hf" / "config.json").write_text(json.dumps({"model_type": "pldr", "max_seq_len": 64}))
    save_file(tensors, folder / "hf" / "model.safetensors")
    return folder, tensors, export_power_law(folder / "hf", folder / "bundle", TEXT, "f32")


@pytest.fixture(scope="module", params=["reference", "native"])
def runtime(request: pytest.FixtureRequest, made: tuple[Path, dict[str, torch.Tensor], Bundle]) -> Runtime:
    return open_runtime(request.param, made[2], RuntimeOptions(threads=2))


def test_cached_is_uncached(made: tuple[Path, dict[str, torch.Tensor], Bundle], runtime: Runtime) -> None:
    """Of the text that G is inferred from: the network of every layer, run on it, and the cache of its result."""
    expected, _ = Oracle(made[1]).logits(TEXT)
    found = logits_of(runtime, Rows.chain(TEXT, 0), runtime.new_cache(64))
    np.testing.assert_allclose(found, expected.numpy(), atol=2e-3)
    assert (found.argmax(1) == expected.numpy().argmax(1)).all()


def test_another_text_by_pieces(made: tuple[Path, dict[str, torch.Tensor], Bundle], runtime: Runtime) -> None:
    oracle = Oracle(made[1])
    _, known = oracle.logits(TEXT)
    expected, _ = oracle.logits(OTHER, known)
    own, _ = oracle.logits(OTHER)
    assert float((own - expected).abs().max()) > 0.05, "random weights: G hangs on the text here"
    cache, found = runtime.new_cache(64), []
    for start, stop in ((0, 4), (4, 5), (5, 9), (9, 11)):
        found.append(logits_of(runtime, Rows.chain(OTHER[start:stop], start), cache))
        cache.commit(range(stop - start))
        cache = cache.fork()
    np.testing.assert_allclose(np.concatenate(found), expected.numpy(), atol=2e-3)
    cache.truncate(6)
    tree = Rows.tree([OTHER[6], 3, OTHER[7]], [-1, -1, 0], 6)
    np.testing.assert_allclose(logits_of(runtime, tree, cache)[[0, 2]], expected.numpy()[6:8], atol=2e-3)


@pytest.mark.parametrize("engine", ["reference", "native"])
def test_a_session_with_drafts(made: tuple[Path, dict[str, torch.Tensor], Bundle], engine: str) -> None:
    model = edgedec.open(made[2].path, engine=engine)
    texts = []
    for how in ("off", "copy+recycling:fixed=5"):
        session = model.session(speculate=how)
        texts.append([int(t) for t in session.tokens(TEXT * 2, max_tokens=24, ignore_eos=True)])
    assert session.stats.proposed > 0
    assert texts[0] == texts[1]


@pytest.mark.parametrize("engine", ["ort", "tvm"])
def test_engines_without_the_block_say_so(made: tuple[Path, dict[str, torch.Tensor], Bundle], engine: str) -> None:
    with pytest.raises(RuntimeUnavailable, match="power_law"):
        edgedec.open(made[2].path, engine=engine)


def test_the_engines_agree_in_quantized_weights(
    made: tuple[Path, dict[str, torch.Tensor], Bundle], tmp_path: Path
) -> None:
    bundle = export_power_law(made[0] / "hf", tmp_path / "int8", TEXT, "int8")
    found = []
    for name in ("reference", "native"):
        runtime = open_runtime(name, bundle, RuntimeOptions())
        found.append(logits_of(runtime, Rows.chain(OTHER, 0), runtime.new_cache(64)))
    # Random G makes attention sharp, so that a rounded activation of the engine moves single values far.
    assert np.corrcoef(found[0].ravel(), found[1].ravel())[0, 1] > 0.97


def test_texts_side_by_side_are_those_alone(made: tuple[Path, dict[str, torch.Tensor], Bundle]) -> None:
    """To the byte, on any number of threads."""
    rows = [Rows.chain(TEXT, 0), Rows.chain(OTHER, 0), Rows.chain(TEXT[:3], 0)]
    found = []
    for threads in (1, 2):
        runtime = open_runtime("native", made[2], RuntimeOptions(threads=threads))
        calls = [Call(each, runtime.new_cache(64), outputs=ALL_LOGITS) for each in rows]
        parts = [[call] for call in calls] if threads == 1 else [calls]
        found.append([result.logits.tobytes() for part in parts for result in runtime.forward(part)])
    assert found[0] == found[1]


def test_an_adapter_of_all_four_matrices(made: tuple[Path, dict[str, torch.Tensor], Bundle]) -> None:
    rng = np.random.default_rng(1)

    def low(out: int, width: int) -> LowRank:
        return LowRank(rng.normal(size=(2, width)).astype(np.float32), rng.normal(size=(out, 2)).astype(np.float32))

    matrices = {"blocks.1.qkv": low(3 * HIDDEN, HIDDEN), "blocks.2.o": low(HIDDEN, HIDDEN)}
    matrices |= {"blocks.0.gate_up": low(2 * INNER, HIDDEN), "blocks.1.down": low(HIDDEN, INNER)}
    found: list[Any] = []
    for name in ("reference", "native"):
        runtime = open_runtime(name, made[2], RuntimeOptions())
        for adapter in (None, LoraAdapter("both", "both", matrices)):
            call = Call(Rows.chain(OTHER, 0), runtime.new_cache(64), outputs=ALL_LOGITS, adapter=adapter)
            found.append(runtime.forward([call])[0].logits)
    np.testing.assert_allclose(found[1], found[3], atol=2e-3)
    assert float(np.abs(found[2] - found[3]).max()) > 0.05


def test_a_bias_goes_into_the_head() -> None:
    rng = np.random.default_rng(0)
    head, bias, weight, shift = rng.normal(size=(9, 16)), rng.normal(size=9), 1 + rng.random(16), rng.normal(size=16)
    made, moved = with_bias(head, bias, weight, shift)
    n = rng.normal(size=(5, 16))
    n -= n.mean(1, keepdims=True)
    np.testing.assert_allclose((weight * n + moved) @ made.T, (weight * n + shift) @ head.T + bias, atol=1e-9)


def test_refusals(made: tuple[Path, dict[str, torch.Tensor], Bundle], tmp_path: Path) -> None:
    folder, tensors, _ = made
    with pytest.raises(UsageError, match="outside the vocabulary"):
        export_power_law(folder / "hf", tmp_path / "a", [VOCAB])
    with pytest.raises(CheckpointError, match="max_seq_len"):
        export_power_law(folder / "hf", tmp_path / "a", TEXT * 9)
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "config.json").write_text('{"max_seq_len": 64}')
    less = {name: tensor for name, tensor in tensors.items() if not name.endswith("1.mha1.plgatt_layer.pwlst")}
    save_file(less, tmp_path / "hf" / "model.safetensors")
    with pytest.raises(BadTensor, match="pwlst: missing"):
        export_power_law(tmp_path / "hf", tmp_path / "a", TEXT)
    assert not (tmp_path / "a").exists()
