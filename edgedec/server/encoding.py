"""Requests to text encoders: they run in a thread, a few texts of one request at a time, so that a client that leaves,
or a time that is over, ends one soon, and nobody waits for all texts of another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from anyio import to_thread

from edgedec.decoding.messages import Stats
from edgedec.errors import EdgedecError
from edgedec.server.answers import on_disconnect
from edgedec.server.errors import APIError
from edgedec.server.fairness import Owner, Turns, has_place
from edgedec.server.requests import EndEvent

if TYPE_CHECKING:
    from starlette.types import Receive

    from edgedec.encoding import TextEncoder
    from edgedec.encoding.numeric import Array
    from edgedec.encoding.texts import EncodedText
    from edgedec.server.api import EmbedOptions, Prompt

# Texts between two looks at whether anybody waits for them.
_STEP = 16
# Requests at a time; of one client more are refused, another has its share.
_WAITING = 64


@dataclass(eq=False)
class _Request:
    """One that waits or runs, for its share of the places. ended: why nobody waits for it any more."""

    client: str
    started: float = 0.0
    ended: list[str] = field(default_factory=list)

    @property
    def owner(self) -> Owner:
        return Owner(self.client, self)


class EncoderThread:
    """Runs the requests of one server: their steps take turns between clients, then between a client's requests."""

    def __init__(self) -> None:
        self._turns, self._held = Turns(), list[_Request]()

    async def run(
        self,
        texts: Callable[[], Sequence[EncodedText]],
        encoder: TextEncoder,
        receive: Receive,
        seconds: float,
        client: str = "",
    ) -> list[tuple[int, Array]]:
        """(the tokens, what the model makes of it) of each text. texts: reads them, in a thread."""
        request = _Request(client)
        if not has_place(self._held, request.owner, 1, _WAITING):
            raise APIError(429, "too many requests wait already; try again later", code="queue_full", wait=1)
        late = asyncio.get_running_loop().call_later(seconds, request.ended.append, "timeout")
        self._held.append(request)
        try:
            async with on_disconnect(receive, lambda: request.ended.append("cancelled")):
                return await self._made(texts, encoder, request)
        except EdgedecError as error:
            raise APIError(400, str(error), "input", "invalid_value") from None
        finally:
            self._held.remove(request)
            late.cancel()

    async def _made(
        self, texts: Callable[[], Sequence[EncodedText]], encoder: TextEncoder, request: _Request
    ) -> list[tuple[int, Array]]:
        async with self._turns.turn(request.client):
            read = await to_thread.run_sync(texts)
        found: list[tuple[int, Array]] = []
        for at in range(0, len(read), _STEP):
            batch = read[at : at + _STEP]
            async with self._turns.turn(request.client):
                if request.ended:
                    why = request.ended[0]
                    raise APIError({"timeout": 504}.get(why, 499), f"the texts were not read: {why}", code=why)
                results = await to_thread.run_sync(encoder.results, batch)
            found += zip([len(text.ids) for text in batch], results, strict=True)
        return found


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
