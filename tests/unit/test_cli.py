"""The command line: what it prints, how it fails, what it imports."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from checkpoints import write_llama
from typer.testing import CliRunner, Result

import edgedec
from edgedec.cli import _app, _chat
from edgedec.cli import _flags as options
from edgedec.cli._stream import Generation
from edgedec.decoding.config import GenerationConfig
from edgedec.runtime import choose_runtime

COMMANDS = [[verb] for verb in _app.VERBS] + [["eval", "ppl"], ["eval", "kl"]]
COMMANDS += [["bench", "formats"], ["bench", "kernels"], ["bench", "peers"]]
TEMPLATE = "{% for m in messages %}{% if m.role == 'system' %}w9 {% endif %}{{ m.content }} w7 {% endfor %}"
POSIX = pytest.mark.skipif(os.name == "nt", reason="signals and pipes of POSIX")


@pytest.fixture(scope="session")
def words(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny bundle; its token 5 is the word w5; with a chat template, without end token and int4 cache."""
    tokenizers = pytest.importorskip("tokenizers")
    folder = tmp_path_factory.mktemp("words") / "words"
    shutil.copytree(tiny, folder)
    manifest = json.loads((folder / "edgedec.json").read_text())
    vocab = {f"w{i}": i for i in range(manifest["spec"]["vocab_size"])}
    raw = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="w3"))
    raw.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    raw.save(str(folder / "tokenizer.json"))
    content = (folder / "tokenizer.json").read_bytes()
    manifest["files"]["tokenizer.json"] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    manifest["text"] = {"tokenizer": "tokenizer.json", "chat_template": TEMPLATE}
    manifest["kv_formats"] = ["f32", "int8"]
    (folder / "edgedec.json").write_text(json.dumps(manifest))
    return folder


def call(*args: object, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(_app.app, [str(arg) for arg in args], input=stdin)


def ok(*args: object, stdin: str | bytes | None = None) -> str:
    result = call(*args, stdin=stdin)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def one_line(result: Result, code: int) -> str:
    """The error message, which is all that was printed."""
    assert result.exit_code == code, result.output
    assert result.stderr.count("\n") == 1, result.stderr
    assert result.stderr.startswith("edgedec")
    assert "Traceback" not in result.output
    return result.stderr


def run(words: Path, *more: object, stdin: str | None = None) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ok("run", "-m", words, "--temp", 0, "--json", *more, stdin=stdin))
    return found


# -- the group


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_describes_and_gives_examples(command: list[str]) -> None:
    text = ok(*command, "--help")
    description = text.split("\n\n")[1].strip()
    assert 10 < len(description) < 75
    assert description.endswith(".")
    examples = text.split("Examples:\n")[1].split("\n\n")[0].splitlines()
    assert 2 <= len(examples) <= 4
    assert all(f"edgedec {' '.join(command)}" in line for line in examples)


def test_every_file_is_a_verb_and_every_verb_is_in_the_help() -> None:
    folder = Path(_app.__file__).parent
    files = {path.stem for path in (*folder.glob("*.py"), *(path.parent for path in folder.glob("*/__init__.py")))}
    verbs = {name.rstrip("_").replace("_", "-") for name in files if not name.startswith("_")}
    assert verbs == set(_app.VERBS)
    assert set(_app._ORDER) <= verbs
    listed = ok("--help").split("Commands:\n")[1].splitlines()
    assert [line.split()[0] for line in listed if line.strip()] == list(_app.VERBS)
    assert not any(line.endswith("...") for line in listed), "a description is too long for the list"


def test_version() -> None:
    assert ok("--version") == f"edgedec {edgedec.__version__}\n"


def test_without_a_verb_comes_the_help() -> None:
    result = call()
    assert result.exit_code == 2
    assert "Commands:" in result.stdout


USAGE: list[tuple[list[str], str]] = [
    (["nope"], "No such command 'nope'"),
    (["run", "--nope"], "No such option"),
    (["run", "-p"], "-p"),
    (["run", "-p", "w1", "-n", "-7"], "--max-tokens"),
    (["run", "-p", "w1", "-n", "many"], "--max-tokens"),
    (["run", "-p", "w1", "--kv", "int9"], "int9"),
    (["run", "-p", "w1", "--on-full", "explode"], "explode"),
    (["run", "-p", "w1", "-t", "-7"], "--threads"),
    (["run", "-p", "w1", "-f", "x.txt"], "one of them"),
    (["run", "-p", "w1", "--logprobs", "2"], "--json"),
    (["run", "-p", "w1", "--json", "--logprobs", "101"], "--logprobs"),
    (["export", "somewhere"], "--out"),
    (["export", "somewhere", "-o", "x", "--weights", "int5"], "int5"),
    (["inspect"], "BUNDLE"),
    (["bench", "--peer", "nope"], "nope"),
    (["bench", "-r", "0"], "--repetitions"),
    (["eval"], "Missing command"),
    (["eval", "ppl"], "FILE"),
]


@pytest.mark.parametrize(("args", "said"), USAGE, ids=[" ".join(args) for args, _ in USAGE])
def test_misuse_is_one_line_and_exit_code_2(args: list[str], said: str) -> None:
    line = one_line(call(*args), 2)
    assert said in line
    assert "--help)" in line


