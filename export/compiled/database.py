"""The tuning database: which schedule was the fastest for a product on a processor, kept in a JSON file.

The user's own lies in the cache folder; any other is named by its file, which can be copied to other machines. The
records of a library are also in its bundle. Records of this processor are preferred, then those of other processors of
the same kind of machine.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgedec.errors import BundleCorrupt, UsageError
from edgedec.export.compiled.schedules import MOST_ROWS, ProductShape, Schedule, Schedules
from edgedec.storage.files import cache_folder, replacing
from edgedec.storage.serde import from_json, to_json

FORMAT, VERSION = "edgedec-tuning", 1
SHIPPED = Path(__file__).with_name("tuned.json")
_WIDEST, _FARTHEST = 8, 1 << 16


@dataclass(frozen=True)
class TuningRecord:
    """One product on one processor. ns: nanoseconds of the whole product by its rows, as measured."""

    machine: str
    processor: str
    product: str
    vectors: tuple[int, ...]
    ahead: int = 0
    ns: dict[str, float] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str, str]:
        return self.machine, self.processor, self.product

    @property
    def schedule(self) -> Schedule:
        return Schedule(self.vectors, self.ahead)


class TuningDatabase:
    """Records by machine, processor and product; of two the later one counts."""

    def __init__(self, records: Iterable[TuningRecord] = ()) -> None:
        self.records = {record.key: record for record in records}

    def add(self, record: TuningRecord) -> None:
        self.records[record.key] = record

    def schedules(self, machine: str, processor: str) -> Schedules:
        """The schedules to compile with for a machine."""
        chosen = self._chosen(machine, processor)
        return Schedules(machine, {product: record.schedule for product, record in chosen.items()})

    def used(self, machine: str, processor: str, products: Iterable[ProductShape]) -> TuningDatabase:
        """The records that a library of these products is compiled with."""
        chosen = self._chosen(machine, processor)
        return TuningDatabase(chosen[name] for name in map(str, products) if name in chosen)

    def _chosen(self, machine: str, processor: str) -> dict[str, TuningRecord]:
        """By product: the record of the processor, else of another one of its kind."""
        of_kind = [record for record in self.records.values() if record.machine == machine]
        return {record.product: record for record in sorted(of_kind, key=lambda r: r.processor == processor)}

    def lacking(self, machine: str, processor: str, products: Iterable[ProductShape]) -> list[ProductShape]:
        """The products that were not measured on the processor."""
        return [product for product in products if (machine, processor, str(product)) not in self.records]

    # ---- files ----

    @classmethod
    def read(cls, path: Path, must_exist: bool = True) -> TuningDatabase:
        """The records of a file. UsageError if it is missing, damaged or another kind of file."""
        if not must_exist and not path.exists():
            return cls()
        try:
            data = json.loads(path.read_bytes())
            return cls(_records(data, str(path)))
        except (OSError, ValueError, RecursionError, BundleCorrupt) as error:
            why = " ".join(str(error).split())[:200]
            raise UsageError(f"{path}: no tuning database: {why}; delete it and tune again") from None

    def text(self) -> bytes:
        """The file's content; the same records are the same bytes."""
        records = [to_json(self.records[key]) for key in sorted(self.records)]
        data = {"format": FORMAT, "version": VERSION, "records": records}
        return (json.dumps(data, indent=1, sort_keys=True) + "\n").encode()

    def write(self, path: Path) -> None:
        """Replace a file, whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(self.text())


def usual_place() -> Path:
    """The user's own database."""
    return cache_folder() / "tuning.json"


def processor_here() -> str:
    """This machine's processor by its maker's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model", "CPU part")))
    return next((name for name in named if name), platform.processor() or platform.machine())


def _records(data: Any, where: str) -> list[TuningRecord]:
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise BundleCorrupt(f"{where}: its format is not {FORMAT}")
    if data.get("version") != VERSION or not isinstance(data.get("records"), list):
        raise BundleCorrupt(f"{where}: its version is not {VERSION}")
    return [_record(item, f"records[{i}]") for i, item in enumerate(data["records"])]


def _record(item: Any, where: str) -> TuningRecord:
    record = from_json(TuningRecord, item, where)
    vectors, ahead = record.vectors, record.ahead
    if not 1 <= len(vectors) <= MOST_ROWS or not all(v in (1, 2, 4, _WIDEST) for v in vectors):
        raise BundleCorrupt(f"{where}.vectors: {list(vectors)} are no tiles")
    if not 0 <= ahead <= _FARTHEST or ahead % 64:
        raise BundleCorrupt(f"{where}.ahead: {ahead} is not a number of lines of 64 bytes")
    return record
