"""A command that runs out of memory."""

from __future__ import annotations

import pytest

from edgedec.bundle import Bundle
from edgedec.cli import main


@pytest.mark.parametrize(
    ("error", "said"), [(MemoryError(), ""), (MemoryError("a table of\n9 GiB"), ": a table of 9 GiB")]
)
def test_it_is_one_line_and_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: MemoryError, said: str
) -> None:
    def short(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(Bundle, "open", short)
    assert main(["inspect", "nano"]) == 1
    assert capsys.readouterr().err == f"edgedec: out of memory{said}\n"