FAILURES: list[tuple[list[str], str]] = [
    (["-p", "w1", "--top-p", "3"], "top_p: 3.0"),
    (["-p", "w1", "--temp", "-1"], "temperature"),
    (["-p", "w1", "--temp", "nan"], "temperature"),
    (["-p", "w1", "--seed", "-1"], "seed"),
    (["-p", "w1", "--logit-bias", "5=nan"], "logit_bias"),
    (["-p", "w1", "--logit-bias", "5=1", "--logit-bias", "5=2"], "logit_bias"),
    (["-p", "w1", "--logit-bias", "999999999=1"], "vocabulary"),
    (["-p", "w1", "--engine", "abacus"], "abacus"),
    (["-p", "w1", "--kv", "int4", "--engine", "ort"], "int4"),
    (["-p", "w1", "-c", "1000000"], "1000000"),
    (["-p", ""], "nothing to continue"),
    (["-f", "no-such-file"], "no-such-file"),
    (["-p", "w1", "--session", "no-such-folder/s"], "no-such-folder"),
    (["-p", "w1", "--stop", ""], "stop"),
]


@pytest.mark.parametrize(("args", "said"), FAILURES, ids=[" ".join(args) for args, _ in FAILURES])
def test_failure_is_one_line_and_exit_code_1(words: Path, args: list[str], said: str) -> None:
    # The last line: what was printed of the prompt before stands on stdout.
    assert said in one_line(call("run", "-m", words, "-n", 2, *args), 1)


@pytest.mark.parametrize("verb", [["run", "-p", "x", "-m"], ["chat", "-m"], ["inspect"], ["verify"], ["bench", "-m"]])
def test_a_missing_bundle_is_one_line(verb: list[str], tmp_path: Path) -> None:
    assert "no such bundle" in one_line(call(*verb, tmp_path / "nowhere"), 1)
    assert "edgedec.json" in one_line(call(*verb, tmp_path), 1)


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("adapter_config.json", "edgedec adapter"),
        ("model.safetensors", "edgedec export"),
        ("model-q4_0.gguf", "GGUF"),
        ("model.onnx", "ONNX"),
    ],
)
def test_a_folder_that_is_something_else_is_named(tmp_path: Path, file: str, said: str) -> None:
    (tmp_path / file).write_bytes(b"")
    assert said in one_line(call("run", "-m", tmp_path, "-p", "x"), 1)


def test_a_folder_is_no_adapter_file(words: Path, tmp_path: Path) -> None:
    assert "edgedec adapter" in one_line(call("run", "-m", words, "-p", "w1", "--lora", tmp_path), 1)
    (tmp_path / "adapter_config.json").write_text("{}")
    pytest.importorskip("onnx", reason="exporting needs onnx")
    assert "LoRA" in one_line(call("export", tmp_path, "-o", tmp_path / "b"), 1)


def test_bad_bias_is_misuse(words: Path) -> None:
    assert "TOKEN=BIAS" in one_line(call("run", "-m", words, "-p", "w1", "--logit-bias", "w5"), 2)


def test_an_operating_system_error_is_one_line(words: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "/full/disk")

    monkeypatch.setattr(edgedec.Session, "save", full)
    result = call("run", "-m", words, "-p", "w1", "-n", 1, "--session", "s")
    assert one_line(result, 1) == "edgedec: /full/disk: No space left on device\n"


# -- run


def test_run_goes_on_with_the_text(words: Path) -> None:
    report = run(words, "-p", "w1 w2", "-n", 5)
    session = edgedec.open(words).session()
    assert report["tokens"] == [int(token) for token in session.tokens([1, 2], max_tokens=5)]
    assert report["prompt"] == "w1 w2"
    assert report["finish_reason"] == "length"
    assert (report["stats"]["prompt_tokens"], report["stats"]["generated_tokens"]) == (2, 5)
    assert set(report) == {"prompt", "text", "tokens", "finish_reason", "stats"}
    plain = ok("run", "-m", words, "--temp", 0, "-p", "w1 w2", "-n", 5)
    assert plain == "w1 w2" + report["text"] + "\n"
    assert ok("run", "-m", words, "--temp", 0, "-p", "w1 w2", "-n", 5, "--no-echo") == report["text"] + "\n"


@pytest.mark.parametrize("how", ["piped", "dash", "file"])
def test_the_prompt_may_come_from_elsewhere(words: Path, tmp_path: Path, how: str) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text("w4 w5\n")
    args: dict[str, list[object]] = {"piped": [], "dash": ["-p", "-"], "file": ["-f", file]}
    found = run(words, "-n", 3, *args[how], stdin=None if how == "file" else "w4 w5\n")
    expected = run(words, "-n", 3, "-p", "w4 w5")
    assert (found["prompt"], found["tokens"]) == ("w4 w5", expected["tokens"])


def test_input_that_is_no_text_is_refused(words: Path) -> None:
    assert "UTF-8" in one_line(call("run", "-m", words, stdin=b"w1 \xff"), 1)


