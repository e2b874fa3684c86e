"""A runtime's own table drafters and tree merge: quicker than Python, with the same proposals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self

from numpy.typing import NDArray

from edgedec.cache.rows import Rows
from edgedec.runtime.steps import StepGovernor

# The rows of a table: keys int64 [n], ids int32 [n, k], p float32 [n, k], visits int32 [n].
TableRows = tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]


@dataclass(frozen=True)
class TableSettings:
    """A table drafter: its kind (a name in `edgedec.drafters`), and its options there."""

    kind: str
    vocab: int = 1
    nodes: int = 1
    k: int = 1
    ngram: int = 1
    length: int = 1
    rate: float = 0.0
    explore: float = 0.0


class WatchPrices(NamedTuple):
    """The costs of one sequence's call, and the value of a draft in it. `seconds`: by rows; text: the seconds that its
    cached tokens add, and each: the same per further row; trust: the factor on chances; first: the least chance of the
    likeliest node."""

    seconds: Sequence[float]
    text: float
    each: float
    trust: float
    first: float


class DraftTable(Protocol):
    """The state of one table drafter. Not for two threads at once; this includes drafters that share tables."""

    def share(self, owner: Self) -> None:
        """Learn and draft with the tables of `owner` from now on."""
        ...

    def fork(self) -> Self:
        """A copy for another text; tables are copied on write."""
        ...

    def index(self, tokens: NDArray[Any], order: NDArray[Any]) -> None:
        """One more segment of documents for a datastore (`edgedec.storage.datastore`), read where it lies: int32."""
        ...

    def figure(self, what: int = 0) -> int:
        """A counter, or the size of the table, of the name `what`."""
        ...

    def save(self, part: int, n: int, k: int) -> TableRows:
        """The n rows of a table."""
        ...

    def load(self, part: int, rows: TableRows) -> None:
        """Replace a table by rows that were checked; parts in order."""
        ...


class DraftGroup(Protocol):
    """The trees of a text's drafters, merged. Drafters have numbers; some of them are tables of the runtime, whose
    proposals it merges itself. `seconds[number]`: the time of each table's last propose or observe."""

    seconds: NDArray[Any]

    def reset(self) -> None:
        """Another text begins."""
        ...

    def propose(self, ids: Sequence[int], n_prompt: int, nodes: int, least: float, enabled: int) -> None:
        """Replace all trees by the merged trees of the tables in `enabled` (bits by number)."""
        ...

    def watch(
        self, ids: Sequence[int], n_prompt: int, nodes: int, least: float, enabled: int, prices: WatchPrices
    ) -> int:
        """As `propose`; returns the number of nodes of the tree, the likeliest first, that would pay in the next call.
        The tree of the last `watch` is tested against the new tokens, unless another one was built since."""
        ...

    def propose_one(
        self, number: int, ids: Sequence[int], n_prompt: int, nodes: int, least: float
    ) -> tuple[list[int], list[int], list[float]]:
        """The tree of one table: tokens, parents, claims."""
        ...

    def observe(
        self,
        rows: Rows,
        root: int,
        path: Sequence[int],
        picked: Sequence[int],
        best: tuple[NDArray[Any], NDArray[Any]] | None,
        enabled: int,
    ) -> None:
        """Update the tables in `enabled` with a verified call (`edgedec.decoding.messages.StepResult`). best: ids and
        scores of the rows from `root` on."""
        ...

    def governor(
        self, bank: Any, account: Any, record: Any, shared: Any, top: int, enabled: int, named: bool
    ) -> StepGovernor:
        """A governor of the tables in `enabled`; top: how many best tokens they learn from; named: the user named them.
        The others are structures of `edgedec.speculation`, which it reads and writes."""
        ...

    def clear(self) -> None:
        """Remove all trees."""
        ...

    def add(
        self, number: int, tokens: Sequence[int], parents: Sequence[int], p: Sequence[float], estimates: NDArray[Any]
    ) -> list[int]:
        """Merge one more tree; the node of each of its tokens. p: claims, empty if unknown; estimates: float64 [24]
        of each kind of claim."""
        ...

    def order(self, chain: bool) -> list[int]:
        """Nodes by chance, parents first; chain: the likeliest child of each only."""
        ...

    def best_first(self) -> list[int]:
        """The order after `propose`."""
        ...

    def cut(self, nodes: Sequence[int]) -> tuple[list[int], list[int], list[float], list[int]]:
        """These nodes ascending: tokens, parents among them, chances after these, drafters by bit."""
        ...

    def nodes(self) -> tuple[list[int], list[int], list[float], list[float], list[int]]:
        """By node: token, parent, chance after its parent, chance of its path, its drafters by bit."""
        ...

    def test(self, picked: Sequence[int], calibrated: bool) -> list[int]:
        """The nodes that match, from the root; calibrated: every guess whose parent was right is counted."""
        ...


class Calibrated(Protocol):
    """Float64 arrays by kind of claim, which a group reads and updates in place."""

    @property
    def hits(self) -> NDArray[Any]: ...
    @property
    def tests(self) -> NDArray[Any]: ...
    @property
    def estimates(self) -> NDArray[Any]: ...


@dataclass(frozen=True)
class DraftingParts:
    """table: None if it is not available. group: of tables by number (None: a drafter of another kind) with the
    calibration of each. walk: greedy verification as `edgedec.decoding.verify.walk` does it, by the largest logits
    [rows - root, ..] of the first column; empty if one is not finite."""

    table: Callable[[TableSettings], Any | None]
    group: Callable[[Sequence[Any | None], Sequence[Calibrated]], DraftGroup]
    walk: Callable[[Rows, int, NDArray[Any]], tuple[list[int], list[int]]]
