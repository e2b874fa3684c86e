"""The house: which package may import which, how long a file may be, what `import edgedec` brings along."""

from __future__ import annotations

import ast
import os
import statistics
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
from architecture.figures import circles, imports, parsed, statements

import edgedec
from edgedec.extras import import_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
SETUPTOOLS = PROJECT["tool"]["setuptools"]
FOLDERS: dict[str, str] = SETUPTOOLS["package-dir"]
LONGEST = 300
LONGEST_BODY = 40
HEAVY = (
    "torch",
    "transformers",
    "onnx",
    "onnxruntime",
    "tvm",
    "tvm_ffi",
    "tokenizers",
    "jinja2",
    "typer",
    "rich",
    "safetensors",
    "llguidance",
    "starlette",
    "uvicorn",
    "pyarrow",
    "ray",
    "huggingface_hub",
    "matplotlib",
    "playwright",
    "onnxruntime_ep_webgpu",
    "onnxruntime_genai",
    "onnxruntime_qnn",
    "llama_cpp",
    "cryptography",
    "lm_eval",
    "optimum",
    "optimum_onnx",
    "openai",
    "ollama",
    "langchain_openai",
    "langchain_ollama",
    "instructor",
    "llm",
    "schemathesis",
    "atheris",
    "ziglang",
)


@dataclass(frozen=True)
class Rule:
    """Modules under `source` import nothing under `forbidden`, but for what is under `but`.

    `exempt`: modules under `source` that may.
    """

    source: str
    forbidden: tuple[str, ...]
    but: tuple[str, ...] = ()
    exempt: tuple[str, ...] = ()

    def broken(self, module: str, imports: frozenset[str]) -> list[str]:
        if not _under(module, (self.source,)) or _under(module, self.exempt):
            return []
        return sorted(name for name in imports if _under(name, self.forbidden) and not _under(name, self.but))


