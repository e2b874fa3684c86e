"""`edgedec doctor`: what this machine has, and what edgedec will use."""

from __future__ import annotations

import os
import platform
import sys
from importlib import import_module
from typing import Annotated, Any

import typer

from edgedec.cli import _doctor_device
from edgedec.cli._flags import Json, ModelName
from edgedec.cli._output import print_json, print_table, size
from edgedec.extras import install_command
from edgedec.storage.files import cache_folder

TestedWord = Annotated[
    str | None,
    typer.Option(
        "--device",
        metavar="NAME",
        show_default=False,
        help="Test the kernels of cuda or opencl (cuda:1, opencl:0); auto: measure the engines at hand anew.",
    ),
]
app = typer.Typer(add_completion=False, rich_markup_mode=None)

_ESSENTIAL = ("numpy", "onnxruntime", "tokenizers", "jinja2")
_ISA = "EDGEDEC_ISA"


@app.command()
def doctor(device: TestedWord = None, model: ModelName = "nano", json: Json = False) -> None:
    """Show what this machine has, or test a GPU.

    Exits with 1 if something essential is broken, or if a kernel's bytes are not those of the CPU engine.

    \b
    Examples:
      edgedec doctor
      edgedec doctor --json
      edgedec doctor --device cuda
      edgedec doctor --device auto -m smol
    """
    if device == "auto":
        report = _doctor_device.survey(model)
    else:
        report = examine() if device is None else _doctor_device.test_device(device)
    if json:
        print_json(report)
    elif device == "auto":
        _doctor_device.show_survey(report)
    elif device is None:
        _show(report)
    else:
        _doctor_device.show(report)
    if report["problems"]:
        raise typer.Exit(1)


def examine() -> dict[str, Any]:
    """Everything that `doctor` prints; `problems` is empty on a sound machine."""
    import edgedec
    from edgedec.bench import host

    problems = [problem for name in _ESSENTIAL if (problem := _import_problem(name))]
    providers = [] if problems else import_module("onnxruntime").get_available_providers()
    if not problems and "CPUExecutionProvider" not in providers:
        problems.append("onnxruntime: no CPUExecutionProvider; reinstall the onnxruntime package")
    nano, native = _nano(), _native()
    problems += [nano["problem"]] if nano["problem"] else []
    problems += _isa_problem(native)
    return {
        "edgedec": edgedec.__version__,
        "python": platform.python_version(),
        "executable": sys.executable,
        "os": host.system(),
        "cpu": {"model": host.cpu_model(), "features": host.cpu_features(), "cores": host.cores()},
        "memory": host.memory(),
        "packages": host.versions(),
        "providers": providers,
        "extras": host.extras(),
        "variables": host.variables(),
        "cache": str(cache_folder()),
        "engine": _engine(problems, native),
        "gpus": {} if nano["path"] is None or nano["problem"] else _gpus(nano["path"]),
        "nano": nano,
        "problems": problems,
    }


def _import_problem(name: str) -> str | None:
    """None if the package imports; a broken install fails only when it is tried."""
    try:
        import_module(name)
    except Exception as error:
        why = " ".join(str(error).split())[:200]
        return f"{name}: cannot be imported ({why}); install it with pip install {name}"
    return None


def _engine(problems: list[str], native: dict[str, Any]) -> dict[str, Any]:
    """The engine of `--engine auto` for the bundled model on this host, with the reason."""
    from edgedec.bundle.folder import Bundle
    from edgedec.bundle.locate import NANO, find
    from edgedec.errors import EdgedecError
    from edgedec.runtime import RUNTIMES, choose_runtime

    facts: dict[str, Any] = {"auto": None, "available": list(RUNTIMES.names()), "native": native}
    if problems:
        return facts | {"why": "none: see the problems"}
    try:
        auto = choose_runtime(Bundle.open(find(NANO)))
    except EdgedecError as error:
        return facts | {"why": str(error)}
    if auto == "native":
        chosen = f", as {_ISA} says" if os.environ.get(_ISA) else ""
        return facts | {"auto": auto, "why": f"edgedec's own kernels, {native['isa']}{chosen}"}
    why = f"no native engine: {native['problem']}" if native["problem"] else "the first that can run the model here"
    return facts | {"auto": auto, "why": why}


def _gpus(path: str) -> dict[str, str | None]:
    """What is missing for the engine of each kind of GPU; None: nothing."""
    from edgedec.bundle.folder import Bundle
    from edgedec.runtime import unavailable_reason

    return {engine: unavailable_reason(engine, Bundle.open(path)) for engine in ("cuda", "opencl")}


