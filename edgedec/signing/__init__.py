"""Signed manifests, by which users trust the code in a bundle.

A maker signs a bundle's manifest, which holds the sha256 of every file, with an Ed25519 key; a user pins the maker's
public key once. Keys and signatures are minisign's files (https://jedisct1.github.io/minisign), so that its own program
makes and checks them too.
"""

from edgedec.signing.bundles import SIGNATURE, Signed, remove_signature, signed_by
from edgedec.signing.keyring import keys_folder, pin, pinned, unpin
from edgedec.signing.keys import PublicKey, read_public

__all__ = [
    "SIGNATURE",
    "PublicKey",
    "Signed",
    "keys_folder",
    "pin",
    "pinned",
    "read_public",
    "remove_signature",
    "signed_by",
    "unpin",
]
