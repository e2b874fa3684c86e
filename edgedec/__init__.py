"""edgedec, the decoder for small machines.

>>> import edgedec
>>> session = edgedec.open("nano").session()
>>> for piece in session.generate("Once upon a time", max_tokens=64):
...     print(piece, end="")
"""

from edgedec.decoding.step import Stats, Token
from edgedec.errors import (
    BadTensor,
    BundleCorrupt,
    BundleError,
    BundleNotFound,
    BundleUnsafe,
    BundleVersion,
    CheckpointError,
    ContextFull,
    EdgedecError,
    RuntimeUnavailable,
    SessionError,
    TextError,
    UnknownArchitecture,
    UsageError,
)
from edgedec.generation import GenerationConfig
from edgedec.model import Model, open  # noqa: A004
from edgedec.sampling import Sampling
from edgedec.session import Session
from edgedec.version import __version__

__all__ = [
    "BadTensor",
    "BundleCorrupt",
    "BundleError",
    "BundleNotFound",
    "BundleUnsafe",
    "BundleVersion",
    "CheckpointError",
    "ContextFull",
    "EdgedecError",
    "GenerationConfig",
    "Model",
    "RuntimeUnavailable",
    "Sampling",
    "Session",
    "SessionError",
    "Stats",
    "TextError",
    "Token",
    "UnknownArchitecture",
    "UsageError",
    "__version__",
    "open",
]
