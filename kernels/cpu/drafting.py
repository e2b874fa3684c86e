"""The drafting functions of the library, by name: results and arguments."""

from __future__ import annotations

from ctypes import POINTER, c_int, c_int64, c_uint32, c_void_p
from typing import Any

from edgedec.kernels.cpu.drafting_structs import (
    DrafterOptionsStruct,
    DraftTreeStruct,
    ProposalStruct,
    VerifiedStruct,
    WatchStruct,
)

KINDS = {"copy": 0, "suffix": 1, "recycling": 2, "trigram": 3, "stand": 4, "datastore": 5}
# Kinds of claims (`ED_DRAFT_KINDS`).
BINS = 24


def signatures() -> dict[str, tuple[Any, list[Any]]]:
    """(result, arguments) by function."""
    asked, tree, seen = POINTER(ProposalStruct), POINTER(DraftTreeStruct), POINTER(VerifiedStruct)
    rows: list[Any] = [c_void_p, c_void_p, c_void_p, c_void_p]
    return {
        "ed_drafter_new": (c_void_p, [POINTER(DrafterOptionsStruct)]),
        "ed_drafter_free": (None, [c_void_p]),
        "ed_drafter_fork": (c_void_p, [c_void_p]),
        "ed_drafter_share": (c_int, [c_void_p, c_void_p]),
        "ed_drafter_figure": (c_int64, [c_void_p, c_int]),
        "ed_drafter_save": (c_int, [c_void_p, c_int, *rows]),
        "ed_drafter_load": (c_int, [c_void_p, c_int, c_int, *rows]),
        "ed_drafter_index": (c_int, [c_void_p, c_void_p, c_void_p, c_int64]),
        "ed_drafting_new": (c_void_p, [c_void_p, c_int]),
        "ed_drafting_free": (None, [c_void_p]),
        "ed_drafting_reset": (None, [c_void_p]),
        "ed_drafting_read": (c_int, [c_void_p]),
        "ed_drafting_propose": (c_int, [c_void_p, asked, tree]),
        "ed_drafting_watch": (c_int, [c_void_p, asked, POINTER(WatchStruct)]),
        "ed_drafting_propose_one": (c_int, [c_void_p, c_int, asked, tree]),
        "ed_drafting_observe": (c_int, [c_void_p, seen, c_uint32, c_void_p]),
        "ed_drafting_add": (c_int, [c_void_p, c_int, c_int, *rows, c_void_p]),
        "ed_drafting_clear": (None, [c_void_p]),
        "ed_drafting_tree": (c_int, [c_void_p, c_int, tree]),
        "ed_drafting_cut": (c_int, [c_void_p, c_void_p, c_int, tree]),
        "ed_drafting_test": (c_int, [c_void_p, c_void_p, c_int, c_void_p, c_void_p]),
        "ed_walk": (c_int, [c_void_p, c_void_p, c_int, c_int, c_void_p, c_int, c_void_p, c_void_p]),
    }
