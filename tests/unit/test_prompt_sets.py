"""Sets of prompts by name: which file, which format, which prompts of it, and what is refused."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest

from edgedec.bench.prompts import LIMIT, Prompt, choose_prompts, prompts_named, read_prompts
from edgedec.errors import UsageError

MT = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")


def write(path: Path, *lines: object) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return path


@pytest.fixture
def spec_bench(tmp_path: Path) -> Path:
    lines = [{"question_id": 81 + i, "category": c, "turns": [f"first {c}", "second"]} for i, c in enumerate(MT)]
    return write(tmp_path / "question.jsonl", *lines, {"question_id": 161, "category": "rag", "turns": ["a page"]})


def test_our_own() -> None:
    assert prompts_named("own") == read_prompts()


def test_spec_bench_and_its_part_that_is_mt_bench(spec_bench: Path) -> None:
    every = prompts_named(f"specbench={spec_bench}")
    assert every[0] == Prompt("writing", ("first writing", "second"))
    assert [p.category for p in every] == [*MT, "rag"]
    assert [p.category for p in prompts_named(f"mtbench={spec_bench}")] == list(MT)
    assert prompts_named(str(spec_bench)) == every, "the file has categories"
    assert prompts_named(f"specbench={spec_bench.parent}") == every, "by its usual name"


def test_human_eval_and_gsm8k_have_their_names_as_category(tmp_path: Path) -> None:
    human = tmp_path / "HumanEval.jsonl.gz"
    human.write_bytes(gzip.compress(b'{"task_id": "HumanEval/0", "prompt": "def f():\\n"}\n'))
    assert prompts_named(f"humaneval={human}") == [Prompt("humaneval", ("def f():\n",))]
    assert prompts_named(f"humaneval={tmp_path}") == prompts_named(f"humaneval={human}")
    sums = write(tmp_path / "gsm8k_test.jsonl", {"question": "How many?", "answer": "3"})
    assert prompts_named(f"gsm8k={sums}") == [Prompt("gsm8k", ("How many?",))]
    assert prompts_named(f"gsm8k={tmp_path}") == prompts_named(f"gsm8k={sums}")


def test_a_file_may_have_an_equals_sign_in_its_name(tmp_path: Path) -> None:
    path = write(tmp_path / "a=b.jsonl", {"category": "x", "prompt": "hi"})
    assert prompts_named(str(path)) == [Prompt("x", ("hi",))]


def test_what_is_refused_is_said_with_what_to_do(tmp_path: Path, spec_bench: Path) -> None:
    sums = write(tmp_path / "sums.jsonl", {"question": "How many?"})
    vicuna = write(tmp_path / "vicuna.jsonl", {"category": "generic", "turns": ["How?"]})
    broken = tmp_path / "broken.jsonl.gz"
    broken.write_bytes(gzip.compress(b"{}" * 50)[:20])
    large = tmp_path / "large.gz"
    large.write_bytes(gzip.compress(bytes(LIMIT + 1), 1))
    empty = tmp_path / "empty"
    empty.mkdir()
    for words, says in (
        ("gsm8k", "--prompts gsm8k=test.jsonl"),
        (f"humaneval={sums}", r'line 1: no "prompt" in it, so no file of humaneval'),
        (f"gsm8k={spec_bench}", r'no "question" in it'),
        (str(sums), r"needs \"category\".*gsm8k=FILE"),
        (f"mtbench={vicuna}", "no prompts of the category 'writing'"),
        (f"specbench={empty}", "question.jsonl or .*; name the file"),
        (f"specbench={tmp_path / 'gone'}", "No such file"),
        (f"humaneval={broken}", "cannot be unpacked"),
        (str(large), "larger than any set"),
    ):
        with pytest.raises(UsageError, match=says) as error:
            prompts_named(words)
        assert "\n" not in str(error.value)


def test_a_sample_is_drawn_by_the_seed() -> None:
    prompts = [Prompt("ab"[i % 2], (str(i),)) for i in range(40)]
    drawn = choose_prompts(prompts, sample=10, seed=1)
    assert drawn == choose_prompts(prompts, sample=10, seed=1) != choose_prompts(prompts, sample=10, seed=2)
    assert len(drawn) == 10
    assert [int(p.turns[0]) for p in drawn] == sorted(int(p.turns[0]) for p in drawn)
    assert set(choose_prompts(prompts, ["a"], 3, sample=2, seed=5)) < {p for p in prompts[:6] if p.category == "a"}
    assert choose_prompts(prompts, sample=40) == choose_prompts(prompts, sample=99) == prompts
    first = Counter(p for seed in range(200) for p in choose_prompts(prompts, sample=20, seed=seed))
    assert min(first[p] for p in prompts) > 60, "each as likely as any other"
