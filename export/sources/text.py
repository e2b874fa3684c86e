"""Kernels as text: the output of TVM's code generators, shortened.

No pass of TVM is run: simplifying passes substitute variables by their values, which grows exponentially. For the same
reason every variable is written as an array of one element (`words.bind`); here it becomes a variable again.
"""

from __future__ import annotations

import re
from typing import Any

import tvm

from edgedec.export.sources.kernel import Kernels
from edgedec.runtimes.tvm.plans import MARK

_CUDA_ARCH = "sm_75"
# Lines between declaration and assignment: helpers for operations that need an address.
# int v_3[1];           var v_3 : array<i32, 1>;
# v_3[0] = a + b;       v_3[0i] = a + b;
_C = re.compile(
    r"^( *)(?:thread |__private |alignas\(\d+\) )*(\w+) (\w+)\[1\];\n(?: *(\w+ \w+ = .*;\n))? *\3\[0\] = (.*);$", re.M
)
_WGSL = re.compile(r"^( *)var (\w+) : array<(\w+), 1>;\n *\2\[0i\] = (.*);$", re.M)


def text_of(kernels: Kernels) -> str:
    """The source of all kernels, each after a line that names it."""
    dialect = kernels.dialect
    facts: dict[str, Any] = {"kind": dialect.kind, "max_num_threads": 256}
    if dialect.kind == "cuda":
        facts["arch"] = _CUDA_ARCH
    target = tvm.target.Target(facts)
    build, parts = tvm.get_global_func(f"target.build.{dialect.kind}"), []
    for name, function in kernels.functions.items():
        module = tvm.IRModule({tvm.ir.GlobalVar(name): function.with_attr("target", target)})
        text = str(build(module, target).inspect_source())
        parts.append(f"{MARK}{name}\n{shortened(_body(text, name, dialect.begins))}")
    return dialect.head + "".join(parts)


def _body(text: str, name: str, begins: str) -> str:
    """From the line on that begins as `begins`."""
    lines = [line.rstrip() for line in text.splitlines()]
    kept = [line for line in lines if not line.startswith("//") and not (name in line and line.endswith(");"))]
    first = next(i for i, line in enumerate(kept) if line.startswith(begins))
    return "\n".join(kept[first:]).strip() + "\n"


def shortened(text: str) -> str:
    """Variables that are given a value once, where they are made, as plain ones.

    >>> shortened("  int v[1];\\n  v[0] = a;\\n  b = v[0];\\n")
    '  int v = a;\\n  b = v;\\n'
    """
    for pattern, zero in ((_C, "[0]"), (_WGSL, "[0i]")):
        once = {m[0]: m for m in pattern.finditer(text) if text.count(f"{_name(m, pattern)}{zero} = ") == 1}
        names = {_name(m, pattern) for m in once.values()}
        text = pattern.sub(lambda m, p=pattern, names=names: _made(m, p) if _name(m, p) in names else m[0], text)  # type: ignore[misc]
        text = re.sub(r"\b(\w+)\[0i?\]", lambda m, names=names: m[1] if m[1] in names else m[0], text)  # type: ignore[misc]
    return text


def _name(m: re.Match[str], pattern: re.Pattern[str]) -> str:
    return m[3] if pattern is _C else m[2]


def _made(m: re.Match[str], pattern: re.Pattern[str]) -> str:
    return (
        f"{m[1] + m[4] if m[4] else ''}{m[1]}{m[2]} {m[3]} = {m[5]};"
        if pattern is _C
        else f"{m[1]}let {m[2]} : {m[3]} = {m[4]};"
    )
