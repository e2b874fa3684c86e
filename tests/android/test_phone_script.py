"""`phone-test.sh` against a stand-in of adb: it presses what is on the screen, and fails where a phone would."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "android_demo" / "phone-test.sh"
# A phone that shows one screen. What is done to it goes to the log; BROKEN names what it does not do.
ADB = r"""#!/bin/sh
echo "$*" >> "$LOG"
case "$*" in
*"uiautomator dump"*) ;;
*"cat /sdcard/screen.xml"*)
  [ "$BROKEN" = story ] && echo '<node text="2 threads" bounds="[0,0][10,10]"/>' && exit
  echo '<node text="Begin a story, or say hello" bounds="[0,100][200,300]"/>'
  echo '<node text="Send" bounds="[400,100][600,300]"/><node text="Once upon a time, there" bounds="[0,0][1,1]"/>'
  echo '<node text="native, 2 threads: 41.5 tokens/s" bounds="[0,0][10,10]"/>'
  ;;
*"dumpsys package"*) [ "$BROKEN" = network ] && echo android.permission.INTERNET ;;
*"logcat"*) [ "$BROKEN" = crash ] && echo "SIGSEGV in org.edgedec.demo" ;;
*"get-state"*) [ "$BROKEN" = absent ] && exit 1 ;;
*install*) [ "$BROKEN" = install ] && exit 1 ;;
esac
exit 0
"""
STEPS = [
    "installs",
    "asks for no network",
    "unpacks and opens nano",
    "tells a story",
    "keeps its text when it is turned",
    "keeps its text when its process is killed",
    "goes on after its memory was trimmed",
    "night: look at phone-night.png",
    "no crash in the log",
]
pytestmark = pytest.mark.skipif(shutil.which("sh") is None, reason="no shell here")


def run(folder: Path, broken: str = "") -> tuple[int, dict[str, bool], str]:
    """The exit status, each step and whether it passed, and what was done to the phone."""
    for name, content in {"adb": ADB, "sleep": "#!/bin/sh\n"}.items():
        (folder / name).write_text(content)
        (folder / name).chmod(0o755)
    env = os.environ | {
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
        "LOG": str(folder / "log"),
        "BROKEN": broken,
    }
    done = subprocess.run(["sh", SCRIPT], cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False)
    lines = [line.split(" ", 1) for line in done.stdout.splitlines() if line.startswith(("PASS ", "FAIL "))]
    return done.returncode, {step: mark == "PASS" for mark, step in lines}, (folder / "log").read_text()


def test_a_phone_on_which_all_is_well(tmp_path: Path) -> None:
    status, steps, done = run(tmp_path)
    assert steps == dict.fromkeys(STEPS, True)
    assert status == 0
    assert "shell input tap 100 200\n" in done  # the middle of the field
    assert "shell input tap 500 200\n" in done  # and of the button
    assert "shell input text Once%supon%sa%stime" in done
    assert "am kill org.edgedec.demo" in done


@pytest.mark.parametrize(
    ("broken", "step"),
    [
        ("install", "installs"),
        ("network", "asks for no network"),
        ("story", "tells a story"),
        ("crash", "no crash in the log"),
    ],
)
def test_what_a_phone_does_not_do_is_named(tmp_path: Path, broken: str, step: str) -> None:
    status, steps, _ = run(tmp_path, broken)
    assert list(steps) == STEPS
    assert not steps[step]
    assert status == 1


def test_without_a_phone_it_says_so(tmp_path: Path) -> None:
    status, steps, _ = run(tmp_path, "absent")
    assert (status, steps) == (2, {})
