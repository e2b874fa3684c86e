"""Permission to run code from a bundle: never without the user's consent.

A compiled library runs with all the rights of this process, whatever its hash. So the runtime that loads one calls
`check_code` first. Consent is a pinned key that signed the bundle (`edgedec trust`), `--trust-code` or
`edgedec.open(trust_code=True)`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from edgedec.errors import BundleUnsafe
from edgedec.signing import signed_by

if TYPE_CHECKING:
    from edgedec.bundle import Bundle

_trusted: ContextVar[bool] = ContextVar("trusted", default=False)


def trust_code(trusted: bool) -> None:
    """Allow or forbid code in bundles from now on."""
    _trusted.set(trusted)


@contextmanager
def trusting(trusted: bool) -> Iterator[None]:
    """A context in which code in bundles may run if `trusted`, or if it was allowed before."""
    token = _trusted.set(trusted or _trusted.get())
    try:
        yield
    finally:
        _trusted.reset(token)


def check_code(bundle: Bundle, file: str) -> None:
    """BundleUnsafe unless the user trusts this code; BundleCorrupt unless the file has the manifest's hash."""
    reason = why_not_run(bundle)
    if reason is not None:
        raise BundleUnsafe(f"{bundle.path}: {file} is machine code; {reason}")
    bundle.verify_file(file)


def why_not_run(bundle: Bundle) -> str | None:
    """The reason why a bundle's code may not run, with a remedy; None if it may. BundleUnsafe for a wrong signature,
    even if code is trusted."""
    signed = signed_by(bundle)
    if _trusted.get() or (signed is not None and signed.signer is not None):
        return None
    if signed is None:
        return "if you trust who made the bundle, run it with --trust-code"
    return (
        f"it is signed by key {signed.id}, which you have not trusted: edgedec trust KEY.pub with the maker's public "
        "key, or --trust-code"
    )
