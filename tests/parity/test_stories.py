"""A real trained Llama tells its known story: converted, exported, decoded."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import write_safetensors

import edgedec
from edgedec.text.tokenizer import Tokenizer

pytest.importorskip("onnx", reason="exporting needs onnx")
from edgedec.export.exporter import ExportOptions, export

STORY = (
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. "
    "One day, she saw a big, red ball."
)
SENTENCES = [STORY, "Lily and Tim  went home.", "two\nlines", "Ünïcode ☃ and 🙂", " leading", "x"]
HEAD_DIM = 16  # the model's own is 8


@pytest.fixture(scope="module")
def stories(data: Path) -> Path:
    folder = data / "models" / "stories260K"
    if not folder.is_dir():
        pytest.skip("stories260K is not among the shared data")
    return folder


@pytest.fixture(scope="module")
def checkpoint(stories: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stories")
    convert_model(stories / "stories260K.bin", folder)
    convert_tokenizer(stories / "tok512.bin", folder)
    return folder


@pytest.fixture(scope="module")
def bundle(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("bundles") / "stories"
    export(str(checkpoint), out, ExportOptions(weights="f32"))
    return out


def convert_model(path: Path, folder: Path) -> None:
    """llama2.c's file as a Hugging Face checkpoint.

    Pairs that turn together lie side by side in a head; Hugging Face has them half a head apart. ONNX
    Runtime turns no heads of 8 channels, so every head is filled up with zero channels to 16: pair j
    of 4 turned by theta^(-j/4), and of 8 it does by (theta^2)^(-j/8). The attention's scale is that
    of the old width, so queries grow by sqrt(2).
    """
    raw = np.fromfile(path, "<i4", 7)
    dim, hidden, n_layers, n_heads, n_kv, vocab, seq = (int(x) for x in raw)
    d = dim // n_heads
    floats = _Floats(np.fromfile(path, "<f4", offset=28))
    embed = floats.take(vocab, dim)
    attn_norm, wq = floats.take(n_layers, dim), floats.take(n_layers, n_heads, d // 2, 2, dim)
    wk, wv = floats.take(n_layers, n_kv, d // 2, 2, dim), floats.take(n_layers, n_kv, d, dim)
    wo, mlp_norm = floats.take(n_layers, dim, n_heads, d), floats.take(n_layers, dim)
    w1, w2, w3 = (floats.take(n_layers, *shape) for shape in ((hidden, dim), (dim, hidden), (hidden, dim)))
    tensors = {"model.embed_tokens.weight": embed, "model.norm.weight": floats.take(dim)}
    for i in range(n_layers):
        p = f"model.layers.{i}"
        tensors |= {
            f"{p}.input_layernorm.weight": attn_norm[i],
            f"{p}.self_attn.q_proj.weight": _halves(wq[i]) * np.float32(2**0.5),
            f"{p}.self_attn.k_proj.weight": _halves(wk[i]),
            f"{p}.self_attn.v_proj.weight": _pad(wv[i], 1, HEAD_DIM).reshape(-1, dim),
            f"{p}.self_attn.o_proj.weight": _pad(wo[i], 2, HEAD_DIM).reshape(dim, -1),
            f"{p}.post_attention_layernorm.weight": mlp_norm[i],
            f"{p}.mlp.gate_proj.weight": w1[i],
            f"{p}.mlp.down_proj.weight": w2[i],
            f"{p}.mlp.up_proj.weight": w3[i],
        }
    write_safetensors(folder / "model.safetensors", {k: np.ascontiguousarray(v) for k, v in tensors.items()})
    config = {"model_type": "llama", "hidden_size": dim, "intermediate_size": hidden, "num_hidden_layers": n_layers}
    config |= {"num_attention_heads": n_heads, "num_key_value_heads": n_kv, "head_dim": HEAD_DIM, "vocab_size": vocab}
    config |= {"max_position_embeddings": seq, "rms_norm_eps": 1e-5, "rope_theta": 1e4**2, "hidden_act": "silu"}
    config |= {"tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2}
    (folder / "config.json").write_text(json.dumps(config))


class _Floats:
    """A file's numbers, taken from the front."""

    def __init__(self, array: np.ndarray) -> None:
        self._rest = array

    def take(self, *shape: int) -> np.ndarray:
        n = int(np.prod(shape))
        taken, self._rest = self._rest[:n].reshape(shape), self._rest[n:]
        assert len(taken) == shape[0]
        return taken