SERVE = tuple(f"edgedec.cli.{name}" for name in ("serve", "_serve_flags", "_model_opening", "_replicas"))
_TRAINERS = (
    *("heads_trainer", "heads_distill", "heads_features", "students"),
    *("embedder_net", "embedder_output", "embedder_retrieval", "embedder_texts", "embedder_train"),
    *("exits_model", "exits_train", "lora_train", "drafts.files", "coprocessor", "checkpointing", "duo"),
    *("row_training", "recovery", "subwords", "latent_train", "latent_grpo"),
    *("experts_train", "pre_router_net"),
    *("diffusion_start", "diffusion_train", "recipes", "unbundled"),
    *("adam8", "passes._binary", "passes._soft", "passes._windows", "sparse_experts"),
)
ABOVE = ("edgedec.export", "edgedec.models", "edgedec.runtimes", "edgedec.kernels")
LOOP = (
    "edgedec.session",
    "edgedec.decoding.loop",
    "edgedec.model",
    "edgedec.drafters",
    "edgedec.constraints",
    "edgedec.cli",
)
RULES = [
    # A command that writes bundles opens the exporter when it runs, and not before; so does the conformance suite.
    Rule(
        "edgedec",
        ("edgedec.export",),
        exempt=(
            *ABOVE,
            *(
                f"edgedec.cli.{verb}"
                for verb in ("_exporting", "_distilling", "train_exits", "train_latent", "train_diffusion")
            ),
            "edgedec.bench.llama_weights",
            "edgedec.testing.conformance",
            "edgedec.bundle.locate",
        ),
    ),
    # Who chooses the engine asks its loader why not; doctor and bench report what was compiled in;
    # CUDA's sources are checked on the emulation of the CUDA engine.
    Rule(
        "edgedec",
        ("edgedec.models", "edgedec.kernels"),
        exempt=(
            *ABOVE,
            "edgedec.cli.doctor",
            "edgedec.cli._doctor_device",
            "edgedec.bench.ceilings",
            "edgedec.testing.sources.emulated_cuda",
        ),
    ),
    Rule("edgedec", ("torch", "transformers", "onnx", "tvm", "safetensors"), exempt=ABOVE),
    # A runtime is opened by name; the fakes for tests are made of one; doctor and the
    # report of a GPU test devices without a model. Which experts rows choose is what the reference says.
    Rule(
        "edgedec",
        ("edgedec.runtimes",),
        exempt=(
            *ABOVE,
            "edgedec.runtime.registry",
            "edgedec.cli._doctor_device",
            "edgedec.bench.device_report",
            "edgedec.bench.experts",
            "edgedec.testing",
        ),
    ),
    Rule("edgedec.runtimes", (*LOOP, "edgedec.export", "edgedec.models", "torch", "transformers", "onnx")),
    # The recipe of the bundled model is scripts; it reads back what it exported.
    Rule(
        "edgedec.models",
        ("edgedec",),
        but=("edgedec.models", "edgedec.spec", "edgedec.errors", "edgedec.plugins"),
        exempt=("edgedec.models.nano",),
    ),
    Rule("edgedec.kernels", ("edgedec",), but=("edgedec.kernels",)),
    Rule("edgedec.drafters", ("edgedec.constraints",)),
    Rule("edgedec.constraints", ("edgedec.drafters",)),
    Rule(
        "edgedec.decoding.verify",
        ("edgedec.runtime.call", "edgedec.runtimes", "edgedec.session", "edgedec.decoding.loop"),
    ),
    Rule(
        "edgedec.export",
        (*LOOP, "torch", "transformers"),
        # An import is compared with its checkpoint by transformers, if that is installed.
        exempt=tuple(f"edgedec.export.{name}" for name in (*_TRAINERS, "checkpoint_logits", "encoder_peer")),
    ),
    # The server is one of the things made of the core; the core knows nothing of it, nor of what it alone needs.
    Rule("edgedec", ("edgedec.server",), exempt=("edgedec.server", *SERVE)),
    Rule("edgedec", ("starlette", "uvicorn"), exempt=("edgedec.server",)),
    Rule("edgedec", ("llguidance",), exempt=("edgedec.constraints",)),
    Rule("edgedec", ("pyarrow", "ray"), exempt=("edgedec.offline", "edgedec.server.ray_serve")),
    # Commands import measurements, never the other way round.
    Rule("edgedec.bench", ("edgedec.cli",)),
]
PLANTED = [
    ("edgedec.session", "import edgedec.export.exporter"),
    ("edgedec.bundle.folder", "from edgedec.models import architecture"),
    ("edgedec.text.tokenizer", "def f():\n    import torch.nn as nn"),
    ("edgedec.decoding.loop", "from edgedec.runtimes import ort"),
    ("edgedec.runtimes.ort", "from edgedec import rows, session"),
    ("edgedec.models.llama", "from edgedec.bundle.folder import Bundle"),
    ("edgedec.kernels.loader", "if True:\n    from edgedec.errors import EdgedecError"),
    ("edgedec.drafters.copy", "from ..constraints import Constraint"),
    ("edgedec.constraints.grammar", "from edgedec.drafters import off"),
    ("edgedec.decoding.verify", "from importlib import import_module\nimport_module('edgedec.runtime.call')"),
    ("edgedec.export.parity", "import importlib\nimportlib.import_module(f'edgedec.drafters.{name}')"),
    ("edgedec.cli.batch", "def f():\n    from edgedec.server.engine import ServerLimits"),
    ("edgedec.cli.serve", "import uvicorn"),
    ("edgedec.session", "import llguidance"),
    ("edgedec.server.api", "from pyarrow import parquet"),
    ("edgedec.bench.report", "def f():\n    from edgedec.cli.inspect import describe"),
]


def _under(name: str, places: tuple[str, ...]) -> bool:
    return any(name == place or name.startswith(f"{place}.") for place in places)


@cache
def imported(text: str, module: str, package: bool = False) -> frozenset[str]:
    """The full names that a module's text imports anywhere, `import_module("...")` included.

    >>> imported("from edgedec import rows", "x") == {"edgedec", "edgedec.cache.rows"}
    True
    """
    found: set[str] = set()
    calls = any(name in text for name in ("import_module", "__import__"))
    for node in (ast.walk if calls else statements)(parsed(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, module if package else module.rpartition(".")[0])
            found |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Call) and _called(node).endswith(("import_module", "__import__")):
            found |= {_literal(argument) for argument in node.args[:1]}
    return frozenset(found - {""})


def _called(node: ast.Call) -> str:
    """The last name of what is called: of a.b(…) b; "" where it has none, as f()()."""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _absolute(node: ast.ImportFrom, package: str) -> str:
    """from ..x import y, in a.b.c: a.x"""
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    return ".".join([*parts[: len(parts) - node.level + 1], *([node.module] if node.module else [])])


def _literal(node: ast.expr) -> str:
    """What is known of a module's name: of f"edgedec.runtimes.{name}" the package."""
    first = node.values[0] if isinstance(node, ast.JoinedStr) and node.values else node
    return str(first.value).rstrip(".") if isinstance(first, ast.Constant) else ""


def modules() -> Iterator[tuple[str, Path]]:
    """Every module of ours with its file."""
    for package, folder in FOLDERS.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            inner = path.relative_to(ROOT / folder).with_suffix("").parts
            yield ".".join([package, *(inner[:-1] if inner[-1] == "__init__" else inner)]), path


