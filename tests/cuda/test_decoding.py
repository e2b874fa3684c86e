"""All of decoding at once on the emulated engine: drafts, a constraint, a batch, forks, saved sessions; the native
engine's tokens and bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

import edgedec
from edgedec.decoding.scheduler.batch import Batch
from edgedec.kernels.cpu import loader
from edgedec.kernels.cuda import emulated

REASON = emulated.why_not() or loader.why_not()
pytestmark = pytest.mark.skipif(REASON is not None, reason=f"engines: {REASON}")
WORDS = " (red|blue|green) (ball|boat|hat) and a (red|blue|green) (ball|boat|hat)"


def told(nano: Path, device: str, file: Path) -> tuple[list[list[int]], list[bytes], int]:
    """Tokens of three sequences that step together (plain, drafted, constrained and drafted), of a fork and of a
    session that was saved; the caches' bytes; tokens drafted."""
    from edgedec.constraints import regex

    model = edgedec.open(nano, engine="auto" if device == "cpu" else "cuda", device=device, kv="int8")
    batch, found, sessions = Batch(model.runtime, tokens=1024), list[list[int]](), list[edgedec.Session]()
    text = model.tokenizer.encode("Tom had a red ball. Tom had a red ball. Tom had a")
    for speculate, constrained in (("off", False), ("copy:fixed=3", False), ("copy:fixed=3", True)):
        tokens: list[int] = []
        found.append(tokens)
        sessions.append(model.session(context=96, speculate=speculate))
        constraint = regex(model, WORDS) if constrained else None

        def take(token: object, held: list[int] = tokens) -> None:
            held.extend([] if token is None else [int(token)])  # type: ignore[call-overload]

        sessions[-1].submit(batch, text, on_token=take, max_tokens=6, constraint=constraint)
    batch.run()
    fork = sessions[1].fork()
    found.append([int(token) for token in fork.tokens(max_tokens=2)])
    sessions[2].save(file)
    again = model.session(context=96, speculate="off")
    again.load(file)
    found.append([int(token) for token in again.tokens(max_tokens=2)])
    drafted = sum(int(session.report()["drafters"]["copy"]["proposed"]) for session in sessions[1:])
    states = [session._context.cache.save()["state"].tobytes() for session in (*sessions, fork, again)]
    return found, states, drafted


def test_tokens_and_caches_are_those_of_the_native_engine(nano: Path, tmp_path: Path) -> None:
    pytest.importorskip("llguidance")
    tokens, states, drafted = told(nano, "cuda:emulated", tmp_path / "cuda.session")
    expected, native, _ = told(nano, "cpu", tmp_path / "native.session")
    assert drafted > 3
    assert tokens == expected
    assert tokens[0] == tokens[1]
    assert tokens[2] != tokens[1]
    assert states == native
    back = edgedec.open(nano, kv="int8").session(context=96)
    back.load(tmp_path / "cuda.session")
    assert back._context.cache.save()["state"].tobytes() == native[2]
