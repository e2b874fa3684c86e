"""Whether an Ed25519 signature is right (RFC 8032), in integers of Python: about 5 ms, and no package is needed.

Checking handles public values only, so its time may depend on them. Signing must not take other times for other keys:
that is left to a library (`makers.py`).
"""

from __future__ import annotations

import hashlib

_P = 2**255 - 19
_ORDER = 2**252 + 27742317777372353535851937790883648493
_D = -121665 * pow(121666, -1, _P) % _P
_ROOT = pow(2, (_P - 1) // 4, _P)  # of -1

# A point (x, y) as X, Y, Z, T: x = X / Z, y = Y / Z, x y = T / Z.
Point = tuple[int, int, int, int]
_ZERO: Point = (0, 1, 1, 0)


def verify(public: bytes, message: bytes, signature: bytes) -> bool:
    """Whether `signature` [64] of the message was made with the secret key of `public` [32]."""
    key, nonce = decoded(public), decoded(signature[:32])
    factor = int.from_bytes(signature[32:], "little")
    if len(signature) != 64 or key is None or nonce is None or factor >= _ORDER or is_weak(key):
        return False
    challenge = int.from_bytes(hashlib.sha512(signature[:32] + public + message).digest(), "little") % _ORDER
    return _equal(_times(factor, _BASE), _added(nonce, _times(challenge, key)))


def is_weak(point: Point) -> bool:
    """Whether a point is of small order: as a key, its signatures could be forged."""
    for _ in range(3):
        point = _added(point, point)
    return _equal(point, _ZERO)


def decoded(data: bytes) -> Point | None:
    """The point that 32 bytes stand for; None: none, or written in a way that is not the shortest."""
    if len(data) != 32:
        return None
    number = int.from_bytes(data, "little")
    odd, y = number >> 255, number & (2**255 - 1)
    x = _x_of(y, odd) if y < _P else None
    return None if x is None else (x, y, 1, x * y % _P)


def _x_of(y: int, odd: int) -> int | None:
    """The root of (y² - 1) / (d y² + 1) that is odd or even; None if there is none."""
    square = (y * y - 1) * pow(_D * y * y + 1, -1, _P) % _P
    x = pow(square, (_P + 3) // 8, _P)
    if (x * x - square) % _P:
        x = x * _ROOT % _P
    if (x * x - square) % _P or (x == 0 and odd):
        return None
    return _P - x if x & 1 != odd else x


def _added(p: Point, q: Point) -> Point:
    a, b = (p[1] - p[0]) * (q[1] - q[0]) % _P, (p[1] + p[0]) * (q[1] + q[0]) % _P
    c, d = 2 * p[3] * q[3] * _D % _P, 2 * p[2] * q[2] % _P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % _P, g * h % _P, f * g % _P, e * h % _P


def _times(n: int, point: Point) -> Point:
    found = _ZERO
    while n:
        if n & 1:
            found = _added(found, point)
        point, n = _added(point, point), n >> 1
    return found


def _equal(p: Point, q: Point) -> bool:
    return (p[0] * q[2] - q[0] * p[2]) % _P == 0 and (p[1] * q[2] - q[1] * p[2]) % _P == 0


def _base() -> Point:
    y = 4 * pow(5, -1, _P) % _P
    x = _x_of(y, 0)
    assert x is not None
    return x, y, 1, x * y % _P


_BASE = _base()
