"""What libedgedec opens: folders and packed files; what it refuses, by the same names as Python."""

from __future__ import annotations

import copy
import ctypes
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clibrary import c, library, opened

import edgedec
from edgedec.bundle import Bundle
from edgedec.bundle.packed import pack, unpacked
from edgedec.errors import BundleCorrupt, BundleError, BundleNotFound, BundleUnsafe, BundleVersion, UsageError

NAMES = {BundleNotFound: "not_found", BundleVersion: "version", BundleCorrupt: "corrupt", BundleUnsafe: "unsafe"}
PROMPT = [12, 375, 278, 259]


@pytest.fixture
def copied(nano: Path, tmp_path: Path) -> Path:
    """The bundle with nothing in it that the library has no use for."""
    manifest, folder = json.loads((nano / "edgedec.json").read_text()), tmp_path / "copied"
    folder.mkdir()
    keep = ("weights.bin", "tokenizer.json", "head_hydra.onnx", "token_counts.bin")
    manifest["files"] = {name: file for name, file in manifest["files"].items() if name in keep}
    manifest["heads"] = {"hydra": manifest["heads"]["hydra"]}
    manifest["artifacts"] = manifest["drafts"] = {}
    for name in keep:
        shutil.copyfile(nano / name, folder / name)
    (folder / "edgedec.json").write_text(json.dumps(manifest))
    return folder


def refusal(path: Path, **options: Any) -> str:
    """The name of the error; empty: it was opened."""
    try:
        opened(path, **options)
    except c.EdgedecFailure as failure:
        return str(failure.status) if str(failure).strip() and "\n" not in str(failure) else f"said badly: {failure}"
    return ""


def test_facts(nano: Path) -> None:
    model, bundle = opened(nano, threads=2), Bundle.open(nano)
    info, spec = model.info, bundle.spec
    assert (info.vocab_size, info.hidden_size, info.context_length) == (4096, 128, 1024)
    assert (info.n_layers, info.n_blocks, info.threads, info.bos, info.n_eos) == (spec.n_layers, spec.n_blocks, 2, 0, 1)
    assert info.weights_bytes == len(bundle.weights)
    assert info.has_text
    strings = [model.string(i) for i in range(9)]
    text = bundle.manifest.text
    assert strings[:3] == ["nano", "llama", "f32"]
    assert strings[4:] == [
        bundle.digest,
        text.chat_template,
        text.bos_token,
        text.eos_token,
        "",
    ]
    assert strings[3] == library()("isa").decode() == edgedec.open(nano, engine="native").runtime.capabilities.isa
    suggested = c.SamplingOptions()
    library().check("suggested_sampling", model.handle, ctypes.byref(suggested), ctypes.sizeof(suggested))
    assert all(getattr(suggested, name) == value for name, value in text.sampling.items())


