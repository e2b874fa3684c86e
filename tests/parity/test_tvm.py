"""Compiled libraries: the native engine's bytes on every kind of call, and code that is not run unasked."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from drafting import run

from edgedec import Model
from edgedec import open as open_model
from edgedec.bundle import Bundle
from edgedec.bundle.locate import NANO, find
from edgedec.drafters import Drafter, DrafterContext, make_drafter
from edgedec.errors import BundleCorrupt, BundleUnsafe, RuntimeUnavailable, UsageError
from edgedec.export.amend import add_artifact
from edgedec.runtime import Call, CallResult, Outputs, Rows, Runtime, RuntimeOptions, forward_one, open_runtime
from edgedec.runtime.machines import machines_here
from edgedec.runtime.trust import trusting
from edgedec.runtimes.tvm.support import library_lacks
from edgedec.spec import KV_FORMATS, Attention, Mlp, ModelSpec, PowerLaw, Rope
from edgedec.testing.conformance.bundles import random_weights, write_bundle
from edgedec.testing.fakes import Limited

pytest.importorskip("tvm_ffi")
pytest.importorskip("tvm")
pytestmark = pytest.mark.skipif(not machines_here() or shutil.which("c++") is None, reason="no machine to compile for")

ALL = Outputs(logits=True, top=5, logsum=True)
_HEADS = Attention(4, 2, 32, 32**-0.5, qk_norm="head", qkv_bias=True, softcap=8.0)
SPEC = ModelSpec(
    "small", 101, 64, 384,
    ((_HEADS, Mlp(96)), (replace(_HEADS, window=9, sinks=2, qk_norm="none"), Mlp(96, post_norm="rms"))),
    1e-5, False, (Rope(tuple(1e4 ** (-j / 16) for j in range(16))),), final_softcap=6.0,
)  # fmt: skip


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A small model of many options, with a library for this machine."""
    folder = tmp_path_factory.mktemp("tvm") / "small"
    return write_bundle(folder, SPEC, random_weights(SPEC), "int4", (f"tvm:{machines_here()[0]}",))


@pytest.fixture(params=KV_FORMATS)
def pair(request: pytest.FixtureRequest, bundle: Bundle) -> tuple[Runtime, Runtime]:
    with trusting(True):
        opened = [open_runtime(name, bundle, RuntimeOptions(2, request.param)) for name in ("native", "tvm")]
    return opened[0], opened[1]


def conversation(runtime: Runtime) -> list[CallResult]:
    """A prompt, a token, a tree of which a path is kept, a token after it, a fork, a slice."""
    cache, found = runtime.new_cache(384), []
    prompt = np.arange(300) * 7 % 101
    for at in range(0, 300, 100):
        found.append(forward_one(runtime, Call(Rows.chain(prompt[at : at + 100], at), cache, outputs=ALL)))
        cache.commit(range(100))
    tree = Rows.tree([11, 12, 13, 14, 15], parents=[-1, 0, 0, 2, 2], start=300)
    found.append(forward_one(runtime, Call(tree, cache, outputs=ALL._replace(hidden=(-1, 1)))))
    cache.commit([0, 2, 4])
    fork = cache.fork()
    calls = [Call(Rows.chain([7], 303), cache, outputs=ALL), Call(Rows.chain([8, 9], 303), fork, outputs=ALL)]
    found += runtime.forward(calls)
    cache.rollback()
    first = forward_one(runtime, Call(Rows.chain([7], 303), cache, [0, 1], outputs=Outputs(hidden=(1,))))
    rest = Call(Rows.chain([7], 303), cache, [2, 3], first.hidden[1], ALL)
    return [*found, forward_one(runtime, rest)]


def test_bytes_are_the_native_engines(pair: tuple[Runtime, Runtime]) -> None:
    native, compiled = (conversation(runtime) for runtime in pair)
    assert len(native) == len(compiled) == 7
    for one, other in zip(native, compiled, strict=True):
        assert one.logits is not None
        assert other.logits is not None
        assert one.logits.tobytes() == other.logits.tobytes()
        for name in ("ids", "scores", "logsum"):
            assert np.array_equal(getattr(one, name), getattr(other, name)), name
        for b, state in one.hidden.items():
            assert state.tobytes() == other.hidden[b].tobytes()


