"""LongRoPE's two sets of frequencies: in the spec, and in what a runtime is given. Beside transformers:
tests/parity/test_long_ropes.py."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgedec.bundle import MANIFEST, Bundle
from edgedec.errors import BundleCorrupt, UsageError
from edgedec.export.onnx import whole_model_reason
from edgedec.runtime import (
    ALL_LOGITS,
    Call,
    Rows,
    forward_one,
    open_runtime,
    registry,
    rope_key,
    rope_room,
    suit,
    suits,
    why_chosen,
)
from edgedec.runtime.long_ropes import LongRopeRuntime, with_long_ropes
from edgedec.runtimes.reference import Reference
from edgedec.spec import ModelSpec, Rope
from edgedec.testing.conformance.bundles import random_weights, write_bundle
from edgedec.testing.conformance.models import MODELS

ORIGINAL = 20


def spec_of(**rope: object) -> ModelSpec:
    plain = MODELS["plain"]
    short = plain.ropes[0].inv_freq
    given = {"inv_freq": short, "long_inv_freq": tuple(f / 3 for f in short), "original": ORIGINAL} | rope
    return replace(plain, ropes=(Rope(**given), *plain.ropes[1:]))  # type: ignore[arg-type]


def runtime_of(spec: ModelSpec) -> Reference:
    weights = random_weights(spec)
    return Reference(spec, lambda name, start, stop: weights[name][start:stop])


@pytest.mark.parametrize(
    ("rope", "words"),
    [
        ({"original": 0}, "belong together"),
        ({"long_inv_freq": ()}, "belong together"),
        ({"long_inv_freq": (1.0,)}, "not as many as inv_freq"),
        ({"original": MODELS["plain"].context_length}, "out of range"),
        ({"original": -1}, "out of range"),
    ],
)
def test_sets_that_do_not_fit_are_refused(rope: dict[str, object], words: str) -> None:
    spec_of().check()
    with pytest.raises(BundleCorrupt, match=words):
        spec_of(**rope).check()


def test_positions_are_numbered_one_set_after_the_other() -> None:
    spec = spec_of()
    rope = spec.ropes[0]
    assert spec.positions == ORIGINAL + spec.context_length
    found = rope.angles(np.array([0, 19, 20, 25]), ORIGINAL)
    np.testing.assert_array_equal(found[:2], np.array([[0], [19]]) * np.array(rope.inv_freq))
    np.testing.assert_array_equal(found[2:], np.array([[0], [5]]) * np.array(rope.long_inv_freq))


def test_a_cache_has_the_set_of_its_text() -> None:
    spec = spec_of()
    runtime = with_long_ropes(runtime_of(spec))
    assert with_long_ropes(runtime) is runtime
    long = replace(spec.ropes[0], inv_freq=spec.ropes[0].long_inv_freq, long_inv_freq=(), original=0)
    alone = {False: replace(long, inv_freq=spec.ropes[0].inv_freq), True: long}
    ids = np.arange(12)
    for length in (12, 40):
        cache, bare = (
            runtime.new_cache(30),
            runtime_of(replace(spec, ropes=(alone[length > ORIGINAL], *spec.ropes[1:]))),
        )
        assert not suits(cache, 12), "until it is said how long a text is, it fills the cache"
        suit(cache, length)
        found = forward_one(runtime, Call(Rows.chain(ids, 0), cache, outputs=ALL_LOGITS)).logits
        cache.commit(range(12))
        wanted = forward_one(bare, Call(Rows.chain(ids, 0), bare.new_cache(30), outputs=ALL_LOGITS)).logits
        np.testing.assert_allclose(found, wanted, atol=1e-5)
        assert cache.positions(min(spec.attention)).tolist() == ids.tolist()
        assert rope_key(cache) == ("long" if length > ORIGINAL else "")
        assert rope_room(cache, 12) == (8 if length == 12 else 1 << 62)
        fork, kept = cache.fork(), runtime.new_cache(30)
        kept.load(cache.save())
        assert suits(fork, length)
        assert suits(kept, length)
        suit(fork, 41 - length)
        assert (fork.length, cache.length) == (0, 12), "a text of the other kind is read anew"


def test_a_row_beyond_a_short_text_is_refused() -> None:
    runtime = with_long_ropes(runtime_of(spec_of()))
    cache = runtime.new_cache(18)
    with pytest.raises(UsageError, match="a text of more than 20 tokens has other ropes"):
        runtime.forward([Call(Rows.chain([1], ORIGINAL), cache)])


@pytest.mark.parametrize(("original", "version"), [(ORIGINAL, 6), (0, 4)])
def test_older_readers_refuse_a_bundle_of_two_sets(original: int, version: int, tmp_path: Path) -> None:
    spec = spec_of() if original else MODELS["plain"]
    bundle = write_bundle(tmp_path / "b", spec, random_weights(spec))
    assert (bundle.manifest.version, bundle.spec.original_length) == (version, original)
    assert Bundle.open(tmp_path / "b", verify=True).spec == spec


def test_files_that_have_one_set_are_not_made() -> None:
    assert "its rope differs for texts of more than 20 tokens" in str(whole_model_reason(spec_of()))
    assert whole_model_reason(MODELS["plain"]) is None


def test_the_reason_for_an_engine_is_that_of_its_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = write_bundle(tmp_path / "long", spec_of(), random_weights(spec_of()))
    for reason in ("it is the quickest", ""):
        monkeypatch.setattr(registry, "why_chosen", lambda engine, reason=reason: reason)
        runtime = open_runtime("reference", bundle)
        assert isinstance(runtime, LongRopeRuntime)
        assert why_chosen(runtime) == reason


def test_tables_are_the_same_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, weights = spec_of(), random_weights(spec_of())
    whole = write_bundle(tmp_path / "whole", spec, weights)
    monkeypatch.setattr("edgedec.export.weights._ROPE_ROWS", 7)
    pieces = write_bundle(tmp_path / "pieces", spec, weights)
    assert {name: file.sha256 for name, file in pieces.manifest.files.items()} == {
        name: file.sha256 for name, file in whole.manifest.files.items()
    }


def test_tables_that_end_beyond_the_weights_are_refused(tmp_path: Path) -> None:
    """Both sets are there: a table of half the positions would still fit."""
    spec = spec_of()
    bundle = write_bundle(tmp_path / "long", spec, random_weights(spec))
    path = bundle.path / MANIFEST
    manifest = json.loads(path.read_text())
    size, table = bundle.manifest.files["weights.bin"].size, 4 * spec.positions * len(spec.ropes[0].inv_freq)
    manifest["ropes"][0] = [(size - table // 2) // 64 * 64] * 2
    path.write_text(json.dumps(manifest))
    with pytest.raises(BundleCorrupt, match="rope 0"):
        Bundle.open(bundle.path)
