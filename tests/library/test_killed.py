"""Killed while it saves a session, packs a bundle, or unpacks one: what is there afterwards is whole."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from clibrary import HEADER, library_file, needs_compiler, opened

import edgedec
from edgedec.bundle import Bundle
from edgedec.bundle.packed import unpacked

pytestmark = [needs_compiler, pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no kill -9")]
# Of each of three kinds of work.
KILLS = 70 if os.environ.get("EDGEDEC_SLOW_TESTS") else 8
PROMPT = [12, 375, 278, 259]
SAVER = """
#include <edgedec.h>
#include <stdio.h>
int main(int argc, char** argv) {
  const int32_t prompt[] = {12, 375, 278, 259};
  edgedec_model* model; edgedec_session* session; edgedec_generate_options options;
  edgedec_generate_options_init(&options, sizeof options);
  options.ignore_eos = 1, options.max_tokens = 300;
  if (argc != 3 || edgedec_open(argv[1], NULL, &model) || edgedec_session_new(model, NULL, &session)) return 1;
  if (edgedec_generate(session, prompt, 4, &options, NULL)) return 2;
  puts("begun"), fflush(stdout);
  for (;;)
    if (edgedec_session_save(session, argv[2])) return fprintf(stderr, "%s\\n", edgedec_last_error()), 3;
}
"""
# Forks a child for each line of its input, so that a kill does not cost a start of Python.
FORKS = """
import os, signal, sys
from pathlib import Path
import edgedec
from edgedec.bundle import Bundle
from edgedec.bundle.packed import pack, unpacked
kind, source, target = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
for line in sys.stdin:
    if not (child := os.fork()):
        while kind == "pack":
            pack(Bundle.open(source), target)
        unpacked(source)
        signal.pause()
    print(child, flush=True)
    os.waitpid(child, 0)
    print("ended", flush=True)
"""


def await_unfinished(folder: Path, seconds: float) -> None:
    """Waits until an unfinished file lies in a folder, no longer than so."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and not any(folder.glob(".*.partial-*")):
        pass


def cut_off(folder: Path) -> int:
    """How many unfinished files or folders lie there; they go."""
    found = [path for path in folder.rglob(".*.partial-*") if path.parent == folder or path.parent.name == "packed"]
    for path in found:
        subprocess.run(["rm", "-rf", path], check=True)
    return len(found)


def test_saving_a_session(nano: Path, tmp_path: Path) -> None:
    (tmp_path / "saver.c").write_text(SAVER)
    library, program = library_file(), tmp_path / "saver"
    flags = [f"-I{HEADER.parent}", str(library), f"-Wl,-rpath,{library.parent}"]
    subprocess.run(["cc", tmp_path / "saver.c", "-o", program, *flags], check=True)
    file, r, interrupted = tmp_path / "s" / "story.session", random.Random(3), 0
    file.parent.mkdir()
    model, python, text = opened(nano), edgedec.open(nano, engine="native"), list[int]()
    for kill in range(KILLS):
        with subprocess.Popen([program, nano, file], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"begun\n"
            # Hashing takes most of the time: every other kill waits until the file is being written.
            if kill % 2:
                await_unfinished(file.parent, 10)
            else:
                time.sleep(r.random() * 0.2)
            time.sleep(r.random() * 0.001)
            process.kill()
        interrupted += cut_off(file.parent)
        if not file.exists():
            continue
        session, twin = model.session(), python.session(speculate="off")
        session.load(str(file))
        twin.load(file)
        text = text or session.ids
        assert twin.ids == session.ids == text
        assert session.generate(None, max_tokens=2) == [int(t) for t in twin.tokens(None, max_tokens=2)]
    assert interrupted, "no save was cut off"
    assert text, "no save was finished"


@pytest.mark.parametrize("kind", ["pack", "unpack"])
def test_packing_and_unpacking_a_bundle(kind: str, nano: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed, folder = tmp_path / "nano.edb", tmp_path / "made"
    folder.mkdir()
    monkeypatch.setenv("EDGEDEC_CACHE", str(folder))
    if kind == "unpack":
        edgedec.bundle.packed.pack(Bundle.open(nano), packed)
        work, place = [str(packed), str(folder)], folder / "packed"
        whole: Callable[[], int] = lambda: opened_folders(folder)  # noqa: E731
    else:
        work, place = [str(nano), str(folder / "nano.edb")], folder
        whole = lambda: opened_pack(folder / "nano.edb", tmp_path, monkeypatch)  # noqa: E731
    interrupted, finished, longest, r = 0, 0, 0.2, random.Random(5)
    with subprocess.Popen(
        [sys.executable, "-c", FORKS, kind, *work], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for kill in range(30 * KILLS):
            if kill >= KILLS and interrupted and finished:
                break
            process.stdin.write("go\n")
            process.stdin.flush()
            child = int(process.stdout.readline())
            if waits := kill % 2 > 0:
                await_unfinished(place, 1.0)
            else:
                time.sleep(r.random() * longest)
            os.kill(child, signal.SIGKILL)
            assert process.stdout.readline() == "ended\n"
            interrupted += cut_off(folder)
            finished += (done := whole())
            longest *= 1 if waits else 0.7 if done else 1.5
        process.stdin.close()
    assert interrupted, "nothing was cut off"
    assert finished, "nothing was finished"


def opened_folders(folder: Path) -> int:
    """Opens what was unpacked, every hash checked; whether it was there. It goes."""
    found = [path for path in (folder / "packed").glob("*") if path.is_dir()]
    for path in found:
        assert Bundle.open(path, verify=True).manifest.name == "nano"
        subprocess.run(["rm", "-rf", path], check=True)
    return len(found)


def opened_pack(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Opens a packed file with both readers; whether it was there."""
    if not file.exists():
        return 0
    assert opened(file, verify=1).info.vocab_size == 4096
    with monkeypatch.context() as patch:
        patch.setenv("EDGEDEC_CACHE", str(tmp_path / "cache"))
        Bundle.open(unpacked(file), verify=True)
    subprocess.run(["rm", "-rf", tmp_path / "cache"], check=True)
    return 1
