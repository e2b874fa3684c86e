"""UniXcoder in torch: transformers' RoBERTa under the masks of the authors' code (microsoft/CodeBERT, unixcoder.py),
and the embedding as its head.

transformers has no class for its decoder-only mode. Here it gets one, so that the zoo treats it as any other.
"""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("transformers", reason="needs transformers")
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, RobertaConfig, RobertaModel  # noqa: E402
from transformers.modeling_outputs import CausalLMOutput  # noqa: E402

Tensor = Any


class UnixcoderConfig(RobertaConfig):  # type: ignore[misc]
    model_type = "unixcoder"


def sees(n: int, together: int = 0) -> Tensor:
    """bool [n, n]: the first `together` rows see each other, the others what is before them. Encoder-only: all of n."""
    mask = torch.ones(n, n).tril().bool()
    mask[:together, :together] = True
    return mask


def states(model: Any, ids: Tensor, mask: Tensor) -> Tensor:
    """The states [rows, n, hidden] after the last block of a RobertaModel. Every token has a position of its own, the
    padding token's too."""
    places = torch.arange(ids.shape[1]) + model.config.pad_token_id + 1
    added = torch.where(mask, 0.0, torch.finfo(torch.float32).min)[None, None]
    return model(ids, attention_mask=added, position_ids=places.expand(ids.shape)).last_hidden_state


class UnixcoderForCausalLM(PreTrainedModel):  # type: ignore[misc]
    config_class = UnixcoderConfig
    base_model_prefix = "roberta"
    _tied_weights_keys = {"lm_head.weight": "roberta.embeddings.word_embeddings.weight"}  # noqa: RUF012

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.roberta = RobertaModel(config, add_pooling_layer=False)
        self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self) -> Any:
        return self.roberta.embeddings.word_embeddings

    def get_output_embeddings(self) -> Any:
        return self.lm_head

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: Any) -> Any:
        """attention_mask: None, or what is added to scores [1, 1, n, n]."""
        given = attention_mask is not None and attention_mask.ndim == 4
        mask = attention_mask[0, 0] >= 0 if given else sees(input_ids.shape[1])
        return CausalLMOutput(logits=self.lm_head(states(self.roberta, input_ids, mask)))


AutoConfig.register("unixcoder", UnixcoderConfig)
AutoModelForCausalLM.register(UnixcoderConfig, UnixcoderForCausalLM)
