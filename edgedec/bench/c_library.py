"""libedgedec, Python and llama.cpp's programs on the same weights, in turns, each turn a process of its own."""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any

from edgedec.bench.llama_weights import write_weights
from edgedec.errors import RuntimeUnavailable

if TYPE_CHECKING:
    from edgedec.bundle.folder import Bundle

PROMPT = (12, 375, 278, 259)
# What a Python program does of it: `python -c PYTHON BUNDLE TOKENS THREADS KV`.
PYTHON = f"""
import json, sys
from time import perf_counter
import edgedec
from edgedec.bench.c_library import peak_kb
model = edgedec.open(sys.argv[1], engine="native", threads=int(sys.argv[3]), kv=sys.argv[4])
tokens = model.session(speculate="off").tokens({PROMPT}, max_tokens=int(sys.argv[2]), ignore_eos=True)
next(tokens)
print(".", end="", flush=True)
began, n = perf_counter(), len(list(tokens))
print(json.dumps({{"tokens": n, "seconds": perf_counter() - began, "peak_kb": peak_kb("self")}}))
"""


@dataclass(frozen=True)
class Turn:
    """One process: seconds from its start to its first token, tokens/s after that, bytes of memory at most."""

    first_seconds: float
    tokens_per_second: float
    peak_bytes: int
    overhead: float | None = None  # the share of the time that is not in forward calls


@dataclass
class TimedProgram:
    """A program that takes turns. size: bytes of what is installed to run it; None: not counted."""

    name: str
    turn: Callable[[], Turn]
    size: int | None = None
    turns: list[Turn] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        shares = [turn.overhead for turn in self.turns if turn.overhead is not None]
        return {
            "first_token_ms": _spread([1000 * turn.first_seconds for turn in self.turns]),
            "tokens_per_second": _spread([turn.tokens_per_second for turn in self.turns]),
            "peak_mb": _spread([turn.peak_bytes / 1e6 for turn in self.turns]),
            "overhead": statistics.median(shares) if shares else None,
            "bytes": self.size,
        }


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def measure(programs: Sequence[TimedProgram], repetitions: int, show: Callable[[int, int], None]) -> None:
    """Turns of all, after one each to warm up."""
    total = (repetitions + 1) * len(programs)
    for done in range(total):
        program = programs[done % len(programs)]
        turn = program.turn()
        if done >= len(programs):
            program.turns.append(turn)
        show(done + 1, total)


def run(command: Sequence[str]) -> Turn:
    """A program that writes "." at its first token, then JSON."""
    began = perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        seen = process.stdout.read(1)
        first = perf_counter() - began
        rest = process.stdout.read()
        errors = process.stderr.read().decode(errors="replace")
    if seen != b"." or process.returncode:
        raise RuntimeUnavailable(f"{command[0]}: ended with {process.returncode}: {errors.strip()[-300:]}")
    found = json.loads(rest)
    return Turn(first, found["tokens"] / found["seconds"], 1024 * found["peak_kb"], found.get("overhead"))


def peak_kb(process: int | str) -> int:
    """kB that a process held at most; 0 if it is gone, or the system does not say."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0
    found = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(found[0]) if found else 0


# ---- who takes part --------------------------------------------------------------------------------


def library(folder: Path, arguments: Sequence[str]) -> TimedProgram:
    """libedgedec and a C program that calls it, compiled in `folder`."""
    sources = Path(str(files("edgedec.kernels.lib")))
    compiler = _compiler()
    if compiler is None or not (sources / "bench.c").is_file():
        raise RuntimeUnavailable("libedgedec: no C compiler, or none of its sources here; run it in a checkout")
    made, program = folder / "libedgedec.so", folder / "bench"
    linked = [f"-I{sources / 'include'}", str(made), f"-Wl,-rpath,{folder}", "-O2", "-o", str(program)]
    _compile("libedgedec", [sys.executable, str(sources / "build.py"), "--out", str(made)])
    _compile("libedgedec", [compiler, str(sources / "bench.c"), *linked])
    if strip := shutil.which("strip"):
        subprocess.run([strip, made], check=False)
    return TimedProgram("libedgedec", lambda: run([str(program), *arguments]), made.stat().st_size)


def _compiler() -> str | None:
    return next((name for name in ("cc", "gcc", "clang") if shutil.which(name)), None)


def _compile(name: str, command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeUnavailable(f"{name}: not compiled: {(done.stderr.strip() or 'no reason')[-300:]}")


def python(arguments: Sequence[str]) -> TimedProgram:
    return TimedProgram("Python", lambda: run([sys.executable, "-c", PYTHON, *arguments]))


def llama_library(folder: Path, gguf: Path, tokens: int, threads: int) -> TimedProgram:
    """llama.cpp's library out of the package llama-cpp-python, and a C program that calls it, compiled in `folder`."""
    found, compiler = find_spec("llama_cpp"), _compiler()
    home = Path(str(found.origin)).parent if found else Path()
    header = home.parent / "include" / "llama.h"
    if compiler is None or not header.is_file() or not any((home / "lib").glob("libllama.so")):
        raise RuntimeUnavailable("llama.cpp (C): no C compiler, or no llama-cpp-python with llama.h here")
    source, program = Path(str(files("edgedec.kernels.lib"))) / "bench_llama.c", folder / "bench_llama"
    linked = [f"-L{home / 'lib'}", "-lllama", "-lggml", "-lggml-base", f"-Wl,-rpath,{home / 'lib'}", "-o", str(program)]
    _compile("llama.cpp (C)", [compiler, "-std=c11", "-O2", f"-I{header.parent}", str(source), *linked])
    command = [str(program), str(gguf), str(tokens), str(threads)]
    return TimedProgram("llama.cpp (C)", lambda: run(command), _size_of(home / "lib"))


