"""The launch plan of kernel sources (`tvm:opencl` and the like): the order of kernels and their arrays.

    {"launches": {"f32": [{"kernels": {"1": "norm_rms_2048_store"}, "items": 1, "over": "rows",
                           "arrays": ["hidden", "blocks.0.norm", "normed"]}, …

The exporter writes it (`export/sources`) for programs that launch the kernels. docs/gpu-engines.md describes it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from edgedec.bundle import Bundle
from edgedec.errors import BundleCorrupt, RuntimeUnavailable
from edgedec.runtimes.tvm.artifact import PREFIX
from edgedec.storage.serde import from_json

VERSION, MOST_ROWS = 2, 256
# Before each kernel in a text.
MARK = "// kernel: "
# Numbers of a row in the array "rows": token, position, its number among its sequence's new rows, committed slots of
# the sequence, where its path begins and ends in "path" (-1: a chain), where its sequence's pages begin in "pages", the
# number of its sequence's state, how many rows of its sequence the call has.
ROW_NUMBERS = ("token", "position", "at", "length", "begin", "end", "pages", "state", "count")
# What a caller fills in.
INPUTS = {
    "rows": ("int32", MOST_ROWS * len(ROW_NUMBERS)),
    "path": ("int32", MOST_ROWS * 64),
    "pages": ("int32", 1 << 14),
    "which": ("int32", MOST_ROWS),
    "commit": ("int32", MOST_ROWS + 3),
}


@dataclass(frozen=True)
class PlannedLaunch:
    """kernels: by rows of a tile, any of them right. items: groups along x. over: what is tiled along y: "rows",
    "head_rows", or "once"."""

    kernels: dict[str, str]
    items: int
    over: str
    arrays: tuple[str, ...]


@dataclass(frozen=True)
class KernelFacts:
    """threads: of a group. arrays: their types, in order."""

    threads: int
    arrays: tuple[str, ...]


@dataclass(frozen=True)
class ArrayFacts:
    type: str
    elements: int


@dataclass(frozen=True)
class LaunchPlan:
    """pages: words of a page of each attention block's pool, by cache format; states: floats of a sequence's state, of
    each state-space block; commits: launches after rows were committed, which bring the states to their end;
    row_numbers: what stands of each row in "rows"."""

    version: int
    language: str
    row_numbers: tuple[str, ...]
    most_rows: int
    arrays: dict[str, ArrayFacts]
    kernels: dict[str, KernelFacts]
    pages: dict[str, dict[str, int]]
    states: dict[str, int]
    launches: dict[str, tuple[PlannedLaunch, ...]]
    commits: tuple[PlannedLaunch, ...]


@dataclass(frozen=True)
class SourceFacts:
    """The manifest's facts of sources. version: of the plan; compiler: the program that printed them."""

    version: int
    source: str
    plan: str
    kv: tuple[str, ...]
    compiler: str


def source_of(bundle: Bundle, language: str) -> tuple[str, LaunchPlan]:
    """The sources of a bundle in a language and their plan, each checked against its hash."""
    artifact = bundle.manifest.artifacts.get(PREFIX + language)
    if artifact is None:
        raise RuntimeUnavailable(
            f"{bundle.path}: has no sources in {language}: edgedec add tvm:{language} {bundle.path}"
        )
    facts = from_json(SourceFacts, artifact.facts, f"artifacts.{PREFIX}{language}")
    if facts.version != VERSION or not {facts.source, facts.plan} <= set(artifact.files):
        raise RuntimeUnavailable(
            f"{bundle.path}: its sources in {language} are of another edgedec; "
            f"make them again: edgedec add {PREFIX}{language} {bundle.path}"
        )
    for name in (facts.source, facts.plan):
        bundle.verify_file(name)
    return bundle.file(facts.source).read_text("utf-8"), _plan(bundle, facts.plan)


def _plan(bundle: Bundle, name: str) -> LaunchPlan:
    path = bundle.file(name)
    try:
        data = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise BundleCorrupt(f"{path}: not JSON ({error})") from None
    plan = from_json(LaunchPlan, data, name)
    for launches in (*plan.launches.values(), plan.commits):
        for launch in launches:
            for kernel in launch.kernels.values():
                if kernel not in plan.kernels or len(plan.kernels[kernel].arrays) != len(launch.arrays):
                    raise BundleCorrupt(
                        f"{path}: launches {kernel}, which is not among its kernels or takes other arrays"
                    )
    return plan