def test_no_prompt_at_a_terminal_is_misuse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    with pytest.raises(typer.BadParameter, match="no prompt"):
        options.read_prompt(None, None)
    assert options.read_prompt(None, None, optional=True) is None


def test_stop_string_ends_the_text_before_it(words: Path) -> None:
    whole = run(words, "-p", "w1 w2", "-n", 12)
    stop = f"w{whole['tokens'][4]}"
    cut = run(words, "-p", "w1 w2", "-n", 12, "--stop", "nowhere", "--stop", stop)
    assert cut["finish_reason"] == "stop"
    assert cut["text"] == whole["text"][: whole["text"].index(stop)]


def test_minus_one_runs_until_the_context_is_full(words: Path) -> None:
    report = run(words, "-p", "w1 w2", "-c", 12)
    assert report["finish_reason"] == "context"
    assert report["stats"]["prompt_tokens"] + report["stats"]["generated_tokens"] >= 12


def test_a_context_too_small_for_what_was_asked(words: Path) -> None:
    args = ["run", "-m", words, "-p", "w1 w2", "-c", 12, "-n", 30, "--temp", 0]
    result = call(*args)
    assert "context of 12" in one_line(result, 1)
    assert result.stdout.startswith("w1 w2 w")
    assert result.stdout.endswith("\n")
    assert len(json.loads(ok(*args, "--on-full", "slide", "--json"))["tokens"]) == 30


def test_logprobs_and_stats(words: Path) -> None:
    report = run(words, "-p", "w1 w2", "-n", 3, "--logprobs", 2)
    assert [entry["token"] for entry in report["logprobs"]] == report["tokens"]
    for entry in report["logprobs"]:
        assert entry["text"] == f"w{entry['token']}"
        assert len(entry["top"]) == 2
        assert entry["top"][0]["token"] == entry["token"]
        assert entry["top"][0]["logprob"] == entry["logprob"] <= 0
    result = call("run", "-m", words, "-p", "w1 w2", "-n", 3, "--stats", "--temp", 0.5)
    assert result.stderr.startswith("prompt 2 tokens (0 cached), generated 3 in 3 calls, ")
    assert "finish: length, seed " in result.stderr


def test_a_told_seed_repeats_the_run(words: Path) -> None:
    args = ["run", "-m", words, "-p", "w1 w2", "-n", 12, "--temp", 2, "--json"]
    first, other = json.loads(ok(*args)), json.loads(ok(*args))
    again = json.loads(ok(*args, "--seed", first["stats"]["seed"]))
    assert again["tokens"] == first["tokens"] != other["tokens"]


def test_temp_0_is_greedy_whatever_the_rest(words: Path) -> None:
    expected = run(words, "-p", "w1 w2", "-n", 8)
    found = run(words, "-p", "w1 w2", "-n", 8, "--top-k", 50, "--top-p", 0.9, "--seed", 3)
    assert found["tokens"] == expected["tokens"]
    assert expected["stats"]["seed"] is None


def test_flags_override_the_suggestion_field_by_field() -> None:
    model: Any = SimpleNamespace(sampling=edgedec.Sampling(temperature=0.7, top_p=0.9, top_k=40))
    flags = options.SeededGeneration(top_p=0.5, top_k=None, seed=0, logit_bias=["5=-inf", "6=1.5"], stop=["x"])
    sampling = edgedec.Sampling(temperature=0.7, top_p=0.5, top_k=40, seed=0, logit_bias={5: float("-inf"), 6: 1.5})
    assert flags.config(model) == GenerationConfig(sampling, stop=("x",))
    flags = options.SeededGeneration(max_tokens=0, min_tokens=3, stop_tokens=[4, 5], ignore_eos=True)
    assert flags.config(model) == GenerationConfig(model.sampling, 0, 3, stop_tokens=frozenset({4, 5}), ignore_eos=True)
    assert options.SeededGeneration().config(model) == GenerationConfig(model.sampling)


def test_min_tokens_keep_a_text_from_its_end(nano: Path) -> None:
    end = min(edgedec.open(nano).eos)
    args = ["-p", "Once", "--logit-bias", f"{end}=1000", "-n", 9]
    assert run(nano, *args)["tokens"] == []
    found = run(nano, *args, "--min-tokens", 4)
    assert len(found["tokens"]) == 4
    assert found["finish_reason"] == "eos"
    config = GenerationConfig(min_tokens=4, max_tokens=9).override({"logit_bias": {end: 1000.0}})
    session = edgedec.open(nano).session()
    assert list(session.tokens(session.model.tokenizer.encode("Once"), config)) == found["tokens"]


