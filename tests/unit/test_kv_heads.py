"""Fewer key and value heads by low rank: exact where heads depend on each other, and better than their mean."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundles import ODD, random_weights
from checkpoints import write_llama

import edgedec
from edgedec.bundle import Bundle
from edgedec.errors import UsageError
from edgedec.export.exporter import ExportOptions, export
from edgedec.export.kv_heads import budget, check_heads, smaller
from edgedec.export.kv_heads_text import share_out, smaller_heads
from edgedec.kernels.cpu.loader import why_not
from edgedec.runtime import ALL_LOGITS, Call, Outputs, Rows, forward_one
from edgedec.runtimes.reference import Reference, _Widened
from edgedec.spec import Attention, ModelSpec
from edgedec.text.tokenizer import Tokenizer

IDS = np.random.default_rng(0).integers(0, 37, 90)


def logits(spec: ModelSpec, read: Any, ids: Any = IDS) -> Any:
    runtime = Reference(spec, read)
    return forward_one(runtime, Call(Rows.chain(ids, 0), runtime.new_cache(len(ids)), outputs=ALL_LOGITS)).logits


def dependent(spec: ModelSpec, seed: int) -> Any:
    """Random weights whose kv heads 0 and 2, and 1 and 3, depend on each other: keys by a turn of each pair, values by
    a matrix; dims that do not turn by a matrix too."""
    read = random_weights(spec, seed)
    tensors = {name: read(name).copy() for name in spec.tensors()}
    for b, block in spec.attention.items():
        d, pairs = block.head_dim, 0 if block.rope is None else len(spec.ropes[block.rope].inv_freq)
        for name in ("qkv", "qkv_bias"):
            if f"blocks.{b}.{name}" not in tensors:
                continue
            whole = tensors[f"blocks.{b}.{name}"]
            k = whole[block.q_dim : block.q_dim + block.kv_dim].reshape(block.n_kv_heads, d, -1)
            v = whole[block.q_dim + block.kv_dim :].reshape(block.n_kv_heads, d, -1)
            for one, other in ((0, 2), (1, 3)):
                same = np.random.default_rng([b, one])  # the bias as the weight
                turn = same.standard_normal(pairs) + 1j * same.standard_normal(pairs)
                z = turn[:, None] * (k[one, :pairs] + 1j * k[one, pairs : 2 * pairs])
                k[other, :pairs], k[other, pairs : 2 * pairs] = z.real, z.imag
                k[other, 2 * pairs :] = same.standard_normal((d - 2 * pairs,) * 2) @ k[one, 2 * pairs :]
                v[other] = same.standard_normal((d, d)) @ v[one]
    return lambda name, start, stop: tensors[name][start:stop]


def four_heads(**changes: Any) -> ModelSpec:
    spec = ODD["plain"]
    sizes = {"n_heads": 8, "n_kv_heads": 4, "qkv_bias": True}
    layers = tuple(
        tuple(replace(block, **sizes) if isinstance(block, Attention) else block for block in layer)
        for layer in spec.layers
    )
    return replace(spec, layers=layers, **changes)


def test_heads_that_depend_on_each_other_are_one_without_loss() -> None:
    spec = four_heads()
    assert {block.rope for block in spec.attention.values()} == {0, 1, None}
    assert any(2 * len(spec.ropes[block.rope].inv_freq) < 10 for block in spec.attention.values() if block.rope == 1)
    read = dependent(spec, 3)
    found = smaller_heads(spec, 2, read, IDS)
    assert {folding.groups for folding in found.foldings.values()} == {((0, 2), (1, 3))}
    assert [block.n_kv_heads for block in found.spec.attention.values()] == [2, 2, 2]
    whole, few = logits(spec, read), logits(found.spec, found.read)
    assert np.abs(whole - few).max() < 1e-3 * whole.std()
    mean = smaller_heads(spec, 2, read, IDS, pooled=True)
    assert np.abs(whole - logits(mean.spec, mean.read)).max() > 0.3 * whole.std()


def test_heads_that_do_not_lose_little() -> None:
    spec = four_heads()
    read = random_weights(spec, 1)
    plain = lambda name, start, stop: read(name)[start:stop]  # noqa: E731
    whole, errors = logits(spec, plain), {}
    for pooled in (True, False):
        found = smaller_heads(spec, 2, plain, IDS, pooled)
        errors[pooled] = np.square(logits(found.spec, found.read) - whole).mean()
    assert 0 < errors[False] < 0.8 * errors[True]


def test_what_cannot_be_is_named() -> None:
    spec = four_heads()
    for heads, says in ((4, "has 4 key and value heads"), (3, "choose a divisor"), (8, "choose a divisor")):
        with pytest.raises(UsageError, match=says):
            check_heads(spec, heads)
    with pytest.raises(UsageError, match="norms its keys"):
        check_heads(ODD["all"], 1)
    for share, says in ((0.2, "each attention block needs one head; give 25% or more"), (1.5, "150%: must be more")):
        with pytest.raises(UsageError, match=says):
            check_heads(spec, share)
    check_heads(spec, 0.25)


def test_a_budget_is_shared_out_by_what_is_lost() -> None:
    rng = np.random.default_rng(5)
    for _ in range(40):
        errors = {b: {n: float(rng.random()) for n in (1, 2, 3, 6)} for b in (0, 2, 5)}
        heads = int(rng.integers(3, 19))
        ways = [way for way in product((1, 2, 3, 6), repeat=3) if sum(way) <= heads]
        best = min(ways, key=lambda way: sum(errors[b][n] for b, n in zip(errors, way, strict=True)))
        assert share_out(errors, heads) == dict(zip(errors, best, strict=True))


def test_a_share_goes_where_heads_do_not_depend_on_each_other() -> None:
    """Blocks whose four heads are two lose two of them before the others lose any."""
    spec = four_heads()
    halves, whole = dependent(spec, 3), random_weights(spec, 3)
    first, *others = spec.attention

    def read(name: str, start: int, stop: int) -> Any:
        return whole(name)[start:stop] if name.startswith(f"blocks.{first}.") else halves(name, start, stop)

    assert (len(spec.attention), budget(spec, 0.67)) == (3, 8)
    found = smaller_heads(spec, 0.67, read, IDS)
    assert {b: block.n_kv_heads for b, block in found.spec.attention.items()} == {first: 4, others[0]: 2, others[1]: 2}
    assert not found.changes(f"blocks.{first}.o")
    assert np.abs(logits(spec, read) - logits(found.spec, found.read)).max() < 1e-3 * logits(spec, read).std()
    uniform = smaller_heads(spec, 2, read, IDS)
    assert np.abs(logits(spec, read) - logits(uniform.spec, uniform.read)).max() > 0.05 * logits(spec, read).std()


def test_every_block_is_weighed_by_what_only_it_loses() -> None:
    """With half of the heads, the blocks chosen lose least of all ways, each error computed by a whole model."""
    spec = four_heads()
    whole = random_weights(spec, 1)
    read = lambda name, start, stop: whole(name)[start:stop]  # noqa: E731
    errors: dict[int, dict[int, float]] = {}
    for b in spec.attention:
        errors[b] = {4: 0.0}
        for n in (1, 2):
            one = smaller_heads(spec, n, read, IDS)
            for other in [a for a in spec.attention if a != b]:
                del one.foldings[other]
            runtime = Reference(smaller(spec, {b: n}), only(b, one.read, read))
            outs = [hidden_after(model, b) for model in (Reference(spec, read), runtime)]
            errors[b][n] = float(np.square(outs[1] - outs[0]).sum() / np.square(outs[0]).sum())
    for share in (0.5, 0.75, 0.34):
        found = smaller_heads(spec, share, read, IDS)
        heads = {b: block.n_kv_heads for b, block in found.spec.attention.items()}
        assert heads == share_out(errors, budget(spec, share))


def only(b: int, changed: Any, read: Any) -> Any:
    """Block b's tensors of a changed model, the others as they were."""
    return lambda name, *rows: (changed if name.startswith(f"blocks.{b}.") else read)(name, *rows)


