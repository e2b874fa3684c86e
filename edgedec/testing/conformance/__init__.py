"""Conformance: a suite of named checks that every runtime must pass.

python -m edgedec.testing.conformance --runtime NAME [--bundle PATH] [--json]

Which checks apply follows from the runtime's declared capabilities; a call that needs what it does not declare must be
refused. The suite builds its own small bundles of random weights; for a runtime that needs files of its own, these
come from the exporter.
"""

from edgedec.testing.conformance import (
    check_attached,
    check_caches,
    check_calls,
    check_groups,
    check_parity,
    check_trees,
    check_views,
)
from edgedec.testing.conformance.suite import CHECKS, Check, Finding, Report, Subject, check, run_suite

__all__ = [
    "CHECKS",
    "Check",
    "Finding",
    "Report",
    "Subject",
    "check",
    "check_attached",
    "check_caches",
    "check_calls",
    "check_groups",
    "check_parity",
    "check_trees",
    "check_views",
    "run_suite",
]
