"""On-device LLM inference: quantized bundles, a CPU engine, speculative decoding, one API.

>>> import edgedec
>>> session = edgedec.open("nano").session()
>>> for piece in session.generate("Once upon a time", max_tokens=64):
...     print(piece, end="")
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from edgedec.version import __version__

if TYPE_CHECKING:
    from edgedec.decoding.config import GenerationConfig
    from edgedec.decoding.messages import Stats, Token
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
    from edgedec.model import Model, open  # noqa: A004
    from edgedec.sampling import Sampling
    from edgedec.session import Session

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

# Where the names are that are not errors. Each is imported when first used: the command line starts at once, and an
# interrupt in its first moments finds it ready.
_HOMES = {
    "GenerationConfig": "decoding.config",
    "Model": "model",
    "Sampling": "sampling",
    "Session": "session",
    "Stats": "decoding.messages",
    "Token": "decoding.messages",
    "open": "model",
}


_HERE = os.path.dirname(os.path.abspath(__file__))
_ROOT = os.path.dirname(_HERE)
if not os.path.isdir(os.path.join(_HERE, "models")) and os.path.isfile(os.path.join(_ROOT, "models", "__init__.py")):
    # A checkout: models, runtimes and the rest lie beside this folder, which hides an installed one when Python is
    # started there.
    __path__.append(_ROOT)


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_HOMES.get(name, 'errors')}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
