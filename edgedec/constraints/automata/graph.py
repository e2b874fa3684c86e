"""Graphs of triples, and the queries that have answers in them.

SPARKLE (Lee and Shin, 2024; text and code): a query is decoded along an automaton, form -> variables -> head -> a
relation of this head -> a tail of this head and relation. The paper checks within one triple, and a join of
triples may be empty; here the solutions of the triples so far are kept, and only names are allowed that leave some.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from edgedec.constraints.automata.script import OneOf
from edgedec.errors import UsageError

VARIABLES = ("?x", "?y", "?z")
FORMS: dict[str, tuple[str, ...]] = {
    "SELECT ?x WHERE { ": ("?x",),
    "SELECT ?x ?y WHERE { ": ("?x", "?y"),
    "SELECT DISTINCT ?x WHERE { ": ("?x",),
    "SELECT (COUNT(?x) AS ?n) WHERE { ": ("?x",),
    "ASK WHERE { ": (),
}
MORE, END = " . ", " }"
# Solutions that are looked through for one more triple, at most.
_WORK = 1 << 18
_TERM = re.compile(r"(\?[xyz]|<[^<>]+>) (<[^<>]+>) (\?[xyz]|<[^<>]+>)")
Triple = tuple[str, str, str]
Solution = tuple[tuple[str, str], ...]


class TripleGraph:
    """Triples (head, relation, tail), each name as a query writes it: <name>."""

    def __init__(self, triples: Iterable[Triple]) -> None:
        self.triples = frozenset(triples)
        self.by_relation: dict[str, list[tuple[str, str]]] = {}
        self.relations: dict[str, set[str]] = {}
        for head, relation, tail in sorted(self.triples):
            self.by_relation.setdefault(relation, []).append((head, tail))
            self.relations.setdefault(head, set()).add(relation)
        self.solutions = lru_cache(4096)(self._solutions)

    @classmethod
    def read(cls, triples: str, labels: str = "") -> TripleGraph:
        """Lines of head, relation and tail, and lines of identifier and name, with tabs between them."""
        names = _names(_lines("labels", labels, 2))
        found = {tuple(names.get(item, item) for item in line) for line in _lines("triples", triples, 3)}
        if not found:
            raise UsageError("graph: no triples: give lines of head, relation and tail, with tabs between them")
        for item in {item for line in found for item in line}:
            if set(item) & set("<>") or not item:
                raise UsageError(f"graph: {item!r} is no name: must be text without < and >")
        return cls((f"<{head}>", f"<{relation}>", f"<{tail}>") for head, relation, tail in found)

    def _solutions(self, triples: tuple[Triple, ...]) -> frozenset[Solution]:
        """What the variables of these triples can stand for together."""
        if not triples:
            return frozenset({()})
        *before, (head, relation, tail) = triples
        found = set[Solution]()
        for solution in self.solutions(tuple(before)):
            for pair in self.by_relation.get(relation, ()):
                bound = dict(solution)
                if all(_bind(bound, term, name) for term, name in zip((head, tail), pair, strict=True)):
                    found.add(tuple(sorted(bound.items())))
        return frozenset(found)

    def values(self, triples: tuple[Triple, ...], term: str) -> set[str] | None:
        """What a term can stand for after these triples; None: anything."""
        if not term.startswith("?"):
            return {term}
        found = {value for solution in self.solutions(triples) for name, value in solution if name == term}
        return found or None

    def answers(self, query: str) -> list[tuple[str, ...]]:
        """The answers of a query in the constraint's form: rows of names, a count, or for ASK an empty row if true."""
        form = next((form for form in FORMS if query.startswith(form)), None)
        inner = "" if form is None else query[len(form) :].removesuffix(END)
        terms = [_TERM.fullmatch(part) for part in inner.split(MORE)]
        triples = tuple((term[1], term[2], term[3]) for term in terms if term)
        bound = {term for triple in triples for term in triple}
        if form is None or not query.endswith(END) or not all(terms) or not bound.issuperset(FORMS[form]):
            raise UsageError(f"graph: {query!r:.80} is no query that it allows")
        found = self.solutions(triples)
        rows = {tuple(dict(solution)[name] for name in FORMS[form]) for solution in found}
        return [(str(len(rows)),)] if "COUNT" in form else sorted(rows)


class QueryPlan(NamedTuple):
    """What was chosen: the form, whole triples, and the parts of the next one. stage: what comes now."""

    stage: str
    form: str = ""
    triples: tuple[Triple, ...] = ()
    head: str = ""
    relation: str = ""


