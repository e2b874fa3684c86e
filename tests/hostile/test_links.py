"""Nothing is read through a link out of the folder that was named, and no name of a server leads out of a cache."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from checkpoints import write_llama, write_safetensors
from hub_server import serving_hub

from edgedec.bundle import Bundle
from edgedec.errors import CheckpointError

pytest.importorskip("onnx", reason="exporting needs onnx")

from decoder_graphs import write_decoder

from edgedec.export.adapter import CONFIG, WEIGHTS, read_peft
from edgedec.export.decoder_graph import import_graph
from edgedec.export.drafts.files import open_draft
from edgedec.export.exporter import ExportOptions, export

OPTIONS = ExportOptions(weights="f32", check=False, runtimes=("native",))


def moved(folder: Path, name: str, outside: Path) -> None:
    """A file of the folder lies outside, and a link leads there."""
    outside.mkdir(exist_ok=True)
    shutil.move(folder / name, outside / Path(name).name)
    (folder / name).symlink_to(outside / Path(name).name)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"])
def test_an_export_reads_no_file_of_elsewhere(tmp_path: Path, name: str) -> None:
    source = write_llama(tmp_path / "source")
    moved(source, name, tmp_path / "outside")
    with pytest.raises(CheckpointError, match=f"{name}: a link out of"):
        export(str(source), tmp_path / "bundle", OPTIONS)
    assert not (tmp_path / "bundle").exists()


def test_a_link_inside_is_a_file(tmp_path: Path) -> None:
    source = write_llama(tmp_path / "source")
    (source / "model.safetensors").rename(source / "weights.safetensors")
    (source / "model.safetensors").symlink_to("weights.safetensors")
    (source / "README.md").symlink_to("/etc/hostname")  # which nobody reads
    export(str(source), tmp_path / "bundle", OPTIONS)
    Bundle.open(tmp_path / "bundle", verify=True)


def test_a_snapshot_of_the_hubs_cache_links_to_its_blobs_only(tmp_path: Path) -> None:
    model = tmp_path / "models--a--b"
    snapshot = write_llama(model / "snapshots" / ("0" * 40))
    moved(snapshot, "tokenizer.json", model / "blobs")
    export(str(snapshot), tmp_path / "bundle", OPTIONS)
    moved(snapshot, "config.json", tmp_path / "outside")
    with pytest.raises(CheckpointError, match=r"config\.json: a link out of"):
        export(str(snapshot), tmp_path / "other", OPTIONS)


@pytest.mark.parametrize("name", ["model.onnx", "config.json", "tokenizer.json"])
def test_an_import_reads_no_file_of_elsewhere(tmp_path: Path, name: str) -> None:
    source = write_decoder(tmp_path / "source")
    moved(source, name, tmp_path / "outside")
    with pytest.raises(CheckpointError, match=f"{name}: a link out of"):
        import_graph(source, tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def test_an_import_reads_no_folder_of_elsewhere(tmp_path: Path) -> None:
    source = write_decoder(tmp_path / "source")
    (tmp_path / "outside").mkdir()
    shutil.move(source / "model.onnx", tmp_path / "outside" / "model.onnx")
    (source / "onnx").symlink_to(tmp_path / "outside")
    with pytest.raises(CheckpointError, match="onnx: a link out of"):
        import_graph(source, tmp_path / "bundle")


def test_an_adapter_reads_no_file_of_elsewhere(nano: Path, tmp_path: Path) -> None:
    folder = tmp_path / "peft"
    folder.mkdir()
    (folder / CONFIG).write_text(json.dumps({"peft_type": "LORA"}))
    write_safetensors(folder / WEIGHTS, {"a": np.ones((1, 1), np.float32)})
    moved(folder, CONFIG, tmp_path / "outside")
    with pytest.raises(CheckpointError, match="a link out of"):
        read_peft(folder, Bundle.open(nano))


def test_a_draft_reads_no_file_of_elsewhere(tmp_path: Path) -> None:
    source = write_llama(tmp_path / "source")
    moved(source, "config.json", tmp_path / "outside")
    with pytest.raises(CheckpointError, match="a link out of"):
        open_draft(source)


# ---- what a hub says

LIES: dict[str, tuple[dict[str, str], str]] = {
    "an ETag that leads out": ({"etag": "../../../../escaped"}, "ETag"),
    "an ETag that is a path": ({"etag": "/tmp/escaped"}, "ETag"),
    "an ETag that is hidden": ({"etag": ".."}, "ETag"),
    "a commit that leads out": ({"commit": "../../../../escaped"}, ""),
    "a commit of another length": ({"commit": "0" * 39}, "commit"),
    "a file that leads out": ({"name": "../../../../escaped.json"}, ""),
}


@pytest.mark.parametrize("case", LIES)
def test_a_hubs_names_are_checked_before_they_name_a_file(tmp_path: Path, case: str) -> None:
    pytest.importorskip("huggingface_hub", reason="pulling needs huggingface_hub")
    lies, why = LIES[case]
    home = tmp_path / "deep" / "down"
    with serving_hub({"a/b": write_llama(tmp_path / "repository")}) as (address, hub):
        hub.lies = lies
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING"))}
        more = {"HF_ENDPOINT": address, "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_XET": "1"}
        places = {"HF_HOME": str(home / "hf"), "EDGEDEC_CACHE": str(home / "cache")}
        before = names_below(tmp_path, but=home)
        command = [sys.executable, "-m", "edgedec", "pull", "a/b"]
        done = subprocess.run(command, env=kept | more | places, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("edgedec: ")
    assert why in last
    assert "Traceback" not in done.stderr
    assert names_below(tmp_path, but=home) == before
    assert [path for path in tmp_path.rglob("*") if "escaped" in path.name] == []
    assert not Path("/tmp/escaped").exists()
    assert not list((home / "cache").rglob("edgedec.json"))


def names_below(folder: Path, but: Path) -> list[Path]:
    keep: Callable[[Path], bool] = lambda path: but not in (path, *path.parents) and path not in but.parents  # noqa: E731
    return sorted(path for path in folder.rglob("*") if keep(path))
