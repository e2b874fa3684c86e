"""Draft checkpoints in their published layouts with random weights, and what they compute, in torch.

Written from the papers and the authors' tensor names, not from the package: no cache, no tree, every row anew.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")
transformers = pytest.importorskip("transformers", reason="needs transformers")
from safetensors.torch import save_file  # noqa: E402

torch.set_num_threads(1)  # products this small are slower on several
F = torch.nn.functional
Tensor = Any
Path_ = tuple[int, ...]
HIDDEN, HEADS, KV_HEADS, DIM, INNER, VOCAB, DRAFT_VOCAB, EPS = 64, 4, 2, 16, 96, 131, 67, 1e-5
CONFIG = {
    "hidden_size": HIDDEN,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "intermediate_size": INNER,
    "vocab_size": VOCAB,
    "rms_norm_eps": EPS,
    "max_position_embeddings": 128,
    "rope_theta": 5000.0,
    "hidden_act": "silu",
    "num_hidden_layers": 1,
}


def target(layers: int = 8, seed: int = 0) -> Any:
    """A random Llama whose next token depends on the text."""
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        **(CONFIG | {"num_hidden_layers": layers, "rope_theta": 10000.0, "head_dim": DIM}),
        pad_token_id=None,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(drawn(name, tuple(weight.shape)))
    return model.eval()


def drawn(name: str, shape: tuple[int, ...]) -> Tensor:
    if len(shape) == 1:
        return (0.0 if name.endswith("bias") else 1.0) + 0.2 * torch.randn(shape)
    return torch.randn(shape) * 2 / shape[-1] ** 0.5


@dataclass
class Target:
    """What an oracle needs of the target."""

    model: Any
    known: dict[tuple[int, ...], list[Tensor]] = field(default_factory=dict)
    last: dict[tuple[int, ...], Tensor] = field(default_factory=dict)

    def states(self, ids: Sequence[int]) -> list[Tensor]:
        """After 0, 1, ... layers [n, hidden]; the last after the norm too."""
        if tuple(ids) not in self.known:
            before: list[Tensor] = []
            hook = self.model.model.norm.register_forward_pre_hook(lambda _, given: before.append(given[0][0]))
            with torch.no_grad():
                found = self.model.model(torch.tensor([list(ids)]), output_hidden_states=True).hidden_states
            hook.remove()
            self.known[tuple(ids)], self.last[tuple(ids)] = [x[0] for x in found], before[0]
        return self.known[tuple(ids)]

    def before_norm(self, ids: Sequence[int]) -> Tensor:
        """After all layers, before the norm [n, hidden]."""
        self.states(ids)
        return self.last[tuple(ids)]

    def entering(self, ids: Sequence[int]) -> Tensor:
        """The states that enter its last layer [n, hidden]."""
        return self.states(ids)[-2]

    def embed(self, tokens: Sequence[int]) -> Tensor:
        return self.model.model.embed_tokens.weight.detach()[list(tokens)]

    @property
    def head(self) -> Tensor:
        return self.model.lm_head.weight.detach()


@dataclass
class Oracle:
    """A kind of draft: its tensors and config, and `after(ids, path)`: logprobs [vocab] of what it says comes after a
    text and the tokens of a path."""

    tensors: dict[str, Tensor]
    config: dict[str, Any]
    after: Callable[[Target, Sequence[int], Path_], Tensor]
    depth: int

    def save(self, folder: Path, file: str = "model.safetensors") -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config))
        if file.endswith(".safetensors"):
            save_file({name: tensor.contiguous().clone() for name, tensor in self.tensors.items()}, folder / file)
        else:
            torch.save(self.tensors, folder / file)
        return folder


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * weight


def attention(
    x: Tensor,
    t: dict[str, Tensor],
    p: str,
    theta: float,
    window: int = 1 << 20,
    sinks: int = 0,
    places: Sequence[int] | None = None,
) -> Tensor:
    """Causal, of rows at positions 0 .. n-1, or at these places; x [n, in]. A row sees the `window` latest ones and the
    first `sinks`."""
    n = len(x)
    at = torch.arange(n) if places is None else torch.tensor(places)
    q, k, v = (F.linear(x, t[f"{p}{name}_proj.weight"], t.get(f"{p}{name}_proj.bias")) for name in "qkv")
    q, k, v = q.view(n, HEADS, DIM), k.view(n, KV_HEADS, DIM), v.view(n, KV_HEADS, DIM)
    angles = at[:, None] * theta ** (-torch.arange(0, DIM, 2) / DIM)
    cos, sin = (torch.cat([f(angles)] * 2, -1)[:, None] for f in (torch.cos, torch.sin))

    def turned(y: Tensor) -> Tensor:
        a, b = y.chunk(2, -1)
        return y * cos + torch.cat([-b, a], -1) * sin

    q, k = turned(q), turned(k)
    k, v = (y.repeat_interleave(HEADS // KV_HEADS, 1) for y in (k, v))
    scores = torch.einsum("ihd,jhd->hij", q, k) / DIM**0.5
    sees = torch.ones(n, n, dtype=torch.bool).tril()
    sees &= torch.ones(n, n, dtype=torch.bool).triu(1 - window) | (torch.arange(n) < sinks)
    scores = scores.masked_fill(~sees, float("-inf"))
    mixed = torch.einsum("hij,jhd->ihd", scores.softmax(-1), v).reshape(n, -1)
    return F.linear(mixed, t[f"{p}o_proj.weight"])


def mlp(x: Tensor, t: dict[str, Tensor], p: str) -> Tensor:
    up = F.silu(F.linear(x, t[f"{p}gate_proj.weight"])) * F.linear(x, t[f"{p}up_proj.weight"])
    return F.linear(up, t[f"{p}down_proj.weight"])


def layer_tensors(p: str, read: int = HIDDEN, norms: Sequence[str] = ()) -> dict[str, Tensor]:
    shapes = {
        "self_attn.q_proj.weight": (HEADS * DIM, read),
        "self_attn.k_proj.weight": (KV_HEADS * DIM, read),
        "self_attn.v_proj.weight": (KV_HEADS * DIM, read),
        "self_attn.o_proj.weight": (HIDDEN, HEADS * DIM),
        "mlp.gate_proj.weight": (INNER, HIDDEN),
        "mlp.up_proj.weight": (INNER, HIDDEN),
        "mlp.down_proj.weight": (HIDDEN, INNER),
        **{f"{name}.weight": (HIDDEN,) for name in (*norms, "post_attention_layernorm")},
    }
    return {p + name: drawn(p + name, shape) for name, shape in shapes.items()}


def named(**shapes: tuple[int, ...]) -> dict[str, Tensor]:
    """Tensors by names in which `__` stands for a point."""
    return {name.replace("__", "."): drawn(name, shape) for name, shape in shapes.items()}


def drafted_on(
    step: Callable[[Tensor, Sequence[int]], Tensor], first: Tensor, ids: Sequence[int], path: Path_
) -> Tensor:
    """The last state after a text and a path. step(states, tokens): what comes out of each row; first: the states at
    the text's tokens but the last. A drafted row takes what the row before it gave."""
    states, tokens = first, list(ids[1:])
    for token in path:
        states, tokens = torch.cat([states, step(states, tokens)[-1:]]), [*tokens, token]
    return step(states, tokens)[-1]


