"""A checkpoint of any architecture that optimum supports -> ONNX -> bundle (`edgedec export --via optimum`).

`optimum-cli` runs as a program of its own, so that it may live in another environment: optimum-onnx needs an older
transformers than others do. It gets a folder of safetensors, no network, and no permission to run a model's code.
"""

from __future__ import annotations

import json
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
from edgedec.export.older_config import older
from edgedec.export.safetensors import read_json
from edgedec.export.text import TOKENIZER
from edgedec.export.writer import Progress

VARIABLE, PROGRAM = "EDGEDEC_OPTIMUM_CLI", "optimum-cli"
TASK = "text-generation-with-past"
# Tokenizer, chat template and generation config, in any form that a checkpoint has them in.
_TEXTS = (".json", ".jinja", ".txt", ".model", ".tiktoken")
_VOCABULARIES = ("vocab.json", "vocab.txt", "tokenizer.model", "spiece.model", "tokenizer.tiktoken")


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
        staged, made = Path(folder) / "checkpoint" / source.name, Path(folder) / "onnx"
        stage(source, staged)
        _run(program, staged, made, str(source))
        progress("optimum", 1, 1)
        _bring_tokenizer(source, made, staged)
        (staged / "config.json").write_bytes((source / "config.json").read_bytes())
        return import_graph(made, out, options, progress, staged, source)


def stage(source: Path, staged: Path) -> None:
    """The checkpoint as optimum reads it: its config in older words, its small files, and links to its weights."""
    staged.mkdir(parents=True)
    config = older(read_json(source / "config.json"), str(source / "config.json"))
    for path in source.iterdir():
        if path.suffix == ".safetensors":
            (staged / path.name).symlink_to(path.resolve())
        elif path.suffix in _TEXTS and path.is_file():
            shutil.copyfile(path, staged / path.name)
    (staged / "config.json").write_text(json.dumps(config), "utf-8")


def _bring_tokenizer(source: Path, made: Path, staged: Path) -> None:
    """A tokenizer always travels: the checkpoint's own, else the one that optimum converted."""
    if (staged / TOKENIZER).is_file():
        return
    if (made / TOKENIZER).is_file():
        shutil.copyfile(made / TOKENIZER, staged / TOKENIZER)
    elif kept := [name for name in _VOCABULARIES if (source / name).is_file()]:
        raise CheckpointError(
            f"{source}: has {kept[0]} and no {TOKENIZER}, and optimum made none; convert it with "
            "transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
        )


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


def _run(program: str, source: Path, target: Path, name: str) -> None:
    """Run the export; CheckpointError with the last line of its output if it fails."""
    command = [program, "export", "onnx", "--model", str(source.resolve()), "--task", TASK, str(target)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        why = lines[-1][:400] if lines else f"exit code {done.returncode}"
        raise CheckpointError(f"{name}: {PROGRAM} cannot export it: {why}")
