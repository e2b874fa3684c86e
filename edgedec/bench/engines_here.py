"""Which engines can run a bundle on this machine, and on which devices of theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgedec.runtime import unavailable_reason
from edgedec.runtime.registry import devices_of
from edgedec.runtime.trust import why_not_run
from edgedec.targets import all_targets

if TYPE_CHECKING:
    from edgedec.bundle import Bundle

# It is a readable reference, and takes minutes where others take seconds.
_ORACLE = "reference"


def engines_here(bundle: Bundle, trust_code: bool = False) -> tuple[list[tuple[str, str]], dict[str, str]]:
    """The engines, each with the device that it is opened with ("": its usual one), that can run the bundle here; why
    the others, named by both words, cannot."""
    names = sorted(
        {target.engine for target in all_targets()} - {"", _ORACLE}, key=lambda name: (name != "native", name)
    )
    pairs = [(name, device) for name in names for device in ("", *_further_devices(name, bundle))]
    reasons = {pair: unavailable_reason(pair[0], bundle, pair[1]) for pair in pairs}
    if reasons.get(("tvm", ""), "") is None and not trust_code and why_not_run(bundle) is not None:
        reasons["tvm", ""] = "it is machine code in the bundle: --trust-code"
    present = [pair for pair, reason in reasons.items() if reason is None]
    return present, {" ".join(pair).strip(): reason for pair, reason in reasons.items() if reason is not None}


def _further_devices(engine: str, bundle: Bundle) -> list[str]:
    """The devices of an engine beside its usual one, by what the bundle has files for: `qnn:SM8650`."""
    found = list[str]()
    for device in devices_of(engine)[1:]:
        found += [name for name in bundle.manifest.artifacts if name.startswith(f"{device}:")] or [device]
    return found
