"""The programs of docs/embed.md run as they stand there. The word after ```python names them."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import edgedec

PAGE = (Path(__file__).parents[2] / "docs" / "embed.md").read_text("utf-8")
BLOCKS = dict(re.findall(r"^```python (\w+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
needs_qt = pytest.mark.skipif(find_spec("PySide6") is None, reason="needs PySide6-Essentials")


def run(program: str, folder: Path, **more: str) -> str:
    """What a program prints, run by itself."""
    environment = os.environ | more
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=folder, env=environment, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def test_every_program_is_named() -> None:
    assert sorted(BLOCKS) == ["asyncio", "batch", "script", "window"]
    assert len(re.findall(r"^```python", PAGE, re.MULTILINE)) == len(BLOCKS)
    for name, block in BLOCKS.items():
        assert max(map(len, block.splitlines())) <= 120, name


def test_the_script(nano: Path, tmp_path: Path) -> None:
    said = run(BLOCKS["script"], tmp_path)
    assert "there was a fox.\nWhat did the fox see?\n" in said
    assert re.search(r"\d+ tokens, ended by (length|eos)$", said.strip())


def test_the_asyncio_program(nano: Path, tmp_path: Path) -> None:
    said = run(BLOCKS["asyncio"], tmp_path)
    texts = alone("Once upon a time", "Tom and Lily", "One day a dog")
    assert said.startswith("".join(f"{text}\n" for text in texts))


def test_the_batch(nano: Path, tmp_path: Path) -> None:
    texts = alone("Once upon a time", "Tom and Lily", "One day a dog", "The sun was")
    assert run(BLOCKS["batch"], tmp_path) == "".join(f"{text}\n" for text in texts)


def alone(*prompts: str) -> list[str]:
    model = edgedec.open("nano")
    return [prompt + "".join(model.session().generate(prompt, max_tokens=40)) for prompt in prompts]


def stream_of_the_docs() -> Any:
    """The asyncio program's `stream`, without the rest being run."""
    names: dict[str, Any] = {}
    exec(BLOCKS["asyncio"].rpartition("asyncio.run(main())")[0], names)
    return names["stream"]


class Endless:
    """A session that writes until it is left, and says so."""

    def __init__(self) -> None:
        self.left, self.written = threading.Event(), 0

    def generate(self, prompt: str, **options: object) -> Any:
        try:
            while True:
                self.written += 1
                yield "word "
        finally:
            self.left.set()


def test_whoever_leaves_the_stream_stops_the_thread() -> None:
    stream, session = stream_of_the_docs(), Endless()

    async def leave() -> None:
        pieces = stream(session, "Go")
        assert await anext(pieces) == "word "
        await pieces.aclose()
        assert session.left.is_set()

    asyncio.run(leave())


def test_a_cancelled_task_stops_the_thread() -> None:
    stream, session = stream_of_the_docs(), Endless()

    async def read(begun: asyncio.Event) -> None:
        async for _ in stream(session, "Go"):
            begun.set()

    async def cancel() -> None:
        begun = asyncio.Event()
        task = asyncio.create_task(read(begun))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        written = session.written
        assert session.left.is_set()
        await asyncio.sleep(0.01)
        assert session.written == written

    asyncio.run(cancel())


def test_errors_of_the_thread_reach_the_task(nano: Path) -> None:
    stream, session = stream_of_the_docs(), edgedec.open("nano", threads=1).session(context=8)

    async def read() -> list[str]:
        return [piece async for piece in stream(session, "Once upon a time " * 20)]

    with pytest.raises(edgedec.ContextFull):
        asyncio.run(read())
    assert "".join(session.generate("Once", max_tokens=3))


DRIVE = """
from PySide6.QtCore import QTimer, Qt
from PySide6.QtTest import QTest
import time

def wait(ready):
    limit = time.monotonic() + 60
    while not ready():
        assert time.monotonic() < limit
        QTest.qWait(2)

app = QApplication([])
window = Window(edgedec.open("nano", threads=1))
window.show()

# It streams, and the window's own loop turns meanwhile.
lengths, timer = set(), QTimer()
timer.timeout.connect(lambda: lengths.add(len(window.text.toPlainText())))
timer.start(0)
QTest.mouseClick(window.go, Qt.MouseButton.LeftButton)
assert window.halt.isEnabled() and not window.go.isEnabled()
wait(window.go.isEnabled)
session = edgedec.open("nano", threads=1).session()
expected = "Once upon a time" + "".join(session.generate("Once upon a time", max_tokens=300))
assert window.text.toPlainText() == expected
assert window.windowTitle() in ("edgedec: length", "edgedec: eos"), window.windowTitle()
assert len(lengths) > 5, lengths

# It stops: what would write for ever ends at the button, and writes no more.
class Endless:
    finish_reason, written = "", 0
    def generate(self, prompt, **options):
        while True:
            time.sleep(0.001)
            self.written += 1
            yield "x"

real, window.writer.session = window.writer.session, Endless()
window.prompt.setText("y")
QTest.keyClick(window.prompt, Qt.Key.Key_Return)
wait(lambda: window.text.toPlainText().startswith("yxxx"))
QTest.mouseClick(window.halt, Qt.MouseButton.LeftButton)
wait(window.go.isEnabled)
assert window.windowTitle() == "edgedec: stopped"

# An error is told, and the window is ready for more.
window.writer.session = edgedec.open("nano", threads=1).session(context=4)
window.prompt.setText("Far too long a prompt for this session")
QTest.mouseClick(window.go, Qt.MouseButton.LeftButton)
wait(window.go.isEnabled)
assert "context" in window.windowTitle(), window.windowTitle()

# It closes while it writes.
window.writer.session = endless = Endless()
QTest.mouseClick(window.go, Qt.MouseButton.LeftButton)
wait(lambda: endless.written > 3)
window.close()
assert window.worker.isFinished()
print("done")
"""


@needs_qt
def test_the_window(nano: Path, tmp_path: Path) -> None:
    program = BLOCKS["window"].rpartition('if __name__ == "__main__"')[0] + DRIVE
    assert run(program, tmp_path, QT_QPA_PLATFORM="offscreen", XDG_RUNTIME_DIR=str(tmp_path)) == "done\n"
