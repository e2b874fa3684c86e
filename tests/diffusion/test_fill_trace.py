"""`edgedec trace` of a diffusion model: passes on record, and a page that replays them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import edgedec
from edgedec.bench.fill_page import fill_page
from edgedec.cli._app import app
from edgedec.diffusion import FillTrace
from edgedec.diffusion.seams import Bridge

pytest.importorskip("onnx", reason="exporting needs onnx")
from diffusion.checkpoint import exported


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exported(tmp_path_factory.mktemp("traced"))


def replayed(passes: list[FillTrace], first: int) -> dict[int, int]:
    """The tokens by position after all passes; first: the position after the prompt."""
    cells = dict[int, int]()
    for each in passes:
        for position, token, _ in each.fills:
            assert position not in cells
            assert each.start <= position < each.end
            cells[position] = token
        for begin, end, tokens in each.moves:
            shift = len(tokens) - (end - begin)
            cells = {at + shift if at >= end else at: token for at, token in cells.items()}
            cells |= {begin + i: token for i, token in enumerate(tokens)}
    assert all(at >= first for at in cells)
    return cells


@pytest.mark.parametrize(
    "words", ["", "schedule=static", "schedule=static,verify=branches", "verify=ar_mode:route=always"]
)
def test_passes_add_up_to_the_text(bundle: Path, words: str) -> None:
    model = edgedec.open(bundle, threads=1)
    session, passes = model.session(diffusion=words), list[Any]()
    ids = model.tokenizer.encode("the thing")
    found = list(session.tokens(ids, trace=passes, max_tokens=18, temperature=0.0, ignore_eos=True))
    cells, report = replayed(passes, len(ids)), session.diffusion_report()
    assert [cells[len(ids) + i] for i in range(18)] == list(map(int, found))
    assert len(passes) == report["passes"]
    assert sum(each.rows for each in passes) == report["rows"]
    assert sum(len(each.fills) for each in passes) == report["filled"]
    sure = [p for each in passes for _, _, p in each.fills]
    assert all(p is not None and 0 < p <= 1 for p in sure)
    again = list(model.session(diffusion=words).tokens(ids, max_tokens=18, temperature=0.0, ignore_eos=True))
    assert again == found  # nothing depends on being recorded
    if "static" in words:  # a step a token, several of them in one pass
        filled = dict[int, int]()
        for each in passes:
            assert each.step == filled.get(each.start, 0)
            filled[each.start] = each.step + len(each.fills)
    if "verify" not in words:
        assert [each.step for each in passes].count(0) == report["blocks"]


PASSES = [
    FillTrace(3, 7, 0, 9, 0.002, [(3, 5, 0.5), (5, 6, 0.25)]),
    FillTrace(3, 7, 1, 4, 0.001, [], [Bridge(4, 5, (7, 8))]),
    FillTrace(8, 9, 0, 1, 0.001, [(8, 9, 1.0)]),
]


def data_of(html: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', html)
    assert found
    return json.loads(found[1])


def test_a_page_holds_the_passes_and_nothing_from_elsewhere() -> None:
    html = fill_page(PASSES, {"model": "<b>"}, "a </script> b", 3, 5, lambda token: f"<{token}>")
    assert not re.search(r'(src|href)="(?!data:)', html)
    assert html.count("</script>") == 2
    data = data_of(html)
    assert (data["prompt"], data["end"], data["about"]) == ("a </script> b", 5, {"model": "<b>"})
    first, second, _ = data["passes"]
    counts = {"start": 0, "end": 4, "step": 0, "rows": 9, "us": 2000}
    assert first == {**counts, "fills": [[0, "<5>", 0.5], [2, "<6>", 0.25]], "moves": []}
    assert second["moves"] == [[1, 2, ["<7>", "<8>"]]]


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_the_page_replays_them() -> None:
    html = fill_page(PASSES, {}, "", 3, 5, str)
    script = html.rpartition("<script>")[2].partition("</script>")[0]
    stub = """
const element = () => ({
  style: {}, children: [], append(...c) { this.children.push(...c); }, replaceChildren(...c) { this.children = c; }
});
const nodes = {data: {textContent: DATA}};
const document = {getElementById: id => nodes[id] ??= element(), createElement: element};
"""
    probe = """
const shown = cell => cell.className.includes("mask") ? null : cell.textContent;
const texts = n => { show(n); return nodes.canvas.children.map(shown); };
console.log(JSON.stringify([0, 1, 2, 3].map(texts).concat([nodes.slider.max, nodes.readout.textContent])));
"""
    code = stub.replace("DATA", json.dumps(json.dumps(data_of(html)))) + script.replace('"use strict";', "") + probe
    done = subprocess.run(["node", "-e", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found[:4] == [
        [None] * 4,
        ["5", None, "6", None],
        ["5", "7", "8", "6", None, None],
        ["5", "7", "8", "6", None, "9"],
    ]
    assert found[4] == 3
    assert found[5].startswith("Pass 3 of 3: block 5 to 6, step 1; 1 rows, 1.00 ms, 1 filled")


def test_the_command_writes_one_file(bundle: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    arguments = ["trace", "-m", str(bundle), "-p", "the thing", "-n", "12", "--temp", "0", "-o", str(out)]
    done = CliRunner().invoke(app, [*arguments, "--json", "--diffusion", "schedule=static"])
    assert done.exit_code == 0, done.output
    report, data = json.loads(done.stdout), data_of(out.read_text())
    assert len(data["passes"]) == report["diffusion"]["passes"] == 12
    assert data["about"]["methods"].startswith("schedule=static,")
    assert data["end"] == 12
    assert CliRunner().invoke(app, arguments).exit_code != 0  # it exists
