"""What an attacker writes costs its own request: schemas, patterns, grammars, templates, tokenizers."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hostile import inputs as hostile
from serving import serving, wait_for

import edgedec
from edgedec import constraints
from edgedec.constraints import _matcher_guest as guest
from edgedec.constraints.matcher import DEEPEST, LARGEST_TEXT, GrammarConstraint, check_size
from edgedec.constraints.vocabulary import _LIMITS, vocabulary
from edgedec.decoding.scheduler.batch import Batch
from edgedec.errors import TextError, UsageError
from edgedec.model import Model
from edgedec.sandbox import Sandbox
from edgedec.text import inspection, template
from edgedec.text.template import render_chat
from edgedec.text.tokenizer import Tokenizer

pytest.importorskip("llguidance", reason="constraints need llguidance")
SLOW = bool(os.environ.get("EDGEDEC_SLOW_TESTS"))
linux = pytest.mark.skipif(sys.platform != "linux", reason="memory and stack are limited on Linux")


@pytest.fixture(scope="module")
def model(nano: Path) -> Model:
    return edgedec.open(nano, threads=1)


refusals: list[str] = []


@pytest.fixture(autouse=True)
def _refusals() -> Iterator[None]:
    """What was refused was so in one line that names the kind."""
    refusals.clear()
    yield
    assert [said for said in refusals if "\n" in said or not said.startswith(("json schema", "regex", "grammar"))] == []


def compiled(model: Model, kind: str, text: str) -> GrammarConstraint | None:
    """The constraint, or None if it is refused in one line."""
    try:
        found: GrammarConstraint = getattr(constraints, kind)(model, text)
        return found
    except UsageError as error:
        refusals.append(str(error))
        return None


# -- constraints


@linux
@pytest.mark.parametrize("name", hostile.CONSTRAINTS)
def test_what_cannot_be_compiled_within_limits_is_refused(model: Model, name: str) -> None:
    assert compiled(model, *hostile.CONSTRAINTS[name]) is None
    fine = compiled(model, "regex", "ab")
    assert fine is not None
    assert fine.mask(()).any(), "the next one is served"


def test_sizes_and_depths_are_refused_by_name() -> None:
    with pytest.raises(UsageError, match="characters; at most"):
        check_size("regex", "a" * (LARGEST_TEXT + 1))
    with pytest.raises(UsageError, match="nested 201 deep"):
        check_size("regex", "(" * (DEEPEST + 1))
    with pytest.raises(UsageError, match=r"10,001 times \$ref"):
        check_size("json schema", '"$ref"' * 10_001)
    check_size("regex", r"\(" * 10_000 + "()" * 10_000)


def test_a_chain_and_depth_of_practice_are_fine(model: Model) -> None:
    assert compiled(model, "json_schema", hostile.chain(300)) is not None
    assert compiled(model, "json_schema", hostile.nested(40)) is not None
    assert compiled(model, "json_schema", hostile.optional(500)) is not None


def take(constraint: GrammarConstraint, tokens: int) -> None:
    for _ in range(tokens):
        constraint.accept(int(constraint.mask(()).nonzero()[0][-1]))


@linux
def test_a_bomb_in_the_middle_of_a_text_ends_that_text(model: Model) -> None:
    """The lexer is built as it is needed: compiling showed nothing of it."""
    bomb, other = constraints.regex(model, hostile.repeated(300, "[xy]{40}")), constraints.regex(model, "[a-z ]+")
    with pytest.raises(UsageError, match="regex: too complex to follow further: "):
        take(bomb, 80)
    with pytest.raises(UsageError, match="too complex"):
        bomb.mask(())
    assert other.mask(()).any()


def test_a_process_that_dies_ends_its_texts_and_no_others(model: Model) -> None:
    one, other = constraints.regex(model, "[a-z ]+"), constraints.regex(model, "[a-z ]*")
    twin = one.fork()
    (a,) = model.tokenizer.encode("a", special=False, around=False)[-1:]
    one._matcher._group._host.close()  # type: ignore[attr-defined]
    for constraint in (one, twin):
        with pytest.raises(UsageError, match="regex: too complex to follow further: its worker process has ended"):
            take(constraint, 2)
    for living in (other, constraints.regex(model, "[a-z ]+")):
        living.accept(a)
        assert living.mask(()).any()
        assert not living.done


def test_the_command_line_says_it_in_one_line(nano: Path, tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text(hostile.chain(9_000))
    command = [
        sys.executable,
        "-m",
        "edgedec",
        "run",
        "-m",
        str(nano),
        "-p",
        "Once",
        "--json-schema",
        str(file),
        "-t",
        "1",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "json schema: is nested too deeply" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_batch_reports_it_in_its_row(nano: Path, tmp_path: Path) -> None:
    rows = [
        {"prompt": "Once", "json_schema": json.loads(hostile.chain(9_000))},
        {"prompt": "Once", "regex": " [a-z]{3}"},
    ]
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [
        sys.executable,
        "-m",
        "edgedec",
        "batch",
        str(source),
        "-o",
        str(out),
        "-m",
        str(nano),
        "-t",
        "1",
        "-n",
        "20",
    ]
    subprocess.run(command, capture_output=True, text=True, timeout=120)
    first, second = [json.loads(line) for line in out.read_text().splitlines()]
    assert "nested too deeply" in first["error"]
    assert len(second["text"]) == 4


def slow_matchers(monkeypatch: pytest.MonkeyPatch, release: Path) -> None:
    """Grammars with `SLOW` in them take until a file is there for each mask after the first."""
    text = Path(guest.__file__).read_text("utf-8")
    text += f"""
