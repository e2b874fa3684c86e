"""`edgedec bench spec`: what it counts, what it reports, what it refuses; never how fast anything was."""

from __future__ import annotations

import json
import shutil
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from typer.testing import CliRunner, Result

import edgedec
from edgedec.bench.prompts import Prompt, choose_prompts, read_prompts
from edgedec.bench.speculation import HOT, Bench, Run, _depth, tasks_of
from edgedec.bench.speculation_results import interval, results
from edgedec.bundle.folder import Bundle
from edgedec.bundle.read_grams import MODEL
from edgedec.cache.rows import Rows
from edgedec.cli import _app
from edgedec.cli._output import ProgressLines
from edgedec.cli.bench import spec as spec_verb
from edgedec.decoding.context import Context
from edgedec.decoding.loop import StepTrace
from edgedec.decoding.messages import StepResult
from edgedec.drafters import BaseDrafter, Draft, DrafterContext
from edgedec.errors import UsageError
from edgedec.export.read_record import add_read
from edgedec.runtime import CallResult
from edgedec.sampling import Sampling
from edgedec.session import Session
from edgedec.speculation import choose

ARGS = ["bench", "spec", "-r", "2", "-t", "1", "-n", "8", "--ignore-eos"]
GREEDY = Sampling()


def call(*args: object) -> Result:
    return CliRunner().invoke(_app.app, [str(arg) for arg in args])


def ok(*args: object) -> Result:
    result = call(*args)
    assert result.exit_code == 0, (result.stderr, result.exception)
    return result


def one_line(result: Result, code: int = 1) -> str:
    assert result.exit_code == code, result.output
    assert result.stderr.count("\n") == 1, result.stderr
    assert result.stderr.startswith("edgedec")
    return result.stderr


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    lines = [
        {"category": "story", "prompt": "the king and the thing"},
        {"question_id": 7, "category": "chat", "turns": ["hand", "and on"]},
        {"category": "random", "prompt": "on in the an"},
    ]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    return path


class Echo(BaseDrafter):
    """Guesses that the text goes on as `answers` has it, and spoils the third guess of every draft."""

    answers: ClassVar[list[list[int]]] = []

    def __init__(self, host: DrafterContext) -> None:
        self.texts = 0

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Draft:
        ids = context.ids
        coming = next((a[len(ids) :] for a in self.answers if a[: len(ids)] == ids), [])[: min(nodes, 3)]
        if len(coming) == 3:
            coming[2] = (coming[2] + 1) % 200
        return Draft.chain(coming)

    def reset(self) -> None:
        self.texts += 1


class Liar(BaseDrafter):
    """Changes what was picked, as no drafter may."""

    def propose(self, context: Context, nodes: int, min_path_prob: float) -> Draft:
        return Draft()

    def observe(self, seen: StepResult) -> None:
        assert isinstance(seen.picked, list)
        seen.picked[0] = (seen.picked[0] + 1) % 200


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """`echo` and `liar` beside plain decoding; `lame` cannot be had. Every drafter that was made."""
    made: list[tuple[str, Any]] = []
    real = choose.make_speculation

    def make(words: str, host: DrafterContext) -> Any:
        if words == "lame":
            raise UsageError("this bundle has no legs")
        drafter = {"echo": Echo, "liar": lambda host: Liar()}.get(words, lambda host: real(words, host))(host)
        made.append((words, drafter))
        return drafter

    monkeypatch.setattr(choose, "make_speculation", make)
    return made


def plain_texts(path: Path, texts: Sequence[str], n: int) -> list[list[int]]:
    model, found = edgedec.open(path, threads=1), []
    for text in texts:
        session = model.session()
        ids = model.chat_ids([{"role": "user", "content": text}])
        found.append([*ids, *(int(t) for t in session.tokens(ids, max_tokens=n, ignore_eos=True))])
    return found


# -- what is counted


def test_depths_of_drafts_and_of_what_was_accepted() -> None:
    assert _depth([-1, 0, 0, 1]) == 3
    run, rows = Run(), Rows.chain([1, 2, 3], 0)
    for tokens, path in (((5, 6, 7), [0, 1, 2]), ((5,), [0]), ((), [0])):
        run.add(StepTrace(3, Draft.chain(tokens), StepResult(rows, 0, path, [9] * len(path), CallResult(), 0.1), 0.1))
    assert run.drafted_at == {1: 2, 2: 1, 3: 1}
    assert +run.accepted_at == {1: 1, 2: 1}


