"""A model run a layer at a time on a whole text, so that only one layer's weights are needed at once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from edgedec.cache import Cache
from edgedec.runtime import Call, Outputs, Rows, Runtime, forward_one

Hidden = NDArray[np.float32]


def through_layer(
    runtime: Runtime, cache: Cache, hidden: Hidden, ids: NDArray[np.int64], layer: int, chunk: int
) -> Hidden:
    """The state [n, hidden_size] after a layer, `chunk` rows per call: later rows read the cache, in its format. Where
    layers read what others keep, all rows stay pending, for the layers after this one."""
    spec = runtime.spec
    blocks, parts = spec.span(layer, layer + 1), []
    if layer == 0 or not spec.owners:
        cache.truncate(0)
    keeps = any(b in spec.attention or b in spec.recurrent for b in blocks)  # a feed-forward alone leaves no rows
    for at in range(0, len(ids), chunk):
        rows = Rows.chain(ids[at : at + chunk], at)
        if spec.owners:
            rows = replace(Rows.chain(ids[: at + chunk], 0), first=at)
        call = Call(rows, cache, blocks, hidden[at : at + chunk], Outputs(hidden=(blocks[-1],)))
        parts.append(forward_one(runtime, call).hidden[blocks[-1]])
        if keeps and not spec.owners:
            cache.commit(range(len(rows)))
    return np.concatenate(parts)
