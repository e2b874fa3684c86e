"""Signing: secret keys as minisign writes them, by the package `cryptography`.

secret key   a comment, then base64 of "Ed", "Sc" or 0 0, "B2", salt [32], two limits of scrypt (8 bytes each), and
             key id [8], seed [32], public key [32], checksum [32]; these 104 bytes are mixed with scrypt's if "Sc"
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

from edgedec.bundle import MANIFEST, Bundle
from edgedec.errors import RuntimeUnavailable, UsageError
from edgedec.extras import install_command
from edgedec.signing.bundles import SIGNATURE
from edgedec.signing.keys import (
    LIMIT,
    UNTRUSTED,
    PublicKey,
    Signature,
    hashed,
    id_bytes,
    id_of,
    lines_of,
    public_text,
    signature_text,
)
from edgedec.storage.files import replacing

_SIZE, _PLAIN, _SCRYPT = 158, b"\0\0", b"Sc"
_OPERATIONS, _MEMORY = 1 << 22, 1 << 27  # of new keys: 128 MB and about half a second
_LONGEST_COMMENT = 8000  # minisign reads 8,192 bytes of the line
_MOST_MEMORY = 1 << 30  # of minisign's own keys; hashlib takes less than 2 GiB


@dataclass(frozen=True)
class SecretKey:
    """A key that signs. seed [32]: the secret."""

    id: str
    seed: bytes
    public: PublicKey

    def signed(self, content: bytes, comment: str) -> Signature:
        """A signature of a file's content and of a comment, which has to be one line."""
        if "\n" in comment or "\r" in comment:
            raise UsageError("--comment: must be one line")
        if (
            len(comment.encode(errors="replace")) > _LONGEST_COMMENT
            or comment.encode(errors="ignore").decode() != comment
        ):
            raise UsageError(f"--comment: must be text of at most {_LONGEST_COMMENT} bytes")
        signer = _library().Ed25519PrivateKey.from_private_bytes(self.seed)
        first = signer.sign(hashed(content))
        return Signature(self.id, first, comment, signer.sign(first + comment.encode()))


def new_key() -> SecretKey:
    """A new random key."""
    return _key(id_of(secrets.token_bytes(8)), secrets.token_bytes(32))


def sign(bundle: Bundle, key: SecretKey, comment: str) -> Path:
    """Check every file of a bundle and sign its manifest; the signature's file."""
    bundle.verify()
    raw = (bundle.path / MANIFEST).read_bytes()
    if hashlib.sha256(raw).hexdigest() != bundle.digest:
        raise UsageError(f"{bundle.path / MANIFEST}: has changed while it was read; sign it again")
    path = bundle.path / SIGNATURE
    try:
        with replacing(path) as file:
            file.write(signature_text(key.signed(raw, comment)).encode())
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from None
    return path


# ---- files -------------------------------------------------------------------------------------------


def write_key(key: SecretKey, path: Path, password: str) -> Path:
    """Write a secret key, mixed with a password unless that is empty, and FILE.pub beside it; the latter's path."""
    if not path.name:
        raise UsageError(f"--new-key {path}: names no file")
    public = path.with_name(f"{path.name.removesuffix('.key')}.pub")
    for taken in (path, public):
        if os.path.lexists(taken):
            raise UsageError(f"{taken}: exists already; choose another name for the new key")
    try:
        with _private(path) as file:
            file.write(secret_text(key, password).encode())
            file.flush()
            with replacing(public) as beside:
                beside.write(public_text(key.public).encode())
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from None
    return public