def test_tokens_behind_the_first_call_are_counted(tiny: Path, fakes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["the king", "a thing on the hand"]
    monkeypatch.setattr(Echo, "answers", plain_texts(tiny, texts, 12))
    model = edgedec.open(tiny, threads=1)
    tasks = tasks_of([Prompt("story", (text,)) for text in texts], GREEDY, 0)
    measured = Bench(model, tasks, 9, ignore_eos=True).measure(["echo"], 2)
    plain, echo = measured.runs["off"], measured.runs["echo"]
    assert [(r.tokens, r.calls, r.proposed) for r in plain[0]] == [(8, 8, 0)] * 2
    # Of 9 tokens the first call gives 3 (two guesses came true), the next two 3 each.
    assert [(r.tokens, r.calls, r.accepted) for r in echo[0]] == [(6, 2, 6)] * 2
    found = results(measured, tasks)["drafters"]["echo"]
    assert found["tokens_per_call"] == 3
    # Counted in one more round. The last draft is held to what is still wanted: two tokens, both right.
    assert found["drafts_by_depth"] == [6, 6, 4]
    assert found["acceptance_by_depth"] == [1, 1, 0]
    assert found["identical"]
    assert all(r.seconds >= r.forward_s > 0 for runs in (plain, echo) for r in runs[0])


def test_answers_of_one_call_are_left_out(tiny: Path, fakes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Echo, "answers", plain_texts(tiny, ["the king"], 12))
    tasks = tasks_of([Prompt("story", ("the king",)), Prompt("story", ("hand",))], GREEDY, 0)
    bench = Bench(edgedec.open(tiny, threads=1), tasks, 3, ignore_eos=True)
    found = results(bench.measure(["echo"], 1), tasks)
    assert found["notes"] == ["left out 1 of 2 tasks: nothing came after the first call"]
    assert found["drafters"]["echo"]["speed_ratios"][0] is None
    with pytest.raises(UsageError, match="ignore-eos"):
        results(Bench(bench.model, tasks[:1], 3, ignore_eos=True).measure(["echo"], 1), tasks[:1])


def test_a_repetition_is_one_life(tiny: Path, fakes: list[tuple[str, Any]]) -> None:
    tasks = tasks_of([Prompt("story", ("the",)), Prompt("story", ("an", "on"))], GREEDY, 0)
    Bench(edgedec.open(tiny, threads=1), tasks, 3, ignore_eos=True).measure(["echo"], 2)
    # One session to warm up, one a repetition, and one to count the depth of drafts; each text (three turns in two
    # prompts) after the first is a reset.
    assert [name for name, _ in fakes] == [*["off", "echo"] * 3, "echo"]
    assert [drafter.texts for name, drafter in fakes if name == "echo"] == [0, 2, 2, 2]


def test_speed_is_measured_without_a_trace(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of a text that is traced are not the engine's own."""
    traced, tokens = list[tuple[str, bool]](), Session.tokens

    def noted(self: Session, *given: Any, trace: Any = None, **more: Any) -> Any:
        traced.append((self._speculate, trace is not None))
        return tokens(self, *given, trace=trace, **more)

    monkeypatch.setattr(Session, "tokens", noted)
    tasks = tasks_of([Prompt("story", ("the",))], GREEDY, 0)
    Bench(edgedec.open(tiny, threads=1), tasks, 3, ignore_eos=True).measure(["copy"], 2)
    assert traced == [*[("off", False), ("copy", False)] * 3, ("copy", True)]


def test_a_talk_goes_on_with_its_answers(tiny: Path) -> None:
    model = edgedec.open(tiny, threads=1)
    tasks = tasks_of([Prompt("chat", ("hand", "and on"))], GREEDY, 0)
    (run,) = Bench(model, tasks, 4, ignore_eos=True).measure([], 1).runs["off"][0]
    said: list[dict[str, object]] = [{"role": "user", "content": "hand"}]
    first = [int(t) for t in model.session().tokens(model.chat_ids(said), max_tokens=4, ignore_eos=True)]
    said += [{"role": "assistant", "content": model.tokenizer.decode(first)}, {"role": "user", "content": "and on"}]
    second = [int(t) for t in model.session().tokens(model.chat_ids(said), max_tokens=4, ignore_eos=True)]
    assert run.ids == first + second
    assert run.tokens == 6


def test_random_text_is_read_hot_as_well() -> None:
    prompts = [Prompt("story", ("a",)), Prompt("random", ("b",))]
    tasks = tasks_of(prompts, GREEDY, 4)
    assert [(t.category, t.sampling.temperature) for t in tasks] == [("story", 0), ("random", 0), (HOT, 1)]
    assert tasks[-1].sampling.seed == 4
    assert len(tasks_of(prompts, Sampling(temperature=1.0, seed=4), 4)) == 2


def test_a_long_prompt_loses_its_front(tiny: Path) -> None:
    model = edgedec.open(tiny, threads=1)
    long = " ".join(str(i) for i in range(200))
    bench = Bench(model, tasks_of([Prompt("story", (long,))], GREEDY, 0), 8, ignore_eos=True)
    whole = model.chat_ids([{"role": "user", "content": long}])
    ids = bench._ids([{"role": "user", "content": long}], 8)
    assert bench.capacity == model.spec.context_length < len(whole)
    assert len(ids) == bench.capacity - 8
    assert (ids[0], ids[-50:]) == (whole[0], whole[-50:])
    assert str(len(whole)) in bench.measure([], 1).notes[0]


def test_the_interval_holds_the_mean() -> None:
    low, high = interval([1.0, 1.2, 1.4, 1.1, 0.9])
    assert 0.9 <= low < 1.12 < high <= 1.4
    assert interval([1.5, 1.5]) == (1.5, 1.5)


# -- what is reported


def test_json(tiny: Path, prompts: Path, fakes: Any) -> None:
    result = ok(*ARGS, "-m", tiny, "--prompts", prompts, "--drafters", "echo", "--json")
    report = json.loads(result.stdout)
    assert report["plain_tok_s"] > 0
    assert {"host", "versions", "model", "quantization", "bits_per_weight", "engine", "kv"} <= set(report)
    assert (report["as"], report["prompts"], report["threads"], report["generate"]) == (None, 3, 1, 8)
    assert [task["category"] for task in report["tasks"]] == ["story", "chat", "random", HOT]
    found = report["drafters"]["echo"]
    assert found["identical"] is True
    assert found["differ"] == []
    ratios = found["speed_ratios"]
    assert found["speed_ratio_mean"] == pytest.approx(sum(ratios) / 4)
    assert found["speed_ratio_min"] == min(ratios)
    assert found["speed_ratio_geometric"] == pytest.approx(statistics.geometric_mean(ratios))
    low, high = found["speed_ratio_interval"]
    assert low <= found["speed_ratio_mean"] <= high
    new = found["not_copied"]  # all but the loop of random words
    assert new["prompts"] == 3
    assert new["speed_ratio_geometric"] == pytest.approx((ratios[0] * ratios[1] * ratios[3]) ** (1 / 3))
    assert new["interval"][0] <= new["speed_ratio_geometric"] <= new["interval"][1]
    assert list(found["by_category"]) == ["story", "chat", "random", HOT]
    for category, ratio in zip(found["by_category"].values(), ratios, strict=True):
        assert category["prompts"] == 1
        assert category["speed_ratio_mean"] == pytest.approx(ratio)
        assert category["tokens_per_call"] == 1


def test_what_was_read_in_training_does_not_count(tiny: Path, prompts: Path, fakes: Any, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny, tmp_path / "read"))
    args = [*ARGS, "-m", folder, "--prompts", prompts, "--drafters", "echo", "--categories", "story,chat"]
    told = ok(*args).stdout
    assert "2 unknown" in told
    assert "count as unseen" in told
    add_read(Bundle.open(folder), (MODEL,), ["the king and the thing"])
    report = json.loads(ok(*args, "--json").stdout)
    assert [task["seen"] for task in report["tasks"]] == ["seen", "unseen"]
    assert (report["seen"], report["counted"]) == ({"seen": 1, "unseen": 1}, ["unseen"])
    found = report["drafters"]["echo"]
    unseen = found["speed_ratios"][1]
    for name in ("speed_ratio_mean", "speed_ratio_geometric", "speed_ratio_min"):
        assert found[name] == pytest.approx(unseen)
    assert found["speed_ratio_interval"] == pytest.approx([unseen, unseen])
    assert (found["prompts"], found["not_copied"]["prompts"]) == (1, 1)
    assert list(found["by_category"]) == ["story", "chat"], "those of all"
    told = ok(*args).stdout
    assert "read in training: 1 seen, 1 unseen; the figures leave out those seen" in told
    add_read(Bundle.open(folder), (MODEL,), ["hand"])
    assert json.loads(ok(*args, "--json").stdout)["counted"] == ["seen"]
    assert "2 seen; no other is left" in ok(*args).stdout


@pytest.mark.parametrize("temp", [0, 1])
def test_another_text_is_told(tiny: Path, prompts: Path, fakes: Any, temp: int) -> None:
    args = [*ARGS, "-m", tiny, "--prompts", prompts, "--drafters", "echo,liar", "--temp", temp, "--seed", 3]
    found = json.loads(ok(*args, "--json").stdout)["drafters"]
    assert found["echo"]["identical"] is True
    assert found["liar"]["identical"] is False
    assert 0 in found["liar"]["differ"]
    assert "no (" in ok(*args).stdout


def test_people_get_tables(tiny: Path, prompts: Path, fakes: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "spec.png"
    shown = ok(*ARGS, "-m", tiny, "--prompts", prompts, "--drafters", "echo", "--plot", picture).stdout
    assert "tokens/call" in shown
    assert HOT in shown
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_drafters_that_cannot_be_had_are_left_out(
    tiny: Path, prompts: Path, fakes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = [*ARGS, "-m", tiny, "--prompts", prompts, "--limit", 1, "--categories", "story"]
    assert "no legs" in one_line(call(*args, "--drafters", "echo,lame"))
    monkeypatch.setattr(spec_verb, "_every_drafter", lambda: ["lame", "echo"])
    report = json.loads(ok(*args, "--json").stdout)
    assert report["skipped"] == {"lame": "this bundle has no legs"}
    assert list(report["drafters"]) == ["echo"]


def test_the_drafters_of_a_list() -> None:
    assert spec_verb._drafters("copy, recycling:nodes=8,k=2 ,auto,off") == ["copy", "recycling:nodes=8,k=2", "auto"]
    every = spec_verb._every_drafter()
    assert every[0] == "auto"
    assert "off" not in every


def test_a_sample_of_a_public_set(tiny: Path, fakes: Any, tmp_path: Path) -> None:
    path = tmp_path / "test.jsonl"
    path.write_text("".join(json.dumps({"question": f"on {i} hands"}) + "\n" for i in range(9)))
    args = [*ARGS, "-m", tiny, "--drafters", "echo", "--prompts", f"gsm8k={tmp_path}", "--sample", 3, "--json"]
    report, other = (json.loads(ok(*args, "--seed", seed).stdout) for seed in (1, 2))
    assert (report["prompt_set"], report["prompts"]) == (f"gsm8k={tmp_path}", 3)
    assert [task["category"] for task in report["tasks"]] == ["gsm8k"] * 3
    assert [task["begins"] for task in report["tasks"]] != [task["begins"] for task in other["tasks"]]


def test_as_another_geometry(
    tiny: Path, prompts: Path, fakes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnx", reason="widening needs onnx")
    from edgedec.export import geometry

    monkeypatch.setenv("EDGEDEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(geometry.GEOMETRIES, "llama-1b", geometry.Geometry(512, 64, 64, 4, 6, 2, 32))
    args = [*ARGS, "-m", tiny, "--prompts", prompts, "--categories", "story", "--drafters", "echo", "--json"]
    result = ok(*args, "--as", "llama-1b")
    report = json.loads(result.stdout)
    assert (report["as"], report["model"]) == ("llama-1b", "tiny-as-llama-1b")
    assert str(tmp_path / "cache") in result.stderr
    assert ok(*args, "--as", "llama-1b").stderr == "", "made once"
    assert "llama-9b" in one_line(call(*args, "--as", "llama-9b"))


# -- prompts


def test_the_set_that_ships() -> None:
    found = read_prompts()
    categories = {prompt.category for prompt in found}
    assert categories == {"story", "dialogue", "edit", "quotes", "code", "chat", "random"}
    assert len(found) == len({prompt.turns for prompt in found}) >= 20
    assert any(len(prompt.turns) > 1 for prompt in found)


def test_the_set_that_ships_fits_nano(nano: Path) -> None:
    model = edgedec.open(nano)
    for prompt in read_prompts():
        ids = model.chat_ids([{"role": "user", "content": text} for text in prompt.turns])
        assert len(ids) + 256 < model.spec.context_length


def test_nano_decodes_them(nano: Path) -> None:
    args = [*ARGS, "-m", nano, "--engine", "ort", "--limit", 1, "--categories", "story,edit", "--drafters", "copy"]
    report = json.loads(ok(*args, "--json").stdout)
    assert report["drafters"]["copy"]["by_category"].keys() == {"story", "edit"}


def test_time_between_calls_is_without_those_of_a_draft(nano: Path) -> None:
    """What passes outside of the model's calls has the head's calls in it; what passes between calls has not."""
    bench = Bench(edgedec.open(nano, threads=1), tasks_of(read_prompts(None)[:2], GREEDY, 0), 24)
    found = results(bench.measure(["eagle3:fixed=5"], 1), bench.tasks)["drafters"]["eagle3:fixed=5"]
    assert found["proposed"] > 20
    assert 0 < found["between_calls"] < 0.9 * found["outside_calls"]


def test_prompts_are_chosen(prompts: Path) -> None:
    found = read_prompts(prompts)
    assert [p.category for p in choose_prompts([*found, *found], limit=1)] == ["story", "chat", "random"]
    assert choose_prompts(found, ["chat"]) == [Prompt("chat", ("hand", "and on"))]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "no prompts"),
        (b"{", "line 1: not JSON"),
        (b'{"category": "a", "prompt": "b"}\n[1]\n', "line 2: must be an object"),
        (b'{"category": "a"}', 'needs "prompt"'),
        (b'{"category": "a", "turns": []}', 'needs "prompt"'),
        (b'{"category": "a", "turns": ["b", 3]}', 'needs "prompt"'),
        (b'{"prompt": "b"}', 'needs "category"'),
        (b'{"category": "\xff"}', "not UTF-8"),
    ],
)
def test_a_bad_file_is_refused_in_a_line(tiny: Path, tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(content)
    message = one_line(call(*ARGS, "-m", tiny, "--prompts", path))
    assert says in message
    assert "bad.jsonl" in message


def test_what_is_missing_is_said_in_a_line(tiny: Path, tmp_path: Path, prompts: Path) -> None:
    assert "gone.jsonl" in one_line(call(*ARGS, "--prompts", tmp_path / "gone.jsonl"))
    assert "there are: story, chat" in one_line(call(*ARGS, "--prompts", prompts, "--categories", "code"))
    assert "no room" in one_line(call(*ARGS, "-m", tiny, "--prompts", prompts, "-n", 256))
    assert "--plot" in one_line(call(*ARGS, "--plot", "spec.txt"), 2)


@pytest.mark.parametrize(("at", "kept"), [(3, (1, 1)), (5, (1, 2)), (1, None)])
def test_an_interrupt_keeps_what_is_measured(
    tiny: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch, at: int, kept: tuple[int, int] | None
) -> None:
    """Two tasks by two contestants: four runs a round; of a first round the tasks that all have done."""
    chosen = choose_prompts(read_prompts(prompts), [], 0)[:2]
    bench = Bench(edgedec.open(tiny), tasks_of(chosen, Sampling(), 0), 4, True)
    expected: list[float] = []

    def stop(done: int, total: int) -> None:
        assert total == 8
        if done == at:
            raise KeyboardInterrupt

    if kept is None:
        with pytest.raises(KeyboardInterrupt):
            bench.measure(["recycling"], 2, progress=stop)
        return
    found = bench.measure(["recycling"], 2, progress=stop, expect=expected.append)
    assert found.interrupted
    assert (len(found.runs["off"]), found.tasks) == kept
    assert all(len(runs) == found.tasks for rounds in found.runs.values() for runs in rounds)
    assert "interrupted" in found.notes[-1]
    assert expected == [pytest.approx(bench._plain_s * 4 * 10)], "eight runs, and two to count the depth of drafts"


def test_an_interrupt_while_depths_are_counted_keeps_all_rounds(
    tiny: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(bench: Bench, found: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Bench, "_count_depths", stop)
    chosen = choose_prompts(read_prompts(prompts), [], 0)[:2]
    found = Bench(edgedec.open(tiny), tasks_of(chosen, Sampling(), 0), 4, True).measure(["recycling"], 2)
    assert found.interrupted
    assert (len(found.runs["off"]), found.tasks) == (2, 2)


def test_progress_in_a_pipe_is_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    lines = ProgressLines(5.0, lambda: now[0])
    for done in range(1, 21):
        now[0] = done * 1.0
        lines("runs", done, 20)
    err = capsys.readouterr().err.splitlines()
    assert err == [
        "runs: 6 of 20, about 12 s left",
        "runs: 11 of 20, about 8 s left",
        "runs: 16 of 20, about 4 s left",
    ]
