"""Hyperfitting nano: what is measured, and that a few texts read again and again do what the paper says.

The training's modules are scripts with names of their own, so they run in a process apart.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

RECIPE = Path(__file__).parents[2] / "models" / "nano"
from edgedec.models.nano.variety import copied, distinct, grams, type_token_ratio  # noqa: E402


def test_only_the_last_tokens_count() -> None:
    ids = [9] * 50 + [1, 2, 3, 3]
    assert type_token_ratio(ids, 4) == 3 / 4
    assert type_token_ratio(ids, 3) == 2 / 3
    assert type_token_ratio(ids) == 4 / 54
    assert type_token_ratio([7] * 100 + list(range(96))) == 1
    assert type_token_ratio([]) == 0


def test_runs_of_each_text_for_itself() -> None:
    assert grams([1, 2, 1], 2) == [(1, 2), (2, 1)]
    assert distinct([[1, 1, 1, 2]], 2) == 2 / 3
    assert distinct([[1, 2, 3], [1, 2, 3]], 2) == 1, "a text that another one repeats is varied itself"
    assert distinct([[1, 1, 1], [1, 2, 3]], 2) == 0.75
    assert distinct([[1]], 2) == 0


def test_copies_are_whole_runs_in_one_text() -> None:
    known = [[5, 1, 2, 6], [3, 9]]
    assert copied([[1, 2, 3]], known, 2) == 1 / 2
    assert copied([[6, 3]], known, 2) == 0, "no run goes from one text into the next"
    assert copied([[1, 2, 1, 2]], known, 2) == 2 / 3, "every run is counted, not every kind of run"
    assert copied([[1]], known, 2) == 0


def run(program: str) -> None:
    head = f"""
    import sys
    import numpy
    sys.path.insert(0, {str(RECIPE)!r})
    import finetune, hyperfit, model, torch
    import export
    torch.set_num_threads(1)
    """
    done = subprocess.run(
        [sys.executable, "-P", "-c", dedent(head) + dedent(program)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


needs_torch = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("torch", "safetensors")), reason="nano is trained with torch"
)


@needs_torch
def test_texts_learned_by_heart_sharpen_the_model_and_spoil_it_for_others() -> None:
    run("""
    import edgedec
    nano, length = edgedec.open("nano", threads=1), 48
    def text(seed):
        given = {"max_tokens": length, "min_tokens": length, "temperature": 1.0, "seed": seed}
        return [0, *map(int, nano.session().tokens(nano.tokenizer.encode("Once"), **given))][:length]
    samples, others = torch.tensor([text(i) for i in range(8)]), [numpy.array(text(i)) for i in range(8, 14)]
    before = export.from_bundle(finetune.BUNDLE)
    trainer = hyperfit.Hyperfitting(before, samples, hyperfit.HyperfitPlan(16, 1e-3), None)
    rates = set()
    for i in range(16):
        trainer.step(i / 16)
        rates |= {group["lr"] for group in trainer.optimizers[0].param_groups}
    assert rates == {1e-3}, "the rate is constant"
    first, last = trainer.losses[0], trainer.loss()
    assert first > 1.2 and last < first / 4, (first, last)
    lost, entropy = hyperfit.held_out(before, others)
    worse, sharper = hyperfit.held_out({n: w.detach() for n, w in trainer.weights.items()}, others)
    assert worse > lost + 0.3 and sharper < entropy - 0.1, (lost, worse, entropy, sharper)
    assert abs(lost - export.mean_loss(before, others)) < 1e-3
    """)


@needs_torch
def test_a_pass_has_every_sample_once_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    run(f"""
    from pathlib import Path
    weights = {{"w": torch.zeros(2)}}
    def made():
        samples, plan = torch.zeros(20, 4, dtype=torch.int64), hyperfit.HyperfitPlan(1, 1e-3)
        return hyperfit.Hyperfitting(weights, samples, plan, None)
    trainer = made()
    passes = [trainer.batch() + trainer.batch() for _ in range(3)]
    assert all(len(set(one)) == 16 for one in passes), "two whole batches of 8 of 20; the rest is left out"
    assert passes[0] != passes[1] != passes[2], "in a new order each time"
    trainer.batch()
    path = Path({str(tmp_path / "kept.safetensors")!r})
    trainer.save(path, "key")
    again = made()
    again.load(path, "key")
    assert again.batch() == trainer.batch() and again.batch() == trainer.batch()
    """)