def test_an_adapter_changes_the_text_of_run_and_batch(nano: Path, tmp_path: Path) -> None:
    import numpy as np

    from edgedec.bundle.adapter import LowRank, save_adapter

    spec, rng, file = edgedec.open(nano).spec, np.random.default_rng(0), tmp_path / "loud.lora"
    down = next(name for name in spec.matrices if name.endswith(".down"))
    wide, narrow = spec.tensors()[down][1], spec.tensors()[down][0]
    a, b = rng.standard_normal((4, wide), np.float32), rng.standard_normal((narrow, 4), np.float32)
    save_adapter(file, "loud", spec, {down: LowRank(a, b)})
    args = ["-p", "Once upon a time", "-n", 12]
    plain, loud = run(nano, *args)["tokens"], run(nano, *args, "--lora", file)["tokens"]
    assert plain != loud
    source = tmp_path / "in.jsonl"
    source.write_text(json.dumps({"prompt": "Once upon a time"}))
    ok("batch", source, "-o", tmp_path / "out.jsonl", "-m", nano, "-n", 12, "--temp", 0, "--lora", file)
    text = json.loads((tmp_path / "out.jsonl").read_text())["text"]
    assert text == "".join(run(nano, *args, "--lora", file)["text"])


def test_several_adapters_are_a_set_of_run_and_batch(nano: Path, tmp_path: Path) -> None:
    from gated import gated

    from edgedec.bundle.adapter import save_adapter
    from edgedec.cli._model_opening import _named_files

    spec = edgedec.open(nano).spec
    for seed in (1, 2):
        low = {name: pair for name, pair in gated(seed, spec).matrices.items() if name.endswith(".down")}
        save_adapter(tmp_path / f"{seed}.lora", f"a{seed}", spec, low)
        bare = {name: pair._replace(gates=None) for name, pair in low.items()}
        save_adapter(tmp_path / f"{seed}-bare.lora", f"bare{seed}", spec, bare)
    args, one, two = ["-p", "Once upon a time", "-n", 12], tmp_path / "1.lora", tmp_path / "2.lora"
    found = run(nano, *args, "--lora", one, "--lora", two)
    both = found["tokens"]
    assert len({tuple(both), *(tuple(run(nano, *args, "--lora", file)["tokens"]) for file in (one, two))}) == 3
    model = edgedec.open(nano)
    session = model.session(adapter=model.adapter(two, one))
    ids, greedy = model.tokenizer.encode("Once upon a time"), replace(model.sampling, temperature=0.0)
    assert list(session.tokens(ids, max_tokens=12, sampling=greedy)) == both
    (tmp_path / "in.jsonl").write_text(json.dumps({"prompt": "Once upon a time"}))
    out, most = tmp_path / "out.jsonl", ["-m", nano, "-n", 12, "--temp", 0]
    ok("batch", tmp_path / "in.jsonl", "-o", out, *most, "--lora", one, "--lora", two)
    assert json.loads(out.read_text())["text"] == "".join(found["text"])
    bare = ["--lora", tmp_path / "1-bare.lora", "--lora", tmp_path / "2-bare.lora"]
    error = one_line(call("run", "-m", nano, *args, *bare), 1)
    assert "has no gates of blocks." in error
    assert run(nano, *args, "--lora", tmp_path / "1-bare.lora")["tokens"] == run(nano, *args, "--lora", one)["tokens"]
    assert _named_files(["x=a", "y=b", "x=c"]) == {"x": [Path("a"), Path("c")], "y": [Path("b")]}


def test_chat_settings_are_the_options(words: Path) -> None:
    said = ok("chat", "-m", words, "-n", 3, stdin="/set min_tokens=2\n/set temp=0.5\n/set ignore-eos=true\n/set\n")
    lines = said.splitlines()
    assert {"min_tokens = 2", "temperature = 0.5", "ignore_eos = True", "max_tokens = 3"} <= set(lines)


def test_a_forbidden_token_does_not_come(words: Path) -> None:
    first = run(words, "-p", "w1 w2", "-n", 1)["tokens"][0]
    assert run(words, "-p", "w1 w2", "-n", 1, "--logit-bias", f"{first}=-inf")["tokens"] != [first]


def test_a_session_goes_on_where_it_was_saved(words: Path, tmp_path: Path) -> None:
    file = tmp_path / "story.session"
    whole = run(words, "-p", "w1 w2", "-n", 8)["tokens"]
    first = run(words, "-p", "w1 w2", "-n", 4, "--session", file)
    second = run(words, "-n", 4, "--session", file, stdin="")
    assert first["tokens"] + second["tokens"] == whole
    assert second["prompt"] == " ".join(["w1 w2", *(f"w{t}" for t in first["tokens"])])
    assert second["stats"]["cached_tokens"] >= 5
    assert second["stats"]["prompt_tokens"] == 6
    branch = run(words, "-p", "w1 w2 w3", "-n", 2, "--session", file)
    assert branch["stats"]["cached_tokens"] == 2
    assert branch["tokens"] == run(words, "-p", "w1 w2 w3", "-n", 2)["tokens"]


def test_a_sampled_session_goes_on_as_one_run_would(words: Path, tmp_path: Path) -> None:
    file = tmp_path / "s"
    args = ["run", "-m", words, "--temp", 1.5, "--json"]
    whole = json.loads(ok(*args, "-p", "w1", "-n", 8, "--seed", 5))["tokens"]
    first = json.loads(ok(*args, "-p", "w1", "-n", 4, "--seed", 5, "--session", file))["tokens"]
    assert first + json.loads(ok(*args, "-n", 4, "--session", file, stdin=""))["tokens"] == whole


