"""What reads bytes in Python, with the inputs that fuzzers kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from fuzz import corpus_of

from hostile.readers import READERS, accepted


@pytest.mark.parametrize("target", READERS)
def test_what_fuzzers_kept(target: str, tmp_path: Path) -> None:
    files = corpus_of(target, tmp_path)
    assert len(files) > 5
    found = [accepted(target, path.read_bytes()) for path in files]
    assert any(found)
    assert not all(found)


def test_another_error_than_a_refusal_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(READERS, "python-gguf", lambda raw: [][0])
    with pytest.raises(IndexError):
        accepted("python-gguf", b"")
