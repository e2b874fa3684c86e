"""Qualcomm's SoCs by name with their HTP versions, as far as QNN in onnxruntime-qnn 2.7 compiles for them."""

from __future__ import annotations

from edgedec.errors import UsageError

# Version of the HTP, and where the chip is found.
SOCS: dict[str, tuple[str, str]] = {
    "SM8450": ("v69", "Snapdragon 8 Gen 1"),
    "SM8475": ("v69", "Snapdragon 8+ Gen 1"),
    "SM8550": ("v73", "Snapdragon 8 Gen 2"),
    "SM8650": ("v75", "Snapdragon 8 Gen 3"),
    "SM8750": ("v79", "Snapdragon 8 Elite"),
    "SM8850": ("v81", "Snapdragon 8 Elite Gen 5"),
    "SC8380XP": ("v73", "Snapdragon X Elite, laptops"),
    "SA8295": ("v68", "cars"),
    "QCS6490": ("v68", "IoT boards"),
}


def check_soc(name: str) -> str:
    """The name of a SoC that the compiler supports; UsageError otherwise."""
    if name not in SOCS:
        raise UsageError(f"no SoC {name!r} for qnn; there are: {', '.join(SOCS)}, as in qnn:SM8650")
    return name