def test_a_damaged_session_is_one_line_and_stays(words: Path, tmp_path: Path) -> None:
    file = tmp_path / "s"
    file.write_bytes(b"nonsense")
    assert "not a saved session" in one_line(call("run", "-m", words, "-p", "w1", "--session", file), 1)
    assert file.read_bytes() == b"nonsense"


def endless(words: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "edgedec", "run", "-m", str(words), "-p", "w1", "--on-full", "slide", "-c", "32"]
    # Buffered, as users have it: only then is something left to flush when the interpreter ends.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, env=env)


@POSIX
def test_ctrl_c_ends_the_line_and_exits_130(words: Path) -> None:
    with endless(words) as process:
        assert process.stdout is not None
        begun = process.stdout.read(20)
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=60)
    assert begun.startswith("w1 w")
    assert rest.endswith("\n")
    assert errors == ""
    assert process.returncode == 130


@POSIX
def test_a_reader_that_leaves_is_no_error(words: Path) -> None:
    with endless(words) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(20)
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 141


# -- chat


def test_piped_lines_are_turns(words: Path, tmp_path: Path) -> None:
    saved = tmp_path / "talk.json"
    lines = f"w1\n\n/stats\nw2\n/save {saved}\n/exit\nw3\n"
    result = call("chat", "-m", words, "-n", 3, "--temp", 0, stdin=lines)
    assert result.exit_code == 0
    answers = result.stdout.splitlines()
    assert len(answers) == 2
    assert result.stderr.startswith("prompt 2 tokens")
    messages = json.loads(saved.read_text())["messages"]
    assert [m["role"] for m in messages] == ["user", "assistant"] * 2
    assert [m["content"] for m in messages] == ["w1", answers[0], "w2", answers[1]]
    prompt = f"w1 w7 {answers[0]} w7 w2 w7"
    assert run(words, "-p", prompt, "-n", 3)["text"] == answers[1]


def test_the_banner_says_what_the_bundled_model_is() -> None:
    from edgedec.cli.chat import ABOUT, OPENINGS, banner

    assert banner("smol") == "smol: /help lists the commands, Ctrl-C stops an answer, /exit leaves"
    shown = banner("nano").splitlines()
    assert shown[1] == ABOUT
    assert [line.strip() for line in shown[-3:]] == list(OPENINGS)
    page = (Path(edgedec.__file__).parent / "server" / "page.html").read_text("utf-8")
    assert ABOUT in page
    assert json.dumps(list(OPENINGS)) in page


def test_chat_commands_change_the_messages(words: Path, tmp_path: Path) -> None:
    a, b, c, d = (tmp_path / name for name in "abcd")
    lines = ["w1", f"/save {a}", "/regen", f"/save {b}", "/system w5", f"/save {c}", "w2", "/reset"]
    lines += [f"/save {d}", f"/load {a}", "/help", "/set", "/set top-k=7", "/set"]
    out = ok("chat", "-m", words, "-n", 2, "--temp", 0, "--system", "w4", stdin="\n".join(lines))
    read = {file: json.loads(file.read_text())["messages"] for file in (a, b, c, d)}
    assert [m["role"] for m in read[a]] == ["system", "user", "assistant"]
    assert read[a] == read[b], "a greedy answer comes out the same again"
    assert read[c] == read[d] == [{"role": "system", "content": "w5"}]
    for name in ("help", "reset", "system", "save", "load", "regen", "stats", "set", "exit"):
        assert f"\n/{name} " in f"\n{out}"
    assert "top_k = 0" in out
    assert "top_k = 7" in out


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("/nope", "no command /nope"),
        ("/", "no command /"),
        ("/_ask x", "no command /_ask"),
        ("/regen", "no answer yet"),
        ("/stats", "no answer yet"),
        ("/set warmth=3", "warmth"),
        ("/set logit-bias=3", "logit-bias"),
        ("/set temp=hot", "'hot' is not a number"),
        ("/set temp=-1", "temperature"),
        ("/set max-tokens=-5", "-5"),
        ("/save", "file name"),
        ("/save /no/such/folder/x", "/no/such/folder/x"),
        ("/load", "file name"),
        ("/load /no/such/file", "/no/such/file"),
        ("/load {self}", "not a saved conversation"),
    ],
)
def test_a_bad_command_is_one_line_and_ends_nothing(words: Path, line: str, said: str) -> None:
    lines = f"{line.format(self=__file__)}\nw1\n"
    result = call("chat", "-m", words, "-n", 2, "--temp", 0, stdin=lines)
    assert said in one_line(result, 1)
    assert result.stdout.startswith(" w"), "the turn after it is answered"


def test_a_turn_too_long_for_the_context_is_taken_back(words: Path) -> None:
    long = " ".join(["w1"] * 30)
    result = call("chat", "-m", words, "-n", 2, "--temp", 0, "-c", 16, stdin=f"{long}\nw1\n")
    assert "context of 16" in one_line(result, 1)
    assert result.stdout == run(words, "-p", "w1 w7", "-n", 2)["text"] + "\n"


