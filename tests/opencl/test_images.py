"""Weights read through images: the same bytes; where a device has none, or too small ones, through buffers."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Iterator
from ctypes import byref, c_size_t, c_uint32, c_void_p
from dataclasses import replace
from pathlib import Path

import numpy as np
import opencl_devices
import pytest
from typer.testing import CliRunner

from edgedec.bundle import Bundle
from edgedec.cli import _app
from edgedec.kernels.cpu import loader
from edgedec.kernels.device.interface import Buffer, DeviceError
from edgedec.kernels.device.structs import DeviceWeights, Product
from edgedec.kernels.opencl import driver, images, sources, variants
from edgedec.runtime import Call, Outputs, Rows, Runtime, RuntimeOptions, forward_one, logits_of
from edgedec.runtimes import native, opencl
from edgedec.runtimes._selftest import check, opening
from edgedec.runtimes._selftest.cases import CASES
from edgedec.runtimes._selftest.models import SPECS
from edgedec.testing.conformance.bundles import random_weights, write_bundle
from edgedec.testing.conformance.models import MODELS

REASON = opencl_devices.why_not() or loader.why_not()
pytestmark = [
    pytest.mark.skipif(REASON is not None, reason=f"engines: {REASON} (Debian: pocl-opencl-icd)"),
    pytest.mark.skipif(REASON is None and not opencl_devices.first().texels, reason="the device has no images"),
]
slow = pytest.mark.skipif("EDGEDEC_SLOW_TESTS" not in os.environ, reason="kernels compile long; set EDGEDEC_SLOW_TESTS")
IMAGES = sources.IMAGES
SMALL = "__kernel void one(int a, __local uchar* memory) { }"
_TYPE, _OF, _SIZE, _HOST = 0x1100, 0x1107, 0x1102, 0x1103
_IMAGE_OF_BUFFER = 0x10F6


@pytest.fixture(autouse=True)
def first_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EDGEDEC_CACHE", str(tmp_path))
    monkeypatch.setenv(driver.DEVICE, "0")
    monkeypatch.setenv(variants.VARIANTS, "images")


class Counted(driver.OpenclDevice):
    """A device that keeps which products were launched and what the driver says of the images that they were given.

    shown: by the weights' address the image's kind, where its buffer lies in the host's memory, and how large it is."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.products, self.shown = set[str](), dict[int, tuple[int, int, int]]()

    def _kernel(self, name: str) -> int:
        if name.startswith("product"):
            self.products.add(name)
        return super()._kernel(name)

    def _run(self, kernel: str, grid: tuple[int, int, int], threads: int, shared: int, arguments: bytes) -> None:
        _, made = self._reader(kernel, arguments)
        if made:
            image, buffer = made
            assert self.asked(image, _OF) == buffer
            (address,) = images._DATA.unpack_from(arguments)
            self.shown[address] = self.asked(image, _TYPE), self.asked(buffer, _HOST), self.asked(buffer, _SIZE)
        super()._run(kernel, grid, threads, shared, arguments)

    def asked(self, handle: int, what: int) -> int:
        """What the driver says of a memory object."""
        value = c_size_t()
        code = self._lib.clGetMemObjectInfo(c_void_p(handle), c_uint32(what), c_size_t(8), byref(value), None)
        assert code == 0
        return value.value & (0xFFFFFFFF if what == _TYPE else ~0)


def told(runtime: Runtime, ids: list[int]) -> Iterator[np.ndarray]:
    """All that a runtime says of a text in one call, of a tree and of a later row."""
    cache, n = runtime.new_cache(80), len(ids)
    yield logits_of(runtime, Rows.chain(ids, 0), cache)
    cache.commit(range(n))
    yield logits_of(runtime, Rows.tree([1, 2, 3, 4, 5], [-1, 0, 0, 2, 2], n), cache)
    cache.commit([0, 2])
    yield forward_one(runtime, Call(Rows.chain([5], n + 2), cache, outputs=Outputs(True))).logits


