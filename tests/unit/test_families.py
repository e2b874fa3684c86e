"""The families of runtimes, targets, architectures and what exporting and training are made of."""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any

import pytest

from edgedec.errors import CheckpointError, RuntimeUnavailable, UsageError
from edgedec.plugins import Family
from edgedec.plugins.about import all_about
from edgedec.runtime import RUNTIMES
from edgedec.runtime.registry import devices_of, gpu_numbers
from edgedec.runtimes import PREFERRED

PACKAGES = ("runtimes", "targets", "models", "models.heads", "models.drafts", "export.quantized")
NEEDING = {"export.artifacts": "onnx", "export.students": "torch"}


def family(package: str) -> Family[Any]:
    if package in NEEDING:
        pytest.importorskip(NEEDING[package], reason="an extra")
    found: Family[Any] = import_module(f"edgedec.{package}").FAMILY
    return found


@pytest.mark.parametrize("package", [*PACKAGES, *NEEDING])
def test_every_file_says_what_it_is(package: str) -> None:
    plugins = family(package)
    assert plugins.package == f"edgedec.{package}"
    for entry in all_about(plugins):
        assert len(entry["summary"]) > 20, entry["name"]
        json.dumps(entry)


@pytest.mark.parametrize(
    ("package", "name", "error", "words"),
    [
        (
            "runtimes",
            "natve",
            RuntimeUnavailable,
            r"no runtime 'natve' \(did you mean native\?\); there are: cuda, graph",
        ),
        ("models.heads", "medsa", UsageError, r"no draft head 'medsa' \(did you mean medusa\?\)"),
        ("export.quantized", "gptqq", CheckpointError, r"no quant_method 'gptqq' \(did you mean gptq\?\)"),
    ],
)
def test_unknown_names_are_refused(package: str, name: str, error: type[Exception], words: str) -> None:
    assert name not in family(package)
    with pytest.raises(error, match=words):
        family(package).file(name)


def test_names_that_are_written_in_other_ways() -> None:
    assert family("export.quantized").file("compressed-tensors").__name__.endswith(".compressed_tensors")
    students = family("export.students")
    assert students.file("hydra++") is students.file("hydra_plus") is students.file("hydrapp")


def test_what_runtimes_declare() -> None:
    assert set(PREFERRED) <= set(RUNTIMES.names())
    assert all("cpu" in devices_of(name) for name in PREFERRED)
    numbered = [name for name, facts in RUNTIMES.all_facts().items() if facts.numbered_gpus]
    assert numbered == ["opencl"]
    assert gpu_numbers("native") is None
    assert isinstance(gpu_numbers("opencl"), list)
