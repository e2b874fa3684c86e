"""Fair shares of slots and waiting places: between clients first, then between the requests of a client.

A text that starts belongs to the client with the fewest running texts, then to its request with the fewest, among
equals to the one that came first. Waiting places are divided only when they are short, so a single client may use them
all; another one still gets its share, beyond the limit if need be.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections import Counter, deque
from collections.abc import AsyncIterator, Hashable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple, Protocol, TypeVar

# Above the limit there is room for the shares of others, up to so many times the limit.
_MOST = 2


class Owner(NamedTuple):
    """Whose a text is: its client and its request."""

    client: Hashable
    request: Hashable


class Owned(Protocol):
    """A text; `started`: when it began to run, 0 before."""

    started: float

    @property
    def owner(self) -> Owner: ...


T = TypeVar("T", bound=Owned)


def turns(waiting: Sequence[T], running: Iterable[Owned]) -> Iterator[T]:
    """The waiting texts in the order in which they start, one after another, beside those that run."""
    left, clients, requests = list(waiting), Counter[Hashable](), Counter[Owner]()
    for text in running:
        clients[text.owner.client] += 1
        requests[text.owner] += 1
    while left:
        text = min(left, key=lambda one: (clients[one.owner.client], requests[one.owner]))
        left.remove(text)
        clients[text.owner.client] += 1
        requests[text.owner] += 1
        yield text


def starves(texts: Iterable[Owned]) -> bool:
    """Whether a request has no running text while another has several: then one text more than there are slots may
    start, as the others may run for long."""
    known = list(texts)
    running = Counter(text.owner for text in known if text.started)
    return any(n > 1 for n in running.values()) and any(text.owner not in running for text in known)


def has_place(held: Sequence[Owned], owner: Owner, count: int, most: int) -> bool:
    """Whether `count` more texts of a request may wait or run: there is room, or its client, or the request, has less
    than its share of it."""
    if len(held) + count <= most:
        return True
    if len(held) + count > _MOST * most:
        return False
    clients = {text.owner.client for text in held} | {owner.client}
    own = [text.owner for text in held if text.owner.client == owner.client]
    share = most // len(clients)
    return len(own) + count <= share or count <= share // len({*own, owner})


def client_of(address: str) -> str:
    """The client of an address: an IPv6 network of 64 bits is one, as it has more addresses than anyone may count."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if found.version == 6 and found.ipv4_mapped is None:
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(getattr(found, "ipv4_mapped", None) or found)


class TextProgress(NamedTuple):
    """A running text: seconds since it started, tokens so far, and at most."""

    seconds: float
    tokens: int
    most: int


def seconds_until(places: int, running: Sequence[TextProgress], each: float) -> int:
    """Whole seconds until so many texts have ended, if all are as long as they may be and go on at their speed. each:
    mean seconds of a text, for those that have not started.

    >>> seconds_until(1, [TextProgress(1.0, 100, 1000), TextProgress(2.0, 100, 200)], 0.0)
    2
    """
    ends = sorted(max(one.seconds / max(one.tokens, 1) * (one.most - one.tokens), 0.0) for one in running)
    if not ends:
        return 1
    each = each or sum(one.seconds / max(one.tokens, 1) * one.most for one in running) / len(running)
    rounds, last = divmod(max(places, 1) - 1, len(ends))
    return max(int(-(-(ends[last] + rounds * each) // 1)), 1)


class Turns:
    """One at a time in an event loop: the clients that wait in rotation, each client's own in the order they came."""

    def __init__(self) -> None:
        self._taken, self._waiting = False, dict[str, deque[asyncio.Future[None]]]()

    @asynccontextmanager
    async def turn(self, client: str) -> AsyncIterator[None]:
        """A context that no other has at the same time."""
        if self._taken:
            place = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(client, deque()).append(place)
            try:
                await place
            except asyncio.CancelledError:
                if place.done() and not place.cancelled():
                    self._pass_on()
                raise
        self._taken = True
        try:
            yield
        finally:
            self._pass_on()

    def _pass_on(self) -> None:
        while self._waiting:
            client = next(iter(self._waiting))
            queue = self._waiting.pop(client)
            place = queue.popleft()
            if queue:
                self._waiting[client] = queue
            if not place.done():
                place.set_result(None)
                return
        self._taken = False