MODULES = dict(modules())


def broken(module: str, text: str, package: bool = False) -> list[str]:
    names = imported(text, module, package)
    return [name for rule in RULES for name in rule.broken(module, names)]


def test_no_arrow_is_forbidden() -> None:
    assert len(MODULES) > 50
    found = {m: broken(m, p.read_text("utf-8"), p.name == "__init__.py") for m, p in MODULES.items()}
    assert {m: arrows for m, arrows in found.items() if arrows} == {}


@pytest.mark.parametrize(("at", "rule", "planted"), [(i, *pair) for i, pair in enumerate(zip(RULES, PLANTED))])
def test_each_rule_finds_what_is_planted(at: int, rule: Rule, planted: tuple[str, str]) -> None:
    module, text = planted
    assert rule.broken(module, imported(text, module))
    others = [i for i, other in enumerate(RULES) if i != at and other.broken(module, imported(text, module))]
    assert not rule.broken("elsewhere", imported(text, "elsewhere"))
    assert broken(module, text)
    assert len(others) <= 1  # a rule that another one covers would be none


def test_every_rule_has_a_plant() -> None:
    assert len(RULES) == len(PLANTED)


def test_exemptions_are_in_use() -> None:
    """An exemption that nothing needs any more is dropped."""
    for rule in RULES:
        strict = Rule(rule.source, rule.forbidden, rule.but)
        for name in set(rule.exempt) - set(ABOVE):
            held = [m for m in MODULES if _under(m, (name,))]
            assert any(strict.broken(m, imported(MODULES[m].read_text("utf-8"), m)) for m in held), name