@contextmanager
def _private(path: Path) -> Iterator[BinaryIO]:
    """A new file that only its owner reads, from its first byte on; it goes again if the block ends in an error."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        try:
            yield file
        except BaseException:
            path.unlink()
            raise


def secret_text(key: SecretKey, password: str) -> str:
    """The content of a secret key's file."""
    body = id_bytes(key.id) + key.seed + key.public.key
    body += _checksum(body)
    salt, kdf, limits = secrets.token_bytes(32), _SCRYPT if password else _PLAIN, (_OPERATIONS, _MEMORY)
    limits = limits if password else (0, 0)
    if password:
        body = _mixed(body, password, salt, *limits)
    raw = b"Ed" + kdf + b"B2" + salt + b"".join(n.to_bytes(8, "little") for n in limits) + body
    return f"{UNTRUSTED}minisign {'encrypted ' if password else ''}secret key\n{base64.b64encode(raw).decode()}\n"


def is_locked(path: Path) -> bool:
    """Whether a secret key's file needs a password."""
    return _raw(path)[2:4] == _SCRYPT


def read_key(path: Path, password: str = "") -> SecretKey:
    """The key in a file."""
    raw = _raw(path)
    body, salt = raw[54:], raw[6:38]
    if raw[2:4] == _SCRYPT:
        operations, memory = (int.from_bytes(raw[at : at + 8], "little") for at in (38, 46))
        if memory > _MOST_MEMORY or operations > 32 * _MOST_MEMORY:
            raise UsageError(f"{path}: its password needs {memory >> 20} MB, more than any key's")
        body = _mixed(body, password, salt, operations, memory)
    # minisign leaves the checksum out where there is no password; the public half is checked anyway.
    if body[72:] != _checksum(body[:72]) and (raw[2:4] == _SCRYPT or any(body[72:])):
        raise UsageError(f"{path}: wrong password, or a damaged key")
    key = _key(id_of(body[:8]), body[8:40])
    if key.public.key != body[40:72]:
        raise UsageError(f"{path}: a damaged key: its public half is another")
    return key


def _raw(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            lines = lines_of(file.read(LIMIT).decode().strip())
        raw = base64.b64decode(lines[1].strip(), validate=True) if len(lines) == 2 else b""
    except OSError as error:
        raise UsageError(f"--key {path}: cannot be read: {error.strerror or error}") from None
    except (binascii.Error, ValueError):
        raw = b""
    if len(raw) != _SIZE or raw[:2] != b"Ed" or raw[2:4] not in (_PLAIN, _SCRYPT) or raw[4:6] != b"B2":
        raise UsageError(f"--key {path}: not a secret key of minisign; make one: edgedec sign --new-key {path}")
    return raw


def _checksum(body: bytes) -> bytes:
    return hashlib.blake2b(b"Ed" + body, digest_size=32).digest()


def _mixed(body: bytes, password: str, salt: bytes, operations: int, memory: int) -> bytes:
    n, p = scrypt_sizes(operations, memory)
    try:
        most = n * 1024 + p * 1024 + (32 << 10)
        stream = hashlib.scrypt(password.encode(), salt=salt, n=n, r=8, p=p, maxmem=most, dklen=len(body))
    except (ValueError, MemoryError) as error:
        raise UsageError(f"the key's password cannot be checked here: {error or 'no memory'}") from None
    return bytes(a ^ b for a, b in zip(body, stream, strict=True))


def scrypt_sizes(operations: int, memory: int) -> tuple[int, int]:
    """N and p of scrypt with r = 8, as libsodium takes them from two limits.

    >>> scrypt_sizes(33554432, 1073741824)
    (1048576, 1)
    """
    operations = max(operations, 32768)
    small = operations < memory // 32
    most = operations // 32 if small else memory // 1024
    n = next((1 << i for i in range(1, 63) if 1 << i > most // 2), 1 << 62)
    return n, 1 if small else max(min(operations // 4 // n, 0x3FFFFFFF) // 8, 1)


def _key(name: str, seed: bytes) -> SecretKey:
    public = _library().Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()
    return SecretKey(name, seed, PublicKey(name, public))


def _library() -> Any:
    try:
        return import_module("cryptography.hazmat.primitives.asymmetric.ed25519")
    except ModuleNotFoundError:
        raise RuntimeUnavailable(f"signing needs cryptography: {install_command('sign')}") from None
