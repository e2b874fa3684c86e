"""Beam search beside transformers' own, on the same law."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from search.laws import PROMPT, VOCAB, logps_of, searched
from search.test_beam import MODES, PENALTIES, LogPs, config

from edgedec.testing.fakes import FakeRuntime


@pytest.mark.parametrize("early", MODES)
def test_transformers_finds_the_same(early: str) -> None:
    """transformers' own beam search on the same law."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_outputs import CausalLMOutput

    class Law(transformers.PreTrainedModel, transformers.GenerationMixin):  # type: ignore[misc,name-defined]
        config_class = transformers.LlamaConfig
        main_input_name = "input_ids"

        def __init__(self, logps: LogPs) -> None:
            super().__init__(transformers.LlamaConfig(vocab_size=VOCAB, hidden_size=8, num_attention_heads=2))
            self._logps, self.weight = logps, torch.nn.Parameter(torch.zeros(1))
            self.generation_config = transformers.GenerationConfig()

        def prepare_inputs_for_generation(self, input_ids: Any, **more: Any) -> dict[str, Any]:
            return {"input_ids": input_ids}

        def forward(self, input_ids: Any, **more: Any) -> Any:
            rows = [self._logps(tuple(row[len(PROMPT) :])) for row in input_ids.tolist()]
            return CausalLMOutput(logits=torch.tensor(np.array(rows))[:, None, :])

    compared = 0
    for seed in range(2):
        runtime = FakeRuntime(seed=seed, spread=4.0)
        model = Law(logps_of(runtime, PROMPT))
        for width in (2, 5):
            for penalty in PENALTIES:
                wanted = {"false": False, "true": True, "never": "never"}[early]
                out = model.generate(
                    torch.tensor([PROMPT]),
                    num_beams=width,
                    max_new_tokens=9,
                    early_stopping=wanted,
                    length_penalty=penalty,
                    eos_token_id=[2, 7],
                    pad_token_id=0,
                    use_cache=False,
                    do_sample=False,
                )
                words = f"beam:width={width},early_stopping={early},length_penalty={penalty}"
                found = searched(runtime, words, config(), eos=frozenset({2, 7}))
                text = out[0].tolist()[len(PROMPT) :]
                assert found == [token for token in text if token not in (2, 7)], (seed, width, penalty)
                compared += 1
    assert compared == 16
