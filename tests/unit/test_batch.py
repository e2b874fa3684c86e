"""Offline batches: order, equality with texts alone, bad rows, formats, and runs that are killed."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from python_steps import python_steps
from typer.testing import CliRunner

import edgedec
from edgedec.cli import _app
from edgedec.constraints import json_schema
from edgedec.decoding.config import GenerationConfig
from edgedec.errors import EdgedecError, RuntimeUnavailable, UsageError
from edgedec.offline import BatchJob, Defaults, Progress, worker
from edgedec.offline.journal import Journal
from edgedec.offline.reading import Row, plain, reading
from edgedec.offline.worker import ChunkQueue, Opening, Worker, pack, unpack
from edgedec.offline.writing import write
from edgedec.sampling import Sampling

Rows = list[dict[str, Any]]
PROMPTS = ("Once upon a time", "Tom and Lily", "One day", "The fox ran to")
SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
INVARIANT = edgedec.open("nano", threads=1).runtime.capabilities.batch_invariant
exact = pytest.mark.skipif(not INVARIANT, reason="texts that share calls need a batch-invariant engine")


@pytest.fixture(scope="module")
def model() -> edgedec.Model:
    return edgedec.open("nano", threads=1)


def prompts(n: int) -> Rows:
    return [{"id": f"r{i}", "prompt": PROMPTS[i % 4], "max_tokens": 1 + (7 * i) % 19} for i in range(n)]


def put(path: Path, rows: Rows) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    return path


def got(path: Path) -> Rows:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def job(source: Path, out: Path, **more: Any) -> BatchJob:
    given: dict[str, Any] = {
        "defaults": Defaults(GenerationConfig(max_tokens=8)),
        "about": {},
        "seed": 7,
        "slots": 4,
        **more,
    }
    return BatchJob(source, out, **given)


def make(model: edgedec.Model, source: Path, out: Path, **more: Any) -> Progress:
    return job(source, out, **more).run(model, lambda: model.session(context=128))


def batched(model: edgedec.Model, folder: Path, rows: Rows, **more: Any) -> Rows:
    make(model, put(folder / "in.jsonl", rows), folder / "out.jsonl", **more)
    assert sorted(path.name for path in folder.iterdir()) == ["in.jsonl", "out.jsonl"]
    return got(folder / "out.jsonl")


# -- what comes out


@exact
@pytest.mark.parametrize("slots", [1, 3, 16])
def test_each_text_is_what_its_session_says_alone_in_input_order(
    model: edgedec.Model, tmp_path: Path, slots: int
) -> None:
    pytest.importorskip("llguidance")
    rows = prompts(24)
    ways: Rows = [
        {},
        {"temperature": 0.8, "top_p": 0.9},
        {"temperature": 1.0, "seed": 5},
        {"stop": [" the", " was"]},
        {"repetition_penalty": 1.3, "top_k": 5, "logit_bias": {"300": 2.5}},
        {"json_schema": SCHEMA, "max_tokens": 30},
    ]
    rows = [row | ways[i % len(ways)] for i, row in enumerate(rows)]
    found = batched(model, tmp_path, rows, slots=slots)
    assert [out["id"] for out in found] == [row["id"] for row in rows]
    assert [out["row"] for out in found] == list(range(24))
    for i, (row, out) in enumerate(zip(rows, found, strict=True)):
        names = ("temperature", "top_p", "repetition_penalty", "top_k")
        chosen = Sampling(
            **{name: row[name] for name in names if name in row},
            seed=row.get("seed", 7 + i),
            logit_bias={int(token): bias for token, bias in row.get("logit_bias", {}).items()},
        )
        session = model.session(context=128, speculate="off")
        must = json_schema(model, SCHEMA) if "json_schema" in row else None
        text = "".join(
            session.generate(
                row["prompt"], max_tokens=row["max_tokens"], sampling=chosen, stop=row.get("stop", ()), constraint=must
            )
        )
        assert out["text"] == text, row
        assert out["finish_reason"] == session.finish_reason
        assert (out["prompt_tokens"], out["generated_tokens"]) == (session.stats.prompt, session.stats.generated)
        assert out.get("seed") == (chosen.seed if chosen.temperature else None)


def test_bad_rows_stand_in_their_place(model: edgedec.Model, tmp_path: Path) -> None:
    lines: list[tuple[bytes, str]] = [
        (b'{"prompt": "One day"}', ""),
        (b"{bad", "line 2: not JSON"),
        (b"[1]", "not a JSON object"),
        (b'{"id": 4}', "no prompt"),
        (b'{"prompt": "x", "top_p": 7}', "top_p: 7"),
        (b'{"prompt": "x", "temperature": NaN}', "NaN"),
        (b'{"prompt": "\xff"}', "not UTF-8"),
        (b'{"prompt": "x", "max_tokens": "many"}', "max_tokens: not JSON"),
        (b'{"prompt": "x", "max_tokens": -3}', "max_tokens -3"),
        (b'{"prompt": "x", "seed": 1.5}', "seed: 1.5"),
        (b'{"prompt": "x", "stop": [""]}', "stop strings"),
        (b'{"prompt": [999999]}', "outside the vocabulary"),
        (b'{"prompt": []}', "nothing to continue"),
        (b'{"prompt": 5}', "prompt: must be"),
        (b'{"prompt": "x", "messages": []}', "give one of them"),
        (b'{"messages": [{"role": "user"}]}', "messages: each needs"),
        (b'{"prompt": "x", "logit_bias": {"99999": 1}}', "vocabulary"),
        (b'{"prompt": "x", "ignore_eos": "maybe"}', "ignore_eos"),
        (b'{"prompt": "x", "regex": "a", "grammar": "b"}', "grammar: "),
        (json.dumps({"prompt": "word " * 300}).encode(), "do not fit a context of 128"),
        (b"[" * 100_000, "not JSON"),
        (b'{"prompt": "One day", "temperature": null, "note": "\\ud800"}', ""),
    ]
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(b"\n".join(line for line, _ in lines))
    progress = make(model, source, out)
    found = got(out)
    assert (progress.rows, progress.failed) == (len(lines), len(lines) - 2)
    for number, (entry, (line, said)) in enumerate(zip(found, lines, strict=True)):
        assert entry["row"] == number
        if said:
            assert said in entry["error"], line
            assert "text" not in entry
        else:
            assert "error" not in entry
    assert found[0]["text"] == found[-1]["text"] != ""
    assert found[-1]["note"] == "\ud800"


def test_a_context_that_runs_full_ends_its_text(model: edgedec.Model, tmp_path: Path) -> None:
    rows = [{"prompt": "One day", "max_tokens": most, "ignore_eos": True} for most in (500, None)]
    for out in batched(model, tmp_path, rows, defaults=Defaults()):
        assert out["finish_reason"] == "context"
        assert out["prompt_tokens"] + out["generated_tokens"] >= 128


def test_columns_that_mean_nothing_come_back(model: edgedec.Model, tmp_path: Path) -> None:
    rows = [
        {"q": "One day", "prompt": "mine", "text": "t", "input_text": "u", "deep": {"a": [1, None]}, "max_tokens": 2}
    ]
    (found,) = batched(model, tmp_path, rows, defaults=Defaults(column="q"))
    assert found["prompt"] == "mine"
    assert found["deep"] == {"a": [1, None]}
    assert {found["input_text"], found["input_input_text"]} == {"t", "u"}
    assert found["generated_tokens"] == 2


def test_what_the_command_says_holds_for_rows_that_say_nothing(model: edgedec.Model, tmp_path: Path) -> None:
    pytest.importorskip("llguidance")
    rows: Rows = [{"prompt": "x"}, {"prompt": "x", "regex": "ab"}, {"prompt": "x", "max_tokens": 1}]
    defaults = Defaults(GenerationConfig(max_tokens=9), ("regex", "(cat|dog){2}"))
    first, second, third = batched(model, tmp_path, rows, defaults=defaults)
    assert first["text"] in {"catcat", "catdog", "dogcat", "dogdog"}
    assert second["text"] == "ab"
    assert third["generated_tokens"] == 1
    with pytest.raises(UsageError):  # before any row is read
        make(model, tmp_path / "in.jsonl", tmp_path / "b.jsonl", defaults=Defaults(constraint=("regex", "(")))


def test_min_tokens_of_rows_and_of_the_command(model: edgedec.Model, tmp_path: Path) -> None:
    end = min(model.eos)
    ends_at_once = {"prompt": "One day", "logit_bias": {str(end): 1000}, "max_tokens": 6}
    rows: Rows = [ends_at_once, ends_at_once | {"min_tokens": 4}, ends_at_once | {"min_tokens": "2"}]
    defaults = Defaults(GenerationConfig(min_tokens=3))
    assert [out["generated_tokens"] for out in batched(model, tmp_path, rows, defaults=defaults)] == [3, 4, 2]
    put(tmp_path / "in.jsonl", rows)
    assert call(tmp_path / "in.jsonl", "-o", tmp_path / "c.jsonl", "--temp", 0, "--min-tokens", 5).exit_code == 0
    assert [out["generated_tokens"] for out in got(tmp_path / "c.jsonl")] == [5, 4, 2]


def test_a_common_beginning_is_read_once_and_memory_stays_flat(
    model: edgedec.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that begin with the same 100 tokens read them once in all; of ended texts few caches stay."""
    from edgedec.decoding.scheduler.batch import Batch

    read, kept = 0, 0
    python_steps(model.runtime)
    forward, step = model.runtime.forward, Batch.step

    def counted(calls: Any) -> Any:
        nonlocal read
        read += sum(call.rows.count for call in calls)
        return forward(calls)

    def watched(self: Batch) -> bool:
        nonlocal kept
        going = step(self)
        kept = max(kept, len(self.prefixes))
        return going

    monkeypatch.setattr(model.runtime, "forward", counted)
    monkeypatch.setattr(Batch, "step", watched)
    opening = list(range(5, 105))
    rows: Rows = [{"prompt": [*opening, 200 + i], "max_tokens": 2, "ignore_eos": True} for i in range(30)]
    defaults, source = Defaults(), put(tmp_path / "in.jsonl", rows)
    made = job(source, tmp_path / "out.jsonl", defaults=defaults, slots=3)
    made.run(model, lambda: model.session(context=128, speculate="off"))
    assert [out["prompt_tokens"] for out in got(tmp_path / "out.jsonl")] == [101] * 30
    assert read < 100 + 30 * 10
    assert 0 < kept <= 2 * 3


