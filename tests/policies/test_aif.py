"""AIF: of an image's rows those stay in sight of text that it looks at in a few layers; nothing is dropped."""

from __future__ import annotations

from math import log
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import CAN, Scripted, Text, any_paid, pays, run, spec_of

import edgedec
from edgedec.errors import SessionError, UsageError
from edgedec.policies import PolicyHost, TextSize, make_policy
from edgedec.policies.aif import entropies, hidden_rows, spread
from edgedec.runtime import ALL_LOGITS, PAGE, Call, Rows, forward_one

SPEC = spec_of(layers=3)
PATCH = [20, 21, 22]


def read(paid: dict[int, np.ndarray], words: str, n: int, images: list[tuple[int, int]], most: int = 128) -> Text:
    text = Text(Scripted(SPEC, paid), words)
    policy: Any = text.policy
    for start, stop in images:
        policy.mark(start, stop)
    return text.read(n, most)


def hidden(text: Text) -> list[int]:
    """The slots before the prompt's last pages that a step does not see, the same of all heads and blocks."""
    length = text.cache.length
    call = text.policy.shape(Call(Rows.chain([1], length), text.cache))
    if not call.views:
        return []
    assert set(call.views) == set(SPEC.attention)
    seen = {tuple(slots.tolist()) for view in call.views.values() for slots in view.slots}
    assert len(seen) == 1
    for view in call.views.values():
        view.check(0, 2, length)
        assert (view.recent, view.pages, view.sinks, view.group) == (PAGE, 0, 0, 1)
    return sorted(set(range(length // PAGE * PAGE)) - set(seen.pop()))


def planted(n: int = 200) -> dict[int, np.ndarray]:
    """Rows of text look at a patch in block 2 alone, and at all other image rows in every block."""
    paid = {b: pays(2, n + 9, {}) for b in (0, 2, 4)}
    for b, part in paid.items():
        part[:, n - 8 :, 4:60] = 0.01
        part[:, n - 8 :, PATCH] = 0.3 if b == 2 else 0.0
    return paid


# -- the rule


def test_entropies_by_hand() -> None:
    d = np.array([[0, 0.2, 0.1, 0], [0.6, 0.2, 0, 0], [0, 0.2, 0.1, 0]])
    assert np.allclose(entropies(d), [0, 1, log(2) / log(3), 1])
    assert hidden_rows(d[:, :3], 1 / 3).tolist() == [1]
    assert hidden_rows(d, 0.5).tolist() == [1, 3]
    assert hidden_rows(d, 0).tolist() == []
    assert hidden_rows(d, 1).tolist() == [0, 1, 2, 3]


def test_spread_by_hand() -> None:
    assert spread(np.array([1.0, 1.0, 1.0, 1.0])) == pytest.approx(1)
    assert spread(np.array([0.0, 2.0, 0.0])) == 0
    assert spread(np.array([1.0, 1.0, 0.0, 0.0])) == pytest.approx(0.5)
    assert spread(np.array([3.0])) == spread(np.zeros(0)) == spread(np.zeros(2)) == 0


def test_the_share_is_that_which_changes_most() -> None:
    """Twenty rows: four that text looks at hard in one layer, sixteen lightly in all. Without the sixteen the rest is
    even; hiding two of the four changes no more."""
    d = np.full((3, 20), 0.1)
    d[:, 3:7] = [[0.0], [2.0], [0.0]]
    assert hidden_rows(d).tolist() == [0, 1, 2, *range(7, 20)]


def naive(paid: dict[int, np.ndarray], n: int, window: int, images: list[tuple[int, int]], share: float) -> list[int]:
    end = max(0, (n - PAGE) // PAGE * PAGE)
    rows = [i for i in range(end) if any(a <= i < z for a, z in images)]
    d = {
        (b, i): max(sum(float(p[h, t, i]) for h in range(2)) / 2 for t in range(n - window, n))
        for b, p in paid.items()
        for i in rows
    }
    h = {}
    for i in rows:
        total = sum(d[b, i] for b in paid)
        shares = [d[b, i] / total for b in paid]
        h[i] = -sum(x * log(x) for x in shares if x > 0) / log(len(paid))
    order = sorted(rows, key=lambda i: (h[i], i))
    mass = {i: sum(d[b, i] for b in paid) for i in rows}

    def s(stay: list[int]) -> float:
        total = sum(mass[i] for i in stay)
        return -sum(mass[i] / total * log(mass[i] / total) for i in stay) / log(len(stay)) if len(stay) > 1 else 0.0

    if share < 0:
        share = max(
            [k / 10 for k in range(1, 10)], key=lambda r: abs(s(order[: len(rows) - round(r * len(rows))]) - s(order))
        )
    return sorted(order[len(rows) - round(share * len(rows)) :])


@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 99),
    n=st.integers(100, 210),
    window=st.integers(1, 5),
    share=st.sampled_from([-1, 0.3, 0.8]),
    most=st.sampled_from([16, 128]),
)
def test_as_in_plain_loops(seed: int, n: int, window: int, share: float, most: int) -> None:
    paid = {b: any_paid(seed + b, 2, n) for b in (0, 2, 4)}
    images = [(3, 30), (50, 90)]
    text = read(paid, f"aif:share={share},window={window}", n, images, most)
    assert hidden(text) == naive(paid, n, window, images, share)


def test_a_planted_patch_stays_in_sight() -> None:
    text = read(planted(), "aif:window=8", 200, [(4, 60)])
    gone = hidden(text)
    assert gone
    assert set(gone) <= set(range(4, 60)) - set(PATCH)
    assert [part == list(range(200)) for part in text.kept()] == [True] * 3, "nothing is dropped"


def test_it_is_the_largest_look_that_counts_not_the_sum() -> None:
    """Row 10: one row of text looks at it, mostly in block 2. Row 11: each does a little in block 2, one in block 0: by
    sums over the rows its entropy would be the lower one."""
    paid = {b: pays(2, 209, {}) for b in (0, 2, 4)}
    paid[2][:, 195, 10] = 0.9
    paid[0][:, 195, 10] = 0.09
    paid[2][:, 192:200, 11] = 0.2
    paid[0][:, 195, 11] = 0.05
    text = read(paid, "aif:window=8,share=0.5", 200, [(10, 12)])
    assert hidden(text) == [11]


def test_rows_of_text_before_the_window_do_not_count() -> None:
    paid = planted()
    paid[0][:, 191, PATCH] = 5.0
    assert not set(hidden(read(paid, "aif:window=8", 200, [(4, 60)]))) & set(PATCH)
    assert set(hidden(read(paid, "aif:window=9,share=0.999", 200, [(4, 60)]))) & set(PATCH)


# -- calls


def test_the_prompts_last_rows_run_one_by_one() -> None:
    text = read(planted(), "aif:window=3", 200, [(4, 60)])
    runtime: Any = text.runtime
    assert [(call.rows.count, call.outputs.attention) for call in runtime.calls] == [
        (128, False), (69, False), (1, True), (1, True), (1, True),
    ]  # fmt: skip
    assert not any(call.views for call in runtime.calls), "a prompt is read as ever"
    text.step(3)
    assert [call.views is not None for call in runtime.calls[5:]] == [True] * 3


def test_rows_given_as_embeddings() -> None:
    text = Text(Scripted(SPEC, planted()), "aif:window=8")
    policy: Any = text.policy
    policy.mark(4, 60)
    run(text.runtime, policy.read_rows(text.cache, Rows.embedded(np.zeros((200, 2), np.float32), 0), 128))
    assert hidden(text) == hidden(read(planted(), "aif:window=8", 200, [(4, 60)]))


def test_what_is_hidden_stays_hidden_and_later_rows_are_seen() -> None:
    text = read(planted(400), "aif:window=8,share=0.5", 200, [(4, 60)])
    before = hidden(text)
    assert hidden(text.step(100)) == before
    near = read(planted(120), "aif:window=8,share=1", 120, [(4, 60)])
    assert hidden(near) == [], "all its rows are in the last pages"


@pytest.mark.parametrize("engine", ["reference", "native"])
def test_text_does_not_see_what_is_hidden(engine: str) -> None:
    """The attention to hidden rows is 0 from the first step on, that of others is not; share=0 is as without a policy,
    to the byte."""
    try:
        model = edgedec.open("nano", engine=engine, threads=1)
    except edgedec.EdgedecError as error:
        pytest.skip(str(error))
    if not model.runtime.capabilities.views:
        pytest.skip("no views")
    ids = (np.arange(200) % 60 + 300).tolist()

    def stepped(words: str) -> Any:
        text = Text(model.runtime, words)
        policy: Any = text.policy
        policy.mark(10, 70)
        text.read(ids)
        call = policy.shape(Call(Rows.chain([5], text.cache.length), text.cache))
        views = call.views or {}
        return views, forward_one(model.runtime, call._replace(outputs=ALL_LOGITS._replace(attention=True)))

    views, result = stepped("aif:share=0.5")
    seen = next(iter(views.values())).slots[0]
    gone = np.setdiff1d(np.arange(192), seen)
    assert len(gone) == 30
    for paid in result.attention.values():
        assert (paid[:, gone] == 0).all()
        assert (paid[:, seen] > 0).all()
    views, whole = stepped("aif:share=0")
    assert not views
    cache = model.runtime.new_cache(400)
    forward_one(model.runtime, Call(Rows.chain(ids, 0), cache))
    cache.commit(range(200))
    plain = forward_one(model.runtime, Call(Rows.chain([5], 200), cache, outputs=ALL_LOGITS))
    if model.runtime.capabilities.batch_invariant:
        assert whole.logits.tobytes() == plain.logits.tobytes()
    assert not np.allclose(result.logits, plain.logits)


# -- refusals and states


def test_refusals() -> None:
    with pytest.raises(UsageError, match=r"--cache aif: this model reads no images"):
        make_policy("aif", PolicyHost(SPEC, CAN))
    policy: Any = make_policy("aif", PolicyHost(SPEC, CAN, images=True))
    for start, stop in ((4, 4), (-1, 3)):
        with pytest.raises(UsageError, match=r"--cache aif: image rows .*at least one row"):
            policy.mark(start, stop)
    assert policy.peak(TextSize(10, 10, 21, 50, 128)) == 10 + 40


def test_states() -> None:
    text = read(planted(), "aif:window=8", 200, [(4, 60)])
    state = text.policy.state()
    assert state.keys() == {"images", "hidden"}
    assert text.policy.report(text.cache)["hidden"] == len(state["hidden"]) > 0
    again: Any = make_policy("aif:window=8", PolicyHost(SPEC, CAN, images=True))
    again.restore(state, text.cache)
    fork: Any = text.policy.fork()
    for twin in (again, fork):
        assert {name: part.tolist() for name, part in twin.state().items()} == {n: p.tolist() for n, p in state.items()}
    for wrong in (np.array([[1]]), np.array([5, 2]), np.array([-1]), np.array([200]), np.array([1.0])):
        with pytest.raises(SessionError, match="hidden"):
            again.restore({"hidden": wrong}, text.cache)
    with pytest.raises(SessionError, match="images"):
        again.restore({"images": np.zeros((1, 3), np.int64)}, text.cache)
    with pytest.raises(SessionError, match="not of cache policy aif"):
        again.restore({"other": np.zeros(1, np.int64)}, text.cache)
    text.cache.truncate(40)
    text.policy.trim(text.cache)
    assert text.policy.state()["hidden"].tolist() == [slot for slot in state["hidden"] if slot < 40] != []
    text.policy.reset()
    assert text.policy.state() == {}
    assert hidden(text) == []
