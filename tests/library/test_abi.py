"""The interface of libedgedec is what programs were compiled with: functions, sizes and places of fields are pinned.

A field may be added at the end of a structure, and a function: then the pins grow. Anything else raises EDGEDEC_ABI.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from clibrary import HEADER, LIBRARY, c, library, library_file, needs_compiler, opened

CODE = re.sub(r"/\*.*?\*/", "", HEADER.read_text("utf-8"), flags=re.S)
STRUCTS = {
    "edgedec_open_options": c.OpenOptions,
    "edgedec_model_info": c.ModelInfo,
    "edgedec_memory_use": c.MemoryUse,
    "edgedec_session_options": c.SessionOptions,
    "edgedec_sampling": c.SamplingOptions,
    "edgedec_token": c.GeneratedToken,
    "edgedec_generate_options": c.GenerateOptions,
    "edgedec_result": c.GenerateResult,
    "edgedec_request": c.GenerateRequest,
}
# Of version 1 of the ABI, on 64-bit machines.
SIZES = {
    "edgedec_open_options": 88,
    "edgedec_model_info": 64,
    "edgedec_memory_use": 48,
    "edgedec_session_options": 40,
    "edgedec_sampling": 104,
    "edgedec_token": 64,
    "edgedec_generate_options": 128,
    "edgedec_result": 64,
    "edgedec_request": 48,
}


def test_functions() -> None:
    """Those of the header are those of the library, of the binding, and no others are to be seen."""
    declared = set(re.findall(r"EDGEDEC_API[^;(]*?\bedgedec_(\w+)\(", CODE))
    assert declared == set(c.SIGNATURES)
    assert len(declared) == 45
    if shutil.which("nm"):
        shown = subprocess.check_output(["nm", "-D", "--defined-only", library_file()], text=True)
        assert {line.split()[-1] for line in shown.splitlines()} == {f"edgedec_{name}" for name in declared}
    assert library()("abi") == 1 == c.ABI
    assert int(re.search(r"EDGEDEC_ABI (\d+)", CODE)[1]) == 1


@needs_compiler
def test_structures(tmp_path: Path) -> None:
    """As a C99 compiler lays them out, field by field."""
    lines = []
    for name, mirror in STRUCTS.items():
        places = [f"offsetof({name}, {field[0]})" for field in mirror._fields_]
        lines.append(f'printf("{name} %zu{" %zu" * len(places)}\\n", sizeof({name}), {", ".join(places)});')
    source = tmp_path / "sizes.c"
    source.write_text(
        "#include <edgedec.h>\n#include <stdio.h>\nint main(void) {\n" + "\n".join(lines) + "\nreturn 0; }\n"
    )
    flags = ["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", f"-I{HEADER.parent}"]
    subprocess.run(["cc", *flags, source, "-o", tmp_path / "sizes"], check=True)
    for line in subprocess.check_output([tmp_path / "sizes"], text=True).splitlines():
        name, size, *offsets = line.split()
        mirror = STRUCTS[name]
        assert int(size) == ctypes.sizeof(mirror) == SIZES[name], name
        assert [int(offset) for offset in offsets] == [getattr(mirror, field[0]).offset for field in mirror._fields_]
        body = re.search(rf"typedef struct {name} \{{(.*?)\}} {name};", CODE, re.S)
        assert body
        declared = [part.split()[-1].lstrip("*") for part in body[1].replace(",", ";").split(";") if part.strip()]
        assert declared == [field[0] for field in mirror._fields_]


# What the first header of this ABI had not: a program of its time is compiled without these lines.
ADDED = {"edgedec_result": "double forward_seconds;"}
OLD_PROGRAM = """
#include <edgedec.h>
#include <stdio.h>
#include <string.h>
int main(int argc, char** argv) {
  const int32_t prompt[] = {12, 375, 278, 259};
  struct { edgedec_result result; unsigned char after[64]; } held;
  edgedec_model* model; edgedec_session* session; edgedec_generate_options options;
  memset(&held, 0x5a, sizeof held);
  held.result.size = sizeof held.result;
  edgedec_generate_options_init(&options, sizeof options);
  options.max_tokens = 9;
  if (argc != 2 || edgedec_abi() != EDGEDEC_ABI || edgedec_open(argv[1], NULL, &model)) return 1;
  if (edgedec_session_new(model, NULL, &session)) return 2;
  if (edgedec_generate(session, prompt, 4, &options, &held.result)) return 3;
  for (size_t i = 0; i < sizeof held.after; i++) if (held.after[i] != 0x5a) return 4;
  printf("%d %d %zu\\n", held.result.generated, held.result.finish, sizeof held.result);
  edgedec_session_free(session), edgedec_close(model);
  return 0;
}
"""


@needs_compiler
def test_a_program_of_the_first_header_runs_with_this_library(nano: Path, tmp_path: Path) -> None:
    """What it did not know of is not written after its structures."""
    text = HEADER.read_text("utf-8")
    for name, line in ADDED.items():
        struct = re.search(rf"typedef struct {name} \{{.*?\}} {name};", text, re.S)
        assert struct
        assert line in struct[0]
        text = text.replace(struct[0], struct[0].replace(line, ""))
    (tmp_path / "edgedec.h").write_text(text)
    (tmp_path / "old.c").write_text(OLD_PROGRAM)
    lib, program = library_file(), tmp_path / "old"
    flags = ["-std=c99", "-Wall", "-Werror", f"-I{tmp_path}", str(lib), f"-Wl,-rpath,{lib.parent}"]
    subprocess.run(["cc", tmp_path / "old.c", "-o", program, *flags], check=True)
    told = subprocess.run([program, nano], capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    size = SIZES["edgedec_result"] - 8
    assert told.stdout.split() == ["9", "3", str(size)]


@pytest.mark.parametrize("name", STRUCTS)
def test_numbers_are_named(name: str) -> None:
    statuses = re.findall(r"EDGEDEC_(\w+) = (\d+)", re.search(r"enum edgedec_status \{(.*?)\}", CODE, re.S)[1])  # type: ignore[index]
    assert [word.lower() for word, _ in statuses] == c.STATUS
    assert [library()("status_name", int(number)).decode() for _, number in statuses] == c.STATUS
    assert library()("status_name", 99) == b"unknown"


def test_older_and_newer_programs(nano: Path) -> None:
    """A shorter structure leaves the other fields at their defaults; what a longer one has besides is not looked at."""
    model = opened(nano)
    short = c.GenerateOptions(max_tokens=5)
    short.size = 12  # up to max_tokens
    short.min_tokens = 999_999
    result = c.GenerateResult(size=24)
    result.drafted = 77
    session = model.session()
    library().check("generate", session.handle, c.tokens_of([5]), 1, ctypes.byref(short), ctypes.byref(result))
    assert (result.finish, result.generated, result.drafted) == (3, 5, 77)

    class Longer(ctypes.Structure):
        _fields_ = [("known", c.SessionOptions), ("more", ctypes.c_uint8 * 64)]

    longer = Longer()
    longer.more[:] = [255] * 64
    library()("session_options_init", ctypes.byref(longer), ctypes.sizeof(longer))
    assert longer.known.size == ctypes.sizeof(longer)
    assert longer.known.sinks == -1
    assert not any(longer.more)
    longer.more[:] = [255] * 64
    made = library().made("session_new", model.handle, ctypes.byref(longer))
    library()("session_free", made)


def test_nothing_given(nano: Path) -> None:
    """NULL for anything is an error, or nothing."""
    lib, out = library(), ctypes.c_void_p()
    model, session = opened(nano), opened(nano).session()
    calls: list[tuple[Any, ...]] = [
        ("open", None, None, ctypes.byref(out)),
        ("open", str(nano).encode(), None, None),
        ("open_memory", None, 100, None, ctypes.byref(out)),
        ("open_fd", -1, 0, 100, None, ctypes.byref(out)),
        ("info", None, ctypes.byref(c.ModelInfo()), 64),
        ("info", model.handle, None, 64),
        ("info", model.handle, ctypes.byref(c.ModelInfo()), 0),
        ("memory", None, ctypes.byref(c.MemoryUse()), 48),
        ("trim", None),
        ("adapter_open", model.handle, None, ctypes.byref(out)),
        ("session_new", None, None, ctypes.byref(out)),
        ("session_new", model.handle, None, None),
        ("session_fork", None, ctypes.byref(out)),
        ("session_save", session.handle, None),
        ("session_load", session.handle, None),
        ("session_append", session.handle, None, 3),
        ("session_append", session.handle, None, -1),
        ("session_truncate", session.handle, 5),
        ("prefill", None, None, 0),
        ("prefill", session.handle, None, 0),
        ("prefill", session.handle, c.tokens_of([1]), -7),
        ("step", None, 1),
        ("step", session.handle, -1),
        ("step_many", None, c.tokens_of([1]), 1),
        ("sample", session.handle, None, None),
        ("score", session.handle, c.tokens_of([1]), 1, None),
        ("generate", None, c.tokens_of([1]), 1, None, None),
        ("generate", session.handle, None, 0, None, None),
        ("generate_text", session.handle, None, None, None),
        ("generate_many", None, 2),
    ]
    for name, *arguments in calls:
        status = lib(name, *arguments)
        assert status > 0, name
        assert lib("last_error"), name
    assert lib("encode", None, b"a", -1, 0, None, 0) < 0
    assert lib("decode", None, None, 0, 0, None, 0) < 0
    assert lib("eos", None, None, 0) == 0
    assert lib("model_string", None, 0) == b""
    assert not lib("logits", None)
    for name in ("close", "session_free", "adapter_close", "cancel"):
        lib(name, None)
    assert lib("session_length", None) == 0
    assert session.ids == []
    assert lib("session_seed", session.handle, 1) == 0
    assert lib("last_error") == b""


@needs_compiler
def test_programs_in_c_and_cpp(nano: Path, tmp_path: Path) -> None:
    """The examples, linked with the library: the story that Python tells."""
    examples, lib = LIBRARY.parents[1] / "examples", library_file()
    flags = ["-Wall", "-Wextra", "-Werror", f"-I{HEADER.parent}", str(lib), f"-Wl,-rpath,{lib.parent}"]
    subprocess.run(["cc", "-std=c99", examples / "c" / "story.c", "-o", tmp_path / "c", *flags], check=True)
    subprocess.run(["c++", "-std=c++17", examples / "cpp" / "story.cpp", "-o", tmp_path / "cpp", *flags], check=True)
    told = subprocess.run([tmp_path / "c", nano], capture_output=True, text=True, check=True).stdout
    assert told.startswith("Once upon a time, there was a little girl named Lily. She loved to play")
    assert "[150 tokens" in told
    two = subprocess.run([tmp_path / "cpp", nano], capture_output=True, text=True, check=True).stdout
    assert two.count("Once upon a time, there was") == 2
    wrong = subprocess.run([tmp_path / "c", tmp_path], capture_output=True, text=True)
    assert wrong.returncode == 1
    assert "no edgedec.json there" in wrong.stderr
    assert len(examples.joinpath("c", "story.c").read_text().splitlines()) <= 36
