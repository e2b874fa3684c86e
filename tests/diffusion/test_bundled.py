"""The bundled diffusion models: found by name, what they learned, and what several tokens a pass cost them."""

from __future__ import annotations

from pathlib import Path

import pytest

import edgedec
from edgedec.bench.diffusion import DecodingCost, compare, list_tasks
from edgedec.bundle import locate
from edgedec.errors import BundleNotFound
from edgedec.kernels.cpu import loader

pytestmark = pytest.mark.skipif(loader.why_not() is not None, reason=f"native engine: {loader.why_not()}")
NAMES = [
    name for name in ("nano-block", "nano-canvas") if locate.find("nano").parent.joinpath(locate.BUNDLED[name]).is_dir()
]


def costs(name: str, kinds: list[str], count: int, *ways: str) -> dict[str, dict[str, DecodingCost]]:
    model = edgedec.open(name, engine="native", threads=1)
    return compare(model, ways, list_tasks(kinds, count), 28, lambda done, of: None)


@pytest.mark.parametrize("name", NAMES)
def test_it_is_found_by_name(name: str) -> None:
    bundle = edgedec.open(name).bundle
    assert bundle.manifest.name == name
    facts = bundle.manifest.diffusion
    assert facts is not None
    assert (facts.mask, facts.shift) == (4096, True)
    assert (facts.context, facts.block) == {"nano-block": ("causal", 8), "nano-canvas": ("full", 256)}[name]


def test_what_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(locate.BUNDLED, "nano-block", "nowhere")
    with pytest.raises(BundleNotFound, match="nano-block: not part of this installation"):
        locate.find("nano-block")


def test_a_bundle_of_that_name_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nano-block").mkdir()
    assert locate.find("nano-block") != Path("nano-block")
    (tmp_path / "nano-block" / locate.MANIFEST).write_text("{}")
    assert locate.find("nano-block") == Path("nano-block")


@pytest.mark.skipif("nano-block" not in NAMES, reason="nano-block is not here")
def test_a_copy_takes_half_the_passes() -> None:
    static, several = (found["copy"] for found in costs("nano-block", ["copy"], 6, "schedule=static", "").values())
    assert several.passes <= static.passes / 2
    assert several.right >= static.right - 1
    assert static.right >= 3


@pytest.mark.skipif("nano-canvas" not in NAMES, reason="nano-canvas is of checkouts")
def test_what_can_be_written_at_once_is() -> None:
    """ParallelBench's order: a copy is known at once, a random order place by place."""
    (found,) = costs("nano-canvas", ["copy", "replace", "shuffle"], 6, "schedule=threshold").values()
    copy, replace, shuffle = (found[kind].to_json()["tokens_per_pass"] for kind in ("copy", "replace", "shuffle"))
    assert copy > replace > shuffle
    assert copy > 4 * shuffle
    assert found["copy"].right >= 5
    assert found["shuffle"].right >= 3
