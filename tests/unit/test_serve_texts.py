"""What OpenAI's and vLLM's clients may ask of texts: prompts scored, the best of several, infilling, thoughts, calls,
adapters."""

from __future__ import annotations

import doctest
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import edgedec
from edgedec.bundle.adapter import Gates, LowRank, save_adapter

for package in ("starlette", "uvicorn", "httpx", "openai"):
    pytest.importorskip(package, reason=f"the server's tests need {package}")
import httpx  # noqa: E402
import openai  # noqa: E402
from serving import serving, wait_for  # noqa: E402

from edgedec.server import answers, calls, choice, closing, completions, infill, thinking, tools  # noqa: E402
from edgedec.server.api import TextRequest, Tools  # noqa: E402
from edgedec.server.calls import CallReader  # noqa: E402
from edgedec.server.responses import store  # noqa: E402

GREEDY: dict[str, Any] = {"temperature": 0.0, "repetition_penalty": 1.0}


@pytest.fixture(scope="module")
def model(nano: Path) -> edgedec.Model:
    return edgedec.open(nano, threads=1)


@pytest.fixture(scope="module")
def adapters(model: edgedec.Model, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Two adapters, and the set of both."""
    files = [adapter_file(model, tmp_path_factory.mktemp("lora") / "a.lora", seed) for seed in (0, 1)]
    return {"loud0": model.adapter(files[0]), "loud1": model.adapter(files[1]), "both": model.adapter(*files)}


def adapter_file(model: edgedec.Model, file: Path, seed: int) -> Path:
    """Random low-rank weights with a gate for the first matrix that leads out of an MLP."""
    spec, rng = model.spec, np.random.default_rng(seed)
    down = next(name for name in sorted(spec.matrices) if name.endswith(".down"))
    narrow, wide = spec.tensors()[down]
    low = LowRank(rng.standard_normal((4, wide), np.float32), rng.standard_normal((narrow, 4), np.float32))
    gates = Gates(rng.standard_normal((1, wide), np.float32), np.array([[4, 0, narrow]], np.int32))
    save_adapter(file, "loud", spec, {down: low._replace(gates=gates)})
    return file


@pytest.fixture(scope="module")
def served(model: edgedec.Model, adapters: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    with serving(model, slots=4, adapters=adapters) as found:
        yield found


def ask(served: tuple[str, Any], path: str, **body: Any) -> Any:
    answer = httpx.post(served[0] + path, json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(served: tuple[str, Any], path: str, **body: Any) -> Any:
    answer = httpx.post(served[0] + path, json=body, timeout=60)
    assert answer.status_code in (400, 404), answer.text
    return answer.json()["error"]


# -- prompts


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_is_scored(served: tuple[str, Any], model: edgedec.Model, stream: bool) -> None:
    """echo with logprobs: what an evaluation harness asks for, against `Session.score`."""
    ids = model.tokenizer.encode("Once upon a time there was a cat.")
    session = model.session(context=512)
    session.append(ids[:1])
    expected = session.score(ids[1:])
    body = {"prompt": ids, "echo": True, "logprobs": 2, "max_tokens": 3, "stream": stream, "ignore_eos": True, **GREEDY}
    if stream:
        lines = httpx.post(f"{served[0]}/v1/completions", json=body, timeout=60).text.splitlines()
        chunks = [json.loads(line[6:])["choices"][0] for line in lines if line.startswith("data: {")]
        odds = [chunk["logprobs"] for chunk in chunks if chunk["logprobs"]]
        found = {key: [item for part in odds for item in part[key]] for key in odds[0]}
        text = "".join(chunk["text"] for chunk in chunks)
    else:
        answer = ask(served, "/v1/completions", **body)
        found, text = answer["choices"][0]["logprobs"], answer["choices"][0]["text"]
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert found["token_logprobs"][0] is found["top_logprobs"][0] is None
    assert found["token_logprobs"][1 : len(ids)] == pytest.approx(expected, abs=1e-5)
    assert len(found["token_logprobs"]) == len(ids) + 3
    assert all(1 <= len(top) <= 2 for top in found["top_logprobs"][1:])
    assert text.startswith(model.tokenizer.decode(ids))
    assert "".join(found["tokens"][-3:]) == text[len(model.tokenizer.decode(ids)) :]


def test_prompts_are_scored_without_generating_and_in_lists(served: tuple[str, Any], model: edgedec.Model) -> None:
    lists = [model.tokenizer.encode(text) for text in ("A cat sat.", "Tom had a dog and a ball.")]
    for _ in range(2):  # the second time a cache would be found
        found = ask(served, "/v1/completions", prompt=lists, echo=True, logprobs=1, max_tokens=0)["choices"]
        for ids, one in zip(lists, found, strict=True):
            session = model.session(context=512)
            session.append(ids[:1])
            assert one["logprobs"]["token_logprobs"][1:] == pytest.approx(session.score(ids[1:]), abs=1e-5)
            assert one["text"] == model.tokenizer.decode(ids)


def test_one_token_more_is_always_there(served: tuple[str, Any], model: edgedec.Model) -> None:
    """Harnesses take it off again, the end of the text too."""
    bias = {str(token): 100 for token in model.eos}
    body: dict[str, Any] = {"prompt": "A cat sat.", "echo": True, "logprobs": 1, "max_tokens": 1, "logit_bias": bias}
    found = ask(served, "/v1/completions", **body)["choices"][0]
    assert len(found["logprobs"]["tokens"]) == len(model.tokenizer.encode("A cat sat.")) + 1
    assert found["logprobs"]["token_logprobs"][-1] < 0


def test_lm_evaluation_harness_scores_as_a_session_does(
    served: tuple[str, Any], model: edgedec.Model, nano: Path
) -> None:
    """Its own client of completions, with the bundle's tokenizer."""
    pytest.importorskip("lm_eval", reason="lm_eval is not installed")
    pytest.importorskip("tenacity", reason="lm_eval's client of servers needs lm_eval[api]")
    from lm_eval.api.instance import Instance
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    pairs = [("Once upon a time there was a", " cat."), ("Tom had a big", " red ball."), ("Sue", " was the end.")]
    harness = LocalCompletionsAPI(
        model="nano",
        base_url=f"{served[0]}/v1/completions",
        tokenizer=str(nano),
        tokenizer_backend="huggingface",
        batch_size=2,
    )
    asked = [Instance("loglikelihood", {}, pair, i) for i, pair in enumerate(pairs)]
    found = harness.loglikelihood(asked, disable_tqdm=True)
    for (before, after), (score, greedy) in zip(pairs, found, strict=True):
        first = model.tokenizer.encode(before, around=False)
        rest = model.tokenizer.encode(before + after, around=False)[len(first) :]
        session = model.session(context=512)
        session.append(first)
        assert score == pytest.approx(sum(session.score(rest)), abs=1e-4)
        session = model.session(context=512)
        written = session.tokens(first, max_tokens=len(rest), sampling=edgedec.Sampling(), ignore_eos=True)
        assert greedy == ([int(token) for token in written] == rest)


def test_a_prompt_longer_than_a_call_is_scored(served: tuple[str, Any], model: edgedec.Model, monkeypatch: Any) -> None:
    from edgedec.decoding import scoring as score

    ids = model.tokenizer.encode("Once upon a time there was a cat. " * 12)
    monkeypatch.setattr(score, "_MOST_LOGITS", 7 * model.spec.vocab_size)
    session = model.session(context=512)
    session.append(ids[:1])
    found = ask(served, "/v1/completions", prompt=ids, echo=True, logprobs=0, max_tokens=0)["choices"][0]["logprobs"]
    assert found["token_logprobs"][1:] == pytest.approx(session.score(ids[1:]), abs=1e-4)
    assert found["top_logprobs"][1:] == [{}] * (len(ids) - 1)


def test_the_best_of_several(served: tuple[str, Any]) -> None:
    body: dict[str, Any] = {"prompt": "One day", "max_tokens": 6, "temperature": 1.0, "seed": 3, "ignore_eos": True}
    texts = ask(served, "/v1/completions", **body, n=5, logprobs=0)["choices"]
    scores = {one["text"]: float(np.mean(one["logprobs"]["token_logprobs"])) for one in texts}
    found = ask(served, "/v1/completions", **body, n=2, best_of=5)
    assert [one["text"] for one in found["choices"]] == sorted(scores, key=lambda text: -scores[text])[:2]
    assert found["usage"]["completion_tokens"] == 30
    assert refused(served, "/v1/completions", **body, n=3, best_of=2)["param"] == "best_of"
    assert refused(served, "/v1/completions", **body, best_of=2, stream=True)["param"] == "best_of"


def test_tokens_of_a_text_and_back(served: tuple[str, Any], model: edgedec.Model) -> None:
    found = ask(served, "/tokenize", prompt="Once upon", model="nano", return_token_strs=True)
    assert found["tokens"] == model.tokenizer.encode("Once upon")
    assert found["token_strs"] == [model.tokenizer.token(token) for token in found["tokens"]]
    assert (found["count"], found["max_model_len"]) == (len(found["tokens"]), 512)
    bare = ask(served, "/tokenize", prompt="Once upon", add_special_tokens=False)["tokens"]
    assert bare == model.tokenizer.encode("Once upon", around=False)
    messages = [{"role": "user", "content": "Hi"}]
    assert ask(served, "/tokenize", messages=messages)["tokens"] == model.chat_ids(messages)
    short = ask(served, "/tokenize", messages=messages, add_generation_prompt=False)["tokens"]
    text = model.chat_prompt(messages, add_generation_prompt=False)
    assert short == model.tokenizer.encode(text, around=False)
    assert ask(served, "/detokenize", tokens=bare)["prompt"] == "Once upon"
    assert refused(served, "/tokenize")["param"] == "prompt"
    assert refused(served, "/tokenize", prompt="x", messages=messages)["param"] == "prompt"


def test_suffix_is_refused_by_name_where_the_model_does_not_infill(served: tuple[str, Any]) -> None:
    assert refused(served, "/v1/completions", prompt="def f(", suffix=")")["message"].startswith("suffix: this model")


class Marks:
    """A tokenizer whose words are its tokens."""

    def __init__(self, *words: str) -> None:
        self.words = list(words)

    def id(self, token: str) -> int | None:
        return self.words.index(token) if token in self.words else None

    def encode(self, text: str, around: bool = True) -> list[int]:
        return [self.words.index(word) for word in text.split()]


def test_a_prompt_to_infill() -> None:
    tokenizer: Any = Marks("a", "b", "<fim_prefix>", "<fim_suffix>", "<fim_middle>")
    assert infill.infill(tokenizer, (0,), "b a") == (2, 0, 3, 1, 0, 4)
    with pytest.raises(edgedec.UsageError, match="suffix"):
        infill.infill(Marks("a", "<fim_prefix>"), (0,), "b")  # type: ignore[arg-type]


# -- adapters


def test_requests_name_an_adapter(served: tuple[str, Any], model: edgedec.Model, adapters: dict[str, Any]) -> None:
    """Each text is what a session with that adapter writes, in whatever order they come: no cache is mixed up."""
    prompt = "Once upon a time there was a little cat who wanted a friend."

    def alone(name: str | None) -> str:
        session = model.session(context=512, adapter=None if name is None else adapters[name])
        return "".join(session.generate(prompt, max_tokens=12, sampling=edgedec.Sampling()))

    expected = {name: alone(name) for name in (None, "loud0", "loud1", "both")}
    assert len(set(expected.values())) == 4
    for name in (None, "loud0", "loud1", "both", None, "loud1", "both", "loud0"):
        for named in ({"model": name}, {"model": "nano", "adapter": name}):
            found = ask(served, "/v1/completions", prompt=prompt, max_tokens=12, **named, **GREEDY)
            assert found["choices"][0]["text"] == expected[name]
            assert found["model"] == (name or "nano")
    assert found["usage"]["prompt_tokens_details"]["cached_tokens"] > 8
    plain, loud = (
        ask(served, "/v1/embeddings", input="A cat sat.", adapter=name)["data"][0]["embedding"]
        for name in (None, "loud0")
    )
    assert plain != loud


def test_adapters_are_listed_and_unknown_ones_refused(served: tuple[str, Any]) -> None:
    cards = httpx.get(f"{served[0]}/v1/models").json()["data"]
    assert [(card["id"], card.get("parent")) for card in cards] == [
        ("nano", None),
        ("loud0", "nano"),
        ("loud1", "nano"),
        ("both", "nano"),
    ]
    assert httpx.get(f"{served[0]}/v1/models/loud1").json()["parent"] == "nano"
    assert "loud0" in refused(served, "/v1/completions", prompt="x", adapter="quiet")["message"]
    assert refused(served, "/v1/completions", prompt="x", model="quiet")["code"] == "model_not_found"


# -- function calls


def call_tool(name: str) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["n"],
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "parameters": schema}}


