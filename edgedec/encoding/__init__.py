"""Text encoders: embeddings, scores of pairs, labels (docs/embeddings.md).

A text goes through the blocks as one group of rows that see each other; what enters them and what becomes of the rows
is computed here, on the host, for any runtime.
"""

from edgedec.encoding.encoder import Ranked, TextEncoder
from edgedec.encoding.learned_labels import LearnedLabels

__all__ = ["LearnedLabels", "Ranked", "TextEncoder"]
