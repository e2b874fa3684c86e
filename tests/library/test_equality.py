"""libedgedec replays what Python generated: 200 random requests with sampling, drafters, caches, forks, saved sessions.

The same file is replayed by Kotlin (GenerateTest.kt), by JavaScript (tests/web/test_equality.py) and on other machines
(test_elsewhere.py); that it is what Python generates now is a test of tests/android.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from clibrary import opened
from kotlin_golden import CACHES, GOLDEN


def test_c_generates_what_python_generates(nano: Path, tmp_path: Path) -> None:
    models = {kv: opened(nano, kv=kv.encode()) for kv in CACHES}
    requests = json.loads(GOLDEN.read_text("utf-8"))["requests"]
    accepted, kinds = 0, set()
    for number, request in enumerate(requests):
        session = models[request["kv"]].session(speculate=request["drafts"].encode())
        sampling = request["sampling"]
        assert session.generate(request["ids"], max_tokens=16, **sampling) == request["tokens"], number
        accepted += session.result.accepted
        goes_on = continued(session, request, tmp_path / "s")
        text = session.ids[:-3] if request["then"] == "cut" else None
        assert goes_on.generate(text, max_tokens=10, **sampling | {"seed": None}) == request["more"], number
        kinds.add((request["kv"], request["drafts"], request["then"]))
    assert len(requests) >= 200
    assert len(kinds) == 4 * 3 * 4
    assert accepted, "nothing was drafted and right"


def continued(session: Any, request: dict[str, Any], path: Path) -> Any:
    """The session in which a request's text goes on."""
    if request["then"] == "fork":
        return session.fork()
    if request["then"] != "saved":
        return session
    session.save(str(path))
    other = session.model.session(speculate=request["drafts"].encode())
    other.load(str(path))
    return other