import os, time
_state = Matchers._state
_calls = []

def _slow_state(self, matcher, taken, bare=False):
    _calls.append(1)
    while getattr(self, "slow", False) and len(_calls) > 1 and not os.path.exists({str(release)!r}):
        time.sleep(0.01)
    return _state(self, matcher, taken, bare)

_compiled = Matchers._compiled

def _marked(self, kind, text, options):
    self.slow = "SLOW" in text
    return _compiled(self, kind, text, options)

Matchers._state, Matchers._compiled = _slow_state, _marked
"""
    file = release.with_name("slow_guest.py")
    file.write_text(text)
    monkeypatch.setattr(guest, "__file__", str(file))


def test_others_go_on_while_a_mask_takes_long(nano: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    release = tmp_path / "release"
    slow_matchers(monkeypatch, release)
    model = edgedec.open(nano, threads=1)
    known = vocabulary(model)
    setup = {"tokenizer": known.content, "eos": list(known.ends)}
    monkeypatch.setitem(known.__dict__, "_sandbox", Sandbox(Path(guest.__file__), setup, _LIMITS))
    slow = constraints.regex(model, "(SLOW)?[a-z ]{30,40}")
    quick = constraints.regex(model, "[a-z ]{30,40}")
    batch, ids = Batch(model.runtime), model.tokenizer.encode("Once upon a time")
    got: dict[str, list[int]] = {"slow": [], "quick": []}
    jobs = {}
    for name, constraint in (("slow", slow), ("quick", quick)):

        def on_token(token: Any, kept: list[int] = got[name]) -> None:
            if token is not None:
                kept.append(int(token))

        jobs[name] = model.session(speculate="off").submit(
            batch, ids, on_token, max_tokens=60, constraint=constraint, temperature=0.0
        )
    while not jobs["quick"].done or not slow.slow:
        assert batch.step()
    assert len(got["slow"]) == 1, "its second mask is not there yet"
    assert jobs["slow"].parked
    assert slow.slow
    release.write_text("")
    batch.run()
    assert jobs["slow"].done
    assert jobs["slow"].error is None
    assert len(model.tokenizer.decode(got["slow"])) >= 30


def test_a_server_survives_and_serves_the_others(model: Model) -> None:
    httpx = pytest.importorskip("httpx", reason="needs httpx")
    pytest.importorskip("starlette", reason="needs starlette")
    bombs = [
        json.loads(text)
        for name, (kind, text) in hostile.CONSTRAINTS.items()
        if kind == "json_schema" and name not in ("references", "nested objects", "optional properties, fewer")
    ]
    bodies: list[dict[str, Any]] = []
    for bomb in bombs:
        chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 20}
        bodies.append(
            {**chat, "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": bomb}}}
        )
        bodies.append({**chat, "tools": [{"type": "function", "function": {"name": "f", "parameters": bomb}}]})
    deep = hostile.nested(400)
    raw = (
        '{"messages":[{"role":"user","content":"Hi"}],"tools":[{"type":"function","function":{"name":"f","parameters":'
    )
    with serving(model, slots=4) as (place, server), httpx.Client(base_url=place, timeout=120) as ask:
        body = {"prompt": "Once", "max_tokens": 480, "ignore_eos": True, "stream": True}
        with ask.stream("POST", "/v1/completions", json=body) as stream:
            lines, seen, answers = stream.iter_lines(), 0, []

            def attack() -> None:
                with httpx.Client(base_url=place, timeout=120) as other:
                    answers.extend(other.post("/v1/chat/completions", json=body) for body in bodies)
                    header = {"content-type": "application/json"}
                    answers.append(other.post("/v1/chat/completions", content=raw + deep + "}}]}", headers=header))

            attacker = threading.Thread(target=attack)
            attacker.start()
            seen = sum(line.startswith("data: {") for line in lines)
            attacker.join(120)
        assert seen >= 400
        assert len(answers) == len(bodies) + 1
        codes = [answer.status_code for answer in answers]
        assert codes[::2] == [400] * len(codes[::2])
        assert set(codes) <= {200, 400}, "where the text is free a pattern may never be begun"
        assert ask.post("/v1/completions", json={**body, "stream": False, "max_tokens": 3}).status_code == 200
        wait_for(lambda: server.engine.running == 0)


@pytest.mark.parametrize("seed", range(4))
def test_generated_schemas_patterns_and_grammars(model: Model, seed: int) -> None:
    """Compiled or refused in one line, and what is compiled can be followed, or says in one line why not."""
    rng, taken, refused = random.Random(seed), 0, 0
    for _ in range(25_000 if SLOW else 80):
        kind = rng.choice(["json_schema", "json_schema", "regex", "grammar"])
        made = {"json_schema": lambda: json.dumps(hostile.schema(rng)), "regex": lambda: hostile.pattern(rng)}
        text = made.get(kind, lambda: hostile.lark(rng))()
        constraint = compiled(model, kind, text)
        if constraint is None:
            refused += 1
            continue
        taken += 1
        follow(constraint, rng)
    assert taken > 10
    assert refused > 10
    fine = compiled(model, "regex", "ab")
    assert fine is not None


def follow(constraint: GrammarConstraint, rng: random.Random) -> None:
    try:
        for _ in range(5):
            if constraint.done:
                return
            allowed = constraint.mask(()).nonzero()[0]
            if not len(allowed):
                return
            constraint.accept(int(rng.choice(allowed.tolist())))
    except UsageError as error:
        refusals.append(str(error))


# -- chat templates


@linux
@pytest.mark.parametrize("name", hostile.TEMPLATES)
def test_a_template_is_bounded(name: str) -> None:
    with pytest.raises(TextError, match=r"chat template: (takes more|writes more|maximum recursion)"):
        render_chat(hostile.TEMPLATES[name], [{"role": "user", "content": "x"}])
    assert render_chat("{{ messages[0].content }}", [{"content": "fine"}]) == "fine"


@linux
def test_every_path_that_renders_is_bounded(nano: Path) -> None:
    model = edgedec.open(nano, threads=1)
    model.chat_template = hostile.TEMPLATES["join bomb"]
    messages = [{"role": "user", "content": "x"}]
    with pytest.raises(TextError, match="chat template: takes more"):
        list(model.session().chat(messages))
    with serving(model, slots=1) as (place, _):
        httpx = pytest.importorskip("httpx", reason="needs httpx")
        answer = httpx.post(f"{place}/v1/chat/completions", json={"messages": messages}, timeout=60)
    assert answer.status_code == 400
    assert "chat template: takes more" in answer.json()["error"]["message"]


def test_a_worker_renders_many_chats(monkeypatch: pytest.MonkeyPatch) -> None:
    renderers = template._Renderers()
    made: list[int] = []
    real = renderers.sandbox.worker
    monkeypatch.setattr(renderers.sandbox, "worker", lambda: (made.append(1), real())[1])
    for i in range(20):
        assert renderers.render("{{ n }}", json.dumps({"n": i}).encode()) == str(i)
    assert len(made) == 1
    with pytest.raises(TextError):
        renderers.render("{{ raise_exception('no') }}", b"{}")
    assert renderers.render("{{ n }}", b'{"n": 5}') == "5"


def test_text_that_is_no_text_passes_through() -> None:
    odd = "\ud800 \x00 \u2028 é 𝔘"
    assert render_chat("{{ messages[0].content }}", [{"content": odd}]) == odd


def test_messages_that_are_nested_without_end_are_refused() -> None:
    deep: Any = "x"
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(TextError, match="nested too deeply"):
        render_chat("x", [{"content": deep}])


def test_without_the_sandbox_it_is_the_same(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    with_it = constraints.regex(model, "[a-c]{2,9}").mask(())
    chat = render_chat("{{ messages[0].content | upper }}", [{"content": "a"}])
    monkeypatch.setenv("EDGEDEC_SANDBOX", "off")
    assert (constraints.regex(model, "[a-c]{2,9}").mask(()) == with_it).all()
    assert render_chat("{{ messages[0].content | upper }}", [{"content": "a"}]) == chat
    with pytest.raises(TextError, match="chat template, line 1"):
        render_chat("{% if %}", [])


# -- tokenizers


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("EDGEDEC_CACHE", str(tmp_path / "cache"))
    inspection._passed().clear()
    yield
    inspection._passed().clear()


def real(nano: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((nano / "tokenizer.json").read_text("utf-8"))
    return found


def replace(content: str, pattern: Any = None) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern or {"String": " "}, "content": content}


def sequence(*parts: Any, name: str = "decoders") -> dict[str, Any]:
    return {"type": "Sequence", name: list(parts)}


TOKENIZERS: dict[str, tuple[dict[str, Any], str]] = {
    "a decoder that expands": ({"decoder": replace("x" * 5_000_000)}, "5,000,000 characters"),
    "a normalizer that expands": ({"normalizer": replace("x" * 8000)}, "times longer"),
    "a chain that expands": ({"decoder": sequence(*[replace(" " * 30)] * 5)}, "times longer"),
    "a pattern that expands": ({"decoder": replace("x" * 500, {"Regex": ""})}, "times longer"),
    "nothing replaced": ({"decoder": replace("abc", {"String": ""})}, "of nothing"),
    "megabytes in front": ({"normalizer": {"type": "Prepend", "prepend": "x" * 50_000_000}}, "50,000,000 characters"),
    "much in front": ({"normalizer": {"type": "Prepend", "prepend": "x" * 5000}}, "Prepend"),
    "a broken map": ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}}, "not a tokenizer.json"),
    "a map of noise": (
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "/////w" * 4000}},
        "not a tokenizer.json",
    ),
    "a bad post-processor": (
        {
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "nowhere", "type_id": 0}}],
                "pair": [],
                "special_tokens": {},
            }
        },
        "not a tokenizer.json",
    ),
    "ids without tokens": (
        {
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "a", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}],
                "special_tokens": {"a": {"id": "a", "ids": list(range(5000)), "tokens": ["a"] * 4999}},
            }
        },
        "not a tokenizer.json",
    ),
    "sequences without end": ({"decoder": None}, "nested more than 8 deep"),
    "a number beyond all": ({"added_tokens": None}, "must be from 0 to"),
    "a long token": ({"added_tokens": None}, "characters; at most"),
}


@linux
@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_hostile_tokenizer_is_refused_by_name(nano: Path, tmp_path: Path, name: str) -> None:
    change, says = TOKENIZERS[name]
    content, special = real(nano), {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    if name == "sequences without end":
        part: Any = {"type": "Fuse"}
        for _ in range(200):
            part = sequence(part)
        change = {"decoder": part}
    elif name == "a number beyond all":
        change = {"added_tokens": [{"id": 4_000_000_000, "content": "x", "special": True, **special}]}
    elif name == "a long token":
        change = {"added_tokens": [{"id": 5000, "content": "x" * 100_000, "special": True, **special}]}
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps({**content, **change}))
    with pytest.raises(TextError) as error:
        Tokenizer.load(file)
    assert says in str(error.value), error.value
    assert "\n" not in str(error.value)
    assert not list((tmp_path / "cache").rglob("*.v1")), "it is not noted as tried out"


def test_a_tokenizer_is_tried_out_once(nano: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    actual = inspection._try_out
    monkeypatch.setattr(inspection, "_try_out", lambda raw: (tried.append(len(raw)), actual(raw))[1])
    for _ in range(3):
        Tokenizer.load(nano / "tokenizer.json")
        inspection._passed().clear()
    assert len(tried) == 1


def test_a_panic_is_a_named_error() -> None:
    class PanicException(BaseException):
        """As the library's is spelt."""

    class Raw:
        def no_truncation(self) -> None: ...

        def no_padding(self) -> None: ...

        def encode(self, *_: Any, **__: Any) -> None:
            raise PanicException("index out of bounds:\n7")

        decode = id_to_token = encode

    tokenizer = Tokenizer(Raw())
    with pytest.raises(TextError, match="cannot be encoded: index out of bounds: 7"):
        tokenizer.encode("a")
    with pytest.raises(TextError, match="1 tokens cannot be decoded: index"):
        tokenizer.decode([1])


