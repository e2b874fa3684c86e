"""The Kotlin library and the app. What they are held to is Python's; the build runs where its tools are."""

import json
import os
import re
import runpy
import shutil
import struct
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest
from kotlin_golden import GOLDEN, golden

from edgedec.kernels.cpu import loader

DEMO = Path(__file__).parents[2] / "android_demo"
BUILD = runpy.run_path(str(DEMO / "build.py"))
NATIVE = DEMO / "edgedec-kotlin/src/main/kotlin/org/edgedec/engine/NativeLibrary.kt"
STRING = re.compile(r'<string name="(\w+)">(.*)</string>')
slow = pytest.mark.skipif(not os.environ.get("EDGEDEC_SLOW_TESTS"), reason="slow: set EDGEDEC_SLOW_TESTS")


def missing_tools() -> str | None:
    """Why the app cannot be built here without a download; None if it can."""
    lacking = [tool for tool in BUILD["TOOLS"] if shutil.which(tool) is None]
    if lacking:
        return f"not installed: {', '.join(lacking)}"
    cache = Path.home() / ".m2" / "repository" / "org" / "robolectric" / "android-all-instrumented"
    return None if cache.is_dir() else "Maven's packages are not here; `make android` once"


@pytest.mark.skipif(loader.why_not() is not None, reason=f"native engine: {loader.why_not()}")
def test_what_the_kotlin_library_is_held_to_is_what_python_says():
    assert json.loads(GOLDEN.read_text("utf-8")) == json.loads(json.dumps(golden()))


def test_german_and_english_have_the_same_strings_and_places():
    texts = {}
    for folder in ("values", "values-de"):
        found = STRING.findall((DEMO / "app/src/main/res" / folder / "strings.xml").read_text("utf-8"))
        texts[folder] = {name: re.findall(r"%\d\$[\w.]+", text) for name, text in found}
    assert len(texts["values"]) > 25
    assert texts["values"] == texts["values-de"]


def test_every_string_is_used_and_every_used_one_is_there():
    main = DEMO / "app" / "src" / "main"
    names = {name for name, _ in STRING.findall((main / "res/values/strings.xml").read_text("utf-8"))}
    files = [*main.rglob("*.kt"), *main.rglob("*.xml")]
    used = {n for f in files for n in re.findall(r"(?:R\.string\.|@string/)(\w+)", f.read_text("utf-8"))}
    assert used == names


def test_the_app_asks_for_no_network():
    manifest = (DEMO / "app/src/main/AndroidManifest.xml").read_text("utf-8")
    assert re.findall(r"uses-permission [^>]*name=\"([\w.]+)\"", manifest) == ["android.permission.POST_NOTIFICATIONS"]


def test_libraries_lie_at_pages_of_an_apk(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.apk", "w") as out:
        BUILD["add"](out, "classes.dex", b"x" * 999, False, 4)
        BUILD["add"](out, "resources.arsc", b"y" * 77, True, 4)
        BUILD["add"](out, "lib/arm64-v8a/liba.so", b"z" * 1001, True, BUILD["PAGE"])
    raw = (tmp_path / "a.apk").read_bytes()
    with zipfile.ZipFile(tmp_path / "a.apk") as apk:
        for name, align in (("lib/arm64-v8a/liba.so", 16384), ("resources.arsc", 4)):
            item = apk.getinfo(name)
            names, extra = struct.unpack_from("<HH", raw, item.header_offset + 26)
            assert (item.header_offset + 30 + names + extra) % align == 0
            assert item.compress_type == zipfile.ZIP_STORED
            assert apk.read(name)


def test_a_machine_without_the_tools_is_told_what_to_install(tmp_path):
    env = {**os.environ, "PATH": str(tmp_path)}
    done = subprocess.run([sys.executable, DEMO / "build.py"], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "apt-get install" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@slow
@pytest.mark.skipif(missing_tools() is not None, reason=f"{missing_tools()}")
def test_the_library_the_app_and_a_signed_apk(tmp_path):
    out = tmp_path / "demo.apk"
    command = [sys.executable, DEMO / "build.py", "--offline", "--test", "--out", out]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert str(out) in done.stdout
    reports = [p.read_text() for p in DEMO.glob("*/target/surefire-reports/*.txt")]
    assert sum(int(n) for text in reports for n in re.findall(r"Tests run: (\d+)", text)) > 60
    for report in reports:
        assert "Failures: 0, Errors: 0" in report
    shown = subprocess.run(["aapt", "dump", "badging", out], capture_output=True, text=True, check=True).stdout
    assert "org.edgedec.demo.MainActivity" in shown
    assert "INTERNET" not in shown
    subprocess.run(["apksigner", "verify", out], check=True)
    with zipfile.ZipFile(out) as apk:
        names = apk.namelist()
        nano = json.loads(apk.read("assets/nano/edgedec.json"))
        apk.extractall(tmp_path / "apk")
    assert {f"assets/nano/{name}" for name in nano["files"]} < set(names)
    check_classes(tmp_path / "apk")
    if find_spec("ziglang"):
        check_natives(tmp_path / "apk" / "lib")


def check_classes(folder):
    """A disassembler reads them all."""
    if shutil.which("dexdump") is None:
        return
    classes = [subprocess.check_output(["dexdump", "-f", path], text=True) for path in folder.glob("*.dex")]
    found = set(re.findall(r"Class descriptor\s*: '(\S+)'", "".join(classes)))
    wanted = ("demo/MainActivity", "demo/SummaryJob", "engine/NativeLibrary", "engine/OrtEngine")
    assert {f"Lorg/edgedec/{name};" for name in wanted} < found


def check_natives(folder):
    """Both libraries of both processors: their functions, and pages of 16 KiB."""
    for abi in BUILD["ABIS"]:
        library, jni = folder / abi / "libedgedec.so", folder / abi / "libedgedec_jni.so"
        for path in (library, jni):
            shown = subprocess.check_output(["readelf", "-lW", path], text=True)
            aligned = [line.split()[-1] for line in shown.splitlines() if line.split()[:1] == ["LOAD"]]
            assert aligned
            assert all(int(align, 16) >= BUILD["PAGE"] for align in aligned)
        shown = subprocess.check_output(["readelf", "-dW", "--dyn-syms", jni], text=True)
        assert "[libedgedec.so]" in shown
        given = {line.split()[7] for line in shown.splitlines() if re.match(r"\s+\d+: ", line) and " UND " not in line}
        declared = re.findall(r"external fun (\w+)\(", NATIVE.read_text("utf-8"))
        prefix = "Java_org_edgedec_engine_NativeLibrary_"
        assert {re.sub(r"__.*", "", name.removeprefix(prefix)) for name in given} == set(declared)
