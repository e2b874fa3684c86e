"""Adapters in libedgedec: the tokens that Python generates with the same file, also with drafts and in a fork."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clibrary import c, library, opened
from weblibrary import write_adapter

import edgedec
from edgedec.bundle.adapter import Gates, open_adapter, save_adapter

PROMPT = [12, 375, 278, 259]


@pytest.fixture
def model(nano: Path) -> Any:
    return opened(nano)


@pytest.fixture
def file(nano: Path, tmp_path: Path) -> Path:
    write_adapter(tmp_path / "a.lora", edgedec.open(nano, engine="native"))
    return tmp_path / "a.lora"


@pytest.mark.parametrize("options", [{}, {"temperature": 0.8, "top_p": 0.9, "seed": 4}])
def test_tokens_are_pythons(model: Any, nano: Path, file: Path, options: dict[str, Any]) -> None:
    python = edgedec.open(nano, engine="native")
    twin = python.session(speculate="off", adapter=python.adapter(file))
    want = [int(token) for token in twin.tokens(PROMPT, max_tokens=40, ignore_eos=True, **options)]
    adapter = library().made("adapter_open", model.handle, str(file).encode())
    plain = model.session().generate(PROMPT, max_tokens=40, ignore_eos=1, **options)
    assert plain != want, "the adapter changes the text"
    for drafts in (b"off", b"auto"):
        session = model.session(adapter=adapter, speculate=drafts, draft=4)
        assert session.generate(PROMPT, max_tokens=40, ignore_eos=1, **options) == want
        assert (session.result.drafted > 0) == (drafts == b"auto")
    fork = session.fork()
    more = session.generate(None, max_tokens=9, ignore_eos=1)
    library()("adapter_close", adapter)  # its sessions keep it
    assert fork.generate(None, max_tokens=9, ignore_eos=1) == more


def test_an_adapter_with_gates_is_the_adapter_alone(model: Any, nano: Path, file: Path, tmp_path: Path) -> None:
    spec = edgedec.open(nano, engine="native").spec
    low = {}
    for name, pair in open_adapter(file, spec).matrices.items():
        gates = Gates(np.ones((1, pair.a.shape[1]), np.float32), np.array([[len(pair.a), 0, len(pair.b)]], np.int32))
        low[name] = pair._replace(gates=gates)
    save_adapter(tmp_path / "gated.lora", "gated", spec, low)
    texts = []
    for path in (file, tmp_path / "gated.lora"):
        adapter = library().made("adapter_open", model.handle, str(path).encode())
        texts.append(model.session(adapter=adapter).generate(PROMPT, max_tokens=20, ignore_eos=1))
    assert texts[0] == texts[1]


def test_what_is_no_adapter_of_this_model(model: Any, file: Path) -> None:
    raw = bytearray(file.read_bytes())
    for damaged, words in (
        (raw[:100], "cut short|damaged"),
        (raw[:-1] + bytes([raw[-1] ^ 1]), "damaged"),
        (b"", "not an adapter file|cut short|map"),
    ):
        file.write_bytes(damaged)
        with pytest.raises(c.EdgedecFailure, match=words) as caught:
            library().made("adapter_open", model.handle, str(file).encode())
        assert caught.value.status == "usage"