def test_several_calls_in_one_turn(served: tuple[str, Any]) -> None:
    pytest.importorskip("llguidance")
    asked: dict[str, Any] = {
        "messages": [{"role": "user", "content": "Go."}],
        "tools": [call_tool("left"), call_tool("right")],
        "tool_choice": "required",
        "max_tokens": 300,
        # More than one call takes.
        "min_tokens": 60,
        "seed": 1,
    }
    found = ask(served, "/v1/chat/completions", **asked)["choices"][0]
    calls = found["message"]["tool_calls"]
    assert 1 < len(calls) <= tools.MOST_CALLS
    assert found["finish_reason"] == "tool_calls"
    assert all(0 <= json.loads(call["function"]["arguments"])["n"] <= 9 for call in calls)
    assert len({call["id"] for call in calls}) == len(calls)
    text = httpx.post(f"{served[0]}/v1/chat/completions", json={**asked, "stream": True}, timeout=60).text
    chunks = [json.loads(line[6:])["choices"] for line in text.splitlines() if line.startswith("data: {")]
    streamed = [call for (one,) in chunks for call in one["delta"].get("tool_calls", ())]
    assert len(streamed) > 2 * len(calls), "arguments come as they are written"
    joined = [[piece["function"] for piece in streamed if piece["index"] == i] for i in range(len(calls))]
    assert [[piece["name"] for piece in one if "name" in piece] for one in joined] == [
        [call["function"]["name"]] for call in calls
    ]
    assert [json.loads("".join(piece["arguments"] for piece in one)) for one in joined] == [
        json.loads(call["function"]["arguments"]) for call in calls
    ]
    for seed in range(4):  # the call is complete before min_tokens: nothing may follow it
        alone = {**asked, "parallel_tool_calls": False, "seed": seed}
        one = ask(served, "/v1/chat/completions", **alone)["choices"][0]
        assert len(one["message"]["tool_calls"]) == 1


