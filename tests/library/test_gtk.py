"""The desktop sample in C++: compiled against the library, it tells a story in a window, which is looked at.

python tests/library/test_gtk.py SCREENSHOT.png     takes the picture of docs/c-library.md
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from clibrary import HEADER, ROOT, library_file, needs_compiler

SIZE = (640, 420)


def why_not() -> str:
    if not shutil.which("Xvfb"):
        return "no Xvfb here"
    if not shutil.which("pkg-config") or subprocess.run(["pkg-config", "--exists", "gtk+-3.0"], check=False).returncode:
        return "no GTK 3 here: apt-get install libgtk-3-dev"
    return ""


def compiled(folder: Path) -> Path:
    flags = subprocess.check_output(["pkg-config", "--cflags", "--libs", "gtk+-3.0"], text=True).split()
    library, source = library_file(), ROOT / "examples" / "gtk" / "story.cpp"
    own = [f"-I{HEADER.parent}", str(library), f"-Wl,-rpath,{library.parent}", "-pthread", "-Wall", "-Wextra"]
    subprocess.run(["c++", "-std=c++17", source, *own, *flags, "-o", folder / "story"], check=True)
    return folder / "story"


@contextmanager
def display(folder: Path) -> Iterator[dict[str, str]]:
    """An X server whose screen is a file in a folder; the environment of its programs."""
    read, write = os.pipe()
    screen = ["-screen", "0", f"{SIZE[0]}x{SIZE[1]}x24", "-fbdir", str(folder), "-nolisten", "tcp"]
    with subprocess.Popen(
        ["Xvfb", "-displayfd", str(write), *screen], pass_fds=[write], stderr=subprocess.DEVNULL
    ) as server:
        os.close(write)
        with os.fdopen(read) as said:
            number = said.readline().strip()
        try:
            yield {**os.environ, "DISPLAY": f":{number}", "NO_AT_BRIDGE": "1", "GDK_BACKEND": "x11"}
        finally:
            server.terminate()


def screen_of(folder: Path) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """[height, width, red green blue] of the screen, a file of xwd's format."""
    raw = (folder / "Xvfb_screen0").read_bytes()
    head = struct.unpack(">25I", raw[:100])
    size, width, height, line, colours = head[0], head[4], head[5], head[12], head[19]
    at = size + 12 * colours
    return np.frombuffer(raw, np.uint8, line * height, at).reshape(height, line // 4, 4)[:, :width, 2::-1]


def settled(program: Path, nano: Path, folder: Path, *more: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """What the window shows once it has been drawn and has not changed for a while (a minute at most)."""
    folder.mkdir(exist_ok=True)
    with display(folder) as env, subprocess.Popen([program, nano, *more], env=env) as window:
        screen, since, end = screen_of(folder).copy(), time.monotonic(), time.monotonic() + 60
        while time.monotonic() < end and (time.monotonic() - since < 1.5 or not (screen > 200).any()):
            time.sleep(0.1)
            now = screen_of(folder).copy()
            if (now != screen).any():
                screen, since = now, time.monotonic()
        assert window.poll() is None, "it has ended"
        window.terminate()
    return screen


@needs_compiler
@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_a_window_tells_a_story(nano: Path, tmp_path: Path) -> None:
    program = compiled(tmp_path)
    # Below the row of the prompt: dark letters on light paper, and more of them than where nobody asked for a story.
    idle, told = (
        int((settled(program, nano, tmp_path / name, *more)[80:400].mean(axis=2) < 110).sum())
        for name, more in (("idle", ()), ("told", ("tell",)))
    )
    assert told > 3000
    assert told > idle + 1000


@needs_compiler
@pytest.mark.skipif(not shutil.which("pkg-config") or bool(why_not()), reason=why_not())
def test_without_a_display_it_says_so(nano: Path, tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY")}
    done = subprocess.run([compiled(tmp_path), nano], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "no display here" in done.stderr


if __name__ == "__main__":
    import tempfile

    from PIL import Image

    with tempfile.TemporaryDirectory() as at:
        picture = settled(compiled(Path(at)), ROOT / "models" / "nano" / "bundle", Path(at) / "screen", "tell")
        Image.fromarray(picture).save(sys.argv[1])