def bundle_of(folder: Path, model: str, fmt: str) -> Bundle:
    return write_bundle(folder / "bundle", MODELS[model], random_weights(MODELS[model]), fmt)


def check_bytes(bundle: Bundle, device: Counted) -> None:
    """The bytes of the native engine."""
    ids = np.random.default_rng(0).integers(0, bundle.spec.vocab_size, 19).tolist()
    engines = opencl.OpenclRuntime(bundle, "int8", device), native.open(bundle, RuntimeOptions(threads=1, kv="int8"))
    ours, theirs = ([array.tobytes() for array in told(engine, ids)] for engine in engines)
    assert ours == theirs
    assert device.launches > 20


@pytest.mark.parametrize(
    ("model", "fmt"),
    [
        ("plain", "int4"),
        ("plain", "f16"),
        ("windows", "int8"),
        ("experts", "int4"),
        ("plain", "int3"),
        ("experts", "int2"),
    ],
)
def test_the_bytes_of_the_native_engine(tmp_path: Path, model: str, fmt: str) -> None:
    """Every product of packed weights and of f16 is the kernel that reads an image: one of what is there already."""
    device = Counted(driver.chosen())
    assert IMAGES in device.variants
    bundle = bundle_of(tmp_path, model, fmt)
    check_bytes(bundle, device)
    through = {name for name in device.products if name.endswith("_image")}
    assert {name.split("_")[1] for name in through} >= {fmt}
    assert device.products - through <= {"product_f32"}
    assert len(device.shown) > 5
    assert {kind for kind, _, _ in device.shown.values()} == {_IMAGE_OF_BUFFER}
    if variants.SHARED in device.variants:
        assert all(host == address for address, (_, host, _) in device.shown.items())


def test_a_matrix_that_no_image_holds_stays_in_its_buffer(tmp_path: Path) -> None:
    """Some matrices of the model are larger than the images, some are not."""
    device = Counted(replace(driver.chosen(), texels=200))
    check_bytes(bundle_of(tmp_path, "plain", "int4"), device)
    assert any(name.endswith("_image") for name in device.products)
    assert any(name.startswith("product_int4") and not name.endswith("_image") for name in device.products)
    assert "read through images; " in device.summary()[1]
    assert device.summary()[1].endswith(": an image holds 3 KiB at most")


def test_memory_in_buffers(tmp_path: Path) -> None:
    """Images of parts of large buffers; a driver that makes none of those (PoCL 3.1) keeps the buffers."""
    device = Counted(driver.chosen(), None, (variants.SHARED,))
    check_bytes(bundle_of(tmp_path, "plain", "int4"), device)
    through = [name for name in device.products if name.endswith("_image")]
    said = device.summary()[1]
    if through:
        assert (
            said == f"{device._images._found.total()} of {device._images._found.total()} matrices read through images"
        )
        assert {kind for kind, _, _ in device.shown.values()} == {_IMAGE_OF_BUFFER}
        assert sum(size for _, _, size in device.shown.values()) < sum(arena.size for arena in device._memory._arenas)
    else:
        assert "the driver makes no image of it" in said


def test_images_are_used_on_adreno_and_where_they_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = driver.chosen()
    adreno = replace(facts, platform="QUALCOMM Snapdragon(TM)", name="QUALCOMM Adreno(TM)")
    assert IMAGES in variants.offered(facts)
    assert IMAGES not in variants.offered(replace(adreno, texels=0))
    monkeypatch.delenv(variants.VARIANTS)
    assert IMAGES in variants.offered(adreno)
    assert IMAGES not in variants.offered(facts)
    monkeypatch.setenv(variants.VARIANTS, "-images")
    assert IMAGES not in variants.offered(adreno)
    monkeypatch.setenv(variants.VARIANTS, "-textures")
    with pytest.raises(DeviceError, match=f"no variant TEXTURES; there are: .*{IMAGES}"):
        variants.offered(adreno)


