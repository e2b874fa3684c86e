"""A server for tests: uvicorn in a thread, on a port that was free."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic, sleep
from typing import Any

import edgedec


@contextmanager
def serving(model: edgedec.Model, **settings: Any) -> Iterator[tuple[str, Any]]:
    """(its address, the `Server`); `settings` of `Settings`, those of `Limits` among them."""
    from edgedec.server.app import Server, Settings
    from edgedec.server.engine import Limits
    from edgedec.server.listen import bound, make

    known = Limits.__dataclass_fields__
    limits = Limits(**{"context": 512, **{k: settings.pop(k) for k in list(settings) if k in known}})
    server = Server(model, Settings(limits=limits, **settings))
    place = bound("127.0.0.1", 0)
    running = make(server, grace=1)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [place]}, daemon=True)
    thread.start()
    try:
        wait_for(lambda: running.started)
        yield f"http://127.0.0.1:{place.getsockname()[1]}", server
    finally:
        running.should_exit = True
        thread.join(20)
        place.close()
        assert not thread.is_alive()


def wait_for(condition: Any, seconds: float = 20.0) -> None:
    """Until it holds; a test that waits in vain fails."""
    end = monotonic() + seconds
    while not condition():
        assert monotonic() < end, "waited in vain"
        sleep(0.005)
