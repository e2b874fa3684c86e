"""A checkpoint of any architecture that optimum supports -> ONNX -> bundle (`edgedec export --via optimum`).

`optimum-cli` runs as a program of its own, so that it may live in another environment: optimum-onnx needs an older
transformers than others do. It gets a folder of safetensors, no network, and no permission to run a model's code.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from edgedec.bundle.cached import HubName
from edgedec.errors import CheckpointError, RuntimeUnavailable, UsageError
from edgedec.export.decoder_graph import Imported, ImportOptions, import_graph
from edgedec.export.download import download
from edgedec.export.links import check_links
from edgedec.export.writer import Progress

VARIABLE, PROGRAM = "EDGEDEC_OPTIMUM_CLI", "optimum-cli"
TASK = "text-generation-with-past"


def export_via_optimum(
    checkpoint: str, out: Path, options: ImportOptions, progress: Progress = lambda *_: None
) -> Imported:
    """Export the checkpoint at a folder or hub id through optimum, and import what it wrote to the bundle folder
    `out`."""
    program = find_optimum()
    if out.exists() and not options.force:
        raise UsageError(f"{out}: exists already; choose another place or pass --force")
    source = Path(checkpoint)
    if not source.is_dir():
        source = download(HubName.parse(checkpoint), progress).folder
    if not list(source.glob("*.safetensors")):
        raise CheckpointError(f"{source}: no safetensors there; save the model with model.save_pretrained(folder)")
    check_links(source)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.partial-", dir=out.parent) as folder:
        progress("optimum", 0, 1)
        _run(program, source, Path(folder) / "onnx")
        progress("optimum", 1, 1)
        return import_graph(Path(folder) / "onnx", out, options, progress)


def find_optimum() -> str:
    """The program optimum-cli: from EDGEDEC_OPTIMUM_CLI, this Python's folder, or the path."""
    named = os.environ.get(VARIABLE)
    if named is not None and not os.access(named, os.X_OK):
        raise RuntimeUnavailable(f"{VARIABLE}={named}: no program there")
    found = named or shutil.which(PROGRAM, path=str(Path(sys.executable).parent)) or shutil.which(PROGRAM)
    if found is None:
        raise RuntimeUnavailable(
            f"--via optimum needs {PROGRAM}: install optimum-onnx in an environment of its own (python -m venv "
            f"optimum; optimum/bin/pip install optimum-onnx) and set {VARIABLE}=optimum/bin/{PROGRAM}"
        )
    return found


def _run(program: str, source: Path, target: Path) -> None:
    """Run the export; CheckpointError with the last line of its output if it fails."""
    command = [program, "export", "onnx", "--model", str(source.resolve()), "--task", TASK, str(target)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        why = lines[-1][:400] if lines else f"exit code {done.returncode}"
        raise CheckpointError(f"{source}: {PROGRAM} cannot export it: {why}")
