"""The bodies that packages send: records them for `golden/clients`, of the scripts in examples/clients/turns.

PYTHONPATH=tests python tests/record_clients.py NAME PYTHON examples/clients/turns/NAME_turns.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "golden" / "clients"


def shape(value: Any) -> Any:
    """What a body has, without the texts in it: bodies of one shape are recorded once."""
    if isinstance(value, dict):
        return sorted((key, shape(item)) for key, item in value.items())
    if isinstance(value, list):
        found: list[Any] = []
        return [one for item in value if (one := shape(item)) not in found and not found.append(one)]  # type: ignore[func-returns-value]
    return type(value).__name__


def recorded() -> Iterator[tuple[str, str, Any]]:
    """(package, path, body) of all that are kept."""
    for file in sorted(FOLDER.glob("*.jsonl")):
        for line in file.read_text("utf-8").splitlines():
            path, body = json.loads(line)
            yield file.stem, path, body


def record(name: str, command: list[str]) -> None:
    from serving import serving

    import edgedec
    from edgedec.server.service import Server

    found: dict[str, tuple[str, Any]] = {}
    read = Server.body

    async def body(self: Server, request: Any) -> bytes:
        raw = await read(self, request)
        sent = json.loads(raw)
        found.setdefault(json.dumps([request.url.path, shape(sent)]), (request.url.path, sent))
        return raw

    Server.body = body  # type: ignore[method-assign]
    with serving(edgedec.open("nano", threads=1), slots=4, context=1024) as (place, _):
        subprocess.run(command, check=True, env={**os.environ, "EDGEDEC_URL": place})
    FOLDER.mkdir(exist_ok=True)
    lines = (json.dumps(one, ensure_ascii=False) + "\n" for one in found.values())
    (FOLDER / f"{name}.jsonl").write_text("".join(lines), "utf-8")


if __name__ == "__main__":
    record(sys.argv[1], sys.argv[2:])
