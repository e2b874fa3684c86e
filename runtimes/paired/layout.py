"""Keys and values of one engine's cache as another engine keeps them.

Engines of the same layout hand over bytes: of the missing tokens (`GrowingCache`) or of all tokens (`Cache.save` and
`load`). Between the layout of host arrays and the native one, float caches are reordered; caches with scales are not
handed over.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgedec.cache import Cache
from edgedec.cache.base import Arrays, Bytes, GrowingCache
from edgedec.cache.kv_parts import KVParts, fields
from edgedec.errors import SessionError
from edgedec.runtime import Runtime
from edgedec.spec import ModelSpec

_FLOATS = ("f32", "f16")
_NATIVE = "native-"
# Where the native layout's header holds the length (kernels/cpu/cache.cpp).
_LENGTH = slice(24, 32)


@dataclass(frozen=True)
class Handover:
    """Conversion from caches of one kind to those of another. `same`: the bytes are not changed; empty: the saved form
    of an empty cache of the other kind; follows: only missing tokens are handed over, unless slots have gaps."""

    spec: ModelSpec
    source: str
    target: str
    empty: Arrays
    follows: bool

    @classmethod
    def between(cls, source: Runtime, target: Runtime) -> Handover | None:
        """The handover from one runtime to another; None if their caches cannot be converted."""
        one, other = source.new_cache(1), target.new_cache(1)
        grow = isinstance(one, GrowingCache) and isinstance(other, GrowingCache)
        made = cls(source.spec, one.kind, other.kind, other.save(), one.kind == other.kind and grow)
        return made if made.same or made._converts() else None

    @property
    def same(self) -> bool:
        return self.source == self.target

    def move(self, source: Cache, target: Cache, held: int = 0) -> int | None:
        """Bring `target`, which has the first `held` tokens, up to the content of `source`. Returns the bytes handed
        over; None if some of the text was dropped or merged, which `target` cannot represent."""
        rest = self._rest(source, held) if isinstance(target, GrowingCache) else None
        if rest is not None and isinstance(target, GrowingCache) and target.append(rest):
            return rest.nbytes
        arrays = self.converted(source.save())
        if arrays is None:
            return None
        target.load(arrays)
        return sum(array.nbytes for array in arrays.values())

    def _rest(self, source: Cache, held: int) -> Bytes | None:
        """The bytes to append to the first `held` tokens of another cache; None where all tokens are handed over."""
        grows = self.follows and held > 0 and isinstance(source, GrowingCache)
        return source.save_rest(held) if grows and isinstance(source, GrowingCache) else None

    def converted(self, arrays: Arrays) -> Arrays | None:
        """The saved form of the other kind of cache; None if it cannot represent the content."""
        if self.same:
            return arrays
        if not arrays["length"][0]:
            return self.empty
        parts = KVParts.split(self.spec, self.source, arrays)
        if not parts.rows:
            return None
        rest = dict(self.empty) if not self.target.startswith(_NATIVE) else {"header": self._header(parts.length)}
        rest = {name: array for name, array in rest.items() if not name.startswith(("kv.", "slots."))}
        return KVParts(self.target, parts.rows, rest | {"length": np.array([parts.length], np.int64)}).joined()

    def _converts(self) -> bool:
        """Whether both layouts have the same float format and row size."""
        kinds = self.source, self.target
        plain = [kind.removeprefix(_NATIVE) for kind in kinds]
        if plain[0] != plain[1] or plain[0] not in _FLOATS or self.spec.recurrent:
            return False
        if not all(KVParts.takes(self.spec, kind) for kind in kinds):
            return False
        return all(fields(self.spec, kinds[0], b) == fields(self.spec, kinds[1], b) for b in self.spec.attention)

    def _header(self, length: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        made = self.empty["state"][:32].copy()
        if made[:4].tobytes() != b"edkv":
            raise SessionError("a cache of an unknown layout cannot be handed over")
        made[_LENGTH] = np.frombuffer(np.int64(length).tobytes(), np.uint8)
        return made
