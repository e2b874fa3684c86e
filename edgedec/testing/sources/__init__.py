"""Kernels' sources on a device (`edgedec add tvm:opencl`): a model run launch by launch, as their plan says.

    python -m edgedec.testing.sources BUNDLE --language opencl --trust-code
    python -m edgedec.testing.sources BUNDLE --language webgpu --kv f16 --trust-code

compares every launch of some calls with the reference. It is a check, and an example of a host program, not an engine.
"""

from edgedec.testing.sources.driver import SourceModel, prompt_rows, tree_rows
from edgedec.testing.sources.machine import MachineMissing, SourceMachine, machine_for

__all__ = ["MachineMissing", "SourceMachine", "SourceModel", "machine_for", "prompt_rows", "tree_rows"]
