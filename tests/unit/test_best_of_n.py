"""Best of n with shared tables: later trajectories of one prompt draft from the tables of the earlier ones."""

from __future__ import annotations

from pathlib import Path

import pytest

import edgedec
from edgedec.drafters import Tables
from edgedec.kernels.cpu import loader
from edgedec.sampling import Sampling

needs_native = pytest.mark.skipif(loader.why_not() is not None, reason=f"no native engine: {loader.why_not()}")
PROMPTS = ["Once upon a time, there was a little girl named Lily.", "Tom and his robot wanted to bake a cake. They"]
N = 6


@needs_native
@pytest.mark.parametrize("spec", ["stand:fixed=8", "stand:verify=recursive,fixed=8", "trigram:fixed=8"])
def test_shared_tables_gain_over_tables_of_their_own(nano: Path, spec: str) -> None:
    model = edgedec.open("nano", engine="native", threads=1)

    def trajectories(shared: bool) -> tuple[float, float, list[list[int]]]:
        """Tokens a call of the first trajectory and of the last half of them, each in a session of its own; the
        texts."""
        first, later, texts = [0, 0], [0, 0], []
        for prompt in PROMPTS:
            tables: Tables | None = {} if shared else None
            for seed in range(N):
                live = model.session(speculate=spec, tables=tables)
                sampling = Sampling(temperature=0.8, seed=seed)
                ids = model.tokenizer.encode(prompt)
                texts.append(list(live.tokens(ids, max_tokens=120, ignore_eos=True, sampling=sampling)))
                assert live.stats.proposed > 0
                for counts, counted in ((first, seed == 0), (later, seed >= N // 2)):
                    counts[0] += live.stats.generated * counted
                    counts[1] += live.stats.calls * counted
        return first[0] / first[1], later[0] / later[1], texts

    alone, shared = trajectories(shared=False), trajectories(shared=True)
    assert shared[0] == alone[0]
    assert shared[1] > 1.1 * alone[1]
    assert shared[1] > 1.1 * shared[0]
    if "recursive" not in spec:
        assert shared[2] == alone[2]
