"""Prompt programs: notes that are kept, a prompt chosen for each input, plans, rounds."""

from __future__ import annotations

import doctest
from itertools import count
from pathlib import Path
from random import Random

import numpy as np
import pytest

import edgedec
from edgedec.constraints.automata.script import ScriptConstraint
from edgedec.constraints.automata.tokens import token_tree
from edgedec.constraints.vocabulary import vocabulary
from edgedec.errors import UsageError
from edgedec.prompting import Cheatsheet, PromptPool, asker, improved, planned, plans
from edgedec.prompting.plans import PlanScript, units_of
from edgedec.runtime import Outputs, Rows
from edgedec.runtime.call import Call

UNITS = ["Tom had a dog.", "The dog was red.", "They went to the park.", "It was sunny."]


@pytest.fixture(scope="module")
def model(nano: Path) -> edgedec.Model:
    return edgedec.open(nano, threads=1)


# -- cheatsheets

METHOD = "try (a - b) * (c - d)"


class Toy:
    """A model that makes 24 of four numbers once in ten questions, and nine times in ten with the method before it;
    its curator notes the method once an answer was right. asked: the prompts."""

    def __init__(self) -> None:
        self._rng, self.asked = Random(2), list[str]()

    def __call__(self, prompt: str) -> str:
        self.asked.append(prompt)
        if "<cheatsheet>" in prompt:
            known = METHOD in prompt or "Answer: 24" in prompt
            return f"{METHOD}\n</cheatsheet>" if known else "Sorry."
        return "24" if self._rng.random() < (0.9 if METHOD in prompt.partition("Question:")[0] else 0.1) else "23"


def share(sheet: Cheatsheet, n: int) -> float:
    return sum(sheet.answer(f"make 24 of {i}") == "24" for i in range(n)) / n


def test_notes_carry_a_method_over() -> None:
    toy = Toy()
    blank = sum(toy("Notes: (none) Question: make 24") == "24" for _ in range(200)) / 200
    assert 0.05 < blank < 0.16
    sheet = Cheatsheet(Toy())
    share(sheet, 60)
    assert sheet.sheet == METHOD
    assert share(sheet, 100) > 0.8


def test_notes_survive_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "notes.json"
    first = Cheatsheet(Toy(), file)
    share(first, 60)
    again = Cheatsheet(Toy(), file)
    assert (again.sheet, again.pairs) == (first.sheet, first.pairs)
    assert len(again.pairs) == 60
    assert share(again, 50) > 0.8
    assert [path.name for path in tmp_path.iterdir()] == ["notes.json"]
    file.write_text("{}")
    with pytest.raises(UsageError, match="is no file of a cheatsheet"):
        Cheatsheet(Toy(), file)


def test_a_curator_without_marks_changes_nothing() -> None:
    said = iter(["one", "no marks here", "two", "<cheatsheet>\nnew\n</cheatsheet> and more"])
    sheet = Cheatsheet(lambda prompt: next(said), sheet="old")
    assert sheet.answer("a") == "one"
    assert sheet.sheet == "old"
    assert sheet.answer("b") == "two"
    assert sheet.sheet == "new"


def test_a_sheet_has_a_most_in_whole_lines() -> None:
    lines = [f"line {i}" for i in range(9)]
    sheet = Cheatsheet(lambda prompt: "\n".join(lines) + "</cheatsheet>", most=20)
    sheet.answer("a")
    assert sheet.sheet == "line 0\nline 1\nline 2"  # 20 characters
    sheet.most = 19
    sheet.answer("b")
    assert sheet.sheet == "line 0\nline 1"


def test_retrieval_shows_the_nearest_last_then_answers() -> None:
    asked = list[str]()

    def ask(prompt: str) -> str:
        asked.append(prompt)
        return f"note {len(asked)}</cheatsheet>" if "<cheatsheet>" in prompt else f"answer {len(asked)}"

    places = {"far": (0, 1), "near": (1, 0.2), "nearer": (1, 0.1), "mid": (1, 1), "now": (1, 0)}
    sheet = Cheatsheet(ask, embed=lambda text: np.array(places[text]))
    for word in ("nearer", "far", "near", "mid"):
        sheet.answer(word)
    asked.clear()
    assert sheet.answer("now") == "answer 2"
    curated, answered = asked
    order = [curated.index(f"Question: {word}\n") for word in ("mid", "near", "nearer")]
    assert order == sorted(order)
    assert "Question: far\n" not in curated
    assert "Question: now" not in curated
    assert "note 1" in answered
    assert sheet.sheet == "note 1"


def test_retrieval_without_marks_gives_the_pairs() -> None:
    numbers = count()
    sheet = Cheatsheet(lambda prompt: f"plain {next(numbers)}", embed=lambda text: np.ones(2))
    sheet.answer("a")
    assert sheet.sheet == ""  # nothing to show yet, so no curator was asked
    sheet.answer("b")
    assert sheet.sheet == "Question: a\nAnswer: plain 0"


def test_programs_run_a_few_times() -> None:
    asked, ran = list[str](), list[str]()

    def ask(prompt: str) -> str:
        asked.append(prompt)
        if "<cheatsheet>" in prompt:
            return ""
        return f"```python\nprint({len(asked)})\n```\nRUN THE PROGRAM"

    def run(program: str) -> str:
        ran.append(program)
        return "out" + program[6]

    found = Cheatsheet(ask, run=run, rounds=2).answer("q")
    assert ran == ["print(1)\n", "print(2)\n"]
    assert asked[1].endswith("Output:\nout1\n")
    assert found.count("RUN THE PROGRAM") == 3
    ran.clear()
    Cheatsheet(lambda prompt: "```python\nprint(1)\n```", run=run).answer("not asked to run")
    Cheatsheet(ask).answer("nothing runs it")
    assert not ran


