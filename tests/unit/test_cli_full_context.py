"""A chat whose context is full: what it says, and how it goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import edgedec
from edgedec.cli import _app
from edgedec.cli._chat import Chat
from edgedec.cli._history import keep_latest, latest_that_fit, turns
from edgedec.decoding.config import GenerationConfig


def call(*args: object, stdin: str) -> Result:
    return CliRunner().invoke(_app.app, ["chat", *map(str, args)], input=stdin)


def said(*roles: str) -> list[dict[str, str]]:
    return [{"role": role, "content": f"{role} {i}"} for i, role in enumerate(roles)]


def test_turns_are_dropped_whole_and_the_system_message_stays() -> None:
    messages = said("system", "user", "assistant", "user", "assistant", "user")
    system, every = turns(messages)
    assert (len(system), [len(turn) for turn in every]) == (1, [2, 2, 1])
    assert keep_latest(messages, 2) == [messages[0], *messages[3:]]
    assert keep_latest(messages, 9) == messages
    assert latest_that_fit(messages, lambda m: 10 * len(m), 40) == 2
    assert latest_that_fit(messages, lambda m: 10 * len(m), 20) == 1
    assert latest_that_fit(messages, lambda m: 10 * len(m), 5) == 0


def test_a_full_context_says_what_to_do_and_compact_and_reset_do_it(nano: Path) -> None:
    story = "One day, a little fox found a red ball in the park and played with it. " * 5
    lines = [story, story, story, "Hi", "/compact 1", "Hi", "/reset", "Hi"]
    result = call("-m", nano, "-c", 256, "-n", 12, "--temp", 0, stdin="\n".join(lines))
    full = [line for line in result.stderr.splitlines() if "context of 256" in line]
    assert full
    assert all("/compact" in line and "/reset" in line and "--on-full slide" in line for line in full)
    assert "on_full=" not in result.stderr
    assert "turns kept" in result.stderr
    after = result.stderr.split("turns kept")[1]
    assert "context of" not in after, "after /compact there is room again"


def test_one_turn_that_fills_the_context_goes_too(nano: Path) -> None:
    story = "One day, a little fox found a red ball in the park and played with it. " * 14
    result = call(
        "-m", nano, "-c", 256, "-n", 4, "--temp", 0, "--ignore-eos", stdin="\n".join([story, "/compact", "Hi"])
    )
    assert "context of 256" in result.stderr.split("0 of 1 turns kept")[0]
    assert "context of 256" not in result.stderr.split("0 of 1 turns kept")[1]


def test_an_answer_that_fills_the_context_says_what_to_do_in_a_chat(nano: Path) -> None:
    lines = "One day a fox found a ball in the park and it was very big and red and nice."
    result = call("-m", nano, "-c", 64, "-n", 60, "--temp", 0, "--ignore-eos", stdin=lines)
    assert "the answer ends here: the context of 64 tokens is full; /compact" in result.stderr
    assert "on_full=" not in result.stderr


def test_sliding_drops_the_oldest_turns_and_says_so(nano: Path, tmp_path: Path) -> None:
    turn = "One day, a little fox found a red ball in the park and played with it."
    file = tmp_path / "talk.json"
    lines = [turn] * 12 + [f"/save {file}"]
    result = call(
        "-m", nano, "-c", 200, "-n", 24, "--temp", 0, "--ignore-eos", "--on-full", "slide", stdin="\n".join(lines)
    )
    assert result.exit_code == 0, result.stderr
    assert len(result.stdout.splitlines()) >= 12, "every turn has its answer"
    assert result.stderr.count("oldest turn") >= 2
    assert "the context of 200 tokens is full: the " in result.stderr
    kept = json.loads(file.read_text())["messages"]
    assert 2 <= len(kept) < 24
    assert kept[0]["role"] == "user"
    assert kept[-1]["role"] == "assistant"


def test_an_answer_goes_on_over_a_full_context(nano: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = edgedec.open(nano)
    session = model.session(context=160, on_full="slide", speculate="off")
    chat = Chat(session, GenerationConfig(max_tokens=100, ignore_eos=True), slide=True)
    for _ in range(3):
        assert chat.take("One day, a little fox found a red ball in the park.")
    shown = capsys.readouterr()
    assert "oldest turn" in shown.err
    assert not chat.failed
    answer = chat.messages[-1]["content"]
    assert len(model.tokenizer.encode(answer)) >= 90, "an answer is as long as was asked for"


def test_a_single_turn_leaves(nano: Path) -> None:
    result = call("-m", nano, "-p", "Once upon a time", "-n", 5, "--single-turn", stdin="never read\n")
    assert len(result.stdout.splitlines()) == 1


def test_an_answer_that_fills_the_context_names_the_reason(nano: Path) -> None:
    result = call("-m", nano, "-p", "Once", "-c", 40, "--ignore-eos", "--single-turn", stdin="")
    assert "the answer ends here: the context of 40 tokens is full" in result.stderr
