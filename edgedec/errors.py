"""Every error edgedec raises on purpose.

    EdgedecError
    ├── BundleError            a bundle that cannot be used
    │   ├── BundleNotFound     no bundle there
    │   ├── BundleVersion      written by a newer edgedec
    │   ├── BundleCorrupt      truncated, tampered with, or malformed
    │   └── BundleUnsafe       reaches outside its own folder
    ├── CheckpointError        a checkpoint that cannot be exported
    │   ├── UnknownArchitecture
    │   └── BadTensor          missing, extra, misshapen or not finite
    ├── RuntimeUnavailable     a runtime that cannot run here or cannot run this
    ├── ContextFull            the session has no room for another token
    ├── SessionError           a saved session that does not fit, or misuse of one
    ├── TextError              tokenizer or chat template
    ├── LimitExceeded          what a stranger wrote needs more time, memory or stack than it may have
    └── UsageError             an argument out of range

A message is one line: what was wrong, where, and what to do.
"""

from __future__ import annotations

from typing import TypeVar

Failure = TypeVar("Failure", bound=BaseException)


class EdgedecError(Exception):
    """Base of all errors raised on purpose; the CLI prints it as one line and exits with 1."""


class BundleError(EdgedecError):
    """A bundle that cannot be used."""


class BundleNotFound(BundleError):
    """No bundle at the given place."""


class BundleVersion(BundleError):
    """The bundle was written by a newer edgedec."""


class BundleCorrupt(BundleError):
    """A file is missing, truncated, tampered with, or malformed."""


class BundleUnsafe(BundleError):
    """The bundle names a file outside its own folder."""


class CheckpointError(EdgedecError):
    """A checkpoint that cannot be exported."""


class UnknownArchitecture(CheckpointError):
    """No file in ``models/`` knows this ``model_type``. decoder: optimum may know it, as one graph."""

    def __init__(self, message: str, decoder: bool = False) -> None:
        super().__init__(message)
        self.decoder = decoder


class BadTensor(CheckpointError):
    """A tensor is missing, extra, misshapen or not finite."""


class RuntimeUnavailable(EdgedecError):
    """The runtime cannot run on this machine, or cannot run what was asked."""


class ContextFull(EdgedecError):
    """The session has no room for another token."""


class SessionError(EdgedecError):
    """A saved session does not fit this bundle, or a session was misused."""


class TextError(EdgedecError):
    """The tokenizer or the chat template cannot do what was asked."""


class LimitExceeded(EdgedecError):
    """A grammar, chat template or tokenizer needs more time, memory or stack than it may have."""


class UsageError(EdgedecError, ValueError):
    """An argument is out of range or contradicts another."""


def without_frames(error: Failure) -> Failure:
    """The error, to be kept: without the frames that it and its causes went through. A frame keeps all its objects, and
    one that leads back to the error makes a cycle, which only a garbage collection would free."""
    left: list[BaseException] = [error]
    while left:
        one = left.pop()
        one.__traceback__ = None
        left += [e for e in (one.__cause__, one.__context__) if e is not None and e.__traceback__ is not None]
    return error
