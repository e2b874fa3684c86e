"""Attacks of one client on a server, bounded in count and time: each sends what it has, and returns what it got."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from random import Random
from time import monotonic, sleep

from hostile.inputs import repeated
from hostile.watch import PROMPT, connected, request

Said = dict[str, object]


def ask(place: str, body: object, seconds: float = 120.0, path: str = "/v1/completions") -> tuple[int, float, bytes]:
    """(status, seconds, the answer): 0 if there is none."""
    began, found = monotonic(), b""
    try:
        with connected(place, seconds) as end:
            end.sendall(request("POST", path, body, "Connection: close\r\n"))
            while piece := end.recv(1 << 16):
                found += piece
    except OSError:
        pass
    status = found[9:12]
    return (int(status) if status.isdigit() else 0), monotonic() - began, found


def together(count: int, act: Callable[[int], object]) -> None:
    threads = [threading.Thread(target=act, args=(i,), daemon=True) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(180)


def nothing(place: str, seconds: float) -> Said:
    """No attack: what the machine does to the others by itself."""
    sleep(seconds)
    return {}


def large(place: str, count: int, size: int = 4_100_000) -> Said:
    """Prompts of megabytes, all at once."""
    codes, text = Counter[int](), ("Once upon a time there was a little girl named Lily. " * (size // 53 + 1))[:size]

    def act(_: int) -> None:
        codes[ask(place, {"prompt": text, "max_tokens": 1})[0]] += 1

    together(count, act)
    return {"answers": dict(codes)}


def silent(place: str, count: int, seconds: float = 15.0) -> Said:
    """Connections that send nothing, and connections that send a byte of a header a second; one that asks."""
    ends = []
    for _ in range(count):
        with suppress(OSError):
            ends.append(connected(place, 5))
    until, head, sent = monotonic() + seconds, request("GET", "/health"), 0
    while monotonic() < until:
        for end in ends[::2]:
            with suppress(OSError):
                end.sendall(head[sent % 20 : sent % 20 + 1])
        sent += 1
        sleep(1)
    for end in ends:
        end.close()
    return {"connections": len(ends)}


def schemas(place: str, count: int, stays: float = 0.3) -> Said:
    """Schemas that compile for minutes, each abandoned; then a small one: how long does it wait?"""

    def act(i: int) -> None:
        schema = {"type": "object", "properties": {"a": {"const": str(i)}, "b": {"pattern": f"^{repeated(300)}$"}}}
        with suppress(OSError), connected(place, 5) as end:
            end.sendall(request("POST", "/v1/completions", {"prompt": PROMPT, "json_schema": schema}))
            sleep(stays)

    together(count, act)
    status, seconds, _ = ask(place, {"prompt": PROMPT, "max_tokens": 4, "json_schema": {"type": "integer"}}, 90)
    return {"small schema": status, "its seconds": round(seconds, 2)}


def many(place: str, count: int, tokens: int, seconds: float = 75.0) -> Said:
    """One request of many texts; meanwhile others with one each: how long until one of them is answered?"""
    body = {"prompt": PROMPT, "n": count, "max_tokens": tokens, "ignore_eos": True}
    began, first, codes = monotonic(), 0.0, Counter[int]()
    with connected(place, 300) as end:
        end.sendall(request("POST", "/v1/completions", body))
        sleep(0.5)
        while monotonic() - began < seconds:
            status, _, _ = ask(place, {"prompt": "A dog", "max_tokens": 8}, 90)
            codes[status] += 1
            first = first or (monotonic() - began if status == 200 else 0.0)
            if codes[200] == 3:
                break
            sleep(0.3)
    return {"others": dict(codes), "first answered after": round(first, 2)}


def at_once(place: str, count: int, path: str, body: Callable[[int], object], seconds: float = 60.0) -> Said:
    """Requests, all at once, each within so many seconds; 0: no answer by then."""
    codes = Counter[int]()

    def act(i: int) -> None:
        codes[ask(place, body(i), seconds, path)[0]] += 1

    together(count, act)
    return {"answers": dict(codes)}


def tokenized(place: str) -> Said:
    """Texts of a megabyte to count."""
    text = "Once upon a time there was a little girl named Lily. " * 18_000
    return at_once(place, 32, "/tokenize", lambda _: {"prompt": text})


def reported(place: str) -> Said:
    """A whole answer with all log-probabilities that it may have."""
    body = {"prompt": PROMPT, "n": 4, "logprobs": 20, "max_tokens": 300, "ignore_eos": True}
    return at_once(place, 1, "/v1/completions", lambda _: body, 120)


def prefixes(place: str) -> Said:
    """Many short prompts, which stay cached, then texts that need the room of many of them."""
    rng = Random(3)

    def ids(n: int) -> list[int]:
        return [rng.randrange(300, 3000) for _ in range(n)]

    for _ in range(5):
        at_once(place, 3, "/v1/completions", lambda _: {"prompt": [ids(20) for _ in range(20)], "max_tokens": 1})
    return at_once(place, 3, "/v1/completions", lambda _: {"prompt": ids(30), "max_tokens": 900}, 5.0)


def messages(place: str) -> Said:
    """Chats of as many messages as one may have, without text."""
    body = {"messages": [{"role": "user", "content": ""}] * 10_000, "max_tokens": 2}
    return at_once(place, 20, "/v1/chat/completions", lambda _: body)


ATTACKS: dict[str, Callable[[str], Said]] = {
    "no attack, 1 s": lambda place: nothing(place, 1.0),
    "no attack, 15 s": lambda place: nothing(place, 15.0),
    "one prompt of 4.1 MB": lambda place: large(place, 1),
    "eight prompts of 4.1 MB": lambda place: large(place, 8),
    "eight prompts of 4.1 MB, --max-body 8 MiB": lambda place: large(place, 8),
    "400 silent connections, 256 descriptors": lambda place: silent(place, 400),
    "30 abandoned schemas": lambda place: schemas(place, 30),
    "n=68, 1,000 tokens": lambda place: many(place, 68, 1000),
    "32 texts of 1 MB to tokenize": tokenized,
    "n=4, 300 tokens, 20 log-probabilities": reported,
    "300 short prompts, then long texts": prefixes,
    "20 chats of 10,000 messages": messages,
}


def main(name: str, place: str) -> None:
    print(json.dumps(ATTACKS[name](place)))