# -- files


def test_formats_say_the_same(model: edgedec.Model, tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows: Rows = [row | {"note": f'a "q", {i}\nü', "temperature": 0.5 * (i % 2)} for i, row in enumerate(prompts(9))]
    rows[4] = {"id": "none", "note": "x"}
    rows[5] |= {"stop": ["a", "b"]}
    put(tmp_path / "in.jsonl", rows)
    columns = ["id", "prompt", "max_tokens", "note", "temperature", "stop"]
    with (tmp_path / "in.csv").open("w", encoding="utf-8-sig", newline="") as file:
        table = csv.writer(file)
        table.writerow(columns)
        for row in rows:
            cells = [row.get(name, "") for name in columns]
            table.writerow([json.dumps(cell) if isinstance(cell, list) else cell for cell in cells])
    parquet.write_table(
        arrow.Table.from_pylist([dict.fromkeys(columns) | row for row in rows]), tmp_path / "in.parquet"
    )
    outs = []
    for form in ("jsonl", "csv", "parquet"):
        make(model, tmp_path / f"in.{form}", tmp_path / f"{form}.jsonl")
        make(model, tmp_path / f"in.{form}", tmp_path / f"{form}.parquet")
        outs.append(got(tmp_path / f"{form}.jsonl"))
        flat = parquet.read_table(tmp_path / f"{form}.parquet").to_pylist()
        assert [{name: value for name, value in row.items() if value is not None} for row in flat] == outs[-1]
    assert outs[0] == outs[1] == outs[2]
    assert [out["id"] for out in outs[0]] == [row["id"] for row in rows]


def test_a_column_of_several_kinds_is_json_in_parquet(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    lines: Rows = [
        {"row": 0, "a": 1, "b": {}, "n": None, "w": 1},
        {"row": 1, "a": "x", "b": {"c": 2}, "n": None, "w": 2.5},
    ]
    write(tmp_path / "o.parquet", "parquet", lambda: (json.dumps(line).encode() + b"\n" for line in lines))
    found = parquet.read_table(tmp_path / "o.parquet").to_pylist()
    assert [row["w"] for row in found] == [1.0, 2.5]
    assert [json.loads(row["a"]) if isinstance(row["a"], str) else row["a"] for row in found] == [1, "x"]
    assert [row["n"] for row in found] == [None, None]
    write(tmp_path / "e.parquet", "parquet", lambda: iter(()))
    assert parquet.read_table(tmp_path / "e.parquet").num_rows == 0


def test_rows_that_no_csv_has(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(b'prompt,n\n"two\nlines",1\na,2,3\n\xff,4\n\nlast,\n')
    with reading(path, "csv") as rows:
        found = list(rows)
    assert [row.data for row in found] == [{"prompt": "two\nlines", "n": "1"}, {}, {}, {"prompt": "last"}]
    assert [bool(row.error) for row in found] == [False, True, True, False]
    assert found[-1].at == path.stat().st_size
    path.write_text("a,a\n")
    with pytest.raises(UsageError, match="each once"), reading(path, "csv") as rows:
        list(rows)


def test_what_json_cannot_say_is_text() -> None:
    from datetime import date

    assert (plain(b"\x00\xff"), plain(date(2020, 1, 2)), plain(complex(1))) == ("AP8=", "2020-01-02", "(1+0j)")


def test_parquet_without_its_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(RuntimeUnavailable, match='pip install "pyarrow'), reading(tmp_path / "x", "parquet") as rows:
        next(rows)


def test_openai_lines(model: edgedec.Model, tmp_path: Path) -> None:
    pytest.importorskip("llguidance")

    def line(name: str, url: str, **body: Any) -> dict[str, Any]:
        return {"custom_id": name, "method": "POST", "url": url, "body": {"model": "any", **body}}

    chat, completions = "/v1/chat/completions", "/v1/completions"
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    said = [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]
    rows = [
        line("a", completions, prompt="One day", max_tokens=5, temperature=0, n=1, stream=False),
        line("b", completions, prompt="One day", max_tokens=30, response_format=form),
        line("c", completions, prompt="One day", n=3, best_of=2),
        line("d", completions, prompt="One day", logprobs=2),
        line("e", "/v1/embeddings", input="One day"),
        line("f", chat, messages="Hello"),
        line("g", chat, messages=said, max_completion_tokens=3),
        {"custom_id": "h", "body": 5, "url": chat},
    ]
    found = batched(model, tmp_path, rows)
    assert [out["custom_id"] for out in found] == list("abcdefgh")
    assert all(set(out) == {"id", "custom_id", "response", "error"} and out["error"] is None for out in found)
    assert len({out["id"] for out in found}) == len(found)
    bodies = {out["custom_id"]: out["response"]["body"] for out in found}
    assert bodies["a"]["choices"][0]["text"] == "".join(model.session().generate("One day", max_tokens=5))
    assert bodies["a"]["choices"][0]["finish_reason"] == "length"
    assert bodies["a"]["usage"]["total_tokens"] == bodies["a"]["usage"]["prompt_tokens"] + 5
    assert set(json.loads(bodies["b"]["choices"][0]["text"])) == {"a"}
    assert bodies["b"]["choices"][0]["finish_reason"] == "stop"
    refused = {"c": "best_of", "d": "logprobs", "e": None, "f": "messages", "h": "body"}
    for name, param in refused.items():
        error = bodies[name]["error"]
        assert error["type"] == "invalid_request_error"
        assert error["param"] == param or param is None
    status = [out["response"]["status_code"] for out in found]
    assert [code for i, code in enumerate(status) if i != 6] == [200, 200, 400, 400, 400, 400, 400]
    if model.bundle.manifest.text.chat_template is None:
        assert "chat template" in bodies["g"]["error"]["message"]
    else:
        assert bodies["g"]["choices"][0]["message"]["role"] == "assistant"
        ids = model.chat_ids([{"role": "user", "content": "Hello"}])
        assert bodies["g"]["choices"][0]["message"]["content"] == "".join(model.session().generate(ids, max_tokens=3))


# -- memory


@pytest.mark.parametrize("window", [1, 5, 12])
def test_reading_is_never_far_ahead(
    model: edgedec.Model, tmp_path: Path, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One long text first, then many short ones, of which most are bad: they wait for it."""
    rows: Rows = [{"prompt": "One day", "max_tokens": 60, "ignore_eos": True}]
    rows += [{"prompt": "x", "max_tokens": 1} if i % 3 == 0 else {"no": 1} for i in range(60)]
    read = held = 0
    made = job(put(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl", window=window)
    original = BatchJob.rows

    def counted(self: BatchJob, journal: Journal, progress: Progress) -> Iterator[Row]:
        nonlocal read, held
        for row in original(self, journal, progress):
            read += 1
            held = max(held, row.number - journal.done.low, len(journal.done.above))
            yield row

    monkeypatch.setattr(BatchJob, "rows", counted)
    made.run(model, lambda: model.session(context=128))
    assert read == 61
    assert held <= window
    assert [out["row"] for out in got(tmp_path / "out.jsonl")] == list(range(61))


# -- killed, and run again


class Killed(BaseException):
    pass


def test_stopped_at_any_call_it_goes_on_where_it_was(model: edgedec.Model, tmp_path: Path) -> None:
    """Every row is generated once, but for those in the making; the output is that of a run left alone."""
    rows = [*prompts(20), {"bad": 1}]
    defaults = Defaults(GenerationConfig(Sampling(temperature=0.9), 8))
    source, whole, out = put(tmp_path / "in.jsonl", rows), tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    make(model, source, whole, defaults=defaults)
    finished = 0
    for steps in (3, 9, 1, 14, 6):
        left = steps

        def stop(progress: Progress) -> None:
            nonlocal left, finished
            left, finished = left - 1, progress.rows
            if not left:
                raise Killed

        with pytest.raises(Killed):
            job(source, out, defaults=defaults).run(model, lambda: model.session(context=128), stop)
        assert not out.exists()
    assert 0 < finished < 21
    progress = make(model, source, out, defaults=replace(defaults), slots=7)
    assert progress.kept == finished
    assert progress.rows == 21
    assert out.read_bytes() == whole.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl", "whole.jsonl"]


@pytest.fixture(scope="module")
def halted(model: edgedec.Model, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes, bytes]:
    """An input, its whole output, and the journal of all of it."""
    folder = tmp_path_factory.mktemp("halted")
    source = put(folder / "in.jsonl", [*prompts(11), {"bad": 1, "note": "ü"}])
    make(model, source, folder / "whole.jsonl")
    kept = b""

    def look(progress: Progress) -> None:
        nonlocal kept
        kept = (folder / "out.jsonl.partial").read_bytes()

    job(source, folder / "out.jsonl").run(model, lambda: model.session(context=128), look)
    return source, (folder / "whole.jsonl").read_bytes(), kept


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_torn_or_damaged_journal_loses_nothing(
    halted: tuple[Path, bytes, bytes], model: edgedec.Model, tmp_path: Path, data: st.DataObject
) -> None:
    source, whole, kept = halted
    first = kept.index(b"\n") + 1
    cut = data.draw(st.integers(0, len(kept)))
    torn = bytearray(kept[:cut])
    kind = data.draw(st.sampled_from(["torn", "zeros", "noise", "flipped", "twice"]))
    if kind == "zeros":
        torn += bytes(data.draw(st.integers(1, 300))) if cut >= first else b""
    elif kind == "noise":
        torn += data.draw(st.binary(max_size=60)) if cut >= first else b""
    elif kind == "flipped" and cut > first:
        torn[data.draw(st.integers(first, cut - 1))] ^= 1 << data.draw(st.integers(0, 7))
    elif kind == "twice":
        torn += kept[kept.rindex(b"\n", 0, len(kept) - 1) + 1 :] if kept[:cut].endswith(b"\n") else b""
    out = tmp_path / "out.jsonl"
    out.unlink(missing_ok=True)
    (tmp_path / "out.jsonl.partial").write_bytes(torn)
    if data.draw(st.booleans()):
        (tmp_path / "out.jsonl.partial.new").write_bytes(b"half a file")
    make(model, source, out)
    assert out.read_bytes() == whole
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl"]


def test_a_journal_of_something_else_is_refused(
    halted: tuple[Path, bytes, bytes], model: edgedec.Model, tmp_path: Path
) -> None:
    source, whole, kept = halted
    out, partial = tmp_path / "out.jsonl", tmp_path / "out.jsonl.partial"
    other = put(tmp_path / "other.jsonl", [{"prompt": "Other"}])
    text = source.read_bytes()
    swapped = tmp_path / "swapped.jsonl"
    swapped.write_bytes(text.replace(b'"r2"', b'"r9"'))
    cases: list[tuple[Path, dict[str, Any], str]] = [
        (other, {}, "another input"),
        (swapped, {}, "row 2 is not the same"),
        (source, {"defaults": Defaults(GenerationConfig(max_tokens=9))}, "max_tokens 8, not 9"),
        (source, {"defaults": Defaults(GenerationConfig(Sampling(temperature=0.5), 8))}, "temperature 0.0, not 0.5"),
        (source, {"seed": 8}, "seed 7, not 8"),
        (source, {"about": {"kv": "f16"}}, "kv None, not 'f16'"),
    ]
    for given_source, more, said in cases:
        partial.write_bytes(kept)
        with pytest.raises(UsageError, match=said):
            make(model, given_source, out, **more)
        assert not out.exists()
        assert partial.read_bytes() == kept
    partial.write_bytes(kept[: kept.index(b"\n") + 1])  # nothing is finished: nothing to lose
    make(model, other, tmp_path / "out.jsonl", seed=8)
    out.unlink()
    partial.write_bytes(b"a diary\n")
    with pytest.raises(UsageError, match="no journal"):
        make(model, source, out)
    assert partial.read_bytes() == b"a diary\n"
    make(model, source, out, force=True)
    assert out.read_bytes() == whole
    with pytest.raises(UsageError, match="exists already"):
        make(model, source, out)
    with pytest.raises(UsageError, match="is the input"):
        make(model, source, source, force=True)


@pytest.mark.skipif(os.name == "nt", reason="locks of POSIX")
def test_two_runs_do_not_write_one_journal(tmp_path: Path) -> None:
    first = Journal(tmp_path / "j")
    first.begin({"about": {}})
    for force in (False, True):
        with pytest.raises(UsageError, match="another edgedec batch"):
            Journal(tmp_path / "j", force=force)
    first.add(0, "x", {"a": 1}, failed=False)
    first.close()
    assert list(Journal(tmp_path / "j").results()) == [b'{"a": 1}\n']


@given(order=st.permutations(range(9)), n=st.integers(0, 9))
def test_entries_come_in_order_whatever_is_missing(
    tmp_path_factory: pytest.TempPathFactory, order: list[int], n: int
) -> None:
    path = tmp_path_factory.mktemp("j") / "j"
    journal = Journal(path)
    journal.begin({})
    for row in order[:n]:
        journal.add(row, f"d{row}", {"out": row, "of": ', "out": '}, failed=row == 3)
    for again in (journal, None):
        if again is None:
            journal.close()
        again = again or Journal(path)
        assert [(entry.row, entry.digest) for entry in again.entries()] == [(r, f"d{r}") for r in sorted(order[:n])]
        assert [json.loads(line)["out"] for line in again.results()] == sorted(order[:n])
        assert (len(again.done), again.failed) == (n, 3 in order[:n])
        again.close()


COMMAND = "import sys; from edgedec.cli import main; sys.exit(main(sys.argv[1:]))"


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_kill_9_at_random_moments(tmp_path: Path, ending: str) -> None:
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    rows = [{"id": i, "prompt": PROMPTS[i % 4], "max_tokens": 20 + i} for i in range(40)]
    rows[17] = {"id": 17}
    source = put(tmp_path / "in.jsonl", rows)
    flags = ["-t", "1", "-b", "4", "--temp", "0.7", "--seed", "3"]

    def start(out: Path) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", COMMAND, "batch", str(source), "-o", str(out), *flags]
        return subprocess.Popen(command, stderr=subprocess.PIPE)

    whole, out = tmp_path / f"whole.{ending}", tmp_path / f"out.{ending}"
    assert start(whole).wait() == 0
    chance, kept, kills = random.Random(5), 0, 0
    partial = tmp_path / f"out.{ending}.partial"
    for _ in range(5):
        running = start(out)
        # Some results more than the last time, and then any moment; or the end, if that comes first.
        aim = kept + chance.randrange(1, 9)
        while running.poll() is None and lines(partial) < aim:
            time.sleep(0.002)
        time.sleep(chance.random() * 0.02)
        running.send_signal(signal.SIGKILL)
        kills += running.wait() == -signal.SIGKILL
        assert lines(partial) >= kept, "something finished was lost"
        kept = lines(partial)
    assert kills >= 3
    assert not out.exists()
    last = start(out)
    said = last.communicate()[1].decode()
    assert last.returncode == 0, said
    assert f"{kept} of them by an earlier run" in said
    assert out.read_bytes() == whole.read_bytes()
    assert not partial.exists()


def lines(path: Path) -> int:
    """Whole results in a journal."""
    return max(path.read_bytes().count(b"\n") - 1, 0) if path.exists() else 0


# -- the command


def call(*args: object, stdin: bytes | None = None) -> Any:
    return CliRunner().invoke(_app.app, ["batch", *(str(arg) for arg in args), "-t", "1"], input=stdin)


def test_the_command(tmp_path: Path) -> None:
    source, out = put(tmp_path / "in.jsonl", [*prompts(5), {"bad": 1}]), tmp_path / "out.jsonl"
    result = call(source, "-o", out, "--temp", 0, "-b", 2, "--json")
    assert result.exit_code == 0
    facts = json.loads(result.stdout)
    assert (facts["rows"], facts["failed"], facts["kept"]) == (6, 1, 0)
    assert facts["tokens"] == sum(entry.get("generated_tokens", 0) for entry in got(out))
    assert "6 rows; 1 failed" in result.stderr
    piped = call("-", "-o", tmp_path / "piped.jsonl", "--temp", 0, stdin=source.read_bytes())
    assert piped.exit_code == 0
    assert (tmp_path / "piped.jsonl").read_bytes() == out.read_bytes()


def test_misuse_is_one_line(tmp_path: Path) -> None:
    source = put(tmp_path / "in.jsonl", prompts(1))
    cases: list[tuple[list[object], int, str]] = [
        ([source, "-o", tmp_path / "out.txt"], 1, "must end in one of"),
        ([source, "-o", tmp_path / "out.csv"], 1, "JSONL or Parquet"),
        ([tmp_path / "in.xml", "-o", tmp_path / "o.jsonl"], 1, "must end in one of"),
        ([tmp_path / "no.jsonl", "-o", tmp_path / "o.jsonl"], 1, "no.jsonl"),
        ([source, "-o", tmp_path / "no" / "o.jsonl"], 1, "there is no folder"),
        ([source, "-o", tmp_path / "o.jsonl", "-b", "0"], 2, "--batch-size"),
        ([source], 2, "--output"),
        ([source, "-o", tmp_path / "o.jsonl", "--spec", "nonsense"], 1, "nonsense"),
    ]
    for args, code, said in cases:
        result = call(*args)
        assert result.exit_code == code, (args, result.output)
        assert said in result.stderr, args
        assert result.stderr.count("\n") == 1
    assert not (tmp_path / "o.jsonl").exists()


def test_the_bar_shows_rows_speed_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    from edgedec.cli import batch

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys, "stderr", screen := Terminal())
    with batch._bar(quiet=False) as show:
        show(Progress(rows=3, failed=1, tokens=10, at=50, size=100))
        show(Progress(rows=4, failed=1, tokens=20, at=80, size=None))
    assert "4 (1 failed) rows" in screen.getvalue()
    assert "tokens/s" in screen.getvalue()


# -- on a cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """Ray with room for two workers."""
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100 << 20)
    yield
    ray.shutdown()


SAMPLED = Defaults(GenerationConfig(Sampling(temperature=0.9), 8))


def begun(source: Path, out: Path, way: Callable[[BatchJob, Callable[[Progress], None]], Progress]) -> int:
    """Stopped after some rows; how many."""

    def stop(progress: Progress) -> None:
        if progress.rows > 4:
            raise Killed

    with pytest.raises(Killed):
        way(job(source, out, defaults=SAMPLED), stop)
    return lines(out.with_name("out.jsonl.partial"))


@pytest.mark.parametrize("first", ["here", "cluster"])
def test_begun_here_or_on_ray_it_is_finished_on_the_other(
    model: edgedec.Model, tmp_path: Path, cluster: None, first: str
) -> None:
    """The same bytes as of one run here. On the way, a worker of the cluster dies."""
    from edgedec.offline.cluster import run

    source, out, whole = (
        put(tmp_path / "in.jsonl", [*prompts(60), {"bad": 1}]),
        tmp_path / "out.jsonl",
        tmp_path / "w.jsonl",
    )
    make(model, source, whole, defaults=SAMPLED)
    killed: list[int] = []

    def kill(progress: Progress) -> None:
        if first == "here" and not killed and progress.rows > progress.kept:
            killed.extend(workers()[:1])
            for pid in killed:
                os.kill(pid, signal.SIGKILL)

    def here(job: BatchJob, show: Callable[[Progress], None]) -> Progress:
        return job.run(model, lambda: model.session(context=128), show)

    def there(job: BatchJob, show: Callable[[Progress], None]) -> Progress:
        return run(job, Opening(threads=1, context=128), 0, show)

    ways = [here, there] if first == "here" else [there, here]
    kept = begun(source, out, ways[0])
    progress = ways[1](job(source, out, defaults=SAMPLED), kill)
    assert (progress.rows, progress.failed, progress.kept) == (61, 1, kept)
    assert progress.tokens > 0
    assert out.read_bytes() == whole.read_bytes()
    if sys.platform == "linux":
        assert bool(killed) == (first == "here")


def workers() -> list[int]:
    """Processes of Ray's that this one began, and that make texts."""
    found, parents = [], {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if b"MapWorker" in (path / "cmdline").read_bytes():
                found.append(int(path.name))

    def ours(pid: int) -> bool:
        return pid == os.getpid() or (pid in parents and ours(parents[pid]))

    return [pid for pid in found if ours(pid)]


def test_the_command_on_ray(tmp_path: Path, cluster: None) -> None:
    """Its rows from a pipe, and nothing of Ray's on stdout."""
    source, out = put(tmp_path / "in.jsonl", [*prompts(5), {"bad": 1}]), tmp_path / "out.jsonl"
    piped = call("-", "-o", out, "--temp", 0, "--engine", "ray", "--json", stdin=source.read_bytes())
    assert piped.exit_code == 0, piped.output
    facts = json.loads(piped.stdout)
    assert (facts["rows"], facts["failed"]) == (6, 1)
    assert call(source, "-o", tmp_path / "here.jsonl", "--temp", 0).exit_code == 0
    assert out.read_bytes() == (tmp_path / "here.jsonl").read_bytes()


def test_workers_that_open_something_else_say_so(
    model: edgedec.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyarrow")
    pytest.importorskip("llguidance")
    monkeypatch.setattr(worker, "_may_start", lambda queue: None)
    header = {"seed": 7, "created": 0, "job": ""}
    # One of them twice: when a machine is lost, rows that others still have may come again.
    rows = [Row(i, "", {"prompt": "One day", "max_tokens": 3}) for i in (*range(8), 3)]

    def said(opening: Opening, **more: Any) -> list[Any]:
        asked = job(tmp_path / "in.jsonl", tmp_path / "out.jsonl", slots=2, **more)
        return [made for table in Worker(asked, opening, header, None)(pack(rows)) for made in unpack(table)]

    assert [made.number for made in said(Opening(threads=1), about={"engine": model.runtime.name})] == [*range(8), 3]
    wrongs: list[tuple[Opening, dict[str, Any], str]] = [
        (Opening(threads=1), {"about": {"engine": "other"}}, "not 'other'"),
        (Opening(threads=1), {"about": {"model": "0"}}, "not '0'"),
        (Opening("nowhere", threads=1), {}, "nowhere"),
        (Opening(threads=1), {"defaults": Defaults(constraint=("regex", "("))}, "regex"),
    ]
    for opening, more, why in wrongs:
        (error,) = said(opening, **more)
        assert isinstance(error, EdgedecError)
        assert why in str(error)


def test_rows_go_to_a_cluster_as_results_come(tmp_path: Path) -> None:
    """Not more than the workers can use, nor further ahead of a slow one than the window."""
    pytest.importorskip("ray")
    from edgedec.offline.cluster import _Ahead

    source = put(tmp_path / "in.jsonl", prompts(100))
    for window, workers, most in ((1000, 1, 16), (1000, 2, 32), (7, 2, 7)):
        journal = Journal(tmp_path / f"j{window}{workers}")
        journal.begin({})
        ahead = _Ahead(job(source, tmp_path / "o.jsonl", window=window), journal, Progress(), workers)
        given = [row.number for chunk in ahead.chunks() for row in chunk]
        assert given == list(range(most))
        for row in given[1:]:
            journal.add(row, ahead.flying.pop(row).digest, {}, failed=False)
        assert [row.number for chunk in ahead.again() for row in chunk] == [0]
        given = [row.number for chunk in ahead.chunks() for row in chunk]
        assert given == ([] if window == 7 else list(range(most, 2 * most - 2)))  # chunks of two
        journal.close()


def test_workers_have_room_on_a_machine_each() -> None:
    from edgedec.offline.cluster import room

    assert room([8, 4], 0, 2) == (6, 2)
    assert room([8, 4], 3, 0) == (3, 4)
    assert room([8, 4], 0, 0) == (12, 1)
    assert room([2], 5, 0) == (5, 1)  # they wait for each other, or for machines to come
    with pytest.raises(UsageError, match="no machine"):
        room([8, 4], 0, 9)


def test_a_cluster_that_is_not_there_is_said_so_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ray = pytest.importorskip("ray")
    from edgedec.offline.cluster import run

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(RuntimeUnavailable, match="RAY_ADDRESS"):
        run(job(tmp_path / "in.jsonl", tmp_path / "out.jsonl"), Opening())


def test_a_desk_lets_workers_die_so_often() -> None:
    async def go() -> None:
        queue = ChunkQueue(2)
        assert [await queue.may_start() for _ in range(3)] == [True, True, False]
        await queue.give([])
        assert await queue.may_start()
        assert [await queue.may_read(), await queue.may_read()] == [True, False]
        assert await queue.take() == []

    asyncio.run(go())