@given(
    st.lists(st.dictionaries(st.text(max_size=3), st.recursive(st.text(max_size=4), st.lists), max_size=3), max_size=3),
    st.sampled_from(["", "\n", " "]),
    st.data(),
)
def test_arguments_come_in_pieces_however_a_text_is_cut(
    found: list[dict[str, Any]], space: str, data: st.DataObject
) -> None:
    calls = [{"name": "f\u00e9", "arguments": arguments} for arguments in found]
    text = "".join(space + json.dumps(call, ensure_ascii=data.draw(st.booleans())) for call in calls)
    cut = data.draw(st.integers(0, len(text)))
    reader = CallReader({"f\u00e9"})
    got = [piece for part in pieces(text[:cut], data) for piece in reader.push(part)]
    names = {piece.call: piece.name for piece in got if piece.name}
    assert set(names.values()) <= {"f\u00e9"}
    assert reader.begun == len(names) <= len(calls)
    whole = ["".join(piece.arguments for piece in got if piece.call == i) for i in names]
    assert all(json.loads(one) == found[i] for i, one in enumerate(whole[:-1]))
    if cut == len(text):
        assert [json.loads(one) for one in whole] == found
        assert not reader.inside


def test_a_text_that_is_no_call_gives_no_pieces() -> None:
    for text in ('{"name": "g", "arguments": {}}', '{"a": 1}', "[1]", "Yes."):
        reader = CallReader({"f"})
        assert (reader.push(text), reader.begun, reader.inside) == ([], 0, False)


