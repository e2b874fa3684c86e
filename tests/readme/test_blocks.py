"""Every command and every program of the README and the docs runs as shown, or says here why not.

A command runs in a folder with what a reader has by then: a bundle `smol`, a checkpoint, files of prompts. Sizes of
measurements are made small; nothing else is changed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from checkpoints import write_llama
from encoder_checkpoints import reranker, scorer, sentence_encoder
from readme.shown import PAGES, ROOT, blocks, commands, fences, indented
from unixcoder_checkpoints import write as unixcoder

from edgedec.export.exporter import ExportOptions, export

BIN = Path(sys.executable).parent
# Why a command is not run here: the first pattern that it matches.
SKIPPED = {
    r"^make android|^apt-get|phone-test": "needs a JDK, Android's tools or a phone; tests/android builds the app",
    r"^make (demo|test|fuzz)": "sets up an environment of its own; make test is how this is run",
    r"^pip install": "changes the environment; tests/unit/test_extras.py checks the names",
    r"^pip download": "needs the network",
    r"llama-1b|\bl1b\b": "needs a checkpoint of 2.5 GB",
    r"^edgedec serve": "runs until it is stopped; test_serve.py starts it, and so does the client's block below",
    r"^serve run |ray\[": "needs Ray, which tests/unit/test_ray_serve.py covers with a cluster of its own",
    r"--engine ray|--workers": "needs Ray, which tests/unit/test_batch.py covers with a cluster of its own",
    r"--peer llama\.cpp|bench peers": "needs other engines; tests/unit/test_bench.py measures those that are installed",
    r"models/nano/(?!bundle$)": "trains for an hour; tests/unit/test_nano_recipe.py goes through the recipe",
    r"python -m venv|litellm_chat": "an environment of its own; tests/unit/test_clients.py runs the script in it",
    r"build/(nano-(recall|block|hyperfit)|blockffn)": "needs the model that the command before it trains",
    r"OCLGRIND": "takes minutes; tests/opencl/test_races.py does",
    r"-m \./big ": "needs two models; tests/unit/test_drafter_pearl.py and test_drafter_hierarchy.py have small ones",
    r"--peer genai": "needs another engine; tests/unit/test_cli.py measures it if it is installed",
    r"^cmake |^python kernels/lib/build\.py": "compiles for a minute; tests/library does",
    r"^edgedec bench c ": "compiles the library first; tests/library/test_bench_c.py measures",
    r"^edgedec web|http\.server|kernels/wasm": "compiles for a minute; tests/browser/test_web_site.py writes a site",
    r"^rustup": "changes the machine's Rust; tests/web/test_constraints.py says so where the target is missing",
    r"^python kernels/cpu/build\.py|LD_PRELOAD": "compiles for a minute; tests/unit/test_build.py does",
    r"--as smollm-135m|--as llama": "makes a bundle of 76 MB or more first",
    r"(?i:python) tests/bench/|jsonschema_bench|constraint_peers|\bs135\b": "takes minutes; slow tests run --help",
    r"^pytest|^EDGEDEC_SLOW_TESTS|^EDGEDEC_CLIENTS_PYTHON|tests\.hostile": "is part of this test suite",
    r"conformance --runtime (lazy|reference)|-k mymodel": "the page has a test of its own",
    r"xgrammar": "needs an environment of its own",
    r"\.gguf": "needs a GGUF file; tests/unit/test_gguf_converted.py runs these on one that it makes",
    r"lm_eval run|edgedec\.harness": "downloads its tasks; tests/unit/test_harness.py runs local ones",
    r"optimum|gpt2": "needs optimum in an environment of its own; tests/parity/test_imported.py has one",
    r"--draft |add-draft|-m llama ": "needs a published draft; tests/unit/test_drafts.py makes small ones",
    r"-m mimo ": "needs the weights of MiMo-7B; tests/parity/test_mimo.py runs a small one of its shape",
    r"train-exits|smol-exits|draft-nested|nested:path=": "trains for hours; see test_train_exits.py",
    r"train-diffusion|smol-(block|sure)": "trains for hours; tests/unit/test_train_diffusion.py trains a small one",
    r"train-heads .*--minutes 60|smol-(kangaroo|m2r2|prompt|longspec|transfer|sec|falcon)": "see test_distill.py",
    r"train-lora|--lora (law|my)\.lora|edgedec adapter": "trains; see test_train_lora.py and test_cli.py",
    r"train-subwords|--cache subwords:keep": "trains for an hour; tests/unit/test_subwords.py trains a small one",
    r"train-cache|--cache latent": "trains for an hour; tests/unit/test_latent.py trains a small one",
    r"train-experts|smol-experts": "trains for hours; see test_train_experts.py",
    r"train-embedder|\./notes-bert|edgedec export out -o own": "trains for an hour; see test_train_embedder.py",
    r"train-latent|smol-(cot|colar|rl)|-m \./colar ": "trains for hours; see test_train_latent.py",
    r"edgedec calibrate|cache tca:mass": "changes the bundle; tests/unit/test_viewing_policies.py calibrates a copy",
    r"git clone|hf:|edgedec pull": "needs the network",
    r"all-MiniLM": "needs a published checkpoint; tests/parity/test_encoders.py exports small ones",
    r"OUT/checkpoint": "tests/bench/encoder_geometry.py writes it, with torch",
    r"unixcoder-base": "needs a published checkpoint; tests/parity/test_unixcoder.py exports a small one",
    r"--device webgpu|ort:webgpu": "needs a GPU or SwiftShader; tests/devices/test_webgpu.py",
    r"qnn:SM8650": "needs onnxruntime-qnn; tests/devices/test_qnn.py",
    r"--for tvm:|--engine tvm": "compiles for some seconds, with TVM; tests/parity/test_tvm.py does",
    r"--runtime cuda:emulated": "takes minutes; a slow test of tests/cuda/test_engine.py runs the suite",
    r"edgedec\.testing\.sources": "needs a bundle with sources; tests/sources runs it",
    r"edgedec (sign|trust)\b": "needs a key; tests/unit/test_signing.py runs these",
    r"--engine cuda": "needs a GPU; tests/cuda runs it on the emulation",
    r"--engine opencl": "needs a device for OpenCL; tests/opencl runs it where there is one",
}
# Pages whose programs have a test of their own.
OWN = {
    "extending.md": ("test_add_an_architecture.py", "test_add_a_block_kind.py", "test_add_a_runtime.py"),
    "embed.md": ("../unit/test_embed_docs.py",),
}
# Programs that are not run.
DOWNLOADS = {"bench.md": "downloads its task; tests/unit/test_harness.py runs local ones"}
# Programs that need what may not be here.
NEEDS = {"export.md": "onnxruntime_genai", "constraints.md": "llguidance", "coming-from.md": "torch"}
SMALLER = [
    (r"(?<=-p )512\b", "16"),
    (r"(?<=-n )(128|150|200)\b", "8"),
    (r"(?<=-r )(5|7|11|15)\b", "1"),
    (r"(?<=--rows )[\d,]+", "1,2"),
    (r"(?<=bench kernels -m smol)(?= |$)", " --rows 1,2 -r 1"),
    (r"^edgedec bench spec(?! --as| --sweep)", "edgedec bench spec -n 4 --limit 1 -r 1 --drafters auto"),
    (r"^edgedec bench dial.*", "edgedec bench dial --sequences 1,2 --acceptance 0.7 --lengths 2 -n 4 -r 1"),
    (r"^edgedec bench diffusion(?! --texts)", "edgedec bench diffusion --limit 1 -n 8"),
    (r"--limit 6 -n 32", ""),
    (r"^edgedec bench search( --limit 40)?", "edgedec bench search --limit 1 -n 8"),
    (r"(?<=bench search --limit 1 -n 8) --tokens 100$", " --tokens 16 --search best:n=2"),
    (r"^(edgedec run .*store=notes\.store)", r"edgedec datastore build notes.txt -o notes.store && \1"),
    (r"^(edgedec labels add .*)", r"edgedec labels build notes.txt -m ./minilm -o notes.labels && \1"),
    (
        r"^(edgedec classify .*--labels notes\.labels)",
        r"edgedec labels build notes.txt -m ./minilm -o notes.labels && "
        r"edgedec labels add few.tsv -m ./minilm -o notes.labels && \1",
    ),
    (r"^edgedec bench embed.*", "edgedec bench embed -m ./minilm --tokens 4 --texts 1,2 -r 1"),
    (r"^(edgedec (?:export|quantize) .*) --quality good", r"\1"),
    (r" --recover 60$", ""),
    (r"^edgedec bench formats nano", "edgedec bench formats nano --type int8 --limit 64"),
    (r"^edgedec eval kl stories.txt -m nano-(int2|row)", "edgedec eval kl stories.txt -m smol"),
    (r"(?<= --to )nano-f32 --limit 8192", "smol --limit 64"),
    (r"^edgedec bench batch(?! --as)", "edgedec bench batch --prompts 4 --sizes 1,2 -n 4 -r 1"),
]
EVERY = [(page, command) for page in PAGES for command in dict.fromkeys(commands(page))]


def why_skipped(command: str) -> str | None:
    return next((why for pattern, why in SKIPPED.items() if re.search(pattern, command)), None)


RUN = list(dict.fromkeys(command for _, command in EVERY if why_skipped(command) is None))


@pytest.fixture(scope="session")
def bundle(nano: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled model under a folder's name."""
    return Path(shutil.copytree(nano, tmp_path_factory.mktemp("reader") / "smol"))


