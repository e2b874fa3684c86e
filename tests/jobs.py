"""Jobs of a batch whose caches only count: what tests of admission and of jobs share."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from edgedec.decoding.context import Context
from edgedec.decoding.scheduler.batch import Job
from edgedec.testing.fakes import tiny_spec

SPEC = tiny_spec()


def cache(length: int, *pages: int) -> Any:
    return SimpleNamespace(length=length, capacity=64, page_ids=lambda: np.array(pages, np.int64), spec=SPEC)


def nothing() -> Any:
    yield from ()


def job_of(need: int, held: Any, n: int = 30, ids: Sequence[int] = (), **more: Any) -> Job:
    ids = list(ids) or list(range(n))
    return Job(Context(ids, len(ids), held), nothing(), lambda token: None, need, **more)
