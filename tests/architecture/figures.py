"""Structure in figures: `python tests/architecture/figures.py [CHECKOUT]` prints files, functions, import circles."""

from __future__ import annotations

import ast
import statistics
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

FOLDERS = {
    "edgedec": "edgedec",
    "edgedec.export": "export",
    "edgedec.runtimes": "runtimes",
    "edgedec.kernels": "kernels",
    "edgedec.models": "models",
}


def modules(root: Path) -> dict[str, Path]:
    """Every Python module of the product by its full name."""
    found = {}
    for package, folder in FOLDERS.items():
        for path in (root / folder).rglob("*.py"):
            if "build" in path.parts:
                continue
            parts = path.relative_to(root / folder).with_suffix("").parts
            found[".".join([package, *(parts[:-1] if parts[-1] == "__init__" else parts)])] = path
    return found


@cache
def parsed(text: str) -> ast.Module:
    """A module's tree, once a process: several rules look at every module. Read it, never change it."""
    return ast.parse(text)


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """All below, inside functions too, but for expressions: those hold neither functions nor imports."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.expr):
            yield child
            yield from statements(child)


def imports(path: Path, known: set[str], lazy: bool) -> set[str]:
    """Modules of ours that a module imports; `lazy`: inside functions too. Imports for types only do not count."""
    tree = parsed(path.read_text("utf-8"))
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                continue
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and not lazy:
                continue
            if isinstance(child, ast.Import):
                found.update(alias.name for alias in child.names)
            if isinstance(child, ast.ImportFrom) and child.module and not child.level:
                names = {f"{child.module}.{alias.name}" for alias in child.names}
                found.update(names & known or {child.module})
                found.update({child.module} if names - known else set())
            visit(child)

    visit(tree)
    return found & known


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that import each other, by Tarjan's algorithm."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []
    sys.setrecursionlimit(10_000)

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in graph[node]:
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            group = []
            while not group or group[-1] != node:
                group.append(stack.pop())
            if len(group) > 1:
                found.append(sorted(group))

    for node in graph:
        if node not in index:
            visit(node)
    return found


def main(root: Path) -> None:
    known = modules(root)
    lines = {name: len(path.read_text("utf-8").splitlines()) for name, path in known.items()}
    functions = [
        node.end_lineno - node.lineno + 1
        for path in known.values()
        for node in statements(parsed(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno
    ]
    classes = Counter(
        node.name
        for path in known.values()
        for node in parsed(path.read_text("utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    print(f"{len(known)} modules, {sum(lines.values())} lines, {sum(n > 300 for n in lines.values())} over 300 lines")
    print(*(f"  {n} {name}" for name, n in sorted(lines.items(), key=lambda item: -item[1])[:8]), sep="\n")
    functions.sort()
    print(
        f"{len(functions)} functions: median {statistics.median(functions):.0f}, "
        f"p90 {functions[len(functions) * 9 // 10]}, "
        f"longest {functions[-1]}, {sum(n > 35 for n in functions)} over 35 lines"
    )
    for lazy in (False, True):
        found = circles({name: imports(path, set(known), lazy) - {name} for name, path in known.items()})
        print(f"import circles{', lazy imports included' if lazy else ''}: {len(found)}", *found, sep="\n  ")
    print(f"public classes of one name: {sorted(name for name, n in classes.items() if n > 1)}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
