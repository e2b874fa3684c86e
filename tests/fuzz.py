"""Coverage-guided fuzzing of what reads bytes: `make fuzz SECONDS=600` each, or `TARGET=json` alone.

C++ by libFuzzer with sanitizers (clang; Debian's packages are clang and libclang-rt-dev), Python by atheris (the extra
`fuzz`). What a run finds is kept in build/fuzz and is where the next one begins; `--keep` makes the small corpus of it
that `make test` replays.

    python tests/fuzz.py [TARGET ...] [--seconds 60] [--keep]
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import c_toys as toys  # noqa: E402
from hostile.readers import READERS  # noqa: E402

CORPUS = HERE / "library" / "fuzz" / "corpus"
WORK = HERE.parent / "build" / "fuzz"
# Bytes of an input at most: longer ones are slow and find no more.
LONGEST = {"json": 4096, "pattern": 1024, "text": 2048, "calls": 1500, "index": 60_000}
LONG = 20_000
# Bytes of a target's corpus at most, packed.
KEPT = 110_000


def corpus_of(target: str, folder: Path) -> list[Path]:
    """The shipped corpus of a target, unpacked under a folder."""
    packed, out = CORPUS / f"{target}.zip", folder / target
    out.mkdir(parents=True, exist_ok=True)
    if packed.is_file():
        with zipfile.ZipFile(packed) as found:
            found.extractall(out)
    return sorted(path for path in out.iterdir() if path.is_file())


def command_of(target: str) -> tuple[list[str], dict[str, str] | None]:
    """The fuzzer of a target, and its environment."""
    if target in READERS:
        return [sys.executable, str(HERE / "hostile" / "readers.py"), target], None
    return [str(WORK / "fuzzer")], toys.environment(WORK / "toy.edb", target)


def prepare(targets: list[str]) -> None:
    """Build what the targets need, and lay out where they begin."""
    WORK.mkdir(parents=True, exist_ok=True)
    for target in targets:
        corpus_of(target, WORK / "corpus")
    if set(targets) & set(toys.TARGETS):
        print("the fuzzer of libedgedec is compiled: a few minutes", flush=True)
        shutil.rmtree(WORK / "toy", ignore_errors=True)
        toys.write_toy(WORK)
        try:
            toys.build_fuzzer(WORK / "fuzzer")
        except pytest.skip.Exception as missing:
            sys.exit(f"{missing}: install Debian's clang and libclang-rt-dev, or name targets that begin with python-")
        for target, seeds in toys.write_seeds(toys.build(WORK / "driver"), WORK / "toy.edb").items():
            for seed in seeds:
                (WORK / "corpus" / target).mkdir(parents=True, exist_ok=True)
                (WORK / "corpus" / target / seed.name).write_bytes(seed.read_bytes())


def fuzz(target: str, seconds: int) -> int:
    """Run a target: the number of inputs. A finding ends the program; its input is in build/fuzz."""
    command, environment = command_of(target)
    limits = [f"-max_total_time={seconds}", f"-max_len={LONGEST.get(target, LONG)}", "-timeout=60"]
    limits += ["-print_final_stats=1", f"-artifact_prefix={WORK}/found-{target}-"]
    done = subprocess.run(
        [*command, WORK / "corpus" / target, *limits], env=environment, capture_output=True, text=True, errors="replace"
    )
    if done.returncode:
        sys.exit(f"{target}: found something, see {WORK}/found-{target}-*\n{done.stderr[-5000:]}")
    return int(re.findall(r"number_of_executed_units: (\d+)", done.stderr)[-1])


def keep(target: str) -> int:
    """The smallest inputs of a target that reach as much, as its shipped corpus: its bytes. Of readers in Python, which
    libFuzzer cannot start by itself, simply the smallest."""
    small = WORK / "corpus" / target
    if target not in READERS:
        small = WORK / "small" / target
        shutil.rmtree(small, ignore_errors=True)
        small.mkdir(parents=True)
        command, environment = command_of(target)
        merge = [*command, "-merge=1", f"-max_len={LONGEST.get(target, LONG)}", small, WORK / "corpus" / target]
        subprocess.run(merge, env=environment, check=True, capture_output=True)
    CORPUS.mkdir(exist_ok=True)
    out = CORPUS / f"{target}.zip"
    with zipfile.ZipFile(out, "w", zipfile.ZIP_LZMA) as packed:
        for path in sorted(small.iterdir(), key=lambda path: (path.stat().st_size, path.name)):
            # A date of its own would make each corpus another file.
            packed.writestr(zipfile.ZipInfo(path.name[:12]), path.read_bytes(), zipfile.ZIP_LZMA)
            if packed.fp is not None and packed.fp.tell() > KEPT:
                break
    return out.stat().st_size


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    every = [*toys.TARGETS, *READERS]
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"all by default: {', '.join(every)}")
    parser.add_argument("--seconds", type=int, default=60, help="of each target")
    parser.add_argument("--keep", action="store_true", help="make the small corpus that the tests replay")
    given = parser.parse_args()
    targets = given.targets or every
    if unknown := set(targets) - set(every):
        parser.error(f"no targets: {', '.join(sorted(unknown))}")
    if find_spec("atheris") is None and set(targets) & set(READERS):
        print("no atheris here (pip install atheris): the readers in Python are left out")
        targets = [target for target in targets if target not in READERS]
    prepare(targets)
    for target in targets:
        kept = len(list((WORK / "corpus" / target).iterdir()))
        if given.seconds:
            print(f"{target}: {fuzz(target, given.seconds):,} inputs, from {kept}", flush=True)
        if given.keep:
            print(f"{target}: {keep(target):,} bytes kept")


if __name__ == "__main__":
    main()