@pytest.fixture(scope="session")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with small text encoders under the names of the pages."""
    at = tmp_path_factory.mktemp("encoders")
    written = {"minilm": sentence_encoder, "reranker": reranker, "sentiment": scorer, "unixcoder": unixcoder}
    for name, write in written.items():
        export(str(write(at / "checkpoints" / name)), at / name, ExportOptions(runtimes=()))
    shutil.rmtree(at / "checkpoints")
    return at


@pytest.fixture
def folder(bundle: Path, encoders: Path, tmp_path: Path) -> Path:
    """What a reader has."""
    shutil.copytree(encoders, tmp_path, copy_function=os.link, dirs_exist_ok=True)
    for name in ("smol", "smol-native", "BUNDLE"):
        shutil.copytree(bundle, tmp_path / name, copy_function=os.link)
    rows = [{"prompt": "Once upon a time", "max_tokens": 4}, {"prompt": "One day", "max_tokens": 4}]
    for name in ("prompts.jsonl", "smol-prompts.jsonl"):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    body = {"model": "smol", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    request = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
    (tmp_path / "requests.jsonl").write_text(json.dumps(request) + "\n")
    (tmp_path / "README.md").write_text((ROOT / "README.md").read_text("utf-8")[:2000])
    words = "Once upon a time there was a little girl named Lily. She loved to play outside with her dog. "
    (tmp_path / "notes.txt").write_text("Once upon a time")
    for name, start in (("stories.txt", 20), ("news.txt", 50)):
        (tmp_path / name).write_text(words[start:] + words * 40)
    (tmp_path / "texts.txt").write_text((words + "\n") * 4)
    score = "import json, sys\nfor line in sys.stdin:\n    print(json.dumps({'score': 1.0}), flush=True)\n"
    (tmp_path / "score.py").write_text(score)
    for name, code in (
        ("functions.txt", "def f(a): return a"),
        ("start.py", "def f("),
        ("masked.py", "def <mask0>(a):"),
    ):
        (tmp_path / name).write_text(code)
    (tmp_path / "few.tsv").write_text("cats\tthe cat\ndogs\ta dog\n")
    (tmp_path / "A.json").write_text("{}")
    fields = {"name": {"type": "string"}, "age": {"type": "integer"}}
    schema = {"type": "object", "properties": fields, "required": [*fields], "additionalProperties": False}
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    (tmp_path / "chats").mkdir()
    write_llama(tmp_path / "SmolLM2-135M-Instruct")
    return tmp_path


def environment(**more: str) -> dict[str, str]:
    path = os.pathsep.join([str(BIN), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "PYTHONPATH": "", **more}


def test_there_are_forty_commands() -> None:
    assert len(dict.fromkeys(command for _, command in EVERY)) >= 40
    assert len(RUN) >= 40


def test_every_reason_to_skip_is_used() -> None:
    unused = [p for p in SKIPPED if not any(re.search(p, command) for _, command in EVERY)]
    assert set(unused) <= {r"git clone|hf:|edgedec pull"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_has_a_language_and_commands_stand_in_blocks(page: Path) -> None:
    assert [text for name, text in fences(page) if not name] == []
    assert indented(page) == []


@pytest.mark.skipif(os.name == "nt", reason="a POSIX shell")
@pytest.mark.parametrize("command", RUN)
def test_a_shown_command_runs(command: str, folder: Path) -> None:
    for pattern, smaller in SMALLER:
        command = re.sub(pattern, smaller, command)
    extras = {"--regex": "llguidance", "--json-schema": "llguidance", "--choices": "llguidance", "parquet": "pyarrow"}
    for flag, package in extras.items():
        if flag in command and find_spec(package) is None:
            pytest.skip(f"{package} is an extra")
    if "--plot" in command and find_spec("matplotlib") is None:
        pytest.skip("matplotlib is an extra")
    if "parquet" in command:
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.table({"prompt": ["Once"], "max_tokens": [4]}), folder / "questions.parquet")
    made = re.search(r" export \S+ -o (\S+)", command)
    if made and (folder / made[1]).is_dir():
        shutil.rmtree(folder / made[1])
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=folder,
        env=environment(EDGEDEC_CACHE=str(folder / "cache")),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, f"{command}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    assert done.stdout.strip() or done.stderr.strip() or "chat" in command or " > " in command


PROGRAMS = [(page, code) for page in PAGES for code in blocks(page, "python") if page.name not in OWN]


def test_pages_with_tests_of_their_own() -> None:
    for page, tests in OWN.items():
        for test in tests:
            assert page in (Path(__file__).parent / test).read_text("utf-8"), f"{test} reads {page}"


@pytest.mark.parametrize(
    ("page", "code"), [(page.name, code) for page, code in PROGRAMS if "OpenAI" not in code], ids=lambda v: v[:30]
)
@pytest.mark.parametrize("where", ["elsewhere", "root"])
def test_a_shown_program_runs(page: str, code: str, where: str, folder: Path) -> None:
    """In a folder of the reader's, and from the checkout's root, whose folder `edgedec` must not hide the rest."""
    if page in DOWNLOADS:
        pytest.skip(DOWNLOADS[page])
    if page in NEEDS and find_spec(NEEDS[page]) is None:
        pytest.skip(f"{NEEDS[page]} is an extra")
    if where == "root" and page != "README.md":
        pytest.skip("one page is enough")
    env = environment()
    if where == "root":
        del env["PYTHONSAFEPATH"]
        # As with a package that is not installed for editing.
        code = (
            "import sys\n"
            "sys.meta_path = [f for f in sys.meta_path if '__editable__' not in getattr(f, '__module__', '')]"
            f"\n{code}"
        ).replace('"story.session"', repr(str(folder / "story.session")))
    at = ROOT if where == "root" else folder
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=at, env=env)
    assert done.returncode == 0, f"{page}: {done.stderr}"
    assert done.stdout.strip() or "og.Model" in code, "it shows something"


@pytest.fixture
def served(folder: Path) -> Iterator[str]:
    """A server, as the page starts it, at a free port."""
    command = [sys.executable, "-m", "edgedec", "serve", "-m", "./smol", "--port", "0"]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True, env=environment()) as process:
        assert process.stderr is not None
        found = None
        while found is None:
            line = process.stderr.readline()
            assert line, "the server ended"
            found = re.search(r"http://127\.0\.0\.1:\d+", line)
        yield found[0]
        process.terminate()


CLIENTS = [code for _, code in PROGRAMS if "OpenAI" in code]


@pytest.mark.parametrize("code", CLIENTS, ids=range(len(CLIENTS)))
def test_a_client_s_program_runs(code: str, served: str) -> None:
    for package in ("openai", "starlette", "uvicorn"):
        pytest.importorskip(package, reason="an extra")
    code = code.replace("http://127.0.0.1:8080", served).replace('model="smol"', 'model="nano", max_tokens=8')
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment())
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.skipif(not os.environ.get("EDGEDEC_SLOW_TESTS"), reason="starts a dozen programs: EDGEDEC_SLOW_TESTS=1")
@pytest.mark.parametrize("script", sorted((ROOT / "tests" / "bench").glob("*.py")), ids=lambda path: path.name)
def test_scripts_of_measurements_start(script: Path) -> None:
    """Each is on a page and shows its help, whatever extras are missing."""
    if "argparse" not in script.read_text("utf-8"):
        pytest.skip("it takes no options")
    env = environment(PYTHONPATH=str(ROOT / "tests"))
    del env["PYTHONSAFEPATH"]  # some import those beside them
    done = subprocess.run([sys.executable, script, "--help"], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    assert "usage:" in done.stdout


@pytest.mark.parametrize("seed", range(10))
def test_the_regular_expression_looks_good_ten_times_of_ten(seed: int, nano: Path) -> None:
    pytest.importorskip("llguidance", reason="an extra")
    import shlex

    from typer.testing import CliRunner

    from edgedec.cli import _app

    (command,) = (c for c in commands(ROOT / "README.md") if "--regex" in c)
    arguments = shlex.split(command)[1:]
    result = CliRunner().invoke(_app.app, [*arguments, "--seed", str(seed), "--json"])
    report = json.loads(result.stdout)
    pattern = arguments[arguments.index("--regex") + 1]
    assert re.fullmatch(pattern, report["text"])
    assert report["finish_reason"] == "eos"
    assert report["stats"]["generated_tokens"] < 40
    words = set(re.findall(r"[a-z]+", pattern))
    assert set(re.findall(r"[a-z]+", report["text"])) <= words, "every word is one that was written by hand"