def test_code_is_not_run_unasked(bundle: Bundle) -> None:
    with pytest.raises(BundleUnsafe, match=r"tvm-.*\.so is machine code.*--trust-code"):
        open_runtime("tvm", bundle)


OPENED = """
import sys
from edgedec.bundle import Bundle
from edgedec.runtime import RuntimeOptions, open_runtime
from edgedec.runtime.trust import trusting
with trusting(True):
    runtime = open_runtime("tvm", Bundle.open(sys.argv[1]), RuntimeOptions(1))
print(runtime.capabilities.isa, *sorted({"tvm", "tvm_ffi", "torch"} & set(sys.modules)))
"""


def test_neither_the_compiler_nor_its_packages_are_imported(bundle: Bundle) -> None:
    done = subprocess.run([sys.executable, "-c", OPENED, bundle.path], capture_output=True, text=True, check=True)
    machine, *imported = done.stdout.split()
    assert machine == machines_here()[0]
    assert imported == []


def test_a_pinned_makers_library_is_run(bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cryptography")
    from edgedec.signing import pin
    from edgedec.signing.makers import new_key, sign

    monkeypatch.setenv("EDGEDEC_KEYS", str(tmp_path / "keys"))
    copy, maker = tmp_path / "copy", new_key()
    shutil.copytree(bundle.path, copy)
    sign(Bundle.open(copy), maker, "")
    with pytest.raises(BundleUnsafe, match="have not trusted"):
        open_runtime("tvm", Bundle.open(copy))
    pin(maker.public, "maker")
    assert conversation(open_runtime("tvm", Bundle.open(copy), RuntimeOptions(1)))


def test_a_changed_library_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(bundle.path, copy)
    library = next(copy.glob("tvm-*.so"))
    raw = bytearray(library.read_bytes())
    raw[len(raw) // 2] ^= 1
    library.write_bytes(raw)
    with trusting(True), pytest.raises(BundleCorrupt, match=library.name):
        open_runtime("tvm", Bundle.open(copy))


def test_a_bundle_without_a_library_says_so() -> None:
    with pytest.raises(RuntimeUnavailable, match="edgedec add tvm:"):
        open_runtime("tvm", Bundle.open(find(NANO)))


def test_what_cannot_be_compiled_is_named(bundle: Bundle) -> None:
    power = PowerLaw(2, 2, 32, 32**-0.5, norm="none", inner_size=96, entry=True)
    assert library_lacks(replace(SPEC, layers=((_HEADS, power),))) == (
        "block 1 (power_law): compiled libraries have attention, mlp, moe, ssm"
    )
    assert "heads of 24 values" in (library_lacks(replace(SPEC, layers=((Attention(2, 2, 24, 1.0),),))) or "")
    with pytest.raises(UsageError, match=r"no such machine; there are: .*tvm:x86-64-v3"):
        add_artifact(bundle.path, "tvm:pdp-11")


def test_nano_tells_its_story_with_tables_heads_and_drafts(tmp_path: Path) -> None:
    folder = tmp_path / "nano"
    shutil.copytree(find(NANO), folder)
    machine = machines_here()[-1]
    added = add_artifact(folder, f"tvm:{machine}")
    assert f"tvm-{machine}.so" in added.manifest.files
    native = open_model(folder, engine="native", threads=1)
    ids = native.tokenizer.encode("Once upon a time")
    plain, *_ = run(native.runtime, drafter_of(native, "off"), ids, max_tokens=60)
    model = open_model(folder, engine="tvm", threads=1, trust_code=True)
    for name in ("recycling", "hydra", "medusa", "eagle3"):
        told, _, stats, _ = run(model.runtime, Limited(drafter_of(model, name), 4), ids, max_tokens=60)
        assert told == plain
        assert stats.proposed > 0


def drafter_of(model: Model, name: str) -> Drafter:
    return make_drafter(name, DrafterContext(model.runtime, model.bundle, lambda: model.tokenizer), {})
