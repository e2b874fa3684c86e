"""What a diffusion model is given wrongly: one clear line each, in Python and from the command; the caches stay."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import edgedec
from edgedec.cli._app import app
from edgedec.errors import EdgedecError

pytest.importorskip("onnx", reason="exporting needs onnx")
from diffusion.checkpoint import MASK, exported

GREEDY: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True}


KINDS: dict[str, dict[str, Any]] = {
    "causal": {},
    "block": {"context": "block", "shift": False},
    "full": {"context": "full", "shift": False, "size": 24},  # a canvas of 24 tokens
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Bundles of each context."""
    top = tmp_path_factory.mktemp("bad")
    return {kind: exported(top / kind, **facts) for kind, facts in KINDS.items()}


@pytest.fixture(scope="module")
def models(folders: dict[str, Path]) -> dict[str, edgedec.Model]:
    return {kind: edgedec.open(folder, threads=1) for kind, folder in folders.items()}


def state(session: edgedec.Session) -> tuple[list[int], int, bytes]:
    """The text, how much of it is cached, and the cached keys and values."""
    cache = session._context.cache
    return list(session.ids), cache.length, b"".join(array.tobytes() for array in cache.save().values())


def refused(attempt: Callable[[], Any], message: str) -> None:
    with pytest.raises(EdgedecError, match=message) as found:
        attempt()
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("kind", ["causal", "block", "full"])
def test_what_is_refused_leaves_text_and_cache(models: dict[str, edgedec.Model], kind: str) -> None:
    model = models[kind]
    session = model.session()
    list(session.tokens([5, 6, 7, 8, 9, 10], max_tokens=9, **GREEDY))
    before, twin = state(session), session.fork()
    assert before[1] > 0 or kind == "full"
    refused(lambda: session.tokens([3, MASK, 4], **GREEDY), f"token {MASK} is the mask of this diffusion model")
    refused(lambda: session.append([MASK]), f"token {MASK} is the mask")
    refused(lambda: session.rewrite([MASK]), f"token {MASK} is the mask")
    refused(lambda: session.score([5, 6]), "log-probabilities of a given text")
    refused(lambda: list(session.tokens(None, max_tokens=4, search="beam:width=2", **GREEDY)), "diffusion")
    if kind == "full":
        refused(
            lambda: list(session.tokens(None, max_tokens=10, **GREEDY)),
            "one canvas of 25 tokens, and 24 fit; ask for 9",
        )
        refused(lambda: list(session.tokens(None, **GREEDY)), r"one canvas of \? tokens")
    assert state(session) == before
    more = [list(map(int, each.tokens(None, max_tokens=5, **GREEDY))) for each in (session, twin)]
    assert more[0] == more[1]


@pytest.mark.parametrize("options", [{}, {"temperature": 1.5}, {"diffusion": "off"}, {"diffusion": "schedule=static"}])
def test_the_mask_is_never_an_output(models: dict[str, edgedec.Model], options: dict[str, Any]) -> None:
    """Not even where it is the token that everything prefers."""
    options = dict(options)
    session = models["causal"].session(diffusion=options.pop("diffusion", ""))
    liked = GREEDY | {"logit_bias": {MASK: 100.0}, "max_tokens": 24, "seed": 3} | options
    found = list(map(int, session.tokens([5, 6, 7], **liked)))
    assert len(found) == 24
    assert MASK not in found


