"""`edgedec add`: files of another runtime for a bundle; whatever ends it early, the bundle opens as it was."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from checkpoints import write_llama
from typer.testing import CliRunner

import edgedec
from edgedec.bundle import MANIFEST, Bundle
from edgedec.cli._app import app
from edgedec.errors import BundleCorrupt, BundleError, BundleUnsafe, RuntimeUnavailable, SessionError, UsageError
from edgedec.runtime import Rows, RuntimeOptions, logits_of, open_runtime

pytest.importorskip("onnx", reason="adding needs onnx")
from edgedec.export import amend
from edgedec.export.amend import add_artifact
from edgedec.export.exporter import ExportOptions, export

IDS = [3, 50, 200, 7, 7, 100]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with the files of every runtime."""
    folder = tmp_path_factory.mktemp("whole")
    checkpoint = write_llama(folder / "checkpoint", num_hidden_layers=2)
    return export(str(checkpoint), folder / "whole", ExportOptions(kv=("f32", "int8"), check=False)).path


@pytest.fixture
def bare(whole: Path, tmp_path: Path) -> Path:
    """The same without files of any runtime."""
    folder = Path(shutil.copytree(whole, tmp_path / "whole"))
    manifest = json.loads((folder / MANIFEST).read_bytes())
    for name in {name for artifact in manifest.pop("artifacts").values() for name in artifact["files"]}:
        del manifest["files"][name]
        (folder / name).unlink()
    (folder / MANIFEST).write_text(json.dumps(manifest))
    return folder


@pytest.mark.parametrize("verb", [["add", "ort", "nano"], ["calibrate", "nano", "t"], ["add-draft", "d", "nano"]])
def test_the_bundle_of_the_package_stays_as_it_is(verb: list[str], nano: Path) -> None:
    before = content(nano)
    done = CliRunner().invoke(app, verb)
    assert done.exit_code == 1
    assert "nano: is part of the installed package; change a copy: cp -r" in " ".join(done.stderr.split())
    assert content(nano) == before


def test_saved_texts_survive_what_is_added(bare: Path, tmp_path: Path) -> None:
    """They name the model, not the files that are there; another model is another, whatever it says it was made of."""
    model = edgedec.open(bare, engine="reference", threads=1)
    session = model.session()
    list(session.tokens(IDS, max_tokens=5))
    session.save(tmp_path / "saved")
    origin = Bundle.open(bare).digest
    for kv in ((), ("int8",)):
        found = add_artifact(bare, "ort", kv)
        assert found.digest != origin == found.origin
    again = edgedec.open(bare, engine="reference", threads=1).session()
    again.load(tmp_path / "saved")
    assert again.ids == session.ids
    assert again.drafter_state_path() == session.drafter_state_path()
    changed = amend.add_files(found, {"t.bin": b"1"}, lambda m: replace(m, text=replace(m.text, bos=3)))
    assert changed.origin == changed.digest
    with pytest.raises(SessionError, match="saved from another model"):
        edgedec.open(bare, engine="reference", threads=1).session().load(tmp_path / "saved")


@pytest.mark.parametrize("origin", ["..", "A" * 64, "a" * 63, "a" * 64 + "\n"])
def test_an_origin_is_a_hash(bare: Path, origin: str) -> None:
    manifest = json.loads((bare / MANIFEST).read_bytes())
    (bare / MANIFEST).write_text(json.dumps(manifest | {"origin": origin}))
    with pytest.raises(BundleCorrupt, match="origin"):
        Bundle.open(bare)


def logits(path: Path, kv: str = "f32") -> np.ndarray:
    """Of two rows that read the others from the cache."""
    runtime = open_runtime("ort", Bundle.open(path), RuntimeOptions(threads=1, kv=kv))
    cache = runtime.new_cache(8)
    logits_of(runtime, Rows.chain(IDS, 0), cache)
    cache.commit(range(len(IDS)))
    return logits_of(runtime, Rows.chain([1, 2], len(IDS)), cache)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def test_what_is_added_is_what_export_writes(whole: Path, bare: Path) -> None:
    with pytest.raises(RuntimeUnavailable, match="edgedec add ort"):
        open_runtime("ort", Bundle.open(bare))
    for name in ("ort", "genai"):
        found = add_artifact(bare, name)
        assert name in found.manifest.artifacts
    assert found.manifest.files == Bundle.open(whole).manifest.files
    assert found.manifest.artifacts == Bundle.open(whole).manifest.artifacts
    found.verify()
    np.testing.assert_array_equal(logits(bare), logits(whole))
    assert sorted(content(bare)) == sorted(content(whole))


def test_adding_again_changes_nothing(whole: Path, bare: Path) -> None:
    add_artifact(bare, "ort")
    before = content(bare)
    add_artifact(bare, "ort")
    assert content(bare) == before