class QueryScript:
    """A script (`automata.script`): queries of at most so many triples that have an answer."""

    first = QueryPlan("form")

    def __init__(self, graph: TripleGraph, most: int) -> None:
        self._graph, self._most = graph, most
        self._largest = max(map(len, graph.by_relation.values()))
        # The triples by which all variables of the form are bound.
        self._early = min(most, 2 if self._largest**2 <= _WORK else 1)
        self._heads = OneOf(f"{name} " for name in graph.relations)
        self._part = lru_cache(4096)(self._find_part)

    def part(self, plan: QueryPlan) -> OneOf | None:
        return self._part(plan)

    def then(self, plan: QueryPlan, choice: str) -> Sequence[QueryPlan]:
        name = choice.strip() if plan.stage in ("head", "variable", "relation") else choice
        if plan.stage == "form":
            return self._heads_of(plan._replace(form=choice))
        if plan.stage in ("head", "variable"):
            return (plan._replace(stage="relation", head=name),)
        if plan.stage == "relation":
            return (plan._replace(stage="tail", relation=name),)
        if plan.stage == "tail":
            whole = (*plan.triples, (plan.head, plan.relation, name))
            return (QueryPlan("more", plan.form, whole),)
        return self._heads_of(plan) if choice == MORE else (QueryPlan("end"),)

    def _heads_of(self, plan: QueryPlan) -> Sequence[QueryPlan]:
        variable = plan._replace(stage="variable")
        return (variable,) if self._must_bind(variable, 2) else (variable, plan._replace(stage="head"))

    def _find_part(self, plan: QueryPlan) -> OneOf | None:
        if plan.stage == "form":
            return OneOf(FORMS)
        if plan.stage == "head":
            return self._heads
        if plan.stage == "variable":
            return OneOf(f"{name} " for name in self._variables(plan, 2) if self._has_relation(plan, name))
        if plan.stage == "relation":
            return OneOf(f"{name} " for name in self._relations(plan.triples, plan.head))
        if plan.stage == "tail":
            return OneOf(self._tails(plan))
        if plan.stage == "more":
            few = len(self._graph.solutions(plan.triples)) * self._largest <= _WORK
            goes_on = [MORE] if few and len(plan.triples) < self._most else []
            return OneOf(goes_on if self._unbound(plan) else [*goes_on, END])
        return None

    def _relations(self, triples: tuple[Triple, ...], head: str) -> set[str]:
        values = self._graph.values(triples, head)
        if values is None:
            return set(self._graph.by_relation)
        return {relation for value in values for relation in self._graph.relations.get(value, ())}

    def _has_relation(self, plan: QueryPlan, name: str) -> bool:
        return bool(self._relations(plan.triples, name))

    def _tails(self, plan: QueryPlan) -> list[str]:
        """Variables and names with which the triples have a solution."""
        graph, head = self._graph, plan.head
        values = graph.values(plan.triples, head)
        after = plan._replace(triples=(*plan.triples, (head, plan.relation, head)))  # the head is bound now
        names = self._variables(after, 1)
        variables = [name for name in names if graph.solutions((*plan.triples, (head, plan.relation, name)))]
        if self._must_bind(after, 1):
            return variables
        pairs = graph.by_relation.get(plan.relation, ())
        return [*variables, *{tail for name, tail in pairs if values is None or name in values}]

    def _variables(self, plan: QueryPlan, left: int) -> list[str]:
        """The variables of the triples and the next new one; where no place is to spare, unbound ones of the form."""
        if self._must_bind(plan, left):
            return self._unbound(plan)[:1]
        used = {term for triple in plan.triples for term in triple if term.startswith("?")}
        return list(VARIABLES[: len(used) + 1])

    def _unbound(self, plan: QueryPlan) -> list[str]:
        """Variables of the form that no triple has yet."""
        used = {term for triple in plan.triples for term in triple}
        return [name for name in FORMS[plan.form] if name not in used]

    def _must_bind(self, plan: QueryPlan, left: int) -> bool:
        """Whether all places that are left, `left` of them in this triple, are needed for variables of the form."""
        whole, unbound = len(plan.triples) - (left == 1), len(self._unbound(plan))
        return unbound > 0 and unbound >= 2 * (self._early - whole - 1) + left


def _bind(bound: dict[str, str], term: str, name: str) -> bool:
    """Whether a term can stand for a name, which a variable then does."""
    return bound.setdefault(term, name) == name if term.startswith("?") else term == name


def _lines(what: str, text: str, columns: int) -> list[list[str]]:
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            items = [item.strip() for item in line.split("\t")]
            if len(items) != columns:
                raise UsageError(
                    f"graph: {what}, line {number}: needs {columns} columns with tabs between, has {len(items)}"
                )
            found.append(items)
    return found


def _names(lines: list[list[str]]) -> Mapping[str, str]:
    """The name of each identifier; where several have one name, with the identifier."""
    counts: dict[str, int] = {}
    for _, name in lines:
        counts[name] = counts.get(name, 0) + 1
    return {item: name if counts[name] == 1 else f"{name} ({item})" for item, name in lines}
