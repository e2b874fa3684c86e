"""Every combination of options is done, or refused in one line: none runs as another."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from cut import first_layers
from drafting import draft_of

import edgedec
from edgedec import Sampling, UsageError
from edgedec.decoding.context import Context
from edgedec.decoding.verify import FAMILY as VERIFIERS
from edgedec.drafters._models.options import children_for
from edgedec.drafters._models.reader import shape, size
from edgedec.drafters._options import MATCH
from edgedec.drafters.medusa import fits
from edgedec.drafters.model import ModelDrafter
from edgedec.testing.fakes import FakeRuntime, tiny_spec

SPEC = tiny_spec(vocab_size=13, n_layers=2)
VERIFY = (MATCH, *VERIFIERS.shipped)
# What each verification is for: the places with several children, as its paper has them.
PLACES = {"match": 0, "token": 0, "block": 0, "multipath": 1, "spectr": 2, "recursive": 2}


def drawn(verify: str, width: int, beam: int, nodes: int) -> list[int]:
    """The parents of a draft of at most so many tokens, drawn for a verification."""
    drafter = ModelDrafter(FakeRuntime(SPEC, seed=1), 13, 8, width, verify, beam=beam)
    runtime = FakeRuntime(SPEC)
    warm = Sampling(temperature=1.0, seed=5)
    context = Context([3, 1, 4], 3, runtime.new_cache(64), rng=np.random.default_rng(2), sampling=warm)
    draft = draft_of(runtime, drafter.propose(context, nodes, 0.0))
    assert (draft.sampled.verifier if draft.sampled else MATCH) == verify
    assert len(draft.tokens) <= nodes
    return list(draft.parents)


@pytest.mark.parametrize(("verify", "width", "beam"), list(product(VERIFY, (0, 1, 2, 3, 5), (0, 1, 2, 3))))
def test_every_shape_is_done_or_refused(verify: str, width: int, beam: int) -> None:
    """Of two children or more there are as many as were named, however few tokens a draft has."""
    many = PLACES[verify] > 0
    right = (
        (not width if verify == "recursive" and beam > 1 else False) if beam else (width != 1 if many else width < 2)
    )
    if beam and verify != "recursive":
        right = False
    if not right:
        with pytest.raises(UsageError, match=r"^.+$"):
            drawn(verify, children_for(verify, width, beam), beam, 9)
        return
    found = children_for(verify, width, beam)
    parents = drawn(verify, found, beam, 9)
    if verify == MATCH:
        return
    assert parents.count(-1) == (beam or (width or 2 if many else 1))
    second = [parents.count(i) for i, parent in enumerate(parents) if parent == -1]
    if PLACES[verify] == 2 and not beam and found < 4:
        assert second == [2] * found if found == 2 else second == [2, 2, 2]
    elif not beam:
        assert set(second) <= {0, 1}


@pytest.mark.parametrize(("width", "nodes", "expected"), [
    (3, 9, [3, 1, 1]), (3, 2, [2]), (2, 1, [1, ]), (2, 9, [2, 1, 1, 1]), (1, 3, [1, 1, 1]), (9, 9, [9]),
])  # fmt: skip
def test_paths_come_before_depth(width: int, nodes: int, expected: list[int]) -> None:
    """`width=3,fixed=9`: three paths of three tokens, not one of eight."""
    assert shape(8, width, 1, nodes) == expected
    for bushy, depth in product(range(3), range(1, 9)):
        found = shape(depth, width, bushy, nodes)
        assert size(found) <= nodes
        assert found[0] == (min(width, nodes) if bushy else 1)


@pytest.fixture(scope="module")
def small(nano: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return first_layers(nano, tmp_path_factory.mktemp("options") / "small", 2)


@pytest.mark.parametrize("options", ["verify=multipath,width=3", "verify=multipath", "verify=spectr,width=2"])
def test_several_paths_run_in_a_session(small: Path, options: str) -> None:
    paths = 3 if "width=3" in options else 2
    session = edgedec.open("nano", engine="reference").session(speculate=f"model:path={small},{options},fixed=9")
    inner, seen = session._drafter, []
    propose = inner.propose

    def watched(*given):  # type: ignore[no-untyped-def]
        proposal = propose(*given)
        draft = proposal if not hasattr(proposal, "send") else (yield from proposal)
        seen.append(draft)
        return draft

    inner.propose = watched
    list(session.generate("Once upon a time", max_tokens=12, sampling=Sampling(temperature=1.0, seed=3)))
    trees = [draft for draft in seen if len(draft.tokens) == 9 or draft.sampled]
    assert trees
    assert all(list(draft.parents).count(-1) == paths for draft in trees[:-1])


@pytest.mark.parametrize(("spec", "why"), [
    ("model:path={small},verify=block,width=3", "width=3: verify=block has one; use verify=multipath, recursive,"),
    ("model:path={small},width=2", "width=2: verify=match has one"),
    ("model:path={small},verify=multipath,width=1", "of one path is block"),
    ("model:path={small},verify=spectr,width=1", "of one path is token"),
    ("model:path={small},verify=recursive,beam=1", "beam=1: is a chain"),
    ("model:path={small},verify=recursive,beam=2,width=2", "is the shape of the tree"),
    ("model:path={small},verify=block,beam=2", "goes with verify=recursive"),
    ("model:path={small},verify=token,accept=head", "accept=head: has no effect with verify=token"),
    ("model:path={small},verify=block,trim=0.5", "trim=0.5: has no effect with verify=block"),
    ("rapid:path={small},trim=0.5", "trim=0.5: has no effect with path"),
    ("rapid:transfer=1,trim=0.5,least=40,budget=128,chunk=24,refresh=16", "trim=0.5: has no effect with transfer"),
    ("rapid:transfer=1,fixed=3,least=40,budget=128,chunk=24,refresh=16", "fixed=3: a drafter that changes the text"),
    ("sparse:policy=view,budget=0.2", "budget=0.2: has no effect with policy=view"),
    ("sparse:policy=snapkv,pages=3", "pages=3: has no effect with policy=snapkv"),
    ("skip:search=off,share=0.1", "share=0.1: has no effect with search=off"),
    ("skip:search=off,task=x", "task=x: has no effect with search=off"),
    ("copy:fixed=4+suffix:fixed=2", "fixed=2 and fixed=4: a call has one draft"),
    ("off+copy", "off drafts nothing"), ("auto+off", "off drafts nothing"), ("off:fixed=3", "off drafts nothing"),
])  # fmt: skip
def test_refusals(small: Path, spec: str, why: str) -> None:
    model = edgedec.open("nano", engine="native" if "view" in spec else "reference")
    with pytest.raises(UsageError) as caught:
        model.session(speculate=spec.format(small=small)).report()
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_fixed_tree_is_not_deeper_than_the_heads() -> None:
    fits(((0,), (0, 0)), 2)
    fits((), 1)
    with pytest.raises(UsageError, match="paths of 3 tokens, and there are 2 heads"):
        fits(((0,), (0, 0), (0, 0, 0)), 2)


def test_off_alone_is_off_in_json_as_well() -> None:
    session = edgedec.open("nano", engine="reference").session(speculate=[{"name": "off"}])
    list(session.generate("Once", max_tokens=3))
    assert not session.stats.proposed


@pytest.mark.parametrize(("options", "policy"), [
    ("", "view"), (",pages=3", "view"), (",budget=0.3", "snapkv"), (",refresh=30", "snapkv"),
])  # fmt: skip
def test_what_sparse_drafts_from_follows_from_its_options(options: str, policy: str) -> None:
    """A budget is of a cache policy, so naming one is naming that."""
    session = edgedec.open("nano", engine="native").session(speculate=f"sparse:least=40{options},fixed=3")
    list(session.generate("Once upon a time there was a dog. He saw a cat. " * 6, max_tokens=12))
    report = session.report()["drafters"]["sparse"]
    assert report["policy"].startswith(policy), report
