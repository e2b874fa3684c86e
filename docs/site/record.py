"""Records docs/img/demo.svg: commands are run, what they print is timed, and the recording becomes an animated SVG.

    python docs/site/record.py [--cast FILE]

The recording is an asciicast (version 2) in memory; --cast writes it. What a reader sees is what the commands printed, at
their own pace, pauses of more than a second cut short.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path
from time import perf_counter

ROOT = Path(__file__).parents[2]
OUT = ROOT / "docs" / "img" / "demo.svg"
COLUMNS, LINE, CHAR, TOP = 100, 19, 8.4, 40
TYPED, PAUSE, LONGEST = 0.035, 0.9, 1.0
COMMANDS = [
    'edgedec run -p "Once upon a time" -n 60 --temp 0.7 --seed 7',
    "edgedec run -p \"Once upon a time, there was a\" --seed 4 \\\n  --regex ' (little|happy) (bird|fox) who (found|wanted) a (big|red) (hat|boat)\\.'",
    'edgedec chat --single-turn -p "Tell me a story about a red boat." -n 60 --seed 3 --stats',
]
Event = tuple[float, str]


def record() -> list[Event]:
    """(seconds, text) of everything that appears."""
    now, events = 0.3, list[Event]()
    for command in COMMANDS:
        events.append((now, "$ "))
        for letter in command:
            now += TYPED
            events.append((now, letter))
        now += 0.3
        events.append((now, "\n"))
        for waited, text in output(command):
            now += min(waited, LONGEST)
            events.append((now, text))
        now += PAUSE
    return events


def output(command: str) -> Iterator[Event]:
    """What a command prints, with the seconds since the piece before."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    with subprocess.Popen(
        ["bash", "-c", command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PATH": path, "PYTHONUNBUFFERED": "1"},
    ) as process:
        assert process.stdout is not None
        began = perf_counter()
        while piece := os.read(process.stdout.fileno(), 4096):
            yield perf_counter() - began, piece.decode("utf-8", "replace")
            began = perf_counter()


def screen(events: list[Event]) -> list[list[Event]]:
    """The lines of the screen, each the pieces that appear on it."""
    lines, column = [list[Event]()], 0
    for now, text in events:
        for letter in text:
            if letter == "\n" or column == COLUMNS:
                lines.append([])
                column = 0
            if letter != "\n":
                lines[-1].append((now, letter))
                column += 1
    return lines


def runs(line: list[Event]) -> Iterator[tuple[int, float, str]]:
    """(column, seconds, text): letters that appear within a twentieth of a second appear together."""
    at = 0
    while at < len(line):
        end = at
        while end < len(line) and line[end][0] - line[at][0] < 0.05:
            end += 1
        yield at, line[at][0], "".join(letter for _, letter in line[at:end])
        at = end


def svg(events: list[Event]) -> str:
    """An animation without script: each run of letters is shown from its moment on, and all of it over and over."""
    lines = screen(events)
    length = events[-1][0] + 4
    width, height = COLUMNS * CHAR + 32, TOP + LINE * len(lines) + 16
    style = "text{font:14px ui-monospace,Menlo,Consolas,monospace;fill:#d6deeb;white-space:pre}.p{fill:#7fdbca}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img">',
        "<title>edgedec in a terminal</title>",
        f"<style>{style}</style>",
        f'<rect width="{width:.0f}" height="{height}" rx="8" fill="#0b1626"/>',
        *(
            f'<circle cx="{20 + 18 * i}" cy="18" r="5" fill="{c}"/>'
            for i, c in enumerate(("#ff5f56", "#ffbd2e", "#27c93f"))
        ),
    ]
    for row, line in enumerate(lines):
        color = ' class="p"' if "".join(letter for _, letter in line[:2]) == "$ " else ""
        for column, seconds, text in runs(line):
            share = seconds / length
            parts.append(
                f'<text x="{16 + column * CHAR:.1f}" y="{TOP + row * LINE + 12}"{color} '
                f'xml:space="preserve" textLength="{len(text) * CHAR:.1f}">{escape(text)}'
                f'<animate attributeName="opacity" dur="{length:.2f}s" repeatCount="indefinite" calcMode="discrete" '
                f'keyTimes="0;{share:.4f}" values="0;1"/></text>'
            )
    return "\n".join([*parts, "</svg>", ""])


def cast(events: list[Event]) -> str:
    """The same as an asciicast, for players of those."""
    head = {"version": 2, "width": COLUMNS, "height": 24, "title": "edgedec"}
    return "".join(json.dumps(item) + "\n" for item in [head, *([t, "o", s.replace("\n", "\r\n")] for t, s in events)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cast", type=Path, help="write the recording as an asciicast too")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    events = record()
    given.out.write_text(svg(events), "utf-8")
    if given.cast:
        given.cast.write_text(cast(events), "utf-8")


if __name__ == "__main__":
    main()