def test_a_bundle_without_a_template_cannot_chat(words: Path, tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    shutil.copytree(words, folder)
    manifest = json.loads((folder / "edgedec.json").read_text())
    del manifest["text"]["chat_template"]
    (folder / "edgedec.json").write_text(json.dumps(manifest))
    assert "no chat template" in one_line(call("chat", "-m", folder, stdin="w1\n"), 1)


def test_ctrl_c_stops_the_answer_and_keeps_it(
    words: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pieces = Generation.pieces

    def interrupted(self: Generation, ids: list[int] | None) -> Iterator[str]:
        for i, piece in enumerate(pieces(self, ids)):
            if i == 2:
                raise KeyboardInterrupt
            yield piece

    session = edgedec.open(words).session()
    chat = _chat.Chat(session, GenerationConfig(max_tokens=9))
    monkeypatch.setattr(Generation, "pieces", interrupted)
    assert chat.take("w1") is True
    monkeypatch.setattr(Generation, "pieces", pieces)
    shown = capsys.readouterr().out
    assert shown.endswith("\n")
    assert chat.messages[-1] == {"role": "assistant", "content": shown[:-1]}
    assert len(shown.split()) == 2
    assert chat.take("w2") is True
    assert len(chat.messages) == 4


# -- looking at bundles


def test_inspect_tells_what_the_manifest_says(words: Path) -> None:
    report = json.loads(ok("inspect", words, "--json"))
    spec = edgedec.open(words).spec
    assert report["layers"] == spec.n_layers
    assert report["vocabulary"] == spec.vocab_size
    assert report["bits_per_weight"] == pytest.approx(32, abs=0.01)
    assert report["kv"]["f32"]["bytes_per_token"] == sum(2 * block.kv_dim * 4 for block in spec.attention.values())
    assert [block["kind"] for block in report["blocks"]] == ["attention", "mlp"]
    assert sum(block["count"] for block in report["blocks"]) == spec.n_blocks
    assert set(report["artifacts"]["ort"]) <= set(report["files"])
    assert report["bytes"] == sum(file["size"] for file in report["files"].values())
    assert report["bytes"] == sum(p.stat().st_size for p in words.iterdir() if p.name != "edgedec.json")
    short = ok("inspect", words)
    assert f"{len(report['files'])} files, " in short
    assert "weights.bin" not in short
    text = ok("inspect", words, "--files")
    assert all(name in text for name in ("KV cache", "Weights", "weights.bin", "llama"))


def test_verify_reads_every_byte(words: Path, tmp_path: Path) -> None:
    assert ": ok, " in ok("verify", words)
    assert json.loads(ok("verify", words, "--json"))["ok"] is True
    folder = tmp_path / "bent"
    shutil.copytree(words, folder)
    with (folder / "weights.bin").open("r+b") as file:
        byte = file.read(1)[0]
        file.seek(0)
        file.write(bytes([byte ^ 1]))
    assert "weights.bin: content differs" in one_line(call("verify", folder), 1)
    result = call("verify", folder, "--json")
    assert "weights.bin" in one_line(result, 1)
    assert json.loads(result.stdout)["ok"] is False


# -- export


def test_export_hands_every_flag_on(words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exporter = pytest.importorskip("edgedec.export.exporter", exc_type=ImportError)
    seen: list[Any] = []

    def fake(checkpoint: str, out: Path, chosen: Any, progress: Callable[[str, int, int], None]) -> Any:
        progress("weights", 1, 2)
        seen.append((checkpoint, out, chosen))
        return edgedec.open(words).bundle

    monkeypatch.setattr(exporter, "export", fake)
    flags = "--weights int8 --head f16 --embed f32 --block 64 --kv f16,int8 -c 64 --no-check --force --name n -t 1"
    report = json.loads(
        ok("export", "ck", "-o", tmp_path / "b", *flags.split(), "--calibrate", "c.txt", "--target=cpu", "--json")
    )
    expected = exporter.ExportOptions(
        weights="int8",
        head="f16",
        embed="f32",
        block=64,
        kv=("f16", "int8"),
        target="cpu",
        context=64,
        calibrate=Path("c.txt"),
        check=False,
        force=True,
        name="n",
        threads=1,
    )
    assert seen == [("ck", tmp_path / "b", expected)]
    assert {"path", "bytes", "bits_per_weight", "parity"} <= set(report)
    assert "bits a weight" in ok("export", "ck", "-o", tmp_path / "b")
    assert seen[1][2] == exporter.ExportOptions()
    assert seen[1][2] == exporter.ExportOptions()


@pytest.mark.parametrize("flags", [["--block", "33"], ["--kv", "f64"], ["--kv", ""], []])
def test_export_refuses_in_one_line(tmp_path: Path, flags: list[str]) -> None:
    pytest.importorskip("onnx")
    one_line(call("export", tmp_path / "nowhere", "-o", tmp_path / "b", *flags), 1)
    assert list(tmp_path.iterdir()) == []


def test_export_without_its_extra_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if hasattr(edgedec, "export"):
        monkeypatch.setattr(edgedec, "export", edgedec.export)  # or it stays the one that is imported below
    for name in [name for name in sys.modules if name.startswith("edgedec.export")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "onnx", None)
    checkpoint = write_llama(tmp_path / "ck")
    line = one_line(call("export", checkpoint, "-o", tmp_path / "b", "--no-check", "--for", "ort"), 1)
    assert 'pip install "onnx>=1.18"' in line
    assert list(tmp_path.iterdir()) == [checkpoint]


# -- measuring


def test_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    from edgedec.cli import doctor

    report = json.loads(ok("doctor", "--json"))
    engine = report["engine"]
    assert engine["auto"] == ("ort" if engine["native"]["problem"] else "native")
    assert engine["auto"] in engine["available"]
    assert report["problems"] == []
    assert report["cpu"]["cores"] >= 1
    assert {"numpy", "onnxruntime", "tokenizers"} <= set(report["packages"])
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))["project"]
    assert set(report["extras"]) == set(project["optional-dependencies"]) - {"test", "test-all", "dev", "docs"}
    assert list(report["extras"]["serve"]) == ["starlette", "uvicorn"]
    assert "all is well" in ok("doctor")
    monkeypatch.setattr(doctor, "_ESSENTIAL", ("numpy", "no_such_package"))
    result = call("doctor")
    assert result.exit_code == 1
    assert "no_such_package" in result.stdout


def test_doctor_tells_why_the_native_engine_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise ImportError("not built (so this test says)")

    monkeypatch.setattr("edgedec.kernels.cpu.loader.library", missing)
    report = json.loads(ok("doctor", "--json"))
    assert report["engine"]["native"] == {
        "isa": None,
        "isas": [],
        "compiled": [],
        "problem": "not built (so this test says)",
    }
    assert report["engine"]["why"] == "no native engine: not built (so this test says)"
    assert report["problems"] == [], "edgedec works without it"
    assert "auto is ort (no native engine: not built (so this test says))" in " ".join(ok("doctor").split())


def test_doctor_names_the_instruction_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    built = SimpleNamespace(ed_isa=lambda: b"avx2", ed_isas=lambda: b"avx512vnni,avx2+,scalar+")
    monkeypatch.setattr("edgedec.kernels.cpu.loader.library", lambda: built)
    monkeypatch.setattr("edgedec.runtime.choose_runtime", lambda bundle: "native")
    engine = json.loads(ok("doctor", "--json"))["engine"]
    assert engine["native"] == {
        "isa": "avx2",
        "isas": ["avx2", "scalar"],
        "compiled": ["avx512vnni", "avx2", "scalar"],
        "problem": None,
    }
    assert (engine["auto"], engine["why"]) == ("native", "edgedec's own kernels, avx2")
    assert "avx2; also scalar; not on this CPU: avx512vnni" in " ".join(ok("doctor").split())


def test_doctor_uses_the_instruction_set_of_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    native = json.loads(ok("doctor", "--json"))["engine"]["native"]
    if native["problem"]:
        pytest.skip("no native engine here")
    monkeypatch.setenv("EDGEDEC_ISA", "scalar")
    monkeypatch.setenv("EDGEDEC_API_KEY", "secret")
    report = json.loads(ok("doctor", "--json"))
    assert report["engine"]["native"]["isa"] == "scalar"
    assert report["engine"]["why"] == "edgedec's own kernels, scalar, as EDGEDEC_ISA says"
    assert report["variables"]["EDGEDEC_ISA"] == "scalar"
    assert report["variables"]["EDGEDEC_API_KEY"] == "(set)"
    monkeypatch.setenv("EDGEDEC_ISA", "abacus")
    result = call("doctor", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["problems"][0].startswith("EDGEDEC_ISA=abacus: not for this CPU; there are ")


def test_doctor_says_what_an_extra_misses(monkeypatch: pytest.MonkeyPatch) -> None:
    from edgedec.bench import host

    monkeypatch.setattr(host, "find_spec", lambda name: None if name == "uvicorn" else object())
    assert "missing uvicorn: pip install" in " ".join(ok("doctor").split())


def test_doctor_sees_a_damaged_bundled_model(words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "nano"
    shutil.copytree(words, folder)
    monkeypatch.setattr("edgedec.bundle.locate.find", lambda name: folder)
    assert json.loads(ok("doctor", "--json"))["nano"] == {
        "path": str(folder),
        "present": True,
        "whole": True,
        "problem": None,
        "artifacts": sorted(edgedec.open(words).bundle.manifest.artifacts),
    }
    (folder / "weights.bin").write_bytes(b"")
    result = call("doctor", "--json")
    assert result.exit_code == 1
    assert "weights.bin" in json.loads(result.stdout)["problems"][0]


def test_bench_measures_and_compares(words: Path) -> None:
    args = ["bench", "-m", words, "-p", 6, "-n", 3, "-r", 2, "-t", 1, "--engine", "ort", "--kv", "f32"]
    report = json.loads(ok(*args, "--json"))
    assert (report["prompt"], report["generate"], report["repetitions"]) == (6, 3, 2)
    assert {"host", "versions", "model", "quantization", "bits_per_weight", "ratios"} <= set(report)
    (result,) = report["results"]
    assert (result["label"], result["engine_name"], result["kv"], result["threads"]) == ("ort kv f32", "ort", "f32", 1)
    for part in ("prefill", "decode"):
        speed = result[f"{part}_tokens_per_s"]
        assert 0 < speed["min"] <= speed["median"] <= speed["max"]
        assert speed["spread"] == pytest.approx((speed["max"] - speed["min"]) / speed["median"])
    assert result["load_s"] > 0
    assert result["peak_rss_bytes"] > 1 << 20
    assert "decode tokens/s" in ok(*args)


def test_bench_with_a_peer_takes_turns(words: Path) -> None:
    pytest.importorskip("onnxruntime_genai")
    args = ["bench", "-m", words, "-p", 6, "-n", 3, "-r", 1, "-t", 1, "--peer", "genai", "--json"]
    report = json.loads(ok(*args))
    assert [result["label"] for result in report["results"]] == ["edgedec", "genai"]
    (ratio,) = report["ratios"]
    ours, theirs = (result["decode_tokens_per_s"]["median"] for result in report["results"])
    assert ratio["over"] == "genai"
    assert ratio["decode"]["median"] == pytest.approx(ours / theirs)


def test_bench_fails_in_one_line(words: Path) -> None:
    assert "context" in one_line(call("bench", "-m", words, "-p", 100000, "-n", 2), 1)
    assert "abacus" in one_line(call("bench", "-m", words, "--engine", "abacus", "-p", 2, "-n", 2), 1)


def test_eval_ppl(words: Path, tmp_path: Path) -> None:
    from edgedec.bench.perplexity import perplexity

    ids = [(7 * i) % 90 + 3 for i in range(30)]
    file = tmp_path / "text.txt"
    file.write_text(" ".join(f"w{i}" for i in ids))
    args = ["eval", "ppl", file, "-m", words, "--window", 16, "--stride", 8, "--limit", 20]
    report = json.loads(ok(*args, "--json"))
    expected = perplexity(edgedec.open(words), ids[:20], 16, 8)
    assert report["perplexity"] == pytest.approx(expected.value)
    assert report["tokens"] == 19
    text = " ".join(f"w{i}" for i in ids[:20])
    assert report["bytes"] == len(text) - len(f"w{ids[0]}")
    assert report["bits_per_byte"] == pytest.approx(expected.bits / report["bytes"])
    assert ok(*args).startswith(f"perplexity {expected.value:.4f} per token")
    assert "stride 16" in one_line(call(*args, "--stride", 16), 1)
    assert "at least 2" in one_line(call(*args, "--limit", 1), 1)


# -- imports


def imported(code: str) -> set[str]:
    """The modules that a fresh interpreter has after `code`."""
    code = f"import sys\n{code}\nprint('\\n'.join(sys.modules), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def test_importing_edgedec_is_light() -> None:
    found = imported("import edgedec")
    assert not {"tokenizers", "jinja2", "typer", "rich", "onnxruntime", "onnx", "torch"} & found
    assert not {name for name in found if name.startswith("edgedec.cli")}


def test_run_imports_what_it_needs_only(words: Path) -> None:
    args = ["run", "-m", str(words), "-p", "w1", "-n", "2", "--temp", "0"]
    found = imported(f"from edgedec.cli import main\nassert main({args}) == 0")
    engines = {"native": "edgedec.runtimes.native", "ort": "onnxruntime"}
    assert {"edgedec.cli.run", engines.pop(choose_runtime(edgedec.open(words).bundle)), "tokenizers"} <= found
    assert not set(engines.values()) & found
    assert not {"onnx", "torch", "transformers", "onnxruntime_genai", "jinja2", "edgedec.export"} & found
    others = set(_app.VERBS) - {"run"}
    assert not {f"edgedec.cli.{verb}" for verb in others} & found


@POSIX
@pytest.mark.parametrize("module", ["typer", "numpy", "edgedec.session", "tokenizers", "edgedec.cli.run"])
def test_an_interrupt_in_the_first_moments_is_no_traceback(words: Path, module: str) -> None:
    """Ctrl-C while a module is imported: what the entry point does must be light up to where it is caught."""
    code = (
        "import sys, signal, os\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}: os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "from edgedec.cli import main\n"
        f"sys.exit(main(['run', '-m', {str(words)!r}, '-p', 'w1', '-n', '2']))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "")


def test_the_entry_point_is_light() -> None:
    """Until `main` is called an interrupt shows a traceback."""
    assert not {"numpy", "typer", "edgedec.model", "edgedec.errors"} & imported("import edgedec.cli")


def test_version_imports_no_verb() -> None:
    found = imported("from edgedec.cli import main\nassert main(['--version']) == 0")
    assert not {f"edgedec.cli.{verb}" for verb in _app.VERBS} & found


def test_the_measuring_process_imports_no_command_line() -> None:
    assert not {"typer", "rich", "tokenizers"} & imported("import edgedec.bench.worker")


# -- the bundled model


def test_the_bundled_model_tells_a_story(nano: Path) -> None:
    text = ok("run", "-m", nano, "-p", "Once upon a time", "-n", 20, "--seed", 1)
    assert text.startswith("Once upon a time")
    assert len(text) > 40