def llama_cpp(gguf: Path, tokens: int, threads: int) -> TimedProgram:
    """llama.cpp's programs on PATH: llama-completion (llama-cli before December 2025) to the first token, llama-bench
    for the speed."""
    programs = {"llama-completion": shutil.which("llama-completion") or shutil.which("llama-cli")}
    programs["llama-bench"] = shutil.which("llama-bench")
    missing = [name for name, path in programs.items() if path is None]
    if missing:
        raise RuntimeUnavailable(f"llama.cpp: no {' and no '.join(missing)} on PATH")
    size = _installed(Path(str(programs["llama-completion"])))
    return TimedProgram("llama.cpp", lambda: _llama_turn(programs, gguf, tokens, threads), size)


def programs_for(bundle: Bundle, folder: Path, arguments: list[str]) -> tuple[list[TimedProgram], dict[str, str]]:
    """Who takes part, and why the others do not. arguments: bundle, tokens, threads and cache format; folder: for the
    library, and the weights as GGUF."""
    found, skipped = [library(folder, arguments), python(arguments)], {}
    gguf, tokens, threads = folder / "weights.gguf", int(arguments[1]), int(arguments[2])
    others: dict[str, Callable[[], TimedProgram]] = {
        "llama.cpp (C)": lambda: llama_library(folder, gguf, tokens, threads),
        "llama.cpp": lambda: llama_cpp(gguf, tokens, threads),
    }
    for name, make in others.items():
        try:
            program = make()
            if not gguf.exists() and (reason := write_weights(bundle, gguf)):
                raise RuntimeUnavailable(reason)
            found.append(program)
        except RuntimeUnavailable as error:
            skipped[name] = str(error).removeprefix(f"{name}: ")
    return found, skipped


def _installed(program: Path) -> int:
    """Bytes of a program and of the libraries of its own that lie beside it or in the lib folder beside."""
    folder = program.resolve().parent
    return program.stat().st_size + _size_of(folder) + _size_of(folder.parent / "lib")


def _size_of(folder: Path) -> int:
    """Bytes of llama.cpp's libraries for text in a folder, each once."""
    found = {path.resolve() for name in ("libllama", "libggml") for path in folder.glob(f"{name}*.so*")}
    return sum(path.stat().st_size for path in found)


def _llama_turn(programs: Mapping[str, str | None], gguf: Path, tokens: int, threads: int) -> Turn:
    """The peak is llama-bench's. A letter is five tokens to these weights, which have no words: one more than the
    others are given."""
    shared = ["-m", str(gguf), "-t", str(threads)]
    plain = ["--no-display-prompt", "-no-cnv", "--no-warmup", "--simple-io", "--temp", "0", "--special"]
    first = _first([str(programs["llama-completion"]), *shared, "-p", "a", "-n", "64", *plain])
    said, peak = _said([str(programs["llama-bench"]), *shared, "-p", "0", "-n", str(tokens), "-r", "1", "-o", "json"])
    try:
        return Turn(first, float(json.loads(said)[0]["avg_ts"]), peak)
    except (ValueError, LookupError, TypeError):
        raise RuntimeUnavailable(f"llama.cpp: llama-bench said {said[:200]!r}, which is no report") from None


def _first(command: Sequence[str]) -> float:
    """Seconds from a program's start until it has written something. Then it is ended."""
    began = perf_counter()
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        seen = process.stdout.read(1)
        first = perf_counter() - began
        if seen:
            process.kill()
    if not seen:
        code = process.returncode
        raise RuntimeUnavailable(f"llama.cpp: {Path(command[0]).name} wrote nothing and ended with {code}")
    return first


def _said(command: Sequence[str]) -> tuple[str, int]:
    """What a program wrote, and its peak of memory as seen every few milliseconds."""
    peak = 0
    with TemporaryFile() as said:
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.DEVNULL) as process:
            while process.poll() is None:
                peak = max(peak, peak_kb(process.pid))
                sleep(0.005)
        if process.returncode:
            raise RuntimeUnavailable(f"llama.cpp: {Path(command[0]).name} ended with {process.returncode}")
        said.seek(0)
        return said.read().decode(errors="replace"), 1024 * peak