def _native() -> dict[str, Any]:
    """The compiled engine: the instruction set that is used, all that this CPU can run, best first, and all compiled
    in."""
    facts: dict[str, Any] = {"isa": None, "isas": [], "compiled": [], "problem": None}
    try:
        loader = import_module("edgedec.kernels.cpu.loader")
        loader.library()
    except ImportError as error:
        return facts | {"problem": str(error)}
    known = loader.isas()
    return facts | {
        "isa": os.environ.get(_ISA) or loader.isa(),
        "isas": [name for name in known if known[name]],
        "compiled": list(known),
    }


def _isa_problem(native: dict[str, Any]) -> list[str]:
    if native["isa"] is None or native["isa"] in native["isas"]:
        return []
    return [f"{_ISA}={native['isa']}: not for this CPU; there are {', '.join(native['isas'])}"]


def _nano() -> dict[str, Any]:
    """Whether the model that ships with edgedec is present and undamaged, and for which runtimes it has files."""
    from edgedec.bundle.folder import Bundle
    from edgedec.bundle.locate import NANO, find
    from edgedec.errors import BundleNotFound, EdgedecError

    facts: dict[str, Any] = {"path": None, "present": False, "whole": False, "problem": None, "artifacts": []}
    try:
        facts["path"] = str(find(NANO))
        bundle = Bundle.open(facts["path"], verify=True)
        facts |= {"present": True, "whole": True, "artifacts": sorted(bundle.manifest.artifacts)}
    except BundleNotFound:
        pass
    except EdgedecError as error:
        facts |= {"present": True, "problem": f"nano: {error}"}
    return facts


def _instructions(native: dict[str, Any]) -> str:
    """
    >>> _instructions({"isa": "avx2", "isas": ["avx2", "scalar"], "compiled": ["avxvnni", "avx2", "scalar"]})
    'avx2; also scalar; not on this CPU: avxvnni'
    """
    others = ", ".join(name for name in native["isas"] if name != native["isa"])
    missing = ", ".join(name for name in native["compiled"] if name not in native["isas"])
    parts = [str(native["isa"]), others and f"also {others}", missing and f"not on this CPU: {missing}"]
    return "; ".join(part for part in parts if part)


def _extra(item: tuple[str, dict[str, str | None]]) -> tuple[str, str]:
    """
    >>> _extra(("export", {"onnx": "1.18"}))
    ('export', 'onnx 1.18')
    """
    name, packages = item
    if all(packages.values()):
        return name, ", ".join(f"{package} {version}" for package, version in packages.items())
    missing = ", ".join(package for package, version in packages.items() if not version)
    return name, f"missing {missing}: {install_command(name)}"


def _show(r: dict[str, Any]) -> None:
    cpu, memory, engine = r["cpu"], r["memory"], r["engine"]
    free = f", {size(memory['available'])} available" if memory["available"] is not None else ""
    nano = "missing" if not r["nano"]["present"] else "whole" if r["nano"]["whole"] else "damaged"
    rows = [
        ("edgedec", r["edgedec"]),
        ("python", f"{r['python']} ({r['executable']})"),
        ("os", r["os"]),
        ("cpu", f"{cpu['model']}, {cpu['cores']} cores"),
        ("features", ", ".join(cpu["features"]) or "none known"),
        ("memory", "unknown" if memory["total"] is None else size(memory["total"]) + free),
        ("providers", ", ".join(r["providers"])),
        ("engine", f"auto is {engine['auto']} ({engine['why']}); there are {', '.join(engine['available'])}"),
        *([("native", _instructions(engine["native"]))] if engine["native"]["isa"] else []),
        *((engine, why or "here") for engine, why in r["gpus"].items()),
        ("cache", r["cache"]),
        ("nano", nano + (f", with files for {', '.join(r['nano']['artifacts'])}" if r["nano"]["artifacts"] else "")),
    ]
    print_table(rows)
    print_table([(name, version or "missing") for name, version in r["packages"].items()], title="Packages")
    print_table(list(map(_extra, r["extras"].items())), title="Extras")
    if r["variables"]:
        print_table(list(r["variables"].items()), title="Variables")
    for problem in r["problems"]:
        print(f"\nproblem: {problem}")
    print("\nsomething essential is broken" if r["problems"] else "\nall is well")