def hidden_after(runtime: Reference, b: int) -> Any:
    """The state after block b of a text."""
    call = Call(Rows.chain(IDS, 0), runtime.new_cache(len(IDS)), outputs=Outputs(hidden=(b,)))
    return forward_one(runtime, call).hidden[b].astype(np.float64)


@pytest.mark.parametrize("weights", ["f32", "int4"])
def test_export_with_fewer_heads(weights: str, tmp_path: Path) -> None:
    pytest.importorskip("onnx", reason="exporting needs onnx")
    source = write_llama(tmp_path / "checkpoint", num_key_value_heads=4)
    bundle = export(
        str(source), tmp_path / "few", ExportOptions(weights=weights, kv_heads=2, kv=("f32", "int8"), check=True)
    )
    assert {block.n_kv_heads for block in bundle.spec.attention.values()} == {2}
    assert bundle.manifest.source["kv_heads"] == [4, 4, 4]
    whole = export(str(source), tmp_path / "whole", ExportOptions(weights=weights, kv=("f32", "int8"), check=True))
    assert bundle.manifest.parity is not None
    assert whole.manifest.parity is not None
    # Held against the checkpoint with all its heads.
    assert bundle.manifest.parity.reference_perplexity == whole.manifest.parity.reference_perplexity
    assert bundle.manifest.parity.kl["f32"] > whole.manifest.parity.kl["f32"]
    made = {}
    for engine in ("reference", "ort", *(["native"] if why_not() is None else [])):
        session = edgedec.open(tmp_path / "few", engine=engine).session(speculate="off")
        made[engine] = list(map(int, session.tokens([5, 6, 7], max_tokens=12, ignore_eos=True)))
    if weights == "f32":
        assert len(set(map(tuple, made.values()))) == 1
    with pytest.raises(UsageError, match="--kv-heads 3: block 0 has 4 key and value heads"):
        export(str(source), tmp_path / "none", ExportOptions(kv_heads=3))
    assert not (tmp_path / "none").exists()


