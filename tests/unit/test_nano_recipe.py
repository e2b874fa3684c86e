"""The bundled model's last training: what is read and what is learned, and losses at early exits.

The recipe's modules are scripts with names of their own (`data`, `model`, `export`), so they run in a process apart.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

pytest.importorskip("torch", reason="nano is trained with torch")
pytest.importorskip("safetensors", reason="nano's training keeps safetensors")
RECIPE = Path(__file__).parents[2] / "models" / "nano"
STORY = "Once upon a time, there was a dog named Max. The dog was happy. He ran to the park."


def run(program: str) -> None:
    head = f"""
    import random, sys
    sys.path.insert(0, {str(RECIPE)!r})
    import data, exits, model, prompts, torch
    from corpus import Corpus
    from tokenizers import Tokenizer
    torch.set_num_threads(1)
    exits.compiled = lambda function: function
    tok = Tokenizer.from_file({str(RECIPE / "bundle" / "tokenizer.json")!r})
    story = {STORY!r}
    answers = prompts.Answers(Corpus([story] * 5, [], [], [], []), ["x = 1"], ["A page of text that is no story."])
    """
    done = subprocess.run(
        [sys.executable, "-P", "-c", dedent(head) + dedent(program)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_prompts_are_read_and_answers_learned() -> None:
    run("""
    rng, kinds = random.Random(0), set()
    for _ in range(300):
        turns = answers.conversation(rng)
        assert len(turns) % 2 == 0 and turns[1].startswith("\\n\\n") == (not turns[0].endswith("\\n\\n\\n\\n"))
        tokens, targets = model.parted(torch.from_numpy(prompts.encoded(tok, turns).astype("int64"))[None])
        assert tokens.min() >= 0 and tokens.max() < 4096
        learned = targets[targets >= 0].tolist()
        assert learned == [i for text in turns[1::2] for i in tok.encode(text, add_special_tokens=False).ids]
        kinds.add(len(turns))
    assert len(kinds) > 1
    """)


def test_the_first_turn_is_what_the_chat_template_writes(nano: Path) -> None:
    run("""
    import edgedec
    chat = edgedec.open("nano", threads=1)
    rng = random.Random(1)
    for _ in range(50):
        prompt, answer = answers.turn(rng)
        read = [-model.MASK - i if i <= -model.MASK else i for i in prompts.encoded(tok, [prompt, answer]).tolist()]
        ids = chat.chat_ids([{"role": "user", "content": prompt}])
        assert read[: len(ids)] == ids
    """)


def test_exits_share_the_loss_and_layers_are_left_out() -> None:
    run("""
    assert sum(exits.shares([3, 7]).values()) == 1 and exits.shares([3, 7])[14] > 0.5
    assert {e for update in range(exits.TURN) for e in exits.turn(update)} == set(exits.EXITS)
    weights = model.new_weights(0)
    for name in ("o_proj", "down_proj"):
        weights[name].normal_(std=0.05)
    weights = {name: w.requires_grad_() for name, w in weights.items()}
    piece, calls = torch.randint(1, 4096, (1, 33)), []
    def layer(x, *rest):
        calls.append(1)
        return model.layer(x, *rest)
    for update in range(40):
        torch.manual_seed(update)
        loss = exits.objective(weights, piece, layer, model.token_losses, 0.0, update)
    assert 30 * 14 < len(calls) < 40 * 14
    calls.clear()
    loss = exits.objective(weights, piece, layer, model.token_losses, 1.0, 0)
    assert len(calls) == 14
    masked = piece.clone()
    masked[:, :20] = -model.MASK - masked[:, :20]
    assert exits.objective(weights, masked, layer, model.token_losses, 1.0, 0) < loss
    loss.backward()
    assert all(w.grad.abs().sum() > 0 for w in weights.values())
    """)


def test_of_a_text_said_twice_the_second_telling_is_learned() -> None:
    run("""
    import lessons, finetune
    mix = finetune.Mix.__new__(finetune.Mix)
    mix.tok = tok
    rng = random.Random(3)
    for make in (lessons.edit, lessons.quotes):
        for _ in range(20):
            text = make(story, rng)
            first, mark, twin = text.rpartition(lessons.MARK.search(text).group())
            tokens, targets = model.parted(torch.from_numpy(mix.copied(text).astype("int64"))[None])
            assert targets[targets >= 0].tolist() == tok.encode(twin, add_special_tokens=False).ids
            assert tokens.min() >= 0 and len(tok.decode(tokens[0].tolist())) > len(first)
    words = ["zebra", "quark", "fjord"]
    changed = [lessons.strange(story, words, rng) for _ in range(30)]
    assert any(set(words) & set(text.split()) for text in changed)
    assert all(text[:4] == "Once" and text.count(".") == story.count(".") for text in changed)
    """)


def test_programs_run_and_are_always_the_same() -> None:
    run("""
    import programs
    made = programs.programs()
    assert made == programs.programs() and len(made) == len(set(made)) > 900
    for code in made:
        exec(code, {})
        assert code.startswith("def ") and "\\nassert " in code and len(code) < programs.LONGEST
    words = {line.split()[0].rstrip(":") for code in made for line in code.splitlines() if line.strip()}
    assert {"for", "while", "if", "else", "return"} <= words
    assert len({line for code in made for line in code.splitlines() if line.startswith("def ")}) > 800
    """)


def test_documents_are_lines_for_train_diffusion() -> None:
    """Each answer of a conversation is a line with all before it as its prompt; tokens are those of the document."""
    run("""
    import importlib
    diffusion, lists = importlib.import_module("diffusion"), importlib.import_module("lists")
    said = prompts.encoded(tok, ("Hi", " there.", " And?", " Well."))
    assert diffusion.turns(tok, said) == [
        {"prompt": "Hi", "answer": " there."}, {"prompt": "Hi there. And?", "answer": " Well."}]
    assert diffusion.turns(tok, data.encode(tok, [story])[0]) == [{"text": story}]
    one, several = (diffusion.asked(random.Random(1), i) for i in (1, 4))
    assert one.keys() == {"prompt", "answer"} and several.keys() == {"prompt", "parts", "answer"}
    assert several["answer"] == "All: " + ", ".join(several["parts"]) and len(several["parts"]) > 1
    """)
