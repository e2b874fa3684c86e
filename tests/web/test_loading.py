"""Bundles by URL: in pieces by range requests, or whole; and what a server may do wrong."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from weblibrary import Driver, Failed, needs_web

from edgedec.bundle.folder import Bundle
from edgedec.bundle.packed import pack

pytestmark = needs_web


class Handler(SimpleHTTPRequestHandler):
    """Files of a folder; of *.edb the range that was asked for."""

    def do_GET(self) -> None:
        self.server.asked.append((self.path, self.headers.get("Range")))  # type: ignore[attr-defined]
        if not self.path.endswith(".edb"):
            return super().do_GET()
        content, tag = Path(self.directory, self.path[1:]).read_bytes(), '"1"'
        first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        if self.path == "/changing.edb" and first:
            tag = '"2"'
        if self.path == "/shifted.edb" and first:
            first += 1
        part = content[first : last + 1]
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{first + len(part) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(part)))
        self.send_header("ETag", tag)
        self.end_headers()
        self.wfile.write(part)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def served(nano: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("served")
    pack(Bundle.open(nano), folder / "nano.edb")
    for name in ("changing.edb", "shifted.edb"):
        (folder / name).symlink_to("nano.edb")
    (folder / "nano").symlink_to(nano)
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder)))
    server.asked, server.url = list[Any](), f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield server
    server.shutdown()


@pytest.fixture(scope="module")
def js() -> Iterator[Driver]:
    driver = Driver()
    yield driver
    driver.close()


def test_a_packed_bundle_comes_in_pieces(js: Driver, served: Any, nano: Path) -> None:
    found = js("progress", url=f"{served.url}/nano.edb", piece=1 << 20)
    total = found["seen"][0][1]
    ranges = [asked for path, asked in served.asked if path == "/nano.edb"]
    assert len(ranges) == len(found["seen"]) == -(-total // (1 << 20)) > 3
    assert found["seen"][-1] == [total, total]
    assert found["name"] == "nano"


def test_a_folder_comes_file_by_file(js: Driver, served: Any, nano: Path) -> None:
    found = js("progress", url=f"{served.url}/nano/", piece=1 << 20)
    assert found["name"] == "nano"
    assert "/nano/edgedec.json" in dict(served.asked)
    assert found["seen"][-1][0] == found["seen"][-1][1] > 1 << 20


@pytest.mark.parametrize(
    ("name", "code"),
    [("changing.edb", "corrupt"), ("shifted.edb", "io"), ("none/", "not_found")],
)
def test_what_goes_wrong_on_the_way(js: Driver, served: Any, name: str, code: str) -> None:
    with pytest.raises(Failed) as caught:
        js("progress", url=f"{served.url}/{name}", piece=1 << 20)
    assert caught.value.code == code, caught.value


def test_a_server_that_is_not_there(js: Driver) -> None:
    with pytest.raises(Failed) as caught:
        js("progress", url="http://127.0.0.1:9/nano.edb", piece=1 << 20)
    assert caught.value.code == "io"
