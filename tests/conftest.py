"""What tests of every kind share."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from itertools import count
from pathlib import Path

import pytest

import edgedec.model
from edgedec.bundle.locate import find
from edgedec.bundle.manifest import MANIFEST
from edgedec.spec import KV_FORMATS

# Python processes that tests start must find the installed package, not the folder of this checkout.
os.environ["PYTHONSAFEPATH"] = "1"
# The defaults of whoever runs the tests are not those of the tests.
os.environ["EDGEDEC_CONFIG"] = os.devnull
# What is compared reads its prompt itself; tests of shared prefixes say how much they share.
edgedec.model.PREFIX_TOKENS = 0

# What takes long for its few tests begins first, so that nothing is waited for at the end.
LONGEST = ("test_conformance", "test_tvm_kinds", "test_harness", "test_template_bounds", "test_driver", "test_formats")

DATA = Path(__file__).parents[2] / "shared" / "data"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    sizes = Counter(item.path for item in items)
    items.sort(key=lambda item: (item.path.stem not in LONGEST, -sizes[item.path]))


@pytest.fixture(scope="session")
def nano() -> Path:
    """The bundle of the model that ships with edgedec."""
    folder = find("nano")
    if not (folder / MANIFEST).is_file():
        pytest.skip("the nano bundle is not in this checkout; make it with models/nano/export.py")
    return folder


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of a random little Llama with f32 weights and caches of every format. Read it, never change it."""
    pytest.importorskip("onnx", reason="exporting needs onnx")
    from checkpoints import write_llama

    from edgedec.export.exporter import ExportOptions, export

    folder = tmp_path_factory.mktemp("tiny")
    checkpoint = write_llama(folder / "checkpoint")
    export(str(checkpoint), folder / "tiny", ExportOptions(weights="f32", kv=KV_FORMATS, check=False))
    return folder / "tiny"


@pytest.fixture(scope="session")
def data() -> Path:
    """Real tokenizers, texts and checkpoints, where they are at hand."""
    if not DATA.is_dir():
        pytest.skip("no shared data beside this checkout")
    return DATA


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clocks that go on by a microsecond at each look, so that what is decided by time is the same anywhere."""
    clock = count(1)

    def now() -> float:
        return next(clock) * 1e-6

    for name, module in list(sys.modules.items()):
        if name.startswith("edgedec."):
            for kind in ("perf_counter", "thread_time"):
                if getattr(module, kind, None) is getattr(time, kind):
                    monkeypatch.setattr(module, kind, now)