def perplexity(spec: ModelSpec, read: Any, ids: Any, window: int = 128) -> float:
    total, count = 0.0, 0
    for at in range(0, len(ids) - window, window):
        part = ids[at : at + window]
        rows = logits(spec, read, part)[:-1].astype(np.float64)
        top = rows.max(1, keepdims=True)
        total -= (rows[np.arange(window - 1), part[1:]] - top[:, 0] - np.log(np.exp(rows - top).sum(1))).sum()
        count += window - 1
    return float(np.exp(total / count))


def test_trained_models_keep_most(nano: Path, data: Path) -> None:
    """nano with one key and value head of two: perplexity of stories that it was not chosen on."""
    bundle = Bundle.open(nano)
    tokenizer = Tokenizer.load(bundle.file(bundle.manifest.text.tokenizer or ""))
    text = (data / "text" / "tinystories_train_first_197KB.txt").read_text()
    ids, chosen_on = (
        np.array(tokenizer.encode(text[:4000])[:513]),
        np.array(tokenizer.encode(text[100000:102000])[:384]),
    )
    read = _Widened(bundle)
    found = {"whole": perplexity(bundle.spec, read, ids)}
    for name, pooled in (("mean", True), ("low rank", False)):
        few = smaller_heads(bundle.spec, 1, read, chosen_on, pooled)
        found[name] = perplexity(few.spec, few.read, ids)
    print(json.dumps(found))
    assert found["low rank"] < 2.5 * found["whole"]
    assert found["mean"] > 1.4 * found["low rank"]


def test_a_trained_model_with_half_and_a_quarter_of_its_heads(data: Path, tmp_path: Path) -> None:
    """stories260K by the exporter: half of its heads tell the story on in words, means of heads in noise."""
    if not (data / "models" / "stories260K").is_dir():
        pytest.skip("stories260K is not among the shared data")
    stories = _stories()
    stories.convert_model(data / "models" / "stories260K" / "stories260K.bin", tmp_path)
    stories.convert_tokenizer(data / "models" / "stories260K" / "tok512.bin", tmp_path)
    text = (data / "text" / "tinystories_train_first_197KB.txt").read_text()
    (tmp_path / "calibration.txt").write_text(text[100000:104000])
    found = {}
    for heads in (0, 2, 1):
        options = ExportOptions(
            weights="f32", kv_heads=heads, calibrate=tmp_path / "calibration.txt", check=False, runtimes=()
        )
        bundle = export(str(tmp_path), tmp_path / f"heads{heads}", options)
        ids = np.array(Tokenizer.load(bundle.file(bundle.manifest.text.tokenizer or "")).encode(text[:4000])[:513])
        found[heads] = perplexity(bundle.spec, _Widened(bundle), ids, 256)
    print(json.dumps(found))
    assert found[2] < 1.6 * found[0]
    assert found[1] < 2.5 * found[0]


def _stories() -> Any:
    path = Path(__file__).parents[1] / "parity" / "test_stories.py"
    spec = importlib.util.spec_from_file_location("stories_of_kv_heads", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
