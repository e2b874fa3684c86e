"""Public keys and signatures as minisign writes them: a comment, then base64.

public key   "Ed", key id [8], key [32]
signature    "ED", key id [8], signature [64] of the BLAKE2b-512 of the file;
             a second comment, then a signature [64] of the first one and that comment
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from dataclasses import dataclass

from edgedec.errors import BundleUnsafe, UsageError
from edgedec.signing.ed25519 import decoded, is_weak, verify

UNTRUSTED, TRUSTED = "untrusted comment: ", "trusted comment: "
_KEY, _HASHED, _PLAIN = b"Ed", b"ED", b"Ed"
LIMIT = 16 << 10  # bytes of any of these files


@dataclass(frozen=True)
class PublicKey:
    """id: how it is named, 16 hexadecimal digits; what it stands for is `key` [32] alone."""

    id: str
    key: bytes

    def __str__(self) -> str:
        """The line that others are given."""
        return base64.b64encode(_KEY + id_bytes(self.id) + self.key).decode()


@dataclass(frozen=True)
class Signature:
    """id: of the key named in it; comment: signed too."""

    id: str
    signature: bytes
    comment: str
    comment_signature: bytes

    def fits(self, key: PublicKey, content: bytes) -> bool:
        """Whether the key made it of this content, and of the comment."""
        of_comment = self.signature + self.comment.encode()
        return verify(key.key, hashed(content), self.signature) and verify(key.key, of_comment, self.comment_signature)


def hashed(content: bytes) -> bytes:
    """What is signed of a file."""
    return hashlib.blake2b(content).digest()


def id_of(raw: bytes) -> str:
    """Of a key's eight bytes, as minisign prints them."""
    return raw[::-1].hex().upper()


def id_bytes(name: str) -> bytes:
    """The eight bytes of a key's name."""
    return bytes.fromhex(name)[::-1]


def read_public(text: str, where: str) -> PublicKey:
    """The key in the content of a .pub file, or in its second line alone."""
    lines = [line.strip() for line in lines_of(text.strip())]
    lines = lines[1:] if lines and lines[0].startswith(UNTRUSTED) else lines
    raw = _decoded(lines[0], 42) if len(lines) == 1 else None
    if raw is None or raw[:2] != _KEY:
        raise UsageError(f"{where}: not a public key: expected a .pub file of minisign or of `edgedec sign --new-key`")
    point = decoded(raw[10:])
    if point is None or is_weak(point):
        raise UsageError(f"{where}: a public key that anybody could sign for; ask for another")
    return PublicKey(id_of(raw[2:10]), raw[10:])


def public_text(key: PublicKey) -> str:
    """The content of a .pub file."""
    return f"{UNTRUSTED}minisign public key {key.id}\n{key}\n"


def read_signature(text: str, where: str) -> Signature:
    """The content of a .minisig file."""
    lines = lines_of(text)
    if len(lines) != 4 or not lines[0].startswith(UNTRUSTED) or not lines[2].startswith(TRUSTED):
        raise BundleUnsafe(f"{where}: not a signature of minisign; sign the bundle again")
    raw, of_comment = _decoded(lines[1], 74), _decoded(lines[3], 64)
    if raw is None or of_comment is None or raw[:2] not in (_HASHED, _PLAIN):
        raise BundleUnsafe(f"{where}: not a signature of minisign; sign the bundle again")
    if raw[:2] == _PLAIN:
        raise BundleUnsafe(f"{where}: a signature in minisign's old format; sign the bundle again, without -l")
    return Signature(id_of(raw[2:10]), raw[10:], lines[2].removeprefix(TRUSTED), of_comment)


def signature_text(signature: Signature) -> str:
    """The content of a .minisig file."""
    raw = base64.b64encode(_HASHED + id_bytes(signature.id) + signature.signature).decode()
    second = base64.b64encode(signature.comment_signature).decode()
    return f"{UNTRUSTED}signature of edgedec.json\n{raw}\n{TRUSTED}{signature.comment}\n{second}\n"


def lines_of(text: str) -> list[str]:
    """Lines as minisign takes them: a comment may hold what else Python would end a line at (U+2028)."""
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def _decoded(line: str, size: int) -> bytes | None:
    """The bytes of a base64 line; None if they are not `size` or not written as base64 is."""
    try:
        raw = base64.b64decode(line, validate=True)
    except (binascii.Error, ValueError):
        return None
    return raw if len(raw) == size and base64.b64encode(raw).decode() == line else None
