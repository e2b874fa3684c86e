"""llama.cpp's flags mean what they mean there or are answered by name; no flag is read as another."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from edgedec.cli import _app
from edgedec.cli._flags import template as _template
from edgedec.cli._llama_flags.table import FLAGS
from edgedec.cli._llama_flags.translate import translate

GROUP: Any = typer.main.get_command(_app.app)


SHORT = ("-p", "-f", "-n", "-c", "-t", "-m", "-v", "-h")


def command(verb: str) -> Any:
    return GROUP.get_command(None, verb)


def read(line: str, verb: str = "run") -> tuple[str, list[str]]:
    return translate(verb, command(verb), line.split())


def call(*args: object, stdin: str | None = None) -> Result:
    return CliRunner().invoke(_app.app, [str(arg) for arg in args], input=stdin)


@pytest.mark.parametrize(
    ("given", "ours"),
    [
        ("-p x -s 7", "-p x --seed 7"),
        ("-p x -s -1", "-p x"),
        ("-p x -j {}", "-p x --json-schema {}"),
        ("-p x -jf s.json", "-p x --json-schema s.json"),
        ("-p x --grammar-file g.gbnf", "-p x --grammar g.gbnf"),
        ("-p x --no-display-prompt", "-p x --no-echo"),
        ("-hf org/name -p x", "--model hf:org/name -p x"),
        ("-p x -ctk q8_0 -ctv q8_0", "-p x --kv int8"),
        ("-p x -ctk f16", "-p x --kv f16"),
        ("-p x -md draft", "-p x --spec model:path=draft"),
        ("-p x -md /c++/m,2", "-p x --spec model:path='/c++/m,2'"),
        ("-p x -hfd org/a+b", "-p x --spec model:path='hf:org/a+b'"),
        ("-p x -fa", "-p x"),
        ("-fa on -p x", "-p x"),
        ("-fa -p x", "-p x"),
        ("-p x --flash-attn=auto", "-p x"),
        ("-p x -ngl 0", "-p x"),
        ("-c 256 -n128 -m./smol -p x", "-c 256 -n 128 -m ./smol -p x"),
        ("-p -ngl -n 3", "-p -ngl -n 3"),  # the value of -p
        ("-p x -r END --prompt-cache f", "-p x --stop END --session f"),
        ("-p x --context-shift", "-p x --on-full=slide"),
        (r"-e -p a\nb", "-p a\nb"),
        ("-p x -ngl=0 -n=8 -t=4 -c=256 -s=7", "-p x -n 8 -t 4 -c 256 --seed 7"),
        ("-p x -ngl0 -n64 -t4 -c4096 -s42", "-p x -n 64 -t 4 -c 4096 --seed 42"),
        ("-p x -s-1 -n-1 -n=-1 -n -1", "-p x -n -1 -n -1 -n -1"),
        (
            "-p x -t -1 -n -2 --top-k=-1 --sampling-seq kyt",
            "-p x -t 0 -n -1 --top-k=0 --samplers top_k;typ_p;temperature",
        ),
        ("-p=x -j={} -ctk=q8_0 -ctv=q8_0 -md=d", "-p x --json-schema {} --kv int8 --spec model:path=d"),
        ("-p x -fa=on -hf=org/name -m=./smol", "-p x --model hf:org/name -m ./smol"),
        ("-p x -l=15043+1.5 -l15043-1", "-p x --logit-bias 15043=1.5 --logit-bias 15043=-1"),
        ("-p x --n-predict=-1 --gpu-layers=0", "-p x --n-predict=-1"),
    ],
)
def test_a_flag_of_llama_cpp_is_ours(given: str, ours: str) -> None:
    assert read(given) == ("run", ours.split(" "))


@pytest.mark.parametrize("line", ["-cnv -p hi", "-sys be-kind", "-st -p hi", "-i", "-p hi --chat-template chatml"])
def test_a_conversation_is_a_chat(line: str) -> None:
    assert read(line)[0] == "chat"


def test_the_flags_of_a_conversation() -> None:
    _, given = read("-cnv -p hi -sys be-kind -st --no-display-prompt", "chat")
    assert given == ["-p", "hi", "--system", "be-kind", "--single-turn"]


NOTED = ["-ngl 99 -p x", "-p x -b 512", "-p x -ub 64", "--mlock -p x", "-ngl=99 -p x", "-ngl99 -p x", "-ngl -1 -p x"]
NOTED += ["-ngl=-1 -p x", "-ngl-1 -p x", "-ngl all -p x", "-p x -b=512", "-p x -b512", "-p x -ub512", "-p x -tb8"]


@pytest.mark.parametrize("line", [*NOTED, "--n-gpu-layers=99 -p x"])
def test_a_flag_that_changes_nothing_says_so(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert read(line) == ("run", ["-p", "x"])
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert err.startswith("edgedec run: -")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["run", "Once"], 'edgedec run -p "Once"'),
        (["chat", "Hello"], 'edgedec chat -p "Hello"'),
        (["run", "-p", "x", "--sampling-seq", "kpq"], "no sampler 'q'"),
        (["run", "-p", "x", "-ctk", "q8_0", "-ctv", "f16"], "one format"),
        (["run", "-p", "x", "-ctk", "iq4_nl"], "q8_0"),
        (["run", "-p", "x", "-np", "4"], "edgedec serve"),
        (["run", "-p", "x", "-mg", "1"], "--device"),
        (["run", "-p", "x", "-s"], "requires 1 argument"),
        (["run", "-pHello"], "-p Hello"),
        (["run", "-nope", "3"], "No such option: -nope"),
        (["run", "-p", "x", "-ngl=many"], "-ngl: many: must be a whole number"),
        (["run", "-p", "x", "-ngl", "-fa", "on"], "'-ngl' requires 1 argument"),
        (["run", "-p", "x", "-b=big"], "-b: big: must be a whole number"),
        (["run", "-p", "x", "-s", "-0.5"], "-s: -0.5: must be a whole number"),
        (["run", "-p", "x", "-fa=7"], "-fa=7: must be on, off or auto"),
        (["run", "-p", "x", "-cnv=1"], "-cnv takes no value"),
        (["run", "-p", "x", "-n=many"], "valid integer"),
        (["run", "-p", "x", "-ngx=9"], "No such option: -ngx"),
        (["run", "-p", "x", "-np4"], "edgedec serve"),
        (["run", "-p", "x", "--nope", "3"], "No such option: --nope"),
        (["run", "-p", "x", "--chat-templat", "chatml"], "did you mean --chat-template"),
        (["batch", "--chat-template", "chatml"], "edgedec chat"),
        (["serve", "-cnv"], "edgedec chat"),
        (["chat", "--chat-template", "vicuna"], "chatml"),
        (["inspect", "-verbose", "x"], "No such option: -verbose"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_is_not_carried_is_answered_by_name(args: list[str], said: str) -> None:
    result = call(*args)
    assert result.exit_code == 2, result.output
    assert result.stderr.count("\n") == 1
    assert said in result.stderr
    assert f"(see edgedec {args[0]} --help)" in result.stderr


@pytest.mark.parametrize("verb", ["run", "chat", "serve", "batch", "bench", "inspect"])
def test_short_help(verb: str) -> None:
    assert call(verb, "-h").stdout.startswith("Usage: ")
    assert call("-h").stdout.startswith("Usage: ")


@pytest.mark.parametrize("verb", ["serve", "batch"])
def test_texts_at_a_time(verb: str) -> None:
    assert read("-np 8", verb)[1] == [{"serve": "--slots", "batch": "--batch-size"}[verb], "8"]


def test_flags_of_llama_bench_and_of_the_commands_below_bench() -> None:
    assert read("-p 8 -ngl 0 -n 4 -r 2", "bench") == ("bench", ["-p", "8", "-n", "4", "-r", "2"])
    assert read("batch -b 1,4 -r 1", "bench") == ("bench", ["batch", "-b", "1,4", "-r", "1"])


@pytest.mark.parametrize("flag", sorted(FLAGS))
@pytest.mark.parametrize("verb", ["run", "chat"])
def test_every_flag_of_the_table_is_read_whole(flag: str, verb: str) -> None:
    """Ours, a note, or an answer: never letters of it."""
    values = FLAGS[flag].values
    value = {"--kv": "f16"}.get(FLAGS[flag].to, "1")
    line = [flag, *([value] * values if isinstance(values, int) else [])]
    said, ours = "", list[str]()
    try:
        _, ours = translate(verb, command(verb), [*line, "-p", "x"])
    except typer.BadParameter as error:
        said = error.format_message()
    if said:
        assert flag in said
    else:
        assert " ".join(ours).replace("-p x", "").strip().split(" ")[0] in (
            "",
            *(FLAGS[flag].to.split()),
            "--kv",
            "--spec",
        )


@given(st.text("abcdefghijklmnopqrstuvwxyz-_0129", min_size=2, max_size=8))
def test_no_short_flag_is_read_as_letters(word: str) -> None:
    """`-x…` is known whole, a short flag with a number or a path against it, or refused."""
    flag = f"-{word}"
    try:
        _, ours = translate("run", command("run"), [flag, "1", "2"])
    except typer.BadParameter:
        return
    name = re.match(r"-[a-z]+", flag)
    known = flag in FLAGS or flag.startswith("--") or (name is not None and name[0] in {*FLAGS, *SHORT} - {flag})
    assert known or flag[1:].replace(".", "").isdigit(), ours


def test_a_grammar_may_be_text_or_a_file(nano: Path, tmp_path: Path) -> None:
    pytest.importorskip("llguidance", reason="an extra")
    text = 'root ::= " yes" | " no"'
    file = tmp_path / "g.gbnf"
    file.write_text(text)
    for flags in (["--grammar", text], ["--grammar", file], ["--grammar-file", file]):
        result = call("run", "-p", "Once", *flags, "--no-display-prompt", "-s", 1)
        assert result.stdout.strip() in ("yes", "no"), result.output


def test_a_session_in_llama_cpp_s_words(nano: Path) -> None:
    theirs = "run -p Once -n 8 -s 5 -c 128 -t 1 -fa on -ctk q8_0 -ctv q8_0 --temp 0.7 --top-k 40 --json"
    same = "run -p Once -n 8 --seed 5 -c 128 -t 1 --kv int8 --temp 0.7 --top-k 40 --json"
    found, ours = (json.loads(call(*line.split()).stdout) for line in (theirs, same))
    assert found["tokens"] == ours["tokens"]
    assert len(found["tokens"]) == 8


def test_a_template_by_name_text_or_file(nano: Path, tmp_path: Path) -> None:
    import edgedec

    model = edgedec.open(nano)
    _template.TemplateFlags("chatml").apply(model)
    assert model.chat_prompt([{"role": "user", "content": "hi"}]) == (
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )
    (tmp_path / "t.jinja").write_text("{% for m in messages %}[{{ m.content }}]{% endfor %}")
    _template.TemplateFlags(None, tmp_path / "t.jinja").apply(model)
    assert model.chat_prompt([{"role": "user", "content": "hi"}]) == "[hi]"
    for name in _template.NAMED:
        _template.TemplateFlags(name).apply(model)
        assert "hi" in model.chat_prompt([{"role": "user", "content": "hi"}])