def test_another_cache_format(bare: Path) -> None:
    add_artifact(bare, "ort")
    with pytest.raises(RuntimeUnavailable, match="not f16; export again with --kv f16"):
        logits(bare, "f16")
    found = add_artifact(bare, "ort", ("f16",))
    assert found.manifest.kv_formats == ("f32", "int8", "f16")
    assert 0 < np.abs(logits(bare, "f16") - logits(bare)).max() < 0.1
    with pytest.raises(UsageError, match=r"--kv int4: .* has no scales for it; export again with --kv int4"):
        add_artifact(bare, "ort", ("int4",))
    with pytest.raises(UsageError, match="--kv f64: must be one of"):
        add_artifact(bare, "ort", ("f64",))


def test_a_runtime_that_needs_no_files(bare: Path) -> None:
    before = content(bare)
    for name in ("native", "reference"):
        assert add_artifact(bare, name).manifest.artifacts == {}
    assert content(bare) == before


def test_what_cannot_be_added(bare: Path, tmp_path: Path) -> None:
    names = "cuda, devices, genai, native, opencl, ort, reference, tvm, web"
    with pytest.raises(UsageError, match=f"no such runtime; there are: {names}"):
        add_artifact(bare, "mlc")
    odd = export(str(write_llama(tmp_path / "odd", head_dim=24)), tmp_path / "bundle", ExportOptions(check=False))
    before = content(odd.path)
    with pytest.raises(UsageError, match="cannot run this llama: head_dim 24 is not a multiple of 16"):
        add_artifact(odd.path, "ort")
    assert content(odd.path) == before


def test_links_are_not_written_through(bare: Path, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    linked.mkdir()
    for path in bare.iterdir():
        (linked / path.name).symlink_to(path)
    with pytest.raises(BundleUnsafe, match="made of links"):
        amend.add_files(replace(Bundle.open(bare), path=linked), {}, lambda manifest: manifest)


@pytest.mark.parametrize("when", ["graphs", "hashes"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_an_error_on_the_way_leaves_the_bundle_as_it_was(bare: Path, when: str, error: BaseException) -> None:
    before = content(bare)

    def progress(what: str, done: int, total: int) -> None:
        if what == when and done * 2 >= total:
            raise error

    with pytest.raises(BundleError if isinstance(error, OSError) else KeyboardInterrupt):
        add_artifact(bare, "ort", progress=progress)
    assert content(bare) == before
    assert not [path for path in bare.iterdir() if path.is_dir()], "no staging folder is left"


KILLED = """
import os, signal, sys
from pathlib import Path
from edgedec.export.amend import add_artifact
left = int(sys.argv[2])
replace = os.replace
def counted(source, target):
    global left
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
    replace(source, target)
os.replace = counted
add_artifact(Path(sys.argv[1]), "ort")
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="kills of POSIX")
@pytest.mark.parametrize("files", [0, 1, 5, 10])
def test_a_kill_half_way_leaves_the_bundle_as_it_was(bare: Path, files: int) -> None:
    """After `files` of the new ones are in place; the manifest would be the last."""
    before, digest = content(bare), Bundle.open(bare).digest
    done = subprocess.run([sys.executable, "-c", KILLED, str(bare), str(files)], capture_output=True, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
    after = content(bare)
    assert len(after) == len(before) + files, "it was killed where it should be"
    assert {name: after[name] for name in before} == before
    assert Bundle.open(bare, verify=True).digest == digest
    assert "ort" in add_artifact(bare, "ort").manifest.artifacts, "and the next one succeeds"
    assert sorted(os.listdir(bare)) == sorted([*Bundle.open(bare).manifest.files, MANIFEST])


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="kills of POSIX")
@pytest.mark.parametrize("files", [0, 1, 2, 6, 12])
def test_a_kill_while_files_are_replaced_leaves_a_bundle_that_opens(bare: Path, files: int) -> None:
    """Graphs of another edgedec are replaced: in between the bundle has no artifact, and never a wrong one."""
    add_artifact(bare, "ort")
    manifest = json.loads((bare / MANIFEST).read_bytes())
    for name in ("head.onnx", "stack.f32.onnx"):
        (bare / name).write_bytes(b"older")
        manifest["files"][name] = {"size": 5, "sha256": amend.hashed(bare)[name].sha256}
    (bare / MANIFEST).write_text(json.dumps(manifest))
    Bundle.open(bare, verify=True)
    done = subprocess.run([sys.executable, "-c", KILLED, str(bare), str(files)], capture_output=True, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
    found = Bundle.open(bare, verify=True)
    assert ("ort" in found.manifest.artifacts) == (files == 0)
    runtime = open_runtime("reference", found)
    assert np.isfinite(logits_of(runtime, Rows.chain(IDS, 0), runtime.new_cache(8))).all()
    add_artifact(bare, "ort").verify()
    assert np.isfinite(logits(bare)).all()
