"""The evaluation harness: a task of its own by completions and by chats, with earlier turns in them."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from cases import MODEL, URL, run
from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

LINES = [{"q": "A cat is an", "a": "animal"}, {"q": "A dog is an", "a": "animal"}, {"q": "A fox is an", "a": "animal"}]
TASK: dict[str, Any] = {
    "task": "turns",
    "output_type": "generate_until",
    "generation_kwargs": {"until": ["\n"], "max_gen_toks": 8},
    "dataset_path": "json",
    "test_split": "train",
    "fewshot_split": "train",
    "doc_to_text": "{{q}}",
    "doc_to_target": " {{a}}",
    "num_fewshot": 1,
}


def _evaluate(kind: str, path: str, **more: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "lines.jsonl")
        file.write_text("".join(json.dumps(line) + "\n" for line in LINES))
        data = {"dataset_kwargs": {"data_files": str(file), "cache_dir": folder}}
        found = simple_evaluate(
            model=kind,
            model_args=f"model={MODEL},base_url={URL}{path},tokenizer_backend=None,num_concurrent=1,max_retries=1",
            tasks=[{**TASK, **data}],
            task_manager=TaskManager(include_path=folder, include_defaults=False),
            bootstrap_iters=0,
            **more,
        )
        assert len(found["samples"]["turns"]) == len(LINES)


def completions() -> None:
    _evaluate("local-completions", "/v1/completions")


def chats() -> None:
    _evaluate("local-chat-completions", "/v1/chat/completions", apply_chat_template=True)


def chats_with_turns() -> None:
    more = {"apply_chat_template": True, "fewshot_as_multiturn": True}
    _evaluate("local-chat-completions", "/v1/chat/completions", **more)


if __name__ == "__main__":
    run(completions, chats, chats_with_turns)