def test_tokenizers_of_practice_pass(nano: Path, data: Path) -> None:
    for file in (nano / "tokenizer.json", data / "tokenizers" / "phi-3-mini" / "tokenizer.json"):
        if file.is_file():
            assert Tokenizer.load(file).encode("Hello, world")


def test_mutated_tokenizers(nano: Path, tmp_path: Path, data: Path) -> None:
    """Each is refused in one line, or encodes and decodes; in a process of its own, which must not die."""
    files = [nano / "tokenizer.json"]
    if SLOW:
        files.append(data / "tokenizers" / "phi-3-mini" / "tokenizer.json")
    code = """
import json, random, sys
from hostile import inputs as hostile
from pathlib import Path
from edgedec.errors import TextError
from edgedec.text.tokenizer import Tokenizer
source, out, seed, n = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
rng, content = random.Random(seed), json.loads(source.read_text("utf-8"))
taken = refused = 0
for _ in range(n):
    out.write_text(json.dumps(hostile.tokenizer(rng, content)))
    try:
        tokenizer = Tokenizer.load(out)
        ids = tokenizer.encode("Hello, world! é 1 2 3" + chr(rng.randrange(32, 0xd000)) * 50)
        tokenizer.decode(ids)
        tokenizer.decode(ids, special=True)
        taken += 1
    except TextError as error:
        assert "\\n" not in str(error)
        refused += 1
print(taken, refused)
"""
    env = {**os.environ, "PYTHONPATH": str(Path(hostile.__file__).parents[1])}
    for seed, file in enumerate(files):
        arguments = [str(file), str(tmp_path / "tokenizer.json"), str(seed), "2000" if SLOW else "40"]
        done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, env=env)
        assert done.returncode == 0, done.stderr[-2000:]
        taken, refused = map(int, done.stdout.split())
        assert taken
        assert refused