# -- a pool of prompts

PROMPTS = ["Once there was a dog named Max. Max ran.", "One day a girl swam in the sea.", "A car."]


def test_the_likeliest_prompt_for_each_input(model: edgedec.Model) -> None:
    pool = PromptPool(model, PROMPTS)
    inputs = [" Max barked.", " She liked the water."]
    assert [pool.choose(text) for text in inputs] == [0, 1]
    for text in inputs:
        alone = []
        for prompt in PROMPTS:
            scores = model.session().extend(prompt).score(text)
            alone.append(sum(scores) / len(scores))
        assert pool.values(text) == pytest.approx(alone)


def test_attention_is_the_mean_of_one_pass(model: edgedec.Model) -> None:
    """Beside one forward of everything, from which the rows of the prompts are taken off."""
    encode, text = model.tokenizer.encode, " She liked the water."
    ids, spans = encode(""), []
    for prompt in PROMPTS:
        own = encode(prompt, around=False)
        spans.append((len(ids), len(ids) + len(own)))
        ids = ids + own
    runtime, given = model.runtime, encode(text, around=False)

    def sums(rows: list[int]) -> np.ndarray:
        call = Call(Rows.chain(rows, 0), runtime.new_cache(200), outputs=Outputs(attention=True))
        (found,) = runtime.forward([call])
        return sum(each[:, : len(ids)].sum(axis=0, dtype=np.float64) for each in found.attention.values())

    expected = sums([*ids, *given]) - sums(ids)
    found = PromptPool(model, PROMPTS, by="attention").values(text)
    assert found == pytest.approx([expected[low:high].mean() for low, high in spans], rel=1e-3)
    total = [expected[low:high].sum() for low, high in spans]
    assert np.argmax(total) != np.argmax(found)  # the sum prefers a longer prompt


def test_pools_that_cannot_be(model: edgedec.Model) -> None:
    with pytest.raises(UsageError, match="give two or more"):
        PromptPool(model, ["one"])
    with pytest.raises(UsageError, match="an empty input"):
        PromptPool(model, ["one", "two"]).values("")


# -- plans


def test_examples() -> None:
    assert doctest.testmod(plans).attempted
    assert not doctest.testmod(plans).failed


def test_plans_are_different_and_valid(model: edgedec.Model) -> None:
    found = planned(model, UNITS, plans=16, least=2, most=3, max_tokens=6, stop=())
    assert len({one.plan for one in found}) == 16
    for one in found:
        assert 2 <= len(one.plan) <= 3
        assert len(set(one.plan)) == len(one.plan)
        assert set(one.plan) <= set(range(4))
        assert one.text
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)


def test_the_text_follows_its_plan_and_has_its_score(model: edgedec.Model) -> None:
    (best, *_) = planned(model, UNITS, plans=3, least=1, most=2, max_tokens=5, stop=())
    marked = " ".join(f"<e> {unit} </e>" if i in best.plan else unit for i, unit in enumerate(UNITS))
    session = model.session().extend(f"{marked}\n\nIn short:")
    scores = session.score(best.text)
    assert best.score == pytest.approx(sum(scores) / len(scores))
    assert session.gen(5, temperature=0) == best.text
    longest = planned(model, UNITS, plans=3, least=1, most=2, max_tokens=5, stop=(), scorer=len)
    assert [one.score for one in longest] == sorted((len(one.text) for one in longest), reverse=True)


def test_a_plan_is_held_to_its_length(model: edgedec.Model) -> None:
    rule = ScriptConstraint("plan", PlanScript(4, 2, 3), token_tree(vocabulary(model)))

    def may(text: str) -> tuple[bool, bool]:
        rule.reset()
        for token in model.tokenizer.encode(text, around=False):
            if not rule.mask(())[token]:
                return False, False
            rule.accept(token)
        return True, rule.may_end()

    assert may(" [2]") == (True, False)
    assert may(" [2] [4]") == (True, True)
    assert may(" [2] [4] [1]") == (True, True)
    assert rule.done
    assert may(" [2] [2]") == (False, False)
    assert may(" [5]") == (False, False)
    assert units_of(" [2] [4] [1]") == (1, 3, 0)
    with pytest.raises(UsageError, match="plans of 3 to 2 units: must be from 1 to 2"):
        planned(model, UNITS[:2])


# -- rounds, and asking


def test_rounds_show_the_best_and_end_when_good_enough() -> None:
    said, asked = iter(["ab", "abcd", "a", "abcdef", "unused"]), list[str]()

    def ask(prompt: str) -> str:
        asked.append(prompt)
        return next(said)

    found = improved(ask, "task", lambda text: (len(text) / 6, f"has {len(text)}"), rounds=5)
    assert [one.text for one in found] == ["abcdef", "abcd", "ab", "a"]
    assert asked[0] == "task"
    assert "has 2" in asked[1]
    assert "has 4" in asked[3]  # the best so far, not the latest
    assert "has 1" not in asked[3]
    with pytest.raises(UsageError, match="rounds 0"):
        improved(ask, "task", lambda text: (0.0, ""), rounds=0)


def test_asking_a_model(model: edgedec.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = asker(model, 6, chat=False, temperature=0)
    assert plain("Once upon") == "".join(model.session().generate("Once upon", max_tokens=6, temperature=0))
    monkeypatch.setattr(model, "chat_template", "The sea. {{ messages[0].content }} who")
    chat = "".join(model.session().chat([{"role": "user", "content": "Tom"}], max_tokens=6, temperature=0))
    assert asker(model, 6, temperature=0)("Tom") == chat != plain("Tom")
    monkeypatch.setattr(model, "chat_template", None)
    assert asker(model, 6, temperature=0)("Tom") == plain("Tom")