def test_a_call_that_is_cut_off_ends_by_length(model: edgedec.Model) -> None:
    from edgedec.decoding.messages import Token
    from edgedec.server.requests import EndEvent, TextEvent

    asked = TextRequest({}, messages=({"role": "user", "content": ""},), tools=Tools((), {"f": {}}, "auto", True))
    found = choice.Choice(completions.Completion((1,), edgedec.GenerationConfig()), asked)
    texts = ['{"name": "f", "arguments": {}}\n{"name": "f", "argu', 'ments": {"a": "b']
    given = [found.add(TextEvent(0, text, Token(i))).pieces for i, text in enumerate(texts)]
    assert given == [[(0, "f", "{}")], [(1, "f", '{"a": "b')]]
    last = found.add(EndEvent(0, "length"))
    assert (last.text, last.whole, found.reason) == ("", [], "length")


@given(st.data())
def test_calls_are_found_however_a_text_is_cut(data: st.DataObject) -> None:
    shown = data.draw(st.text(alphabet="a <>{\n", max_size=8)).strip()
    if shown[:1] in ("{", "<"):
        shown = f"a{shown}"
    names = data.draw(st.lists(st.sampled_from("fg"), max_size=3))
    calls = [f'<tool_call>\n{{"name": "{name}", "arguments": {{"a": "}}"}}}}\n</tool_call>' for name in names]
    text = shown + "\n".join(calls)
    split, found = tools.CallSplitter({"f": {}, "g": {}}, required=False), ""
    for piece in pieces(text, data):
        found += split.push(piece)
    rest, read = split.end()
    assert (found + rest).strip() == shown
    assert [call.name for call in read] == names


