"""lm-evaluation-harness on a bundle: tasks from local files give the numbers of transformers' model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import write_llama

import edgedec
from edgedec.decoding.batch_score import score_all
from edgedec.decoding.sharing import SharedPrefixes
from edgedec.errors import EdgedecError, UsageError

CHOICES = """
task: choices
dataset_path: json
dataset_kwargs: {data_files: {test: "FOLDER/choices.jsonl"}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}\\nAnswer:"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
metric_list: [{metric: acc}, {metric: acc_norm}]
"""
ROLLING = """
task: rolling
dataset_path: json
dataset_kwargs: {data_files: {test: "FOLDER/texts.jsonl"}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: word_perplexity}, {metric: bits_per_byte}]
"""
UNTIL = """
task: until
dataset_path: json
dataset_kwargs: {data_files: {test: "FOLDER/texts.jsonl"}}
test_split: test
output_type: generate_until
doc_to_text: "{{text[:60]}}"
doc_to_target: "{{text[60:]}}"
generation_kwargs: {until: ["e"], max_gen_toks: 12, do_sample: false}
metric_list: [{metric: exact_match}]
"""
TASKS = {"choices": CHOICES, "rolling": ROLLING, "until": UNTIL}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("checkpoint") / "llama", seed=3)


@pytest.fixture(scope="module")
def bundle(checkpoint: Path) -> Path:
    pytest.importorskip("onnx", reason="exporting needs onnx")
    from edgedec.export.exporter import ExportOptions, export

    out = checkpoint.parent / "bundle"
    export(str(checkpoint), out, ExportOptions(weights="f32", check=False, runtimes=()))
    return out


def test_scores_in_a_batch_are_those_of_a_session(bundle: Path) -> None:
    model, rng = edgedec.open(bundle), np.random.default_rng(0)
    beginning = rng.integers(0, 256, 90).tolist()
    texts = [([*beginning, i], rng.integers(0, 256, n).tolist()) for i, n in enumerate([1, 5, 140, 2, 1, 7])]
    texts += [([7], beginning), (beginning, [3])]
    prefixes = SharedPrefixes(model.runtime.capabilities)
    found = score_all(model.runtime, texts, 4, prefixes)
    assert len(prefixes) > 0
    for (text, ids), one in zip(texts, found, strict=True):
        session = model.session(speculate="off")
        session.append(text)
        assert one.logprob == pytest.approx(sum(session.score(ids)), abs=1e-4)
        assert not one.greedy or len(ids) == 1
    best = [int(t) for t in model.session(speculate="off").tokens([7], max_tokens=3, ignore_eos=True)]
    assert score_all(model.runtime, [([7], best)])[0].greedy
    with pytest.raises(UsageError, match="nothing to score after"):
        score_all(model.runtime, [([], [1])])


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of tasks and their data."""
    pytest.importorskip("lm_eval", reason="needs lm_eval (the extra evals)")
    pytest.importorskip("transformers", reason="compares with transformers")
    folder = tmp_path_factory.mktemp("tasks")
    rng = np.random.default_rng(1)
    words = ["the", "thing", "on", "an", "in", "singing", "other", "cat", "then", "hand"]
    texts = [" ".join(rng.choice(words, n)) for n in (20, 40, 260)]
    (folder / "texts.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    questions = [
        {"question": " ".join(rng.choice(words, 30)), "choices": [str(w) for w in rng.choice(words, 4)], "answer": 1}
        for _ in range(6)
    ]
    (folder / "choices.jsonl").write_text("\n".join(map(json.dumps, questions)))
    for name, text in TASKS.items():
        (folder / f"{name}.yaml").write_text(text.replace("FOLDER", str(folder)))
    return folder


def found_by(tasks: Path, model: str, arguments: str, *names: str) -> dict[str, Any]:
    """The answers to each task's samples, of `python -m edgedec.harness`."""
    out = tasks / model
    command = [sys.executable, "-m", "edgedec.harness", "run", "--model", model, "--model_args", arguments]
    command += ["--tasks", ",".join(names), "--include_path", str(tasks), "--output_path", str(out), "--log_samples"]
    own = {"HF_HOME": str(tasks / "hf"), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(
        [*command, "--device", "cpu"], env={**os.environ, **own}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = {name: next(out.rglob(f"samples_{name}_*.jsonl")).read_text().splitlines() for name in names}
    return {name: [json.loads(line)["resps"] for line in text] for name, text in lines.items()}


@pytest.fixture(scope="module")
def results(checkpoint: Path, bundle: Path, tasks: Path) -> dict[str, Any]:
    """What the harness found, by model and task."""
    models = {"edgedec": f"bundle={bundle}", "hf": f"pretrained={checkpoint},dtype=float32,max_length=256"}
    return {model: found_by(tasks, model, arguments, *TASKS) for model, arguments in models.items()}


def same_choices(mine: list[Any], theirs: list[Any]) -> None:
    assert len(mine) == len(theirs) == 6
    for ours, expected in zip(mine, theirs, strict=True):
        assert len(ours) == 4
        for ((a, same),), ((b, wanted),) in zip(ours, expected, strict=True):
            assert float(a) == pytest.approx(float(b), abs=1e-4)
            assert same == wanted


def test_loglikelihoods_are_those_of_transformers(results: dict[str, Any]) -> None:
    same_choices(results["edgedec"]["choices"], results["hf"]["choices"])


def test_the_harness_of_completions_on_our_server(
    checkpoint: Path, bundle: Path, tasks: Path, results: dict[str, Any]
) -> None:
    """Its model `local-completions`: prompts as token ids, `echo`, log-probabilities of the prompt."""
    for package in ("starlette", "uvicorn", "aiohttp", "tenacity"):
        pytest.importorskip(package, reason=f"needs {package}")
    from edgedec.server import fields

    if not hasattr(fields, "TOKENIZE"):
        pytest.skip("this server gives no log-probabilities of prompts")
    from serving import serving

    model = edgedec.open(bundle)
    with serving(model, context=256) as (place, _):
        arguments = (
            f"model={model.bundle.manifest.name},base_url={place}/v1/completions,num_concurrent=2,max_length=256"
        )
        more = f"tokenizer={checkpoint},tokenizer_backend=huggingface,tokenized_requests=True,add_bos_token=True"
        found = found_by(tasks, "local-completions", f"{arguments},{more}", "choices")
    same_choices(found["choices"], results["hf"]["choices"])


def test_rolling_loglikelihoods_are_those_of_transformers(results: dict[str, Any]) -> None:
    """The last text is longer than the context."""
    mine, theirs = ([float(np.ravel(one)[0]) for one in results[m]["rolling"]] for m in ("edgedec", "hf"))
    assert min(mine) < -1000
    for a, b in zip(mine, theirs, strict=True):
        assert a == pytest.approx(b, rel=1e-6, abs=1e-4)


def test_generated_texts_are_those_of_transformers(results: dict[str, Any]) -> None:
    assert results["edgedec"]["until"] == results["hf"]["until"]
    assert len(results["hf"]["until"]) == 3


def test_wrong_arguments_are_one_line(bundle: Path) -> None:
    pytest.importorskip("lm_eval", reason="needs lm_eval (the extra evals)")
    from lm_eval.api.registry import get_model

    from edgedec import harness

    harness.register()
    for arguments, message in (
        ({"bundle": f"{bundle}x"}, "no such bundle folder"),
        ({"bundle": bundle, "pretrained": "gpt2"}, "'pretrained': not an argument of --model edgedec"),
    ):
        with pytest.raises(EdgedecError, match=message):
            get_model("edgedec").create_from_arg_obj(arguments, {"batch_size": 1})