def _halves(w: np.ndarray) -> np.ndarray:
    """[heads, pairs, 2, dim], pairs side by side -> [heads * HEAD_DIM, dim], half a head apart."""
    return _pad(w.transpose(0, 2, 1, 3), 2, HEAD_DIM // 2).reshape(-1, w.shape[-1])


def _pad(w: np.ndarray, axis: int, size: int) -> np.ndarray:
    """Zeros after `axis` up to `size`."""
    missing = [(0, size - w.shape[a] if a == axis else 0) for a in range(w.ndim)]
    return np.pad(w, missing)


def pieces(path: Path) -> list[tuple[str, float]]:
    """The vocabulary of a llama2.c tokenizer: (piece, score) by id."""
    raw, at, found = path.read_bytes(), 4, []
    while at < len(raw):
        score, n = struct.unpack_from("<fi", raw, at)
        found.append((raw[at + 8 : at + 8 + n].decode(), score))
        at += 8 + n
    return [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0), *found[3:]]


def convert_tokenizer(path: Path, folder: Path) -> None:
    """llama2.c's vocabulary as a tokenizer.json in the manner of Llama 2."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

    vocabulary = [(piece.replace(" ", "▁"), score) for piece, score in pieces(path)]
    ids = {piece: i for i, (piece, _) in enumerate(vocabulary)}
    # The pair that SentencePiece joins first is the one whose piece scores best.
    merges = [
        (piece[:cut], piece[cut:])
        for piece, _ in sorted(vocabulary[259:], key=lambda item: -item[1])
        for cut in range(1, len(piece))
        if piece[:cut] in ids and piece[cut:] in ids
    ]
    raw = Tokenizer(models.BPE(ids, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    raw.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    raw.decoder = decoders.Sequence(steps)
    raw.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in ("<unk>", "<s>", "</s>")])
    raw.save(str(folder / "tokenizer.json"))
    settings: dict[str, Any] = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "model_max_length": 512}
    settings |= {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "add_prefix_space": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def encode(vocabulary: list[tuple[str, float]], text: str) -> list[int]:
    """As llama2.c does: characters, or their bytes; then the best neighbours joined until none are left."""
    ids = {piece: i for i, (piece, _) in enumerate(vocabulary)}
    tokens = [t for c in f" {text}" for t in ([ids[c]] if c in ids else [3 + b for b in c.encode()])]
    while True:
        joined = [
            (vocabulary[ids[both]][1], -at, ids[both])
            for at in range(len(tokens) - 1)
            if (both := vocabulary[tokens[at]][0] + vocabulary[tokens[at + 1]][0]) in ids
        ]
        if not joined:
            return tokens
        _, at, token = max(joined)
        tokens[-at : -at + 2] = [token]


@pytest.mark.parametrize("text", SENTENCES)
def test_the_tokenizer_is_llama2cs(stories: Path, checkpoint: Path, text: str) -> None:
    tokenizer = Tokenizer.load(checkpoint / "tokenizer.json")
    found = tokenizer.encode(text)
    assert found == encode(pieces(stories / "tok512.bin"), text)
    assert tokenizer.decode(found) == text


def told(bundle: Path, engine: str = "ort") -> str:
    """What the model says from BOS on, greedily."""
    model = edgedec.open(bundle, engine=engine, threads=1)
    return model.tokenizer.decode(model.session().tokens([1], max_tokens=80))


@pytest.mark.parametrize("engine", ["reference", "ort", "auto"])
def test_the_story_is_told(bundle: Path, engine: str) -> None:
    assert told(bundle, engine).startswith(STORY)


def test_the_story_is_told_by_onnxruntime_genai(bundle: Path) -> None:
    genai = pytest.importorskip("onnxruntime_genai", reason="needs onnxruntime-genai")
    model = genai.Model(str(bundle))
    parameters = genai.GeneratorParams(model)
    parameters.set_search_options(do_sample=False, max_length=81)
    generator = genai.Generator(model, parameters)
    generator.append_tokens([1])
    while not generator.is_done():
        generator.generate_next_token()
    tokenizer, ours = genai.Tokenizer(model), Tokenizer.load(bundle / "tokenizer.json")
    ids = generator.get_sequence(0)[1:]
    assert tokenizer.decode(ids).strip() == ours.decode(ids) == told(bundle)
    assert list(tokenizer.encode(STORY))[-40:] == ours.encode(STORY)[-40:]


@pytest.mark.parametrize(("weights", "kv", "same", "kl"), [("int8", "int8", STORY, 0.01), ("int4", "f32", "Once", 0.2)])
def test_the_story_when_quantized(
    checkpoint: Path, tmp_path: Path, weights: str, kv: str, same: str, kl: float
) -> None:
    """int8 tells the same story; int4 of so small a model another one."""
    bundle = export(str(checkpoint), tmp_path / "b", ExportOptions(weights=weights, kv=(kv,)))
    assert told(bundle.path).startswith(same)
    assert bundle.manifest.parity is not None
    assert bundle.manifest.parity.kl[kv] < kl
