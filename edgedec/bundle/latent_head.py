"""A bundle's latent head: a small network that says which row a chain of thought goes on with (`--search colar`).

`edgedec train-latent` makes it, and `edgedec export` puts it into the bundle, as an ONNX graph with these facts in its
metadata. Of a state after the last block [n, hidden_size] it gives the mean and the standard deviation of the next
row, as the model's first block reads rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from edgedec.errors import BundleCorrupt
from edgedec.storage.serde import from_json

INPUTS, OUTPUTS = ("hidden",), ("mean", "spread")
FACTS_KEY = "edgedec.latent"
_MOST = 64


@dataclass(frozen=True)
class LatentFacts:
    """most: the most tokens that a row may stand for; separator: the text, one token, before and after the rows; speed:
    the text before the first separator, {} being the number of tokens."""

    most: int
    separator: str = "###"
    speed: str = "(Thinking speed: {})"

    def opening(self, r: int) -> str:
        """What follows a question, up to the first separator. 5: "(Thinking speed: 5)"."""
        return self.speed.replace("{}", str(r))

    def to_text(self) -> str:
        return json.dumps(asdict(self))


def facts_of(metadata: Mapping[str, str], where: str) -> LatentFacts:
    """The facts in a graph's metadata; BundleCorrupt if it has none."""
    try:
        facts = from_json(LatentFacts, json.loads(metadata[FACTS_KEY]), where)
    except (KeyError, ValueError, TypeError, RecursionError, BundleCorrupt) as error:
        raise BundleCorrupt(f"{where}: not a latent head of edgedec ({error}); export the checkpoint again") from None
    if not 1 <= facts.most <= _MOST or not facts.separator or facts.speed.count("{}") != 1:
        raise BundleCorrupt(f"{where}: {facts} are no facts of a latent head; export the checkpoint again")
    return facts