@pytest.mark.parametrize(
    ("kind", "words", "message"),
    [
        ("causal", "blocks=fixed:size=5", "size=5: the model was trained for blocks of 1 to 4"),
        ("causal", "blocks=delimiter:size=5", "size=5: the model was trained for blocks of 1 to 4"),
        ("block", "blocks=fixed:size=3", "size=3: the model was trained for blocks of 4 only"),
        ("block", "blocks=fixed:size=8", "size=8: the model was trained for blocks of 4 only"),
        ("causal", "blocks=fixed:size=-1", "size=-1: must be 0 or more"),
        ("causal", "schedule=threshold:p=1.01", "p=1.01: must be from 0 to 1"),
        ("causal", "schedule=threshold:p=-0.1", "p=-0.1: must be from 0 to 1"),
        ("causal", "schedule=threshold:p=nan", "p=nan"),
        ("causal", "schedule=threshold:p=high", "p=high"),
        ("causal", "schedule=bacd:low=0.95", "low=0.95: must be at most high=0.9"),
        ("causal", "schedule=localleap:near=2", "near=2"),
        ("causal", "schedule=cad:early=2", "early=2"),
        ("causal", "schedule=entropy:most=-1", "most=-1"),
        ("causal", "schedule=ete:least=2", "least=2"),
        ("causal", "schedule=prophet:gaps=[1]", "must be three numbers"),
        ("causal", "schedule=static:count=0", "count=0: must be 1 or more"),
        ("causal", "ends=rejected:factor=1.5", "factor=1.5"),
        ("causal", "blocks=delimiter:p=7", "p=7"),
        ("causal", "fits=edit:p=1.5", "p=1.5: must be from 0 to 1"),
        ("causal", "fits=edit:most=-1", "most=-1: must be 0 or more"),
        ("causal", "verify=ar_mode:route=hysteresis,on=-9", "on=-9: must be at least off=-5"),
        ("causal", "steps=1.5", "must be a whole number"),
        ("full", "blocks=deferred:low=-1", "low=-1"),
        ("full", "keep=delayed:every=0", "every=0: must be 1 or more"),
        ("full", "keep=window:near=0", "near=0: must be 1 or more"),
    ],
)
def test_words_out_of_range_are_one_line_before_anything_runs(
    folders: dict[str, Path], models: dict[str, edgedec.Model], kind: str, words: str, message: str
) -> None:
    refused(lambda: models[kind].session(diffusion=words), message)
    done = CliRunner().invoke(app, ["run", "-m", str(folders[kind]), "-p", "the", "-n", "4", "--diffusion", words])
    assert done.exit_code != 0
    assert message in done.output
    assert len(done.output.splitlines()) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "-p", "a", "-n", "2", "--diffusion", "schedule=static"),
        ("run", "-p", "a", "-n", "2", "--diffusion", "off"),
        ("bench", "diffusion", "--limit", "1", "-n", "2"),
        ("bench", "diffusion", "--every", "--limit", "1"),
        ("bench", "parallel", "--limit", "1"),
    ],
)
def test_a_bundle_without_the_section_is_one_line(arguments: tuple[str, ...]) -> None:
    split = 2 if arguments[0] == "bench" else 1
    done = CliRunner().invoke(app, [*arguments[:split], "-m", "nano", *arguments[split:]])
    assert done.exit_code != 0
    assert "is no diffusion model" in " ".join(done.output.split())
    assert "Traceback" not in done.output


def test_a_canvas_beyond_the_context_is_one_line(folders: dict[str, Path]) -> None:
    folder = str(folders["full"])
    done = CliRunner().invoke(app, ["run", "-m", folder, "-p", "the", "-n", "100", "--temp", "0"])
    assert done.exit_code != 0
    assert "one canvas" in done.output
    assert "24 fit; ask for" in done.output
    form = ["--diffusion", f"fits=fixed:tokens={[-1] * 30}"]
    done = CliRunner().invoke(app, ["run", "-m", folder, "-p", "the", "-n", "10", "--temp", "0", *form])
    assert done.exit_code != 0
    assert "24 fit" in done.output


@pytest.mark.parametrize("kind", ["causal", "block", "full"])
@pytest.mark.parametrize("words", ["", "schedule=static", "fits=edit:p=0.0,most=2"])
def test_a_stop_string_across_blocks_ends_the_text(models: dict[str, edgedec.Model], kind: str, words: str) -> None:
    """Its tokens are those on both sides of a block's end; a new text of the session is that of a fresh one."""
    model, prompt = models[kind], "the thing in"
    options: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True, "max_tokens": 12}
    whole = "".join(model.session(diffusion=words).generate(prompt, **options))
    pieces = [
        model.tokenizer.decode([token])
        for token in model.session(diffusion=words).tokens(model.tokenizer.encode(prompt), **options)
    ]
    n = len(model.tokenizer.encode(prompt))
    at = 4 - n % 4 if kind == "block" else 4  # tokens of the first block
    stop = pieces[at - 1] + pieces[at]
    assert stop in whole
    session = model.session(diffusion=words)
    assert "".join(session.generate(prompt, stop=[stop], **options)) == whole[: whole.index(stop)]
    assert session.stats.finish == "stop"
    assert "".join(session.generate(prompt, **options)) == whole


@pytest.mark.parametrize("kind", ["causal", "block", "full"])
@pytest.mark.parametrize("given", [1, 2, 5, 7])
def test_a_text_cancelled_in_a_block_keeps_what_was_delivered(
    models: dict[str, edgedec.Model], kind: str, given: int
) -> None:
    model, ids = models[kind], [5, 6, 7, 8, 9]
    whole = list(map(int, model.session().tokens(ids, max_tokens=12, **GREEDY)))
    session = model.session()
    running = session.tokens(ids, max_tokens=12, **GREEDY)
    taken = [int(next(running)) for _ in range(given)]
    running.close()
    assert taken == whole[:given]
    assert session.ids == [*ids, *taken]
    assert session._context.cache.length <= len(session.ids)
    fresh = list(map(int, model.session().tokens([*ids, *taken], max_tokens=4, **GREEDY)))
    assert list(map(int, session.tokens(None, max_tokens=4, **GREEDY))) == fresh
