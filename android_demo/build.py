"""Makes the app's APK without the Android SDK: Maven for the classes, aapt2, d8, zipalign and apksigner for the rest.

    python android_demo/build.py [--test] [--offline] [--out build/edgedec-demo.apk]

Needs a JDK of 17 or later, Maven, and Debian's packages aapt, zipalign, apksigner. Variables:

    ANDROID_NDK_HOME   compiles libedgedec for Android with this NDK; without it zig does (`pip install ziglang`)
    EDGEDEC_ORT_AAR    packs the native libraries of this onnxruntime-android AAR
    EDGEDEC_KEYSTORE   signs with its first key; its password: EDGEDEC_KEYSTORE_PASSWORD. Else a key of this checkout
"""

from __future__ import annotations

import argparse
import os
import runpy
import shutil
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT, APP = HERE.parent, HERE / "app"
TARGET, MAIN = APP / "target", APP / "src" / "main"
NANO = ROOT / "models" / "nano" / "bundle"
LIBRARY = Path(os.environ.get("EDGEDEC_LIB_SOURCE") or ROOT / "kernels" / "lib")
SHIM = HERE / "edgedec-kotlin" / "src" / "main" / "c" / "edgedec_jni.c"
NATIVES, ABIS = HERE / "build" / "natives", ("arm64-v8a", "x86_64")
MIN_SDK, TARGET_SDK, PAGE = 26, 35, 16384
PACKAGES = "default-jdk-headless maven aapt zipalign apksigner"
TOOLS = ("java", "mvn", "keytool", "aapt2", "zipalign", "apksigner")


class Failed(Exception):
    """An error in one line, with advice."""


def run(*command: str | Path, cwd: Path = HERE) -> str:
    """The output of a program; Failed with its last lines if it failed."""
    done = subprocess.run([str(part) for part in command], cwd=cwd, text=True, capture_output=True, check=False)
    if done.returncode:
        said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        errors = [line for line in said if "ERROR" in line or "error:" in line] or said[-3:]
        raise Failed(f"{Path(str(command[0])).name} failed: {' | '.join(errors[:4])[:800]}")
    return done.stdout


def check_tools() -> None:
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        raise Failed(f"not installed: {', '.join(missing)}; `apt-get install {PACKAGES}`")


def maven(offline: bool, *goals: str) -> None:
    run("mvn", "-B", *(["-o"] if offline else []), *goals)


def desktop_natives() -> None:
    """libedgedec and its JNI functions for this machine's JVM, where the tests find them."""
    folder = HERE / "build" / "jni"
    if not (LIBRARY / "build.py").is_file():
        return print("android: no kernels/lib here, the tests of the native engine are skipped", file=sys.stderr)
    folder.mkdir(parents=True, exist_ok=True)
    run(sys.executable, LIBRARY / "build.py", "--out", folder / "libedgedec.so")
    java = java_home() / "include"
    includes = [f"-I{path}" for path in (java, java / "linux", LIBRARY / "include")]
    link = ["-L.", "-ledgedec", "-Wl,-rpath,$ORIGIN"]
    run(
        "cc",
        "-O2",
        "-shared",
        "-fPIC",
        "-fvisibility=hidden",
        *includes,
        SHIM,
        "-o",
        "libedgedec_jni.so",
        *link,
        cwd=folder,
    )


def packed_bundle() -> None:
    """Nano as Python packs it, for the tests; without the Python package they pack one themselves."""
    out = HERE / "build" / "nano.edb"
    out.unlink(missing_ok=True)
    if find_spec("edgedec"):
        run(sys.executable, "-m", "edgedec", "pack", NANO, "-o", out)


def android_natives() -> None:
    """Native libraries for Android, by ABI: edgedec's with an NDK or zig, ONNX Runtime's from its AAR."""
    ndk, aar = os.environ.get("ANDROID_NDK_HOME"), os.environ.get("EDGEDEC_ORT_AAR")
    shutil.rmtree(NATIVES, ignore_errors=True)
    if ndk:
        for abi in ABIS:
            with_ndk(Path(ndk), abi)
    elif find_spec("ziglang"):
        with_zig()
    if aar:
        with zipfile.ZipFile(aar) as source:
            for name in source.namelist():
                parts = name.split("/")
                if parts[0] == "jni" and len(parts) == 3 and parts[1] in ABIS and parts[2].endswith(".so"):
                    (NATIVES / parts[1]).mkdir(parents=True, exist_ok=True)
                    (NATIVES / parts[1] / parts[2]).write_bytes(source.read(name))


