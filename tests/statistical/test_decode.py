"""Sampling through the whole loop keeps the distribution of what follows, however wild the drafts.

The three tokens that follow a prompt have a joint distribution, worked out here one prefix at a time.
`MUTANTS` are seeded bugs of the loop and the walk: each must fail the very same test.
"""

from __future__ import annotations

import inspect
from collections import Counter
from itertools import islice, product
from types import ModuleType

import numpy as np
import pytest

from edgedec.decoding import call_rows as draft_rows
from edgedec.decoding import chain, logits, loop, verify
from edgedec.decoding import chooser as choice
from edgedec.decoding import step as verified_step
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.context import Context
from edgedec.decoding.runner import run_loop
from edgedec.drafters import Drafter
from edgedec.drafters.off import Off
from edgedec.runtime import Rows, logits_of
from edgedec.sampling import Sampling, probs
from edgedec.testing.fakes import FakeRuntime, Limited, RandomDrafter, SetConstraint, tiny_spec
from edgedec.testing.stats import chi_square

VOCAB = 3
TOKENS = 3
DRAWS = 1500
PROMPT = [2, 0, 1]
SAMPLING = Sampling(temperature=1.2, presence_penalty=2.0)
FOLLOWERS = {-1: {0, 2}, 0: {1, 2}, 1: {0, 1, 2}, 2: {0, 2}}
SPEC = tiny_spec(vocab_size=VOCAB, n_layers=1)
TEXTS = list(product(range(VOCAB), repeat=TOKENS))


def expected(constrained: bool) -> list[float]:
    """The probability of every text of three tokens."""
    runtime, found = FakeRuntime(SPEC, spread=9.0), []
    for text in TEXTS:
        p = 1.0
        for i, token in enumerate(text):
            ids = [*PROMPT, *text[:i]]
            scores = logits_of(runtime, Rows.chain(ids, 0), runtime.new_cache(16))[-1]
            if constrained:
                mask = np.isin(np.arange(VOCAB), list(FOLLOWERS[([-1, *text[:i]])[-1]]))
                scores = np.where(mask, scores, -np.inf).astype(np.float32)
            p *= probs(scores, SAMPLING, ids, len(PROMPT)).of(token)
        found.append(p)
    return found


def fit(module: ModuleType, drafter: Drafter, constrained: bool = False) -> tuple[float, float]:
    """(statistic, critical value) of texts that `module` generated, one stream of random numbers for all."""
    runtime, rng, counts = (
        FakeRuntime(SPEC, spread=9.0),
        np.random.default_rng(5),
        Counter[tuple[int, ...]](),
    )
    drafter = Limited(drafter, 6)
    for _ in range(DRAWS):
        context = Context(list(PROMPT), len(PROMPT), runtime.new_cache(16), rng=rng)
        constraint = SetConstraint(FOLLOWERS, VOCAB) if constrained else None
        config = GenerationConfig(SAMPLING, constraint=constraint)
        decoding = module.decode_loop(context, config, drafter, capabilities=runtime.capabilities)
        counts[tuple(map(int, islice(run_loop(runtime, decoding), TOKENS)))] += 1
    return chi_square([counts[text] for text in TEXTS], expected(constrained))


@pytest.mark.parametrize("constrained", [False, True], ids=["free", "constrained"])
@pytest.mark.parametrize("drafting", [False, True], ids=["plain", "drafting"])
def test_the_joint_distribution_is_kept(drafting: bool, constrained: bool) -> None:
    statistic, critical = fit(loop, RandomDrafter(3, VOCAB) if drafting else Off(), constrained)
    assert statistic < critical


# (module that is reworded, old, new, what it does)
MUTANTS = [
    (verify, "tokens[row] == token", "True", "follows a child without matching the token"),
    (verify, "if parent == last and", "if parent >= accepted[0] and", "follows somebody else's child"),
    (verify, "pick(row, list(picked))", "pick(accepted[0], list(picked))", "draws again from the parent"),
    (verify, "pick(row, list(picked))", "pick(row, [])", "forgets the path"),
    (draft_rows, "start = int(first.positions[0])", "start = int(first.positions[0]) + 1", "a place too far"),
    (
        verified_step,
        "chooser.draw(verified, row - root",
        "chooser.draw(verified, 0",
        "takes the logits of the root for all",
    ),
    (logits, "[*self._context.ids, *path] if path", "self._context.ids if path", "penalties without the path"),
    (logits, "constraint.mask(path)", "constraint.mask([])", "the constraint of the root for all"),
]


@pytest.mark.parametrize(("where", "old", "new"), [m[:3] for m in MUTANTS], ids=[m[3] for m in MUTANTS])
def test_seeded_bugs_are_caught(where: ModuleType, old: str, new: str) -> None:
    mutant, looping, choosing = reworded(where, old, new), reworded(loop, "", ""), reworded(choice, "", "")
    step = mutant if where is verified_step else reworded(verified_step, "", "")
    vars(looping)["VerifiedStep"] = vars(step)["VerifiedStep"]
    if where is verify:
        vars(step)["walk"] = vars(mutant)["walk"]
    elif where is draft_rows:
        vars(step)["with_draft"] = vars(mutant)["with_draft"]
    elif where is logits:
        chaining = reworded(chain, "", "")
        vars(chaining).update({name: vars(mutant)[name] for name in ("Penalties", "ConstraintMask")})
        vars(choosing)["make_chain"] = vars(chaining)["make_chain"]
        vars(step)["Chooser"] = vars(choosing)["Chooser"]
    statistic, critical = fit(looping, RandomDrafter(3, VOCAB), constrained="constraint" in old)
    assert statistic > critical


def reworded(module: ModuleType, old: str, new: str) -> ModuleType:
    """A copy of a module with one piece of its source replaced."""
    source = inspect.getsource(module)
    assert not old or source.count(old) == 1, f"{module.__name__} was reworded: give this mutant new words for {old!r}"
    mutant = ModuleType(module.__name__)
    exec(compile(source.replace(old, new) if old else source, "mutant", "exec"), mutant.__dict__)
    return mutant
