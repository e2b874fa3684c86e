"""Advice for a folder that is not a bundle: what it contains, and the command for it."""

from __future__ import annotations

from pathlib import Path


def advice(folder: Path) -> str:
    """What the files of a folder without a manifest look like, and the command for it."""
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if "adapter_config.json" in names:
        return f"it is a LoRA adapter: `edgedec adapter {folder} -m BUNDLE` makes a file for --lora"
    if any(name.endswith(".safetensors") for name in names) or "model.safetensors.index.json" in names:
        return f"it is a checkpoint: `edgedec export {folder} -o {folder.name}-int4` makes a bundle of it"
    if gguf := sorted(name for name in names if name.endswith(".gguf")):
        return f"it holds a GGUF file: name the file, {folder / gguf[0]}"
    if any(name.endswith(".onnx") for name in names):
        return "it holds ONNX graphs made by another program"
    if "config.json" in names and any(name.endswith((".bin", ".pth")) for name in names):
        return "it is a checkpoint in pickle files: save it as safetensors first, model.save_pretrained(folder)"
    return "make a bundle with `edgedec export`"
