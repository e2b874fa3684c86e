"""Flags of the verbs that train."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from edgedec.cli._flags.machine import Threads
from edgedec.cli._flags.option import option


@dataclass(frozen=True)
class TrainFlags:
    """The time limit, the seed, and the work folder in which an interrupted run is resumed. Verbs have their own
    help."""

    minutes: Annotated[float, typer.Option(min=0.0, help="Minutes of training.")] = 5.0
    steps: Annotated[int, typer.Option(min=0, help="At most so many steps; 0: the minutes alone.")] = 0
    work: Annotated[
        Path | None,
        option(metavar="FOLDER", help="Keep a checkpoint there; an interrupted run continues from it."),
    ] = None
    seed: Annotated[int, typer.Option(min=0, help="Of the first weights and the batches.")] = 0
    threads: Threads = 0

    def settings(self) -> dict[str, Any]:
        """The fields of this name that every plan of a trainer has."""
        from edgedec.runtime import available_cores

        threads = self.threads or available_cores()
        return {"minutes": self.minutes, "steps": self.steps, "seed": self.seed, "threads": threads}

    def checkpoint(self, name: str) -> Path | None:
        """The file of a checkpoint in the work folder, if there is one."""
        return None if self.work is None else self.work / name


@dataclass(frozen=True)
class PartTrainFlags(TrainFlags):
    """The same flags, for a part beside a model."""

    minutes: Annotated[float, typer.Option(min=0.0, help="Minutes of training.")] = 10.0
    work: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", show_default=False, help="Keep a checkpoint there, to go on from."),
    ] = None
