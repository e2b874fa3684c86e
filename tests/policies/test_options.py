"""Options of all policies as they are documented: defaults, ranges, refusals; what `make_policy` needs."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Annotated, get_args, get_origin, get_type_hints

import pytest
from scripted import CAN, Scripted, Text, spec_of

from edgedec.cache import HostCache
from edgedec.errors import UsageError
from edgedec.plugins import Opt
from edgedec.policies import FAMILY, PolicyHost, bytes_held, make_policy
from edgedec.policies._budget import CacheBudget
from edgedec.spec import Attention, ModelSpec, Ssm

SPEC = spec_of(layers=10)

# name: option, default, least, most (None: no bound; "over": excluded)
WINDOW, POOL, OBSERVE = ("window", 32, 1, 128), ("pool", 7, 1, 255), ("observe", 8, 0, 1024)
EVERY = ("every", 0, 0, 1 << 20)
SINKS, RECENT = ("sinks", 4, 0, 65536), ("recent", 128, 64, 65536)
OPTIONS = {
    "streaming": [("budget", 1024, None, None), SINKS, ("every", 64, 1, 1 << 20)],
    "h2o": [("budget", 0.2, None, None), ("every", 64, 0, 1 << 20), OBSERVE, ("heads", "alike", None, None)],
    "snapkv": [("budget", 0.2, None, None), WINDOW, POOL, EVERY, OBSERVE, ("heads", "alike", None, None)],
    "pyramidkv": [("budget", 0.2, None, None), ("slope", 1.9, 1, 2), WINDOW, POOL, EVERY, OBSERVE],
    "prefixkv": [("budget", 0.2, None, None), WINDOW, POOL, EVERY, OBSERVE],
    "d2o": [("budget", 0.2, None, None), ("every", 64, 0, 1 << 20), OBSERVE, ("ema", 0.7, "over 0", 1)],
    "fastkv": [
        ("budget", 0.1, None, None),
        ("rate", 0.2, "over 0", 1),
        ("layer", 0, 0, None),
        WINDOW,
        POOL,
        EVERY,
        OBSERVE,
    ],
    "lazyllm": [
        ("keep", 0.3, "over 0", 1),
        ("stages", 3, 1, None),
        ("first", 0.3, "over 0", "under 1"),
        ("window", 8, 1, 128),
        POOL,
        ("every", 32, 0, 1 << 20),
        OBSERVE,
        ("back", 16, 1, 64),
    ],
    "aif": [("share", -1.0, -1, 1), ("window", 16, 1, 128)],
    "vision": [
        ("budget", 0.2, "over 0", 1),
        ("rate", 0.5, "over 0", 1),
        ("text", 1.0, "over 0", 1),
        ("layer", 0, 0, None),
        ("window", 16, 1, 128),
        EVERY,
        OBSERVE,
    ],
    "quest": [("budget", 2048, None, None), SINKS, RECENT, ("dense", 2, 0, None)],
    "lserve": [
        ("budget", 2048, None, None),
        ("stream", 0.5, 0, 1),
        ("sinks", 64, 0, 65536),
        ("recent", 256, 64, 65536),
    ],
    "actqkv": [("budget", 2048, None, None), ("every", 64, 2, 65536), ("window", 8, 1, 128), SINKS, RECENT],
    "sentencekv": [
        ("budget", 1024, None, None),
        ("every", 32, 2, 65536),
        ("window", 8, 1, 128),
        SINKS,
        RECENT,
        ("longest", 48, 1, 4096),
        ("disk", "", None, None),
    ],
    "anchor": [
        ("theta", 6, None, None),
        ("sinks", 64, 0, 65536),
        ("recent", 256, 64, 65536),
        ("group", 0, 0, 4096),
    ],
    "tca": [
        ("budget", 0.5, None, None),
        ("mass", 0.95, 0, 1),
        ("every", 64, 2, 65536),
        SINKS,
        RECENT,
        ("measured", "", None, None),
    ],
    "deltallm": [
        ("budget", 0.4, "over 0", 1),
        ("sinks", 64, 0, 65536),
        ("recent", 256, 64, 65536),
        ("span", 16, 2, 64),
    ],
    "subwords": [
        ("keep", 0.8, "over 0", 1),
        ("merges", 1 << 20, 0, None),
        ("path", "", None, None),
        ("by", "network", None, None),
        ("texts", "", None, None),
    ],
    "latent": [("path", "", None, None), ("n", 4, 1, None), ("after", 0, 0, None)],
}


@pytest.mark.parametrize("name", OPTIONS)
def test_defaults_and_ranges(name: str) -> None:
    make = FAMILY.file(name).make
    hints = get_type_hints(make, include_extras=True)
    found = []
    for option, parameter in list(inspect.signature(make).parameters.items())[1:]:
        opt = next((a for a in get_args(hints[option]) if isinstance(a, Opt)), None)
        assert opt is not None
        assert get_origin(hints[option]) is Annotated
        low = f"over {opt.above:g}" if opt.above is not None else opt.low
        high = f"under {opt.below:g}" if opt.below is not None else opt.high
        found.append((option, parameter.default, low, high))
    assert found == OPTIONS[name]


def test_every_policy_is_listed() -> None:
    assert set(OPTIONS) == set(FAMILY.names())


@pytest.mark.parametrize(
    "name", [name for name in OPTIONS if OPTIONS[name][0][2] is None and "budget" in OPTIONS[name][0]]
)
def test_budgets(name: str) -> None:
    """A share above 0 and up to 1, or a number from 8 on."""
    host = PolicyHost(SPEC, CAN, images=True)
    for good in ("0.01", "1", "8", "9000"):
        assert make_policy(f"{name}:budget={good}", host) is not None
    for wrong in ("0", "-1", "1.5", "7.9"):
        with pytest.raises(UsageError, match=r"share of the tokens \(above 0, up to 1\) or a number of tokens from 8"):
            make_policy(f"{name}:budget={wrong}", host)


def test_budgets_in_slots() -> None:
    assert [CacheBudget(0.3).of(n) for n in (10, 30, 31, 100)] == [8, 9, 10, 30]
    assert [CacheBudget(12.7).of(n) for n in (10, 1000)] == [12, 12]
    assert CacheBudget(1).of(100) == 100
    assert CacheBudget(3).of(100) == 8
    assert (str(CacheBudget(1)), str(CacheBudget(0.25)), str(CacheBudget(9))) == (
        "100% of the tokens",
        "25% of the tokens",
        "9 tokens",
    )


@pytest.mark.parametrize("name", ["h2o", "snapkv", "pyramidkv", "prefixkv", "d2o", "fastkv", "lazyllm", "vision"])
def test_looks_are_between_decisions(name: str) -> None:
    host = PolicyHost(SPEC, CAN, images=True)
    assert make_policy(f"{name}:every=9,observe=8", host) is not None
    assert make_policy(f"{name}:every=0,observe=8", host) is not None
    with pytest.raises(UsageError, match=r"observe=8: must be below every=8"):
        make_policy(f"{name}:every=8,observe=8", host)


def test_one_policy_a_text() -> None:
    host = PolicyHost(SPEC, CAN)
    assert make_policy("full", host) is None
    with pytest.raises(UsageError, match="one policy"):
        make_policy("snapkv+h2o", host)
    policy = make_policy("snapkv:budget=9", host)
    assert policy is not None
    assert (policy.name, policy.words) == ("snapkv", "snapkv:budget=9")
    listed = make_policy([{"name": "snapkv", "budget": 9}], host)  # type: ignore[list-item]
    assert listed is not None
    assert listed.words.startswith("[{")


def test_engines_and_models_that_cannot() -> None:
    with pytest.raises(UsageError, match=r"h2o: needs a runtime with drop, attention_sums"):
        make_policy("h2o", PolicyHost(SPEC, replace(CAN, drop=False, attention_sums=False)))
    for name, option in {"snapkv": "heads=apart", "h2o": "heads=apart"}.items():
        with pytest.raises(UsageError, match=r"drops slots for all heads alike"):
            make_policy(f"{name}:{option}", PolicyHost(SPEC, replace(CAN, drop_by_head=False)))
    with pytest.raises(UsageError, match=r"every=32: this engine cannot bring tokens back"):
        make_policy("lazyllm", PolicyHost(SPEC, replace(CAN, attach=False)))
    assert make_policy("lazyllm:every=0", PolicyHost(SPEC, replace(CAN, attach=False))) is not None
    for stages in (10, 11):
        with pytest.raises(UsageError, match=r"must be from 1 to 9"):
            make_policy(f"lazyllm:stages={stages}", PolicyHost(SPEC, CAN))
    ssm = Ssm(n_heads=1, head_dim=2, state_size=2, n_groups=1, norm_groups=1, dt_min=0.001, dt_max=0.5)
    recurrent = ModelSpec("recurrent", 50, 2, 64, ((ssm,),), 1e-5, True, ())
    with pytest.raises(UsageError, match="no attention blocks"):
        make_policy("snapkv", PolicyHost(recurrent, CAN))
    hybrid = ModelSpec("hybrid", 50, 2, 64, ((ssm,), *SPEC.layers[:2]), 1e-5, True, ())
    with pytest.raises(UsageError, match="cannot run blocks of kind ssm on fewer rows"):
        make_policy("fastkv", PolicyHost(hybrid, CAN))
    assert make_policy("snapkv", PolicyHost(hybrid, CAN)) is not None


@pytest.mark.parametrize(("kv", "bits"), [("f32", 32), ("f16", 16), ("int8", 8), ("int4", 4)])
def test_bytes_held(kv: str, bits: int) -> None:
    text = Text(Scripted(spec_of(layers=2, kv_heads=3, dim=4)), "snapkv:budget=8,window=2").read(30)
    text.cache.kv = kv
    assert isinstance(text.cache, HostCache)
    assert bytes_held(text.cache) == 2 * 8 * 2 * 3 * 4 * bits // 8
    assert isinstance(text.cache.spec.attention[0], Attention)