def with_zig() -> None:
    """The same for all ABIs without an NDK."""
    android = runpy.run_path(str(LIBRARY / "android.py"))
    headers = java_home() / "include"
    try:
        for abi in ABIS:
            android["build"](abi, NATIVES)
            android["build_jni"](abi, NATIVES, SHIM, [headers, headers / "linux"])
    except android["BuildFailed"] as error:
        raise Failed(f"zig: {error}; {error.log.strip()[-300:]}") from None


def java_home() -> Path:
    return Path(shutil.which("javac") or "").resolve().parents[1]


def with_ndk(ndk: Path, abi: str) -> None:
    """libedgedec.so and libedgedec_jni.so for one ABI, C++'s library inside."""
    toolchain = [
        f"-DCMAKE_TOOLCHAIN_FILE={ndk / 'build' / 'cmake' / 'android.toolchain.cmake'}", f"-DANDROID_ABI={abi}",
        f"-DANDROID_PLATFORM=android-{MIN_SDK}", "-DANDROID_STL=c++_static", "-DANDROID_SUPPORT_FLEXIBLE_PAGE_SIZES=ON",
        "-DCMAKE_BUILD_TYPE=Release",
    ]  # fmt: skip
    into, objects = NATIVES / abi, HERE / "build" / "ndk" / abi
    into.mkdir(parents=True, exist_ok=True)
    run("cmake", "-S", LIBRARY, "-B", objects / "lib", *toolchain)
    run("cmake", "--build", objects / "lib", "-j")
    shutil.copy2(next((objects / "lib").glob("libedgedec.so")), into)
    found = [f"-DEDGEDEC_LIBRARY={into / 'libedgedec.so'}", f"-DEDGEDEC_INCLUDE={LIBRARY / 'include'}"]
    run("cmake", "-S", HERE / "edgedec-kotlin" / "src" / "main" / "c", "-B", objects / "jni", *toolchain, *found)
    run("cmake", "--build", objects / "jni")
    shutil.copy2(objects / "jni" / "libedgedec_jni.so", into)


def resources() -> Path:
    """The APK with manifest, resources and assets; writes R.java, and what Robolectric reads."""
    compiled, base = TARGET / "resources.zip", TARGET / "resources.apk"
    run("aapt2", "compile", "--dir", MAIN / "res", "-o", compiled)
    run(
        "aapt2", "link", "-I", TARGET / "tools" / "resources.jar", "--manifest", MAIN / "AndroidManifest.xml",
        "--java", TARGET / "r", "-A", assets(), "-o", base, "--min-sdk-version", str(MIN_SDK),
        "--target-sdk-version", str(TARGET_SDK), "--version-code", "1", "--version-name", "0.1.0", compiled,
    )  # fmt: skip
    config = TARGET / "robolectric-config" / "com" / "android" / "tools"
    config.mkdir(parents=True, exist_ok=True)
    (config / "test_config.properties").write_text(
        f"android_merged_manifest={MAIN / 'AndroidManifest.xml'}\nandroid_merged_assets={TARGET / 'assets'}\n"
        f"android_resource_apk={base}\nandroid_custom_package=org.edgedec.demo\n"
    )
    with zipfile.ZipFile(TARGET / "tools" / "monitor.aar") as aar:
        (TARGET / "aar").mkdir(exist_ok=True)
        (TARGET / "aar" / "monitor.jar").write_bytes(aar.read("classes.jar"))
    return base


