"""The structures of `api.h` for drafters and the governor, as `structs` has the others."""

from __future__ import annotations

from ctypes import c_double, c_int32, c_int64, c_uint32, c_void_p

from edgedec.kernels.cpu.structs import MirrorStruct, fields


class DrafterOptionsStruct(MirrorStruct):
    _fields_ = fields((c_int32, "kind vocab nodes k ngram length"), (c_double, "rate explore"))


class VerifiedStruct(MirrorStruct):
    _fields_ = fields((c_void_p, "tokens parents top_ids top_scores picked path"), (c_int32, "rows root top accepted"))


class CalibrationStruct(MirrorStruct):
    _fields_ = fields((c_void_p, "hits tests estimates"))


class ProposalStruct(MirrorStruct):
    _fields_ = fields(
        (c_void_p, "more estimates seconds"),
        (c_double, "least"),
        (c_int32, "n_more prompt nodes"),
        (c_uint32, "enabled"),
    )


class WatchStruct(MirrorStruct):
    _fields_ = fields((c_void_p, "seconds"), (c_double, "text each trust first"), (c_int32, "most nodes"))


class GovernorStruct(MirrorStruct):
    _fields_ = fields(
        (c_void_p, "drafting calibrations drafter_seconds proposed accepted bank account record shared seconds"),
        (c_double, "per_cell plain draft least"),
        (c_void_p, "took"),
        (c_int64, "left length"),
        (c_uint32, "enabled"),
        (c_int32, "most sequences limit top prompt named largest capacity after ties"),
        (c_double, "spent expected"),
        (c_int64, "steps drafted came"),
        (c_void_p, "sizes silent"),
    )


class DraftTreeStruct(MirrorStruct):
    _fields_ = fields((c_void_p, "tokens parents order by p chances"), (c_int32, "room n"))
