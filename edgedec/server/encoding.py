"""Requests to text encoders: they run in a thread, one request at a time and a few texts at a time, so that a client
that leaves, or a time that is over, ends one soon."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from anyio import CapacityLimiter, to_thread

from edgedec.decoding.messages import Stats
from edgedec.errors import EdgedecError
from edgedec.server.answers import on_disconnect
from edgedec.server.errors import APIError
from edgedec.server.requests import EndEvent

if TYPE_CHECKING:
    from starlette.types import Receive

    from edgedec.encoding import TextEncoder
    from edgedec.encoding.numeric import Array
    from edgedec.encoding.texts import EncodedText
    from edgedec.server.api import EmbedOptions, Prompt

# Texts between two looks at whether anybody waits for them.
_STEP = 16
# Requests that wait for the thread; more are refused.
_WAITING = 64


class EncoderThread:
    """Runs the requests of one server, in the order in which they come."""

    def __init__(self) -> None:
        self._limiter: CapacityLimiter | None = None
        self._waiting = 0

    async def run(
        self, texts: Callable[[], Sequence[EncodedText]], encoder: TextEncoder, receive: Receive, seconds: float
    ) -> list[tuple[int, Array]]:
        """(the tokens, what the model makes of it) of each text. texts: reads them, in the thread."""
        if self._waiting >= _WAITING:
            raise APIError(429, "too many requests wait already; try again later", code="queue_full", wait=1)
        self._limiter = self._limiter or CapacityLimiter(1)
        ended = list[str]()
        late = asyncio.get_running_loop().call_later(seconds, ended.append, "timeout")
        self._waiting += 1
        try:
            async with on_disconnect(receive, lambda: ended.append("cancelled")):
                return await to_thread.run_sync(lambda: list(_made(texts(), encoder, ended)), limiter=self._limiter)
        except EdgedecError as error:
            raise APIError(400, str(error), "input", "invalid_value") from None
        finally:
            self._waiting -= 1
            late.cancel()


def _made(texts: Sequence[EncodedText], encoder: TextEncoder, ended: Sequence[str]) -> Iterator[tuple[int, Array]]:
    for at in range(0, len(texts), _STEP):
        if ended:
            status = {"timeout": 504}.get(ended[0], 499)
            raise APIError(status, f"the texts were not read: {ended[0]}", code=ended[0])
        batch = texts[at : at + _STEP]
        yield from zip([len(text.ids) for text in batch], encoder.results(batch), strict=True)


def read_texts(
    encoder: TextEncoder, prompts: Sequence[Prompt], options: EmbedOptions
) -> Callable[[], list[EncodedText]]:
    """Reads the texts to embed. An encoder of another use is refused, and a width that it has not."""

    def read() -> list[EncodedText]:
        encoder.check_width(options.dimensions)
        return encoder.read(prompts, options.prompt, options.truncate)

    return read


def as_ends(found: Sequence[tuple[int, Array]], encoder: TextEncoder, dimensions: int) -> list[EndEvent]:
    """Embeddings in the form of those that a decoder makes."""
    return [
        EndEvent(i, "eos", Stats(prompt=tokens, finish="eos"), vector=encoder.narrowed(vector, dimensions))
        for i, (tokens, vector) in enumerate(found)
    ]


def narrowed(vector: Array, dimensions: int) -> Array:
    """The first values of a decoder's embedding, of length 1 again."""
    if not dimensions:
        return vector
    if dimensions > len(vector):
        raise APIError(400, f"dimensions: {dimensions} of {len(vector)}", "dimensions", "invalid_value")
    cut = vector[:dimensions]
    return np.asarray(cut / (float(np.linalg.norm(cut)) or 1.0), np.float32)
