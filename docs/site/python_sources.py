"""The Python sources, indexed: where a function or a constant is defined, where it is called, what a name may hold."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True)
class Binding:
    """What a name is set to: an expression, or an item of it. None: known only when it runs."""

    value: ast.expr | None
    item: int | None = None


@dataclass(eq=False)
class Module:
    """One file."""

    file: str
    tree: ast.Module
    functions: dict[str, list[Function]] = field(default_factory=lambda: defaultdict(list))
    constants: dict[str, ast.expr] = field(default_factory=dict)
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)
    around: dict[ast.AST, tuple[Function, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, file: str, source: str) -> Module:
        made = cls(file, ast.parse(source))
        made._visit(made.tree, ())
        for node in made.tree.body:
            made._constant(node)
        return made

    @property
    def name(self) -> str:
        """Its dotted name; folders beside `edgedec` are packages of it."""
        parts = self.file.removesuffix(".py").removesuffix("/__init__").split("/")
        return ".".join(parts if parts[0] == "edgedec" else ["edgedec", *parts])

    def _visit(self, node: ast.AST, inside: tuple[Function, ...]) -> None:
        self.around[node] = inside
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            self.functions[node.name].append(node)
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            self.imports |= {alias.asname or alias.name: (node.module, alias.name) for alias in node.names}
        if isinstance(node, Function):
            inside = (*inside, node)
        for child in ast.iter_child_nodes(node):
            self._visit(child, inside)

    def _constant(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            self.constants[node.targets[0].id] = node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            self.constants[node.target.id] = node.value

    @cached_property
    def calls(self) -> dict[str, list[ast.Call]]:
        """Calls by the last part of the called name."""
        found: dict[str, list[ast.Call]] = defaultdict(list)
        for node in self.around:
            if isinstance(node, ast.Call):
                found[last(node.func)].append(node)
        return found


class Sources:
    """All files, by their dotted names."""

    def __init__(self, modules: Iterable[Module]) -> None:
        self.modules = {module.name: module for module in modules}
        self._bound: dict[Function, dict[str, list[Binding]]] = {}

    @classmethod
    def read(cls, root: Path, folders: Iterable[str]) -> Sources:
        paths = [path for folder in folders for path in sorted((root / folder).rglob("*.py"))]
        kept = [path for path in paths if not {"node_modules", "build"} & set(path.parts)]
        return cls(Module.of(path.relative_to(root).as_posix(), path.read_text("utf-8")) for path in kept)

    def functions(self, name: str, module: Module) -> list[tuple[Module, Function]]:
        """The functions that `name` means in a module: its own, or the imported."""
        if module.functions.get(name):
            return [(module, function) for function in module.functions[name]]
        home, real = self._home(name, module)
        return [(home, function) for function in home.functions.get(real, [])] if home else []

    def constant(self, name: str, module: Module) -> tuple[Module, ast.expr] | None:
        if name in module.constants:
            return module, module.constants[name]
        home, real = self._home(name, module)
        return (home, home.constants[real]) if home and real in home.constants else None

    def member(self, owner: str, name: str, module: Module) -> tuple[Module, ast.expr] | None:
        """The constant `owner.name`, where owner is an imported module."""
        source = module.imports.get(owner)
        home = self.modules.get(".".join(source)) if source else None
        return self.constant(name, home) if home else None

    def _home(self, name: str, module: Module, deep: int = 4) -> tuple[Module | None, str]:
        """The module that defines an imported name, through packages that pass it on."""
        where, real = module.imports.get(name, ("", ""))
        home = self.modules.get(where)
        if home is None or not deep:
            return None, ""
        if real in home.functions or real in home.constants:
            return home, real
        return self._home(real, home, deep - 1)

    def keyword(self, name: str) -> list[tuple[Module, ast.expr]]:
        """What calls give for a keyword argument."""
        calls = [
            (module, call) for module in self.modules.values() for found in module.calls.values() for call in found
        ]
        return [(module, k.value) for module, call in calls for k in call.keywords if k.arg == name]

    def bindings(self, function: Function) -> dict[str, list[Binding]]:
        """What each name of a function is set to."""
        if function not in self._bound:
            found: dict[str, list[Binding]] = defaultdict(list)
            for node in ast.walk(function):
                for name, binding in _bound(node):
                    found[name].append(binding)
            self._bound[function] = found
        return self._bound[function]

    def callers(self, module: Module, function: Function) -> Iterator[tuple[Module, ast.Call]]:
        """Calls of a function: by name where it is known, as a method anywhere."""
        if isinstance(function, ast.Lambda):
            yield from self._calls_of_argument(module, function)
            return
        for other in self.modules.values():
            for call in other.calls.get(function.name, []):
                known = self.functions(function.name, other)
                if (module, function) in known or (isinstance(call.func, ast.Attribute) and not known):
                    yield other, call

    def _calls_of_argument(self, module: Module, function: ast.Lambda) -> Iterator[tuple[Module, ast.Call]]:
        """Calls of a lambda that is handed to a function, inside that function."""
        for call in (node for node in module.around if isinstance(node, ast.Call) and function in node.args):
            for home, taker in self.functions(last(call.func), module):
                name = parameters(taker)[call.args.index(function)]
                for inner in home.calls.get(name, []):
                    if taker in home.around[inner]:
                        yield home, inner


def last(node: ast.expr) -> str:
    """The last part of a dotted name: `typer.BadParameter` -> BadParameter."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def parameters(function: Function) -> list[str]:
    """The names of the parameters in order, without self and cls."""
    args = function.args
    names = [arg.arg for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs)]
    return names[1:] if names[:1] in (["self"], ["cls"]) else names


def argument(call: ast.Call, function: Function, name: str) -> ast.expr | None:
    """What a call gives for a parameter, or its default."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    at = parameters(function).index(name)
    if at < len(call.args):
        return call.args[at]
    args = function.args
    ordered = [arg.arg for arg in (*args.posonlyargs, *args.args)]
    defaults = dict(zip(ordered[::-1], args.defaults[::-1], strict=False))
    defaults |= {arg.arg: value for arg, value in zip(args.kwonlyargs, args.kw_defaults, strict=True) if value}
    return defaults.get(name)


def _bound(node: ast.AST) -> Iterator[tuple[str, Binding]]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _targets(target, node.value)
    elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value:
        yield from _targets(node.target, node.value)
    elif isinstance(node, ast.For | ast.comprehension):
        values = node.iter.elts if isinstance(node.iter, ast.Tuple | ast.List) else [None]
        for value in values:
            yield from _targets(node.target, value)
    elif isinstance(node, ast.ExceptHandler) and node.name:
        yield node.name, Binding(None)
    elif isinstance(node, ast.withitem) and node.optional_vars:
        yield from _targets(node.optional_vars, None)


def _targets(target: ast.expr, value: ast.expr | None) -> Iterator[tuple[str, Binding]]:
    if isinstance(target, ast.Name):
        yield target.id, Binding(value)
    elif isinstance(target, ast.Tuple | ast.List):
        for at, part in enumerate(target.elts):
            if isinstance(part, ast.Name):
                yield part.id, Binding(value, at)