def test_files_are_short() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text("utf-8").splitlines()) for path in MODULES.values()}
    assert {name: n for name, n in lengths.items() if n > LONGEST} == {}
    functions = {
        f"{name}.{node.name}": node.end_lineno - node.lineno + 1
        for name, path in MODULES.items()
        for node in statements(parsed(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno
    }
    print("longest functions:", *sorted(functions.items(), key=lambda item: -item[1])[:5], sep="\n  ")
    assert statistics.median(functions.values()) <= 8


def test_no_modules_import_each_other() -> None:
    """Neither when they are imported nor when a function of theirs runs."""
    for lazy in (False, True):
        assert circles({name: imports(path, set(MODULES), lazy) - {name} for name, path in MODULES.items()}) == []


def test_a_circle_through_a_function_is_found(tmp_path: Path) -> None:
    texts = {
        "edgedec.a": "from edgedec.b import f",
        "edgedec.b": "def f():\n    from edgedec import c",
        "edgedec.c": "import edgedec.a\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import edgedec.d",
        "edgedec.d": "import edgedec.c",
        "edgedec": "",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text, "utf-8")
    found = {
        lazy: circles({name: imports(tmp_path / name, set(texts), lazy) - {name} for name in texts})
        for lazy in (False, True)
    }
    assert found == {False: [], True: [["edgedec.a", "edgedec.b", "edgedec.c"]]}


def unit(name: str) -> str:
    """The package or module right below `edgedec/` that a name lies in; "" for edgedec itself and for what lies in
    folders of its own.

    >>> unit("edgedec.text.tokenizer"), unit("edgedec.model.Model"), unit("edgedec.export.writer")
    ('text', 'model', '')
    """
    return "" if _under(name, ABOVE) or not name.startswith("edgedec.") else name.split(".")[1]


def units(texts: Iterable[tuple[str, str, bool]]) -> dict[str, set[str]]:
    """Which units import which, for types and by name too. texts: of modules, with their names and: is it a package?"""
    found = dict[str, set[str]]()
    for module, text, package in texts:
        if unit(module):
            found.setdefault(unit(module), set()).update(unit(name) for name in imported(text, module, package))
    return {name: {other for other in others if other in found} - {name} for name, others in found.items()}


def test_no_packages_import_each_other() -> None:
    graph = units((module, path.read_text("utf-8"), path.name == "__init__.py") for module, path in MODULES.items())
    assert len(graph) > 20
    assert circles(graph) == []


@pytest.mark.parametrize(
    "back",
    [
        "from edgedec.text import tokenizer",
        "def f():\n    from edgedec import text",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from edgedec.text.tokenizer import Tokenizer",
        "from importlib import import_module\nimport_module('edgedec.text.tokenizer')",
        "from ..text import tokenizer",
    ],
)
def test_a_circle_of_packages_is_found(back: str) -> None:
    there = [
        ("edgedec", "from edgedec.text import tokenizer\nfrom edgedec.bundle import folder", True),
        ("edgedec.text", "", True),
        ("edgedec.text.tokenizer", "from edgedec.bundle.folder import Bundle", False),
        ("edgedec.bundle", "", True),
        ("edgedec.export.writer", "import edgedec.text, edgedec.bundle", False),
    ]
    straight = "from edgedec.export import writer\nfrom edgedec.bundle import folder\nimport edgedec"
    assert circles(units([*there, ("edgedec.bundle.folder", straight, False)])) == []
    assert circles(units([*there, ("edgedec.bundle.folder", back, False)])) == [["bundle", "text"]]


def body_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function from the first statement after its docstring to its end."""
    body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
    return (node.end_lineno or 0) - body[0].lineno + 1 if body else 0


def long_functions(texts: Iterable[tuple[str, str]]) -> dict[str, int]:
    """Functions with more than `LONGEST_BODY` lines, by module and name."""
    return {
        f"{module}.{node.name}": body_lines(node)
        for module, text in texts
        for node in statements(parsed(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and body_lines(node) > LONGEST_BODY
    }


def test_functions_are_short() -> None:
    found = long_functions((module, path.read_text("utf-8")) for module, path in MODULES.items())
    assert found == {}


def test_a_long_function_is_found() -> None:
    lines = "\n".join(["    x = 1"] * LONGEST_BODY)
    text = f'def f(\n    a,\n):\n    """Says\n\n    much."""\n{lines}\nasync def g():\n    y = 1\n{lines}\n'
    assert long_functions([("m", text)]) == {"m.g": LONGEST_BODY + 1}


def test_no_two_classes_have_one_name() -> None:
    names = Counter(
        node.name
        for name, path in MODULES.items()
        for node in parsed(path.read_text("utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert {name for name, n in names.items() if n > 1} == set()


def test_the_public_names_are_all() -> None:
    tree = ast.parse(Path(edgedec.__file__).read_text("utf-8"))
    shown = next(node for node in tree.body if isinstance(node, ast.If))  # what a type checker reads
    named = {alias.name for node in shown.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert set(edgedec.__all__) == named | {"__version__"} == set(dir(edgedec))
    assert all(not isinstance(getattr(edgedec, name), ModuleType) for name in edgedec.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = edgedec.nothing
    assert edgedec.__all__ == sorted(set(edgedec.__all__))
    assert edgedec.__version__ == PROJECT["project"]["version"]


def test_every_public_name_says_what_it_is() -> None:
    for name in edgedec.__all__:
        value = getattr(edgedec, name)
        assert isinstance(value, str) or (value.__doc__ or "").strip(), name


def test_packages_are_the_folders_that_exist() -> None:
    found = {
        ".".join([package, *path.parent.relative_to(ROOT / folder).parts])
        for package, folder in FOLDERS.items()
        for path in (ROOT / folder).rglob("__init__.py")
    }
    assert sorted(SETUPTOOLS["packages"]) == sorted(found)
    orphans = {str(path.relative_to(ROOT)) for path in MODULES.values() if not (path.parent / "__init__.py").is_file()}
    assert orphans == set()


def test_the_types_ship() -> None:
    assert (ROOT / "edgedec" / "py.typed").is_file()
    assert "py.typed" in SETUPTOOLS["package-data"]["edgedec"]
    for package, patterns in SETUPTOOLS["package-data"].items():
        folder = MODULES[package].parent
        # The trained bundle may not be in a checkout; kernels for GPUs and browsers are compiled before a wheel is.
        optional = package == "edgedec.models.nano"
        kept = [p for p in patterns if not (optional or p.endswith(".wasm") or p == "cubins/*")]
        assert all(list(folder.glob(pattern)) for pattern in kept), package


IMPORT = """
import os, sys
before = os.times().user
import edgedec
print(os.times().user - before, *(name for name in sys.argv[1:] if name in sys.modules))
"""


def test_what_the_extras_bring_is_heavy() -> None:
    """An import of edgedec is watched for all of it."""
    extras = PROJECT["project"]["optional-dependencies"]
    lines = [line for name in set(extras) - {"test", "test-all", "dev", "docs"} for line in extras[name]]
    # A library of C that is found by its file.
    assert {import_name(line) for line in lines} - {"nvidia"} <= set(HEAVY)


def test_importing_is_light() -> None:
    """The time is printed for those who look (pytest -s); only what was imported is asserted."""
    seconds = []
    for _ in range(5):
        command = [sys.executable, "-c", IMPORT, *HEAVY]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=os.sep)
        took, *heavy = done.stdout.split()
        assert heavy == []
        seconds.append(float(took))
    print(f"import edgedec: {statistics.median(seconds):.2f} s of CPU, median of 5")
