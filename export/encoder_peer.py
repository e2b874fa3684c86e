"""transformers' model beside edgedec's, for `edgedec bench embed`."""

from __future__ import annotations

from typing import Any

from edgedec.bench.embedding import Run, Texts


def of_transformers(checkpoint: str, threads: int) -> tuple[str, Run]:
    """(name, run) of transformers' model in float32, the texts padded to the longest."""
    import torch
    from transformers import AutoModel

    torch.set_num_threads(threads)
    model: Any = AutoModel.from_pretrained(checkpoint).eval()

    def run(texts: Texts) -> object:
        most = max(map(len, texts))
        ids = torch.tensor([text + [0] * (most - len(text)) for text in texts])
        seen = torch.tensor([[1] * len(text) + [0] * (most - len(text)) for text in texts])
        with torch.inference_mode():
            return model(ids, attention_mask=seen).last_hidden_state

    return "transformers", run