def assets() -> Path:
    """Nano, whole: its manifest lists every file."""
    folder = TARGET / "assets"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(NANO, folder / "nano", ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    return folder


def dex() -> Path:
    """classes.dex of the app, the library and what they need. ONNX Runtime's classes are included because its natives
    need them."""
    folder = TARGET / "dex"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    provided = TARGET / "provided"
    framework = next(provided.glob("android-all-*.jar"))
    jars = [
        TARGET / "app-0.1.0.jar",
        *sorted((TARGET / "runtime").glob("*.jar")),
        next(provided.glob("onnxruntime-*.jar")),
    ]
    d8: list[str | Path] = ["java", "-Xmx2g", "-cp", TARGET / "tools" / "r8.jar", "com.android.tools.r8.D8"]
    run(*d8, "--release", "--min-api", str(MIN_SDK), "--lib", framework, "--output", folder, *jars)
    return folder


def pack(base: Path, classes: Path, into: Path) -> None:
    """One zip file: libraries uncompressed and aligned to pages of 16 KiB, so that they can be mapped in place."""
    with zipfile.ZipFile(base) as source, zipfile.ZipFile(into, "w", zipfile.ZIP_DEFLATED) as out:
        for item in source.infolist():
            stored = item.filename == "resources.arsc"
            add(out, item.filename, source.read(item), stored, 4)
        for path in sorted(classes.glob("*.dex")):
            add(out, path.name, path.read_bytes(), False, 4)
        for path in sorted(NATIVES.glob("*/*.so")):
            add(out, f"lib/{path.parent.name}/{path.name}", path.read_bytes(), True, PAGE)


def add(out: zipfile.ZipFile, name: str, data: bytes, stored: bool, align: int) -> None:
    info = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
    info.compress_type = zipfile.ZIP_STORED if stored else zipfile.ZIP_DEFLATED
    if stored:
        assert out.fp is not None
        start = out.fp.tell() + 30 + len(name.encode())
        # An extra field as zipalign writes it: id, size, and zeros.
        padding = -(start + 6) % align
        head = b"".join(n.to_bytes(2, "little") for n in (0xD935, padding + 2, align))
        info.extra = head + bytes(padding)
    out.writestr(info, data)


def keystore() -> tuple[Path, str]:
    given = os.environ.get("EDGEDEC_KEYSTORE")
    if given:
        return Path(given), os.environ.get("EDGEDEC_KEYSTORE_PASSWORD", "")
    path = HERE / "build" / "debug.keystore"
    if not path.is_file():
        path.parent.mkdir(exist_ok=True)
        run(
            "keytool", "-genkeypair", "-keystore", path, "-storepass", "android", "-alias", "edgedec", "-keyalg", "RSA",
            "-keysize", "3072", "-validity", "10000", "-dname", "CN=edgedec debug", "-storetype", "PKCS12",
        )  # fmt: skip
    return path, "android"


def sign(unsigned: Path, out: Path) -> None:
    run("zipalign", "-c", "-p", "4", unsigned)
    key, password = keystore()
    part = out.with_name(out.name + ".part")
    run(
        "apksigner",
        "sign",
        "--ks",
        key,
        "--ks-pass",
        f"pass:{password}",
        "--v4-signing-enabled",
        "false",
        "--out",
        part,
        unsigned,
    )
    run("apksigner", "verify", "--min-sdk-version", str(MIN_SDK), part)
    part.replace(out)


def build(out: Path, test: bool, offline: bool) -> Path:
    check_tools()
    maven(offline, "-q", "-pl", "app", "initialize")
    base = resources()
    android_natives()
    if test:
        desktop_natives()
        packed_bundle()
    maven(offline, "-q", "package", *([] if test else ["-DskipTests"]))
    unsigned = TARGET / "unsigned.apk"
    pack(base, dex(), unsigned)
    out.parent.mkdir(parents=True, exist_ok=True)
    sign(unsigned, out)
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--test", action="store_true", help="run the tests of library and app too")
    parser.add_argument("--offline", action="store_true", help="download nothing")
    parser.add_argument("--out", type=Path, default=HERE / "build" / "edgedec-demo.apk")
    given = parser.parse_args()
    try:
        out = build(given.out.resolve(), given.test, given.offline)
    except Failed as error:
        print(f"android: {error}", file=sys.stderr)
        return 1
    kinds = sorted(f"{path.parent.name} {path.name}" for path in NATIVES.glob("*/*.so"))
    print(f"{out}: {out.stat().st_size / 1e6:.1f} MB, signed; native libraries: {', '.join(kinds) or 'none'}")
    if not kinds:
        print("android: it starts but tells no story without natives: pip install ziglang, or set ANDROID_NDK_HOME")
    return 0


if __name__ == "__main__":
    sys.exit(main())