def pieces(text: str, data: st.DataObject) -> list[str]:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def test_objects_that_are_no_calls_are_text() -> None:
    for text in ('{"a": 1}', '{"name": "h", "arguments": {}}', "[1]", '{"name": "f"', ""):
        split = tools.CallSplitter({"f": {}}, required=False)
        assert (split.push(text) + split.end()[0], tools.read_calls(text, {"f": {}})) == (text, [])
    several = '[{"name": "f", "arguments": {}}, {"name": "f", "parameters": {"b": 2}}]'
    assert [call.arguments for call in tools.read_calls(several, {"f": {}})] == ["{}", '{"b": 2}']


# -- thoughts


@given(
    st.booleans(),
    st.text(alphabet="ab <>/\n", max_size=8),
    st.text(alphabet="ab <>/\n", max_size=8),
    st.booleans(),
    st.data(),
)
def test_thoughts_are_divided_however_a_text_is_cut(
    inside: bool, thought: str, answer: str, ends: bool, data: st.DataObject
) -> None:
    text = ("" if inside else "<think>") + thought + (f"</think>{answer}" if ends else "")
    split, found = thinking.ThoughtSplitter(inside), ["", ""]
    for piece in pieces(text, data):
        for i, part in enumerate(split.push(piece)):
            found[i] += part
    for i, part in enumerate(split.end()):
        found[i] += part
    assert found == [thought.lstrip(), answer.lstrip() if ends else ""]


@given(st.text(alphabet="<think>/ \n", max_size=12), st.data())
def test_text_without_thoughts_is_left_as_it_is(text: str, data: st.DataObject) -> None:
    if text.lstrip().startswith("<think>"):
        return
    split = thinking.ThoughtSplitter(inside=False)
    found = [split.push(piece) for piece in pieces(text, data)]
    assert "".join(answer for _, answer in [*found, split.end()]) == text


