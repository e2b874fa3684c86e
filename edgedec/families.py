"""The families of plug-ins by name: `edgedec plugins`, the server's lists and the tables of the docs read this."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import Any

from edgedec.errors import UsageError
from edgedec.plugins import Family

# The package that holds each one's FAMILY.
PACKAGES = {
    "drafters": "edgedec.drafters",
    "policies": "edgedec.policies",
    "verifiers": "edgedec.decoding.verify",
    "processors": "edgedec.processors",
    "fusion": "edgedec.fusion",
    "constraints": "edgedec.constraints",
    "searches": "edgedec.search",
    "schedules": "edgedec.diffusion.schedules",
    "blocks": "edgedec.diffusion.blocks",
    "keeping": "edgedec.diffusion.keeping",
    "ends": "edgedec.diffusion.ends",
    "verify": "edgedec.diffusion.verify",
    "fits": "edgedec.diffusion.fits",
    "runtimes": "edgedec.runtimes",
    "targets": "edgedec.targets",
    "models": "edgedec.models",
    "heads": "edgedec.models.heads",
    "drafts": "edgedec.models.drafts",
    "students": "edgedec.export.students",
    "recipes": "edgedec.export.recipes",
    "quantized": "edgedec.export.quantized",
    "artifacts": "edgedec.export.artifacts",
    "passes": "edgedec.export.passes",
    "benchmarks": "edgedec.cli.bench",
}


def family(name: str) -> Family[Any]:
    """A family by name; UsageError with the nearest names if there is none."""
    if name not in PACKAGES:
        near = get_close_matches(name, PACKAGES, 2, 0.5)
        meant = f" (did you mean {' or '.join(near)}?)" if near else ""
        raise UsageError(f"no family {name!r}{meant}; there are: {', '.join(PACKAGES)}")
    found: Family[Any] = import_module(PACKAGES[name]).FAMILY
    return found
