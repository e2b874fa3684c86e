"""A search for each task: blocks that may be skipped for code may be needed for a chat (SWIFT).

A task has a name (`skip:task=code`), or is identified by a text's first tokens: the template and the system prompt are
the same for all texts of a task and cheap to compare. A beginning that was seen before has a search of its own, which
starts as a copy of the common search; a text with a new beginning uses the common search. A prompt's last tokens are
not compared: they differ, and each text would start a new search."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from copy import deepcopy

import numpy as np

from edgedec.drafters import State
from edgedec.drafters._slices.block_search import Search

# The tokens of a beginning; the number of stored beginnings; the number of tasks with a search.
_BEGINNING, _SEEN, _TASKS = 24, 256, 16
COMMON = "common"


class TaskSets:
    """Searches by task. `make`: a new one. task: the name of all texts' task, "" for by their beginning."""

    def __init__(self, make: Callable[[], Search], task: str = "") -> None:
        self._make, self._task = make, task
        self._tasks: OrderedDict[str, Search] = OrderedDict({task or COMMON: make()})
        self._seen: OrderedDict[str, None] = OrderedDict()

    @property
    def names(self) -> list[str]:
        return list(self._tasks)

    def of(self, prompt: Sequence[int]) -> tuple[str, Search]:
        """The search for a text that begins with this prompt, and its task's name."""
        if self._task:
            return self._task, self._tasks[self._task]
        name = self._beginning(prompt)
        if name not in self._tasks and name:
            if name not in self._seen:
                self._remember(name)
                return COMMON, self._tasks[COMMON]
            self._tasks[name] = deepcopy(self._tasks[COMMON])
            self._forget_oldest()
        name = name or COMMON
        self._tasks.move_to_end(name)
        return name, self._tasks[name]

    def _beginning(self, prompt: Sequence[int]) -> str:
        """The name of how a prompt begins; "" for one that is hardly more than its beginning."""
        if len(prompt) < _BEGINNING:
            return ""
        return hashlib.sha256(np.asarray(prompt[:_BEGINNING], np.int64).tobytes()).hexdigest()[:12]

    def _remember(self, name: str) -> None:
        self._seen[name] = None
        if len(self._seen) > _SEEN:
            self._seen.popitem(last=False)

    def _forget_oldest(self) -> None:
        if len(self._tasks) > _TASKS:
            del self._tasks[next(name for name in self._tasks if name != COMMON)]

    def state(self) -> State:
        """The sets of all tasks, as arrays."""
        return {f"{name}/{key}": array for name, search in self._tasks.items() for key, array in search.state().items()}

    def restore(self, state: State) -> None:
        """Continue from a state; UsageError if it cannot be of this model."""
        parts: dict[str, State] = {}
        for key, array in state.items():
            name, _, rest = key.rpartition("/")
            parts.setdefault(name or COMMON, {})[rest] = array
        for name, part in list(parts.items())[:_TASKS]:
            search = self._make()
            search.restore(part)
            self._tasks[name] = search
