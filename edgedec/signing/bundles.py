"""The signature of a bundle: `edgedec.json.minisig` beside its manifest."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgedec.bundle.manifest import MANIFEST
from edgedec.errors import BundleCorrupt, BundleUnsafe
from edgedec.signing.keyring import pinned
from edgedec.signing.keys import LIMIT, Signature, read_signature

if TYPE_CHECKING:
    from edgedec.bundle import Bundle

SIGNATURE = f"{MANIFEST}.minisig"


@dataclass(frozen=True)
class Signed:
    """id: of the key in a bundle's signature. signer: the key's local name if it is pinned, and then the signature is
    valid; None: the key is not trusted, so that the signature proves nothing."""

    id: str
    signer: str | None
    comment: str


def signed_by(bundle: Bundle) -> Signed | None:
    """The signer of a bundle's manifest; None if it is not signed. BundleUnsafe for a wrong signature of a pinned
    key."""
    signature = _read(bundle.path / SIGNATURE)
    if signature is None:
        return None
    # Ids are not unique: several keys may have the same one.
    same = {name: key for name, key in pinned().items() if key.id == signature.id}
    signer = next((name for name, key in same.items() if signature.fits(key, _manifest(bundle))), None)
    if same and signer is None:
        raise BundleUnsafe(
            f"{bundle.path / SIGNATURE}: is not a signature of this manifest by {' or '.join(same)} "
            f"(key {signature.id}): the bundle was changed after it was signed, or signed by somebody else; get it "
            "again, or sign it again"
        )
    return Signed(signature.id, signer, signature.comment)


def remove_signature(folder: Path) -> None:
    """Take a signature away, before a manifest changes that it would not fit."""
    (folder / SIGNATURE).unlink(missing_ok=True)


def _read(path: Path) -> Signature | None:
    if not path.is_file():
        return None
    try:
        with path.open("rb") as file:
            return read_signature(file.read(LIMIT).decode(), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise BundleUnsafe(f"{path}: cannot be read: {getattr(error, 'strerror', None) or 'not a text'}") from None


def _manifest(bundle: Bundle) -> bytes:
    """The bytes of the manifest that the bundle was opened by."""
    raw = (bundle.path / MANIFEST).read_bytes()
    if hashlib.sha256(raw).hexdigest() != bundle.digest:
        raise BundleCorrupt(f"{bundle.path / MANIFEST}: has changed since it was opened; open the bundle again")
    return raw
