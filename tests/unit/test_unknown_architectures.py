"""A model that is not carried is refused by its kind, whoever asks, and only what may run is proposed."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from checkpoints import write_llama

from edgedec.cli import main

pytest.importorskip("onnx", reason="exporting needs onnx")

# A config's own words for it -> how the kind is named, and whether optimum may know it as one graph.
CONFIGS: list[tuple[dict[str, Any], str, bool]] = [
    ({"model_type": "t5", "is_encoder_decoder": True}, "an encoder-decoder, which is not a decoder alone", False),
    ({"model_type": "whisper", "is_encoder_decoder": True}, "an encoder-decoder", False),
    ({"model_type": "albert"}, "an encoder, which generates no text", False),
    ({"model_type": "xlstm", "state_size": 16}, "a recurrent or state-space model; of these Mamba,", False),
    ({"model_type": "zamba", "mamba_d_state": 16}, "a recurrent or state-space model", False),
    ({"model_type": "rwkv"}, "a recurrent or state-space model", False),
    ({"model_type": "deepseek_v4", "n_routed_experts": 8}, "a mixture of experts; of these Mixtral", True),
    ({"model_type": "jetmoe", "num_local_experts": 32}, "a mixture of experts", True),
    ({"model_type": "llava", "vision_config": {}}, "a model of text and images or sound", False),
    ({"model_type": "gpt_neo"}, "a decoder", True),
]
ARCHITECTURES: list[tuple[str, dict[str, int], str]] = [
    ("t5", {}, "an encoder-decoder"),
    ("t5encoder", {}, "an encoder"),
    ("plamo2", {"ssm.state_size": 16}, "a recurrent or state-space model"),
    ("rwkv6", {}, "a recurrent or state-space model"),
    ("arwkv7", {}, "a recurrent or state-space model"),
    ("grovemoe", {"expert_count": 8}, "a mixture of experts"),
    ("clip", {}, "a model of text and images or sound"),
    ("plamo", {}, "a decoder"),
]


def said(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    """The one line with which the command fails."""
    assert main([*command]) == 1
    error = capsys.readouterr().err
    assert error.startswith("edgedec: ")
    assert error.count("\n") == 1
    return error


@pytest.mark.parametrize(("config", "kind", "decoder"), CONFIGS, ids=[str(c["model_type"]) for c, _, _ in CONFIGS])
def test_a_checkpoint(
    config: dict[str, Any], kind: str, decoder: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = write_llama(tmp_path / "model", **config), tmp_path / "out"
    error = said(capsys, "export", str(folder), "-o", str(out))
    assert f"model_type '{config['model_type']}' ({kind}" in error
    assert "is not one of a2d_qwen3, " in error
    assert (f"`edgedec export {folder} --via optimum -o {out}`" in error) == decoder
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def gguf(path: Path, architecture: str, facts: dict[str, int]) -> Path:
    """A file of no tensors with these facts."""

    def string(text: str) -> bytes:
        return struct.pack("<Q", len(text)) + text.encode()

    content = string("general.architecture") + struct.pack("<I", 8) + string(architecture)
    for key, value in facts.items():
        content += string(f"{architecture}.{key}") + struct.pack("<II", 4, value)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1 + len(facts)) + content)
    return path


@pytest.mark.parametrize(("architecture", "facts", "kind"), ARCHITECTURES, ids=[name for name, _, _ in ARCHITECTURES])
def test_a_gguf_file(
    architecture: str,
    facts: dict[str, int],
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("EDGEDEC_CACHE", str(tmp_path / "cache"))
    path, out = gguf(tmp_path / "m.gguf", architecture, facts), str(tmp_path / "out")
    for command in (["export", str(path), "-o", out], ["run", "-m", str(path), "-p", "x"]):
        error = said(capsys, *command)
        assert error.startswith(f"edgedec: {path}: architecture '{architecture}' ({kind}")
        assert "is not one of llama, qwen2" in error
        assert "converted" not in error
        assert "optimum" not in error  # which reads no GGUF
    assert not (tmp_path / "out").exists()
    assert [
        p for p in (tmp_path / "cache").rglob("*") if p.is_file() and p.name != "seen" and "seen" not in p.parts
    ] == []


def test_a_folder_of_files_for_llama_cpp(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a config the file is named."""
    folder = tmp_path / "models"
    folder.mkdir()
    path = gguf(folder / "m.gguf", "llama", {})
    assert f"name the file: {path}" in said(capsys, "export", str(folder), "-o", str(tmp_path / "out"))
    (folder / "config.json").write_text("{}")
    assert "to export a GGUF file, name the file itself" in said(
        capsys, "export", str(folder), "-o", str(tmp_path / "out")
    )