def eagle3(speculators: bool = False) -> Oracle:
    """speculators: the norm comes before the residual, and names and config are those of that library."""
    p = "layers.0." if speculators else "midlayer."
    t = layer_tensors(p, 2 * HIDDEN, ("hidden_norm", "input_layernorm"))
    t |= named(fc__weight=(HIDDEN, 3 * HIDDEN), norm__weight=(HIDDEN,), lm_head__weight=(DRAFT_VOCAB, HIDDEN))
    known = torch.randperm(VOCAB)[:DRAFT_VOCAB].sort().values
    t["d2t"] = known - torch.arange(DRAFT_VOCAB)
    t["t2d"] = torch.isin(torch.arange(VOCAB), known)

    def after(target: Target, ids: Sequence[int], path: Path_) -> Tensor:
        def step(h: Tensor, tokens: Sequence[int]) -> Tensor:
            e = rms(target.embed(tokens), t[f"{p}input_layernorm.weight"])
            normed = rms(h, t[f"{p}hidden_norm.weight"])
            both, h = torch.cat([e, normed], -1), normed if speculators else h
            h = h + attention(both, t, f"{p}self_attn.", 5000.0)
            return h + mlp(rms(h, t[f"{p}post_attention_layernorm.weight"]), t, f"{p}mlp.")

        layers = target.states(ids[:-1])
        n = len(layers) - 1
        first = F.linear(torch.cat([layers[2], layers[n // 2], layers[n - 3]], -1), t["fc.weight"])
        state = rms(drafted_on(step, first, ids, path), t["norm.weight"])
        found = torch.full((VOCAB,), float("-inf"))
        found[known] = F.linear(state, t["lm_head.weight"]).log_softmax(-1)
        return found

    more = {"draft_vocab_size": DRAFT_VOCAB}
    nested = {"transformer_layer_config": CONFIG, "norm_before_residual": True, "speculators_model_type": "eagle3"}
    return Oracle(t, nested | more if speculators else CONFIG | more, after, 5)


def eagle(layers: int = 1) -> Oracle:
    t: dict[str, Tensor] = {}
    for i in range(layers):
        t |= layer_tensors(f"layers.{i}.", norms=("input_layernorm",) if i else ())
    t |= named(fc__weight=(HIDDEN, 2 * HIDDEN), fc__bias=(HIDDEN,), embed_tokens__weight=(VOCAB, HIDDEN))

    def after(target: Target, ids: Sequence[int], path: Path_) -> Tensor:
        def step(h: Tensor, tokens: Sequence[int]) -> Tensor:
            x = F.linear(torch.cat([target.embed(tokens), h], -1), t["fc.weight"], t["fc.bias"])
            for i in range(layers):
                p = f"layers.{i}."
                x = x + attention(rms(x, t[f"{p}input_layernorm.weight"]) if i else x, t, f"{p}self_attn.", 5000.0)
                x = x + mlp(rms(x, t[f"{p}post_attention_layernorm.weight"]), t, f"{p}mlp.")
            return x

        state = drafted_on(step, target.states(ids[:-1])[-1], ids, path)
        return F.linear(state, target.head).log_softmax(-1)

    return Oracle(t, CONFIG | {"num_hidden_layers": layers}, after, 5)


def mtp(layout: str) -> Oracle:
    """`deepseek`: GLM-4.5's names too; `qwen3_next`: with plain attention; `mimo`."""
    layer = {"deepseek": "model.layers.8.", "qwen3_next": "mtp.layers.0.", "mimo": "model.mtp_layers.0."}[layout]
    enorm, hnorm, proj, last = {
        "deepseek": (f"{layer}enorm", f"{layer}hnorm", f"{layer}eh_proj", f"{layer}shared_head.norm"),
        "qwen3_next": ("mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.fc", "mtp.norm"),
        "mimo": (
            f"{layer}token_layernorm",
            f"{layer}hidden_layernorm",
            f"{layer}input_proj",
            f"{layer}final_layernorm",
        ),
    }[layout]
    more = 1.0 if layout == "qwen3_next" else 0.0  # its norms are stored less one
    t = layer_tensors(layer, norms=("input_layernorm",))
    t |= {f"{name}.weight": drawn(name, (HIDDEN,)) for name in (enorm, hnorm, last)}
    t = {name: tensor - more if tensor.ndim == 1 else tensor for name, tensor in t.items()}
    t[f"{proj}.weight"] = drawn(proj, (HIDDEN, 2 * HIDDEN))
    if layout == "deepseek":
        t |= {name: drawn(name, (VOCAB, HIDDEN)) for name in (f"{layer}shared_head.head.weight",)}

    def norm(x: Tensor, name: str) -> Tensor:
        return rms(x, t[f"{name}.weight"] + more)

    def after(target: Target, ids: Sequence[int], path: Path_) -> Tensor:
        def step(h: Tensor, tokens: Sequence[int]) -> Tensor:
            parts = [norm(target.embed(tokens), enorm), norm(h, hnorm)]
            x = F.linear(torch.cat(parts[::-1] if layout == "mimo" else parts, -1), t[f"{proj}.weight"])
            x = x + attention(norm(x, f"{layer}input_layernorm"), t, f"{layer}self_attn.", 5000.0)
            x = x + mlp(norm(x, f"{layer}post_attention_layernorm"), t, f"{layer}mlp.")
            return norm(x, last) if layout == "qwen3_next" else x

        first = target.before_norm(ids[:-1]) if layout == "mimo" else target.states(ids[:-1])[-1]
        state = drafted_on(step, first, ids, path)
        state = state if layout == "qwen3_next" else norm(state, last)
        return F.linear(state, t.get(f"{layer}shared_head.head.weight", target.head)).log_softmax(-1)

    return Oracle(t, CONFIG | {"num_hidden_layers": 8, "model_type": "llama"}, after, 3)


def hydra(prefix: bool, heads: int = 3, layers: int = 2) -> Oracle:
    p = "prefix_embeding_layer."
    t: dict[str, Tensor] = {}
    if prefix:
        t |= layer_tensors(f"{p}layers.0.", norms=("input_layernorm",))
        t |= {f"{p}norm.weight": drawn("norm", (HIDDEN,)), f"{p}embed_tokens.weight": drawn("e", (VOCAB, HIDDEN))}
    for i in range(heads):
        for j in range(layers):
            for name in ("linear", "res_connection")[: 2 if j == 0 else 1]:
                width = HIDDEN * (i + 2) if j == 0 else HIDDEN
                t[f"hydra_mlp.{i}.{1 + 2 * j}.{name}.weight"] = drawn("w", (HIDDEN, width))
                t[f"hydra_mlp.{i}.{1 + 2 * j}.{name}.bias"] = drawn("bias", (HIDDEN,))
        t[f"hydra_lm_head.{i}.1.weight"] = drawn("w", (VOCAB, HIDDEN))
        t[f"hydra_lm_head.{i}.1.bias"] = drawn("bias", (VOCAB,))

    def after(target: Target, ids: Sequence[int], path: Path_) -> Tensor:
        x, i = target.states(ids[:-1])[-1], len(path)
        if prefix:
            q = f"{p}layers.0."
            x = x + attention(rms(x, t[f"{q}input_layernorm.weight"]), t, f"{q}self_attn.", 10000.0)
            x = x + mlp(rms(x, t[f"{q}post_attention_layernorm.weight"]), t, f"{q}mlp.")
            x = rms(x, t[f"{p}norm.weight"])
        y = torch.cat([x[-1], *target.embed([ids[-1], *path])])
        for j in range(layers):
            w = f"hydra_mlp.{i}.{1 + 2 * j}."
            skip = y if j else F.linear(y, t[f"{w}res_connection.weight"], t[f"{w}res_connection.bias"])
            y = skip + F.silu(F.linear(y, t[f"{w}linear.weight"], t[f"{w}linear.bias"]))
        head = f"hydra_lm_head.{i}.1."
        return F.linear(y, t[f"{head}weight"], t[f"{head}bias"]).log_softmax(-1)

    return Oracle(t, {"hydra_num_heads": heads, "hydra_num_layers": layers, "grounded_heads": True}, after, heads)


def medusa(heads: int = 3, layers: int = 2, prefix: str = "") -> Oracle:
    t: dict[str, Tensor] = {}
    for i in range(heads):
        for j in range(layers):
            t[f"{prefix}{i}.{j}.linear.weight"] = drawn("w", (HIDDEN, HIDDEN))
            t[f"{prefix}{i}.{j}.linear.bias"] = drawn("bias", (HIDDEN,))
        t[f"{prefix}{i}.{layers}.weight"] = drawn("w", (VOCAB, HIDDEN))

    def after(target: Target, ids: Sequence[int], path: Path_) -> Tensor:
        x, i = target.states(ids[:-1])[-1][-1], len(path)
        for j in range(layers):
            x = x + F.silu(F.linear(x, t[f"{prefix}{i}.{j}.linear.weight"], t[f"{prefix}{i}.{j}.linear.bias"]))
        return F.linear(x, t[f"{prefix}{i}.{layers}.weight"]).log_softmax(-1)

    return Oracle(t, {"medusa_num_heads": heads, "medusa_num_layers": layers}, after, heads)


def kangaroo(layer: int = 2, layers: int = 1) -> Oracle:
    t = named(norm__weight=(HIDDEN,))
    for i in range(layers):
        whole = layer_tensors(f"layers.{i}.", norms=("input_layernorm",))
        t |= {name: x for name, x in whole.items() if "self_attn" in name or "input_layernorm" in name}

    def after(target: Target, ids: Sequence[int], path: Path_) -> Tensor:
        x = target.states([*ids, *path])[layer]
        for i in range(layers):
            p = f"layers.{i}."
            x = x + attention(rms(x, t[f"{p}input_layernorm.weight"]), t, f"{p}self_attn.", 5000.0)
        return F.linear(rms(x[-1], t["norm.weight"]), target.head).log_softmax(-1)

    return Oracle(t, CONFIG | {"num_hidden_layers": layers, "exit_layer": layer}, after, 6)


def m2r2(layer: int = 3, rank: int = 20) -> Oracle:
    t: dict[str, Tensor] = {}
    for i in range(layer):
        p = f"accelerators.{i}."
        t |= {f"{p}state_norm.weight": drawn("norm", (HIDDEN,)), f"{p}state_proj.weight": drawn("a", (rank, HIDDEN))}
        t[f"{p}out_proj.weight"] = drawn("b", (HIDDEN, rank))
        if i:
            t[f"{p}residual_norm.weight"] = drawn("norm", (HIDDEN,))
            t[f"{p}residual_proj.weight"] = drawn("c", (rank, HIDDEN))

    def after(target: Target, ids: Sequence[int], path: Path_) -> Tensor:
        h = [states[-1] for states in target.states([*ids, *path])]
        ahead = torch.zeros(HIDDEN)  # how far the second stream is before the first
        for i in range(layer):
            p = f"accelerators.{i}."
            x = t[f"{p}state_proj.weight"] @ rms(h[i + 1], t[f"{p}state_norm.weight"])
            if i:
                x = x + t[f"{p}residual_proj.weight"] @ rms(h[i] + ahead, t[f"{p}residual_norm.weight"])
            ahead = ahead + t[f"{p}out_proj.weight"] @ F.silu(x)
        norm = target.model.model.norm.weight.detach()
        return F.linear(rms(h[layer] + ahead, norm), target.head).log_softmax(-1)

    return Oracle(t, {"hidden_size": HIDDEN, "exit_layer": layer, "rank": rank}, after, 6)


def longspec(window: int = 9, sinks: int = 4) -> Oracle:
    """Attention over a window, the target's last attention with the head's own state in the place of its input, an
    MLP. The target's keys are of the text but its last token; a drafted row's and those of the rows before it are of
    the head's states."""
    p = "layers.0."
    t = layer_tensors(p, norms=("input_layernorm",))
    t |= named(norm__weight=(HIDDEN,), lm_head__weight=(DRAFT_VOCAB, HIDDEN), cross_attn__query__weight=(HIDDEN,) * 2)
    t |= named(cross_attn__merge__weight=(HIDDEN, 2 * HIDDEN))
    known = torch.randperm(VOCAB)[:DRAFT_VOCAB].sort().values
    t["d2t"] = known - torch.arange(DRAFT_VOCAB)

    def after(target: Target, ids: Sequence[int], path: Path_) -> Tensor:
        text, n = [*ids, *path], len(ids) - 1
        x, last = target.embed(text), target.model.model.layers[-1]
        x = x + attention(rms(x, t[f"{p}input_layernorm.weight"]), t, f"{p}self_attn.", 5000.0, window, sinks)
        asked = F.linear(x, t["cross_attn.query.weight"])
        entering = torch.cat([target.entering(ids[:-1])[:n], asked[n:]])
        own = {f"self_attn.{name}": w.detach() for name, w in last.self_attn.named_parameters()}
        crossed = asked + attention(rms(entering, last.input_layernorm.weight.detach()), own, "self_attn.", 10000.0)
        x = F.linear(torch.cat([x, crossed], -1)[-1], t["cross_attn.merge.weight"])
        x = x + mlp(rms(x, t[f"{p}post_attention_layernorm.weight"]), t, f"{p}mlp.")
        found = torch.full((VOCAB,), float("-inf"))
        found[known] = F.linear(rms(x, t["norm.weight"]), t["lm_head.weight"]).log_softmax(-1)
        return found

    more = {"draft_vocab_size": DRAFT_VOCAB, "sliding_window": window, "num_sinks": sinks, "cross_block": 14}
    return Oracle(t, CONFIG | more, after, 5)


def prompt(depth: int = 3, name: str = "prompts.weight") -> Oracle:
    """What the target itself says after a text and some prompt embeddings: guess k of a text hangs on no token between
    (`path` is only counted)."""
    t = {name: torch.randn(depth, HIDDEN)}

    def after(target: Target, ids: Sequence[int], path: Path_) -> Tensor:
        x = torch.cat([target.embed(ids), t[name][: len(path) + 1]])
        with torch.no_grad():
            return target.model(inputs_embeds=x[None]).logits[0, -1].log_softmax(-1)

    return Oracle(t, {"hidden_size": HIDDEN, "num_prompt_tokens": depth}, after, depth)


def hidden_transfer(layer: int = 3, depth: int = 3) -> Oracle:
    """Pseudo states of the text's last state after some layers, through the other layers; no token between counts."""
    t = {f"transfers.{i}.weight": drawn("w", (HIDDEN, HIDDEN)) for i in range(depth)}

    def after(target: Target, ids: Sequence[int], path: Path_) -> Tensor:
        states = target.states(ids)[layer]
        ahead = [t[f"transfers.{i}.weight"] @ states[-1] for i in range(len(path) + 1)]
        x, model = torch.cat([states, torch.stack(ahead)])[None], target.model.model
        places = torch.arange(x.shape[1])[None]
        rope = model.rotary_emb(x, places)
        mask = torch.full((x.shape[1], x.shape[1]), float("-inf")).triu(1)[None, None]
        with torch.no_grad():
            for one in model.layers[layer:]:
                found = one(x, attention_mask=mask, position_ids=places, position_embeddings=rope)
                x = found[0] if isinstance(found, tuple) else found
            return F.linear(model.norm(x)[0, -1], target.head).log_softmax(-1)

    return Oracle(t, {"hidden_size": HIDDEN, "transfer_layer": layer}, after, depth)


def sec(exits: Sequence[int] = (1, 4, 7)) -> Oracle:
    """Heads of early layers and a controller: no draft, see tests/unit/test_drafter_sec.py."""
    t = {f"lm_heads.{i}.weight": drawn("head", (VOCAB, HIDDEN)) for i in range(len(exits))}
    t["controller.weight"] = drawn("controller", (3, HIDDEN)) * 0.5

    def after(target: Target, ids: Sequence[int], path: Path_) -> Tensor:
        raise AssertionError("not a draft")

    return Oracle(t, {"hidden_size": HIDDEN, "exit_layers": list(exits)}, after, len(exits))


# By name: (the kind that it is, how it is made, its file).
def chimera(heads: int = 3) -> Oracle:
    """A layer over the target's states and the trigrams; a drafted row sees in the place of the states that are not
    there the layer's outputs."""
    p = "fast_layer1.0."
    t = layer_tensors(p, norms=("input_layernorm",))
    t |= {"trimlp.0.linear.weight": drawn("w", (3 * HIDDEN,) * 2), "trimlp.0.linear.bias": torch.randn(3 * HIDDEN)}
    t["trimlp.1.weight"] = drawn("w", (HIDDEN, 3 * HIDDEN))
    t |= {f"chimera_head.{i}.0.weight": drawn("w", (VOCAB, 2 * HIDDEN)) for i in range(heads)}

    def after(target: Target, ids: Sequence[int], path: Path_) -> Tensor:
        text, h = [*ids, *path], target.states(ids[:-1])[-1]
        known, rows, places, out = len(ids) - 1, [], [], h[:0]
        for i in range(1, len(text)):
            rows.append(h[i - 1] if i <= known else out)
            e = torch.cat(list(target.embed([text[0], text[1], text[1]] if i == 1 else text[i - 2 : i + 1])))
            e = e + F.silu(F.linear(e, t["trimlp.0.linear.weight"], t["trimlp.0.linear.bias"]))
            rows.append(F.linear(e, t["trimlp.1.weight"]))
            places += [i - 1, i]
            x = torch.stack(rows)
            x = x + attention(rms(x, t[f"{p}input_layernorm.weight"]), t, f"{p}self_attn.", 10000.0, places=places)
            out = (x + mlp(rms(x, t[f"{p}post_attention_layernorm.weight"]), t, f"{p}mlp."))[-1]
        return F.linear(torch.cat([h[-1], out]), t[f"chimera_head.{len(path)}.0.weight"]).log_softmax(-1)

    return Oracle(t, {"chimera_num_heads": heads}, after, heads)


def falcon(size: int = 2) -> Oracle:
    """Rows of a state and the next token through an LSTM along the text, then a layer in which the last `size` rows
    see each other; a block below takes the states that the one above gave, and its LSTM goes on from there."""
    p = "layers.0."
    t = layer_tensors(p)
    lstm = torch.nn.LSTM(2 * HIDDEN, HIDDEN, 2, batch_first=True)
    with torch.no_grad():
        for name, weight in lstm.named_parameters():
            weight.copy_(drawn(name, tuple(weight.shape)) if weight.ndim > 1 else 0.3 * torch.randn(weight.shape))
            t[f"lstm.{name}"] = weight.detach().clone()

    def block(target: Target, states: Tensor, tokens: Sequence[int]) -> Tensor:
        with torch.no_grad():
            x = lstm(torch.cat([target.embed(tokens), states], -1)[None])[0][0]
        found, n = [], len(x)
        blocks = [range(n - size, n)] if n >= size else []
        for one in blocks:  # the last row that is seen comes last, and gets the position of the row that asks
            for row in one:
                order = [*(i for i in range(n) if i != row), row]
                y = x[order]
                y = y + attention(y, t, f"{p}self_attn.", 5000.0, places=order)
                y = y + mlp(rms(y, t[f"{p}post_attention_layernorm.weight"]), t, f"{p}mlp.")
                found.append(y[-1])
        return torch.stack(found)

    def after(target: Target, ids: Sequence[int], path: Path_) -> Tensor:
        states, tokens = target.states(ids[:-1])[-1], list(ids[1:])
        out = block(target, states, tokens)
        for i in range(0, len(path) - len(path) % size, size):
            states, tokens = torch.cat([states, out]), [*tokens, *path[i : i + size]]
            out = block(target, states, tokens)
        return F.linear(out[len(path) % size], target.head).log_softmax(-1)

    return Oracle(t, CONFIG | {"k_mask": size}, after, 3 * size)


PUBLISHED: dict[str, tuple[str, Callable[[], Oracle], str]] = {
    "eagle": ("eagle", eagle, "pytorch_model.bin"),
    "eagle of two layers": ("eagle", lambda: eagle(2), "model.safetensors"),
    "eagle3": ("eagle3", eagle3, "model.safetensors"),
    "eagle3 of speculators": ("eagle3", lambda: eagle3(True), "model.safetensors"),
    "kangaroo": ("kangaroo", kangaroo, "pytorch_model.bin"),
    "kangaroo of two layers": ("kangaroo", lambda: kangaroo(3, 2), "model.safetensors"),
    "m2r2": ("m2r2", m2r2, "model.safetensors"),
    "longspec": ("longspec", longspec, "model.safetensors"),
    "prompt": ("prompt", prompt, "model.safetensors"),
    "lud": ("lud", lambda: prompt(name="units.weight"), "model.safetensors"),
    "chimera": ("chimera", chimera, "model.safetensors"),
    "falcon": ("falcon", falcon, "model.safetensors"),
    "falcon of blocks of three": ("falcon", lambda: falcon(3), "pytorch_model.bin"),
    "hidden transfer": ("hiddentransfer", hidden_transfer, "model.safetensors"),
    "sec": ("sec", sec, "model.safetensors"),
    "mtp as DeepSeek-V3 and GLM-4.5": ("mtp", lambda: mtp("deepseek"), "model.safetensors"),
    "mtp as Qwen3-Next": ("mtp", lambda: mtp("qwen3_next"), "model.safetensors"),
    "mtp as MiMo": ("mtp", lambda: mtp("mimo"), "model.safetensors"),
    "hydra": ("hydrapp", lambda: hydra(False), "hydra_lm_head.pt"),
    "hydra++": ("hydrapp", lambda: hydra(True), "hydra_lm_head.pt"),
    "medusa": ("medusa", medusa, "medusa_lm_head.pt"),
    "medusa with a prefix": ("medusa", lambda: medusa(2, 1, "medusa_head."), "medusa_lm_head.safetensors"),
}


def tree(after: Callable[[Path_], Tensor], nodes: int, depth: int, beam: int, k: int) -> dict[Path_, float]:
    """The likeliest `nodes` paths of those that are found level by level, and how likely each is."""
    found: dict[Path_, float] = {(): 1.0}
    frontier: list[Path_] = [()]
    for _ in range(depth):
        fresh: dict[Path_, float] = {}
        for path in frontier:
            best = after(path).exp().topk(k)
            fresh |= {(*path, int(i)): found[path] * min(float(p), 0.999) for p, i in zip(*best, strict=True)}
        found |= fresh
        best_paths = sorted(found, key=lambda path: -found[path])[: nodes + 1]
        frontier = [path for path in best_paths if path in fresh][:beam]
    return {path: p for path, p in sorted(found.items(), key=lambda item: -item[1])[1 : nodes + 1] if p >= 1e-4}
