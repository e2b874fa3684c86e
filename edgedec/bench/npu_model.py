"""What a call may take on an NPU that is not at hand: a model made of published figures, no measurement.

    python -m edgedec.bench.npu_model -m BUNDLE --soc SM8750

A call reads its weights, and the keys and values of its bucket, once, at the rate that published decoding speeds come
to; its rows are multiplied at the rate that published times to the first token come to; whichever takes longer is the
call's time. Published by Qualcomm (huggingface.co/qualcomm/Llama-SEA-LION-v3.5-8B-R, a Llama 3.1 8B of 4-bit weights
with an 8-bit cache of 4,096 tokens, by Genie):

    SM8750     12.93 tokens/s, first token of 128 in 0.159 s
    SC8380XP   10.04 tokens/s, first token of 128 in 0.212 s

Its blocks have 6.98 billion weights and its head 0.53, which is read too: 3.75 GB, and 0.27 GB of cache.
"""

from __future__ import annotations

import argparse
import sys
from typing import NamedTuple

from edgedec.bundle import Bundle
from edgedec.bundle.locate import find
from edgedec.cache import kv_bytes_per_token
from edgedec.errors import EdgedecError, UsageError
from edgedec.spec import ModelSpec

_READ, _BODY, _HEAD, _PROMPT = 3.75e9 + 0.27e9, 6.98e9, 0.53e9, 128
# Rows of a call, and the slots before them: the buckets of the ort runtime on NPUs.
ROWS, PASTS = (1, 4, 8, 32, 128), (64, 256, 1024, 4096)


class Published(NamedTuple):
    """decode: tokens a second; first: seconds to the first token of a prompt of 128."""

    decode: float
    first: float

    @property
    def bytes_a_second(self) -> float:
        return _READ * self.decode

    @property
    def products_a_second(self) -> float:
        """Multiply-adds; the head runs for one row."""
        return (_BODY * _PROMPT + _HEAD) / self.first


PUBLISHED = {"SM8750": Published(12.9262, 0.159383), "SC8380XP": Published(10.0367, 0.211644)}


def expected_seconds(bundle: Bundle, soc: str, rows: int, past: int, kv: str = "f16") -> float:
    """The modelled seconds of the blocks on `rows` rows after `past` slots; without the head, which runs on the CPU.
    UsageError for a SoC without published figures."""
    if soc not in PUBLISHED:
        raise UsageError(f"no published figures of {soc}; there are: {', '.join(PUBLISHED)}")
    known = PUBLISHED[soc]
    read = _block_bytes(bundle) + kv_bytes_per_token(bundle.spec, kv) * past
    return max(read / known.bytes_a_second, rows * _products(bundle.spec, past + rows) / known.products_a_second)


def _block_bytes(bundle: Bundle) -> int:
    """Of all weights of blocks, as they are stored."""
    spec, tensors = bundle.spec, bundle.manifest.tensors
    return sum(tensors[name].stored_bytes for b in range(spec.n_blocks) for name in spec.block_tensors(b))


def _products(spec: ModelSpec, slots: int) -> int:
    """Multiply-adds of one row: its matrices, and attention to so many slots."""
    names = [(name, shape) for b in range(spec.n_blocks) for name, shape in spec.block_tensors(b).items()]
    matrices = sum(shape[0] * shape[1] for name, shape in names if name in spec.matrices)
    return matrices + sum(2 * block.q_dim * slots for block in spec.attention.values())


def main(arguments: list[str] | None = None) -> int:
    """Print the table of a bundle."""
    parser = argparse.ArgumentParser("python -m edgedec.bench.npu_model", description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", default="nano")
    parser.add_argument("--soc", default="SM8750")
    given = parser.parse_args(arguments)
    try:
        bundle = Bundle.open(find(given.model))
        pasts = [past for past in PASTS if past <= bundle.spec.context_length]
        lines = [(rows, [expected_seconds(bundle, given.soc, rows, past) for past in pasts]) for rows in ROWS]
    except EdgedecError as error:
        print(f"npu_model: {error}", file=sys.stderr)
        return 1
    print(f"{bundle.manifest.name} on {given.soc}: a model made of published figures, nothing was measured")
    print("rows  " + "".join(f"{f'after {past}':>14}" for past in pasts))
    for rows, found in lines:
        print(f"{rows:>4}  " + "".join(f"{seconds * 1e3:>11.3f} ms" for seconds in found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