def test_a_device_without_images_says_that_it_has_none() -> None:
    device = driver.OpenclDevice(replace(driver.chosen(), texels=0), SMALL)
    assert IMAGES not in device.variants
    assert len(device.summary()) == 1


def test_a_compiler_that_refuses_images_gets_the_program_without_them() -> None:
    device = driver.OpenclDevice(driver.chosen(), f"#ifdef {IMAGES}\n#error no images\n#endif\n{SMALL}")
    assert IMAGES not in device.variants


def test_an_image_goes_with_its_weights() -> None:
    """What is allocated at the same address later has an image of its own."""
    device = driver.OpenclDevice(driver.chosen(), SMALL)
    for size in (1 << 16, 1 << 12, 1 << 16):
        buffer = Buffer.of(device, np.zeros(size, np.uint8))
        arguments = Product(DeviceWeights(data=buffer.at), 0, 0).pack(0)
        found = device._images.reader("product_int4_1", arguments)
        assert found == device._images.reader("product_int4_1", arguments)
        assert list(device._images._made) == [buffer.at]
        assert device._memory.part(buffer.at)[1] == size
        assert device._images.reader("embed", arguments) == ("embed", ())
        del buffer
        assert device._images._made == {}


def test_bench_device_says_what_is_read_through_images(nano: Path) -> None:
    small = ("--rows", "1", "--context", "8", "--prefill", "4", "-r", "1")
    arguments = ["bench", "device", "-m", str(nano), "--engine", "opencl", *small]
    done = CliRunner().invoke(_app.app, [*arguments, "--json"])
    assert done.exit_code == 0, done.output
    names, read = json.loads(done.stdout)["used"]
    assert "images" in names.removeprefix("variants: ").split(", ")
    (of, whole) = (int(word) for word in read.split(" matrices ")[0].split(" of "))
    assert of == whole > 20


@slow
def test_images_that_show_something_else_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver whose images are empty: so the kernels do read them, and the self-test takes the variant without."""
    made = images.WeightImages._image

    def empty(self: images.WeightImages, address: int, texels: images._Format) -> tuple[int, int]:
        part = self._memory.part

        def elsewhere(address: int) -> tuple[int, int]:
            size = part(address)[1]
            nothing = (ctypes.c_ubyte * size)()
            code = ctypes.c_int32()
            copied = self._lib.clCreateBuffer(self._context, 1 | 1 << 5, c_size_t(size), nothing, byref(code))
            assert code.value == 0
            return copied, size

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(self._memory, "part", elsewhere)
            return made(self, address, texels)

    monkeypatch.setattr(images.WeightImages, "_image", empty)
    monkeypatch.setattr(opening, "CASES", CASES[2:3])
    monkeypatch.setattr(check, "CASES", CASES[2:3])
    monkeypatch.setattr(check.examine, "__defaults__", (CASES[2:3],))
    first = driver.OpenclDevice(driver.chosen())
    device = opening.checked("opencl", first, SPECS["dense"], ["int4"], "int8")
    assert device.variants == tuple(part for part in first.variants if part != IMAGES)
    done = CliRunner().invoke(_app.app, ["doctor", "--device", "opencl:0"])
    assert done.exit_code == 1
    assert "kernel product_int4_8" in done.stdout or "wrong: product_int4_8" in done.stdout
    assert f"right without {IMAGES}, which is what edgedec will do: {CASES[2].name}" in done.stdout


@slow
def test_each_launch_of_the_golden_cases_is_right() -> None:
    device = Counted(driver.chosen())
    cases = [case for case in CASES if case.kv == "int8"]
    assert [found for found in check.examine(device, cases) if found.kernel] == []
    through = {name for name in device.products if name.endswith("_image")}
    assert through == {reader.kernel for reader in images.READERS.values()}
