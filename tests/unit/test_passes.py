"""The passes of an export: their order, that equivalents are equivalent, what is left of an interrupted one."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundles import ODD, random_weights
from checkpoints import write_llama

from edgedec.bundle import Bundle
from edgedec.errors import BadTensor, BundleError, UsageError
from edgedec.export import exporter, own_text
from edgedec.export.exporter import ExportOptions, export
from edgedec.export.passes import PassContext, PassModel, chosen, make_pass
from edgedec.export.passes import _all as passing
from edgedec.export.passes import _rounded as rounded
from edgedec.export.passes._calibration import LEAST, wanted_tokens
from edgedec.export.passes._knapsack import choose
from edgedec.export.passes._rounded import RoundedStore
from edgedec.export.passes._statistics import Statistics
from edgedec.export.passes.allocate import rounded as nearest
from edgedec.export.passes.allocate import stored_bytes
from edgedec.plugins import PluginChoice
from edgedec.runtime import ALL_LOGITS, Call, Rows, forward_one
from edgedec.runtimes.reference import Reference
from edgedec.spec import ModelSpec
from edgedec.testing.conformance.bundles import random_weights as random_arrays
from edgedec.testing.conformance.models import MODELS

SHAPE: dict[str, Any] = {"head_dim": 16, "hidden_size": 64, "num_hidden_layers": 2, "max_position_embeddings": 64}
IDS = np.random.default_rng(0).integers(0, 37, 90)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("passes") / "checkpoint", **SHAPE)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "notes.txt"
    path.write_text("the thing and the other thing " * 60, "utf-8")
    return path


def options(text: Path | None, passes: str = "gptq", **changes: Any) -> ExportOptions:
    facts: dict[str, Any] = {"weights": "int4", "check": False, "runtimes": (), "force": True} | changes
    return ExportOptions(passes=passes, calibrate=text, **facts)


def logits(spec: ModelSpec, read: Any) -> Any:
    runtime = Reference(spec, read)
    ids = IDS % spec.vocab_size
    return forward_one(runtime, Call(Rows.chain(ids, 0), runtime.new_cache(len(ids)), outputs=ALL_LOGITS)).logits


def run(words: str, spec: ModelSpec, read: Any, folder: Path, weights: Any = "int4") -> PassModel:
    parts: Any = dict.fromkeys(("body", "head", "embed"), weights)
    context = PassContext(spec, parts, 32, RoundedStore(folder))
    model, ids = PassModel(spec, read), IDS % spec.vocab_size
    for choice in chosen(words):
        model = make_pass(choice, context)(model, Statistics((ids[:50], ids[50:])))
    return model


def weights(name: str, seed: int = 0) -> tuple[ModelSpec, Any]:
    spec = ODD[name]
    drawn = random_weights(spec, seed)
    held = {tensor: drawn(tensor) for tensor in spec.tensors()}
    return spec, lambda tensor, start, stop: held[tensor][start:stop]


def test_a_model_whose_blocks_do_not_run_alone_is_refused_by_name(text: Path, tmp_path: Path) -> None:
    routed, plain = MODELS["experts chosen before the layers"], MODELS["plain"]
    parts: Any = dict.fromkeys(("body", "head", "embed"), "int4")
    own = passing.TextSources(list, lambda n, length: (np.arange(40) % 37, np.arange(40) % 31))

    def ran(spec: ModelSpec, words: str) -> Any:
        held = random_arrays(spec)
        how = passing.Passing(chosen(words), tmp_path / f"{spec.architecture}-{words}", None, lambda *_: None)
        return how.run(PassModel(spec, lambda name, a, b: held[name][a:b]), parts, 32, frozenset(), own)

    with pytest.raises(UsageError, match="--passes: of a model whose experts are chosen before its layers"):
        ran(routed, "awq")
    assert ran(routed, "").read is None  # without passes nothing runs
    assert ran(plain, "awq").read is not None


# ---- words ----


def test_passes_run_in_the_order_of_their_stages() -> None:
    assert [c.name for c in chosen("gptq:sweeps=0+allocate:bits=5+awq+fold")] == ["awq", "fold", "allocate", "gptq"]
    assert [c.name for c in chosen("", "good")] == ["gptq"]
    assert chosen("", "fast") == []
    assert [c.name for c in chosen("", "best")] == ["awq", "gptq"]


@pytest.mark.parametrize(
    ("words", "quality", "said"),
    [
        ("gptq+gptq", "fast", "each once"),
        ("nothing", "fast", "no pass 'nothing'"),
        ("gptq:sweeps=99", "fast", "from 0 to 64"),
        ("allocate", "fast", "needs bits"),
        ("gptq", "good", "give one of them"),
        ("", "perfect", "must be one of fast, good, best"),
    ],
)
def test_words_that_are_refused(words: str, quality: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        ExportOptions(passes=words, quality=quality)


# ---- equivalents ----


@pytest.mark.parametrize("words", ["fold", "awq:grid=4", "fold+awq:grid=4"])
@pytest.mark.parametrize("name", sorted(ODD))
def test_equivalents_change_weights_and_no_logits(name: str, words: str, tmp_path: Path) -> None:
    spec, read = weights(name)
    model = run(words, spec, read, tmp_path)
    before, after = logits(spec, read), logits(spec, model.read)
    np.testing.assert_allclose(after, before, atol=2e-3 * np.abs(before).max())
    changed = [t for t, shape in spec.tensors().items() if (model.read(t, 0, shape[0]) != read(t, 0, shape[0])).any()]
    assert changed or not any(f"blocks.{b}.norm" in spec.tensors() for b in spec.attention)


def test_awq_lessens_what_rounding_changes(tmp_path: Path) -> None:
    """Inputs of very different sizes: rounded with the factors of AWQ the matrix is nearer."""
    spec, plain = weights("plain", 3)
    loud = np.exp(2 * np.random.default_rng(1).standard_normal(spec.hidden_size)).astype(np.float32)

    def read(name: str, start: int, stop: int) -> Any:
        return loud[start:stop] if name.endswith(".norm") else plain(name, start, stop)

    def error(model: PassModel) -> float:
        """Of the first matrix, rounded to nearest, in what its block makes of the texts."""
        name = "blocks.0.qkv"
        stored = nearest(model.read(name, 0, spec.tensors()[name][0]), "int4", 32)
        run = Statistics((ids,)).run(spec, lambda n, a, b: stored[a:b] if n == name else model.read(n, a, b))
        floats = Statistics((ids,)).run(spec, read)
        for one in (run, floats):
            one.advance(0)
        return float(np.square(run.state()[0] - floats.state()[0]).sum())

    ids = IDS % spec.vocab_size
    assert error(run("awq", spec, read, tmp_path)) < 0.8 * error(PassModel(spec, read))


# ---- allocation ----


def test_the_choice_is_the_best_of_all_choices() -> None:
    rng = np.random.default_rng(2)
    for _ in range(20):
        costs, sizes = rng.random((5, 3)), np.sort(rng.integers(1, 40, (5, 3)), axis=1)
        budget = int(sizes.min(axis=1).sum() + rng.integers(0, 60))
        found = choose(costs.tolist(), sizes.tolist(), budget)
        at = np.arange(5)
        every = np.stack(np.meshgrid(*[range(3)] * 5, indexing="ij"), axis=-1).reshape(-1, 5)
        fit = [c for c in every if sizes[at, c].sum() <= budget]
        assert sizes[at, found].sum() <= budget
        assert costs[at, found].sum() == pytest.approx(min(costs[at, c].sum() for c in fit))
    with pytest.raises(ValueError, match="the budget is 1"):
        choose([[1.0]], [[2]], 1)


def test_allocation_keeps_its_budget_and_spends_it_where_it_matters(tmp_path: Path) -> None:
    spec, read = weights("plain", 1)
    found = run("allocate:bits=5.5,tokens=16", spec, read, tmp_path).formats
    assert set(found) == {name for name in spec.matrices if name.startswith("blocks.")}
    assert len(set(found.values())) > 1
    shapes = spec.tensors()
    total = sum(shapes[n][0] * shapes[n][1] for n in found)
    assert sum(stored_bytes(shapes[n], fmt, 32) for n, fmt in found.items()) * 8 <= 5.5 * total
    with pytest.raises(UsageError, match="int8 in blocks of 32 has more"):
        run('allocate:bits=4,formats=["int8"]', spec, read, tmp_path)
    with pytest.raises(UsageError, match="formats=f16"):
        run('allocate:bits=4,formats=["f16"]', spec, read, tmp_path)


# ---- exports ----


def stored(bundle: Bundle) -> dict[str, bytes]:
    return {name: bundle.rows(name).tobytes() for name in bundle.manifest.tensors}


def test_the_manifest_says_what_was_done(checkpoint: Path, text: Path, tmp_path: Path) -> None:
    bundle = export(str(checkpoint), tmp_path / "b", options(text, "fold+gptq:sweeps=1"))
    source = bundle.manifest.source
    assert source["passes"] == "fold+gptq:sweeps=1"
    assert source["calibration"]["text"] == "notes.txt"
    assert source["calibration"]["tokens"] >= LEAST
    assert len(source["calibration"]["sha256"]) == 64
    assert list(tmp_path.iterdir()) == [tmp_path / "b"]  # nothing is left beside it
    plain = export(str(checkpoint), tmp_path / "p", options(text, ""))
    assert "passes" not in plain.manifest.source
    assert stored(plain) != stored(bundle)


def test_allocated_formats_are_stored(checkpoint: Path, text: Path, tmp_path: Path) -> None:
    bundle = export(str(checkpoint), tmp_path / "b", options(text, "allocate:bits=6,tokens=64+gptq:sweeps=0"))
    found = {t.format for n, t in bundle.manifest.tensors.items() if n.startswith("blocks.") and t.block}
    assert len(found) > 1
    assert bundle.manifest.tensors["head"].format == "int4"


def test_the_models_own_text(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passing, "wanted_tokens", lambda weights: 600)
    bundle = export(str(checkpoint), tmp_path / "b", options(Path("own"), "gptq:sweeps=0"))
    assert bundle.manifest.source["calibration"]["text"] == "own"
    texts = own_text.own_text(bundle, 100, 20)
    assert [len(ids) for ids in texts] == [20] * 5
    assert len({ids.tobytes() for ids in texts}) == 5
    assert all(ids[0] == bundle.manifest.text.bos for ids in texts)
    assert [list(ids) for ids in own_text.own_text(bundle, 100, 20)] == [list(ids) for ids in texts]


def test_an_interrupted_export_goes_on(
    checkpoint: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = stored(export(str(checkpoint), tmp_path / "whole", options(text)))
    put, names = RoundedStore.put, list[str]()

    def counted(self: RoundedStore, name: str, *rest: Any) -> Any:
        if len(names) == 3:
            raise KeyboardInterrupt
        names.append(name)
        return put(self, name, *rest)

    monkeypatch.setattr(RoundedStore, "put", counted)
    with pytest.raises(KeyboardInterrupt):
        export(str(checkpoint), tmp_path / "b", options(text))
    assert not (tmp_path / "b").exists()
    assert len(list(tmp_path.glob(".b.passes-*"))) == 1
    assert not list(tmp_path.glob(".b.partial-*"))
    first, names[:] = list(names), []
    monkeypatch.setattr(RoundedStore, "put", lambda self, name, *rest: (names.append(name), put(self, name, *rest))[1])
    assert stored(export(str(checkpoint), tmp_path / "b", options(text))) == whole
    assert len(first) == 3
    assert not set(first) & set(names)
    assert names
    assert not list(tmp_path.glob(".b.passes-*"))


def test_other_options_do_not_go_on_from_it(
    checkpoint: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(exporter._Export, "_fill", stop)
    for sweeps in (0, 1):
        with pytest.raises(KeyboardInterrupt):
            export(str(checkpoint), tmp_path / "b", options(text, f"gptq:sweeps={sweeps}"))
    assert len(list(tmp_path.glob(".b.passes-*"))) == 2


def test_a_disk_that_is_full(checkpoint: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save, count = np.save, list[int]()

    def full(*args: Any) -> None:
        count.append(1)
        if len(count) > 4:
            args[0].write(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        save(*args)

    monkeypatch.setattr(rounded.np, "save", full)
    with pytest.raises(BundleError, match="no space left on the disk"):
        export(str(checkpoint), tmp_path / "b", options(text))
    assert not (tmp_path / "b").exists()
    monkeypatch.setattr(rounded.np, "save", save)
    store = next(tmp_path.glob(".b.passes-*"))
    assert all(np.load(path).size for path in store.iterdir())  # nothing half-written
    export(str(checkpoint), tmp_path / "b", options(text))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"too short", f"tokens; passes need {LEAST}"),
        (b"\xff\xfe\x00 not text", "not a readable text file"),
        (None, "not a readable text file"),
    ],
)
def test_calibration_texts_that_are_refused(checkpoint: Path, tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "notes.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=said):
        export(str(checkpoint), tmp_path / "b", options(path))
    assert not (tmp_path / "b").exists()


def test_weights_that_are_not_numbers(text: Path, tmp_path: Path) -> None:
    spec, read = weights("plain")

    def spoilt(name: str, start: int, stop: int) -> Any:
        found = read(name, start, stop)
        return np.full_like(found, np.nan) if name == "blocks.1.down" else found

    with pytest.raises(BadTensor, match=r"blocks\.1\.down: holds weights that are not finite"):
        run("gptq", spec, spoilt, tmp_path)


def test_a_matrix_of_zeros(tmp_path: Path) -> None:
    spec, read = weights("plain")

    def zeros(name: str, start: int, stop: int) -> Any:
        return np.zeros_like(read(name, start, stop)) if name == "blocks.1.down" else read(name, start, stop)

    model = run("awq:grid=4+gptq", spec, zeros, tmp_path)
    assert not model.read("blocks.1.down", 0, 2).any()


@pytest.mark.parametrize("name", sorted(ODD))
def test_every_kind_of_model_goes_through(name: str, tmp_path: Path) -> None:
    """Also shapes that no block divides."""
    spec, read = weights(name)
    model = run("gptq:sweeps=1", spec, read, tmp_path)
    assert {n for n in spec.matrices & set(spec.tensors()) if n not in model.rounded} <= {"embed"}
    assert np.isfinite(logits(spec, model.read)).all()


def test_larger_models_are_calibrated_on_fewer_tokens() -> None:
    assert wanted_tokens(10**6) == 16384
    assert wanted_tokens(1_240_000_000) == 4096
    assert 4096 < wanted_tokens(600_000_000) < 16384


def test_a_bundle_is_quantized_again(checkpoint: Path, text: Path, tmp_path: Path) -> None:
    floats = export(str(checkpoint), tmp_path / "f", options(None, "", weights="f32"))
    again = export(str(floats.path), tmp_path / "b", options(text))
    straight = export(str(checkpoint), tmp_path / "s", options(text))
    assert stored(again) == stored(straight)
    assert again.manifest.source["bundle"] == "f"
    assert again.manifest.text == floats.manifest.text
    shorter = export(str(floats.path), tmp_path / "c", options(None, "", context=32))
    assert shorter.spec.context_length == 32
    with pytest.raises(UsageError, match="the bundle has 64"):
        export(str(floats.path), tmp_path / "d", options(None, "", context=65))


def test_words_in_the_manifest_can_be_given_again() -> None:
    from edgedec.export.passes._all import _words

    choice = chosen('allocate:bits=5,formats=["int4", "int8"]')[0]
    assert chosen(_words(choice)) == [choice]
    assert _words(PluginChoice("fold", {})) == "fold"
    json.dumps(_words(choice))
