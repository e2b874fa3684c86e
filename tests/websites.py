"""The site of nano that `edgedec web` writes, and servers of it, for the tests in browsers."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from weblibrary import library_folder

from edgedec.bundle.folder import Bundle
from edgedec.export import web


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


class Isolating(Quiet):
    """A server that isolates its pages from others."""

    def end_headers(self) -> None:
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        super().end_headers()


@contextmanager
def served(folder: Path, handler: type[Quiet]) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


def write_nano_site(nano: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site's folder, with the library's modules compiled from this checkout."""
    out, library = tmp_path_factory.mktemp("web") / "site", tmp_path_factory.mktemp("library")
    # As a package would carry it, with its modules.
    for path in [*library_folder().iterdir(), web.WEB / "page"]:
        (library / path.name).symlink_to(path)
    made = pytest.MonkeyPatch()
    made.setattr(web, "WEB", library)
    total = web.write_site(Bundle.open(nano), out, web.SiteSettings(spec="copy+recycling", draft=6))
    made.undo()
    assert total == sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    return out