def test_a_thought_is_reasoning_content(model: edgedec.Model) -> None:
    """A model whose template opens a thought: its text is one until it closes it."""

    class Thinks(edgedec.Model):
        def chat_prompt(self, messages: Any, **more: Any) -> str:
            return super().chat_prompt(messages, **more) + "<think>\n"

    thinks = Thinks(model.bundle, model.runtime)
    with serving(thinks, most=20) as (place, _):
        body: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 20, **GREEDY}
        plain = httpx.post(f"{place}/v1/chat/completions", json=body).json()["choices"][0]["message"]
        assert plain["content"] == ""
        assert len(plain["reasoning_content"]) > 10
        client = openai.OpenAI(base_url=f"{place}/v1", api_key="none")
        chunks = list(
            client.chat.completions.create(model="nano", stream=True, messages=body["messages"], max_tokens=20)
        )
        deltas = [(chunk.choices[0].delta.model_extra or {}).get("reasoning_content", "") for chunk in chunks]
        assert "".join(deltas)
        used = httpx.post(f"{place}/v1/responses", json={"input": "Hi", "max_output_tokens": 20, **GREEDY}).json()
        assert used["output"][0]["type"] == "reasoning"
        assert used["output"][0]["content"][0]["text"].rstrip() == plain["reasoning_content"]
        assert used["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
        talk = httpx.post(f"{place}/api/chat", json={"model": "nano", "stream": False, "messages": body["messages"]})
        assert talk.json()["message"]["thinking"]


class Digits:
    """A constraint: two tokens 1, then the end."""

    def __init__(self, taken: int = 0) -> None:
        self.taken = taken

    def mask(self, path: Any) -> Any:
        return np.arange(4) == (1 if self.taken + len(path) < 2 else 0)

    def accept(self, token: int) -> None:
        assert token == 1
        self.taken += 1

    @property
    def done(self) -> bool:
        return self.taken == 2

    def forced(self) -> Any:
        return (1,)

    def reset(self) -> None:
        self.taken = 0

    def fork(self) -> Digits:
        return Digits(self.taken)


def test_a_constraint_begins_after_the_thought() -> None:
    after = thinking.AfterThought(Digits(), close=3, size=4)
    assert after.mask(()).all()
    assert after.mask((2, 3)).tolist() == [False, True, False, False]
    assert after.mask((2, 3, 1, 1)).tolist() == [True, False, False, False]
    assert after.forced() == ()
    for token in (2, 3, 1):
        after.accept(token)
    twin = after.fork()
    after.accept(1)
    assert (after.done, twin.done) == (True, False)
    assert twin.forced() == (1,)
    after.reset()
    assert not after.done
    assert after.mask(()).all()


def test_choices_keep_thoughts_text_and_calls_apart() -> None:
    from edgedec.decoding.messages import Token
    from edgedec.server.requests import EndEvent, TextEvent

    asked = TextRequest({}, messages=({"role": "user", "content": ""},), tools=Tools((), {"f": {}}, "auto", True))
    done = completions.Completion((1,), edgedec.GenerationConfig(), thinks=True)
    found = choice.Choice(done, asked)
    texts = ["I ", "see.</thi", "nk>\n\nSo: ", '<tool_call>{"name": "f", ', '"arguments": {}}</tool_call>']
    deltas = [found.add(TextEvent(0, text, Token(i))) for i, text in enumerate(texts)]
    last = found.add(EndEvent(0, "eos"))
    assert "".join(delta.thought for delta in deltas) == found.thought == "I see."
    assert "".join(delta.text for delta in deltas) == found.text == "So: "
    assert [call.name for call in last.calls] == ["f"]
    assert (found.reason, last.tokens, found.thought_tokens) == ("tool_calls", [], 2)


# -- hostile strings

HOSTILE = ["\ud800", '"\\\x00\x85\u2028', "\U0001f600\udc00", "x" * 3000, "{{ 7 * 7 }}"]


@pytest.fixture(scope="module")
def hasty(model: edgedec.Model) -> Iterator[tuple[str, Any]]:
    with serving(model, slots=4, most=4) as found:
        yield found


@pytest.mark.parametrize("text", HOSTILE, ids=["surrogate", "controls", "half", "long", "template"])
@pytest.mark.parametrize(
    "path",
    [
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/embeddings",
        "/tokenize",
        "/detokenize",
        "/api/chat",
        "/api/generate",
        "/api/embed",
        "/api/embeddings",
        "/api/show",
    ],
)
def test_every_answer_is_json_whatever_a_request_holds(hasty: tuple[str, Any], path: str, text: str) -> None:
    """A hostile string as each field, as the name of a field and inside each nested field."""
    from edgedec.server import openapi

    schema = openapi.document("0", False)["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    good = dict(GOOD[path])
    bodies = [{**good, text: 1}, {**good, "metadata": {text: text}}]
    for name in schema["properties"]:
        bodies += [
            {**good, name: text},
            {**good, name: {text: text}},
            {**good, name: [text]},
            {**good, name: [{text: [text]}]},
        ]
    bodies += [{**good, **more} for more in nested(text)]
    with httpx.Client(base_url=hasty[0], timeout=60) as client:
        for body in bodies:
            raw = json.dumps(body).encode()
            answer = client.post(path, content=raw, headers={"content-type": "application/json"})
            assert answer.status_code < 500, (body, answer.text)
            for line in answer.content.decode("utf-8").splitlines():
                piece = line.removeprefix("data: ")
                if piece and piece != "[DONE]" and not line.startswith("event: "):
                    found = json.loads(piece)
                    json.dumps(found, ensure_ascii=False).encode("utf-8")
    wait_for(lambda: hasty[1].engine.idle)


MESSAGE = [{"role": "user", "content": "Hi"}]
GOOD: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGE, "max_tokens": 1},
    "/v1/completions": {"prompt": "Hi", "max_tokens": 1},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 1},
    "/v1/embeddings": {"input": "Hi"},
    "/tokenize": {"prompt": "Hi"},
    "/detokenize": {"tokens": [1]},
    "/api/chat": {"model": "nano", "messages": MESSAGE, "options": {"num_predict": 1}},
    "/api/generate": {"model": "nano", "prompt": "Hi", "options": {"num_predict": 1}},
    "/api/embed": {"model": "nano", "input": "Hi"},
    "/api/embeddings": {"model": "nano", "prompt": "Hi"},
    "/api/show": {"model": "nano"},
}