def test_packed(nano: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One file: opened by path, from memory, from a descriptor in the middle of another file, and by Python."""
    monkeypatch.setenv("EDGEDEC_CACHE", str(tmp_path / "cache"))
    file, want = tmp_path / "nano.edb", opened(nano).session().generate(PROMPT, max_tokens=20)
    assert pack(Bundle.open(nano), file) == file.stat().st_size
    assert opened(file, verify=1).session().generate(PROMPT, max_tokens=20) == want
    raw = file.read_bytes()
    memory = np.empty(len(raw) + 64, np.uint8)
    start = -memory.ctypes.data % 64
    memory[start : start + len(raw)] = np.frombuffer(raw, np.uint8)
    options = library().options(c.OpenOptions, "open_options_init")
    made = c.Model.__new__(c.Model)
    made.library = library()
    made.handle = library().made("open_memory", memory.ctypes.data + start, len(raw), ctypes.byref(options))
    assert made.session().generate(PROMPT, max_tokens=20) == want
    asset = tmp_path / "app.apk"
    asset.write_bytes(bytes(4096 * 3 + 64) + raw + bytes(100))
    fd = os.open(asset, os.O_RDONLY)
    made.handle, old = library().made("open_fd", fd, 4096 * 3 + 64, len(raw), None), made.handle
    os.close(fd)
    library()("close", old)
    assert made.session().generate(PROMPT, max_tokens=20) == want
    python = edgedec.open(str(file), engine="native")
    assert python.bundle.digest == made.string(4)
    assert list(map(int, python.session(speculate="off").tokens(PROMPT, max_tokens=20))) == want
    assert edgedec.open(str(file), engine="ort").session(speculate="off")  # with all its files
    assert [path.name for path in (tmp_path / "cache" / "packed").iterdir()] == [python.bundle.path.name]


def test_damaged_packed_files(copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The header and the index: refused alike by both, or, in what only hashes tell, when hashes are checked."""
    monkeypatch.setenv("EDGEDEC_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "a.edb"
    pack(Bundle.open(copied), file)
    good, r = file.read_bytes(), random.Random(1)
    head = 64 + int.from_bytes(good[16:24], "little")
    for _ in range(150):
        raw = bytearray(good)
        if r.random() < 0.2:
            del raw[r.randrange(len(raw)) :]
        else:
            raw[r.randrange(head)] ^= 1 << r.randrange(8)
        file.write_bytes(raw)
        with pytest.raises(BundleError) as caught:
            unpacked(file)
        assert refusal(file) == NAMES[type(caught.value)]
    raw = bytearray(good)
    raw[-1] ^= 1
    file.write_bytes(raw)
    assert refusal(file, verify=1) == "corrupt"
    with pytest.raises(BundleCorrupt):
        unpacked(file)
    assert not list((tmp_path / "cache").rglob("*.bin"))  # nothing half-written


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a parsed JSON file."""
    yield path
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(item, (*path, key))


def test_manifests_are_read_as_python_reads_them(copied: Path) -> None:
    """A manifest with one wrong value, a missing or an added key: accepted by both or refused by both."""
    file = copied / "edgedec.json"
    good, r = json.loads(file.read_text()), random.Random(2)
    every = [path for path in places(good) if path]
    refused = set()
    # A f16 vector or a negative count of nothing is read by one of them only; they come up nowhere but here.
    for _ in range(100):
        bad, path = copy.deepcopy(good), r.choice(every)
        inside: Any = bad
        for key in path[:-1]:
            inside = inside[key]
        match r.randrange(4):
            case 0:
                inside[path[-1]] = r.choice([None, -1, 0, 1 << 70, 1.5, "x", [], {}, True, 7, 64])
            case 1:
                del inside[path[-1]]
            case 2:
                inside = inside[path[-1]] if isinstance(inside[path[-1]], dict) else bad
                inside["surprise"] = 1
            case 3 if isinstance(inside[path[-1]], int) and not isinstance(inside[path[-1]], bool):
                inside[path[-1]] += r.choice([-64, -1, 1, 64, 1 << 40])
        file.write_text(json.dumps(bad))
        try:
            Bundle.open(copied)
            want = ""
        except BundleError as error:
            want = NAMES[type(error)]
        got = refusal(copied)
        assert got == want or (got == "corrupt" and _stricter(path)), (path, want, got)
        refused.add(want)
    assert refused >= {"", "corrupt"}


def _stricter(path: tuple[Any, ...]) -> bool:
    """Where the library reads what Python leaves to whoever uses it: tokens, offsets of scales that are not used."""
    return (
        path[0] == "text" or path[:2] == ("spec", "ropes") or path[-1] in ("scales", "size") or path[0] == "kv_scales"
    )


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda folder: shutil.rmtree(folder), "not_found"),
        (lambda folder: (folder / "edgedec.json").unlink(), "not_found"),
        (lambda folder: (folder / "weights.bin").unlink(), "corrupt"),
        (lambda folder: (folder / "weights.bin").write_bytes(b""), "corrupt"),
        (lambda folder: (folder / "edgedec.json").write_bytes(b"{" * 100000), "corrupt"),
        (lambda folder: (folder / "edgedec.json").write_bytes(b'{"format": "\xff"}'), "corrupt"),
        (lambda folder: _linked(folder), "unsafe"),
    ],
)
def test_folders(copied: Path, change: Callable[[Path], object], name: str) -> None:
    assert refusal(copied) == ""
    change(copied)
    assert refusal(copied) == name


def test_a_diffusion_model_is_refused_by_name(copied: Path) -> None:
    manifest = json.loads((copied / "edgedec.json").read_text())
    facts = {"mask": 5, "shift": True, "context": "causal", "block": 8}
    (copied / "edgedec.json").write_text(json.dumps(manifest | {"version": 7, "diffusion": facts}))
    assert Bundle.open(copied).manifest.diffusion is not None
    with pytest.raises(
        c.EdgedecFailure, match="a diffusion language model, which this library does not decode"
    ) as found:
        opened(copied)
    assert found.value.status == "unavailable"


@pytest.mark.parametrize("decoder", [False, True])
def test_a_text_encoder_is_refused_by_name(tmp_path: Path, decoder: bool) -> None:
    from encoders_golden import golden, write

    from edgedec.export.exporter import ExportOptions, export

    of = golden("qwen3-score" if decoder else "bert")
    folder = write(tmp_path / "checkpoint", of.config, of.tensors)
    export(str(folder), tmp_path / "bundle", ExportOptions(runtimes=()))
    with pytest.raises(c.EdgedecFailure, match="a text encoder; libedgedec generates texts") as found:
        opened(tmp_path / "bundle")
    assert found.value.status == "unavailable"


def _linked(folder: Path) -> None:
    (folder / "weights.bin").rename(folder.parent / "elsewhere")
    (folder / "weights.bin").symlink_to(folder.parent / "elsewhere")


def test_hashes_and_progress(copied: Path) -> None:
    seen: list[tuple[int, int]] = []

    def show(user: Any, done: int, total: int) -> int:
        seen.append((done, total))
        return len(seen) > 100

    hook = c.Progress(show)
    assert refusal(copied, verify=1, on_progress=hook) == ""
    total = sum(path.stat().st_size for path in copied.iterdir() if path.name != "edgedec.json")
    assert seen[-1] == (total, total)
    with (copied / "head_hydra.onnx").open("r+b") as file:
        file.write(b"x")
    assert refusal(copied) == ""
    assert refusal(copied, verify=1) == "corrupt"
    stop = c.Progress(lambda user, done, total: 1)
    assert refusal(copied, verify=1, on_progress=stop) == "cancelled"


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"kv": b"f8"}, "usage"),
        ({"threads": -1}, "usage"),
        ({"isa": b"sse"}, "unavailable"),
        ({"priority": 20}, "usage"),
        ({"size": 0}, "usage"),
        ({"big_cores": 1, "priority": 1, "threads": 2}, ""),
    ],
)
def test_options(nano: Path, options: dict[str, Any], name: str) -> None:
    assert refusal(nano, **options) == name


def test_pack_refuses_what_is_there(nano: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        pack(Bundle.open(nano), tmp_path / "no" / "x.edb")
    assert list(tmp_path.iterdir()) == []