def nested(text: str) -> list[dict[str, Any]]:
    function = {"name": text[:60], "description": text, "parameters": {"type": "object", "description": text}}
    tool = {"type": "function", "function": function}
    schema = {"type": "object", "properties": {text: {"const": text}}, "additionalProperties": False}
    return [
        {"messages": [{"role": "user", "content": text}]},
        {"messages": [{"role": text, "content": "x"}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": text}]}]},
        {"messages": [{"role": "tool", "content": "x", "tool_call_id": text}]},
        {"tools": [tool], "tool_choice": {"type": "function", "function": {"name": text[:60]}}},
        {"tools": [{"type": "function", **function}], "tool_choice": "required"},
        {"tools": [tool], "tool_choice": "required"},
        {"response_format": {"type": "json_schema", "json_schema": {"name": text, "schema": schema}}},
        {"text": {"format": {"type": "json_schema", "name": text, "schema": schema}}},
        {"format": schema},
        {"options": {"stop": [text]}},
        {"options": {text: 1}},
        {"stop": [text]},
        {"logit_bias": {text: 1}},
        {"input": [{"role": "user", "content": text}]},
        {"input": [{"type": "function_call", "call_id": text, "name": text, "arguments": text}]},
        {"chat_template_kwargs": {text: text}},
        {"chat_template_kwargs": {"messages": []}},
        {"previous_response_id": text},
    ]


def test_numbers_that_are_none_and_bodies_too_deep_are_refused(served: tuple[str, Any]) -> None:
    bodies = ['{"prompt": "x", "temperature": NaN}', '{"prompt": "x", "metadata": {"a": 1e999}}']
    bodies += ['{"prompt": "x", "metadata": ' + '{"a":' * n + "1" + "}" * n + "}" for n in (200, 900, 100_000)]
    bodies += ['{"prompt": "x", "seed": 1' + "0" * 5000 + "}", '{"prompt": "x", "n": 1e300}']
    for body in bodies:
        answer = httpx.post(f"{served[0]}/v1/completions", content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 400, body[:50]
        assert answer.json()["error"]["type"] == "invalid_request_error"


def test_lone_surrogates_become_replacement_characters() -> None:
    assert json.loads(answers.dumps({"\ud800a": "\udc00", "b": "\ud83d\ude00"})) == {"\ufffda": "\ufffd", "b": "😀"}


def test_worked_examples() -> None:
    for module in (answers, calls, closing, store, thinking, tools):
        ran = doctest.testmod(module)
        assert ran.attempted > 0
        assert ran.failed == 0
