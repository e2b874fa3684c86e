"""The network in plain functions: a Llama whose layers' weights are stacked, one tensor a kind."""

import torch
import torch.nn.functional as F

GEOMETRY = {
    "vocab_size": 4096,
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 14,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 1024,
}
V, D, I, L, H, K, HD = (
    GEOMETRY[k]
    for k in (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
    )
)
MATRICES = {
    "q_proj": (H * HD, D),
    "k_proj": (K * HD, D),
    "v_proj": (K * HD, D),
    "o_proj": (D, H * HD),
    "gate_proj": (I, D),
    "up_proj": (I, D),
    "down_proj": (D, I),
}
NORMS = ("input_layernorm", "post_attention_layernorm")
MASK = 1 << 14  # a token that is read and not learned is stored as -MASK - id


def new_weights(seed):
    """-> {name: float32 tensor}: `embed` [V, D], `norm` [D], each matrix [L, out, in], each layer norm [L, D]."""
    g = torch.Generator().manual_seed(seed)
    w = {"embed": torch.randn(V, D, generator=g) * 0.02, "norm": torch.ones(D)}
    for name, (rows, cols) in MATRICES.items():
        zero = name in ("o_proj", "down_proj")
        w[name] = torch.zeros(L, rows, cols) if zero else torch.randn(L, rows, cols, generator=g) * cols**-0.5
    return w | {name: torch.ones(L, D) for name in NORMS}


def rms(x, gain):
    return F.rms_norm(x.float(), (D,), gain, GEOMETRY["rms_norm_eps"])


def rope_tables(length):
    """-> cos, sin, each [length, HD]: the second half of a head repeats the first's angles."""
    inverse = GEOMETRY["rope_theta"] ** (-torch.arange(0, HD, 2).float() / HD)
    angle = torch.arange(length).float()[:, None] * inverse
    angle = torch.cat([angle, angle], -1)
    return angle.cos(), angle.sin()


def rotate(x, cos, sin):
    half = torch.cat([-x[..., HD // 2 :], x[..., : HD // 2]], -1)
    return x * cos + half * sin


def layer(x, cos, sin, q, k, v, o, gate, up, down, norm1, norm2):
    """x [B, T, D] -> [B, T, D]."""
    b, t, _ = x.shape
    h = rms(x, norm1).to(q.dtype)
    heads = [F.linear(h, w).view(b, t, -1, HD).transpose(1, 2) for w in (q, k, v)]
    q, k, v = rotate(heads[0], cos, sin), rotate(heads[1], cos, sin), heads[2]
    k, v = (a.repeat_interleave(H // K, 1) for a in (k, v))
    a = F.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v, is_causal=True)
    x = x + F.linear(a.transpose(1, 2).reshape(b, t, H * HD), o)
    h = rms(x, norm2).to(gate.dtype)
    return x + F.linear(F.silu(F.linear(h, gate)) * F.linear(h, up), down)


def token_losses(x, norm, embed, targets):
    """x [N, D], targets [N] -> cross entropy [N] in nats, float32; the head is the embedding."""
    return F.cross_entropy(F.linear(rms(x, norm).to(embed.dtype), embed).float(), targets, reduction="none")


def parted(batch):
    """batch [B, T + 1] -> tokens [B, T] and targets [B, T]; -100 where nothing is to be learned."""
    tokens = torch.where(batch <= -MASK, -MASK - batch, batch.clamp(min=0))
    return tokens[:, :-1], batch[:, 1:].clamp(min=-100)


def hidden(w, tokens, dtype=torch.float32, one_layer=layer):
    """tokens [B, T] -> the last layer's output [B, T, D], before the last norm."""
    cos, sin = (t.to(dtype) for t in rope_tables(tokens.shape[1]))
    x = F.embedding(tokens, w["embed"])
    stacks = [w[n].to(dtype).unbind(0) for n in MATRICES] + [w[n].unbind(0) for n in NORMS]
    for parts in zip(*stacks):
        x = one_layer(x, cos, sin, *parts)
    return x


def losses(w, batch, dtype=torch.float32, one_layer=layer, head=token_losses):
    """batch [B, T + 1] -> loss of each next token [B * T]; a target of -100 counts zero."""
    tokens, targets = parted(batch)
    x = hidden(w, tokens, dtype, one_layer)
    return head(x.reshape(-1, D), w["norm"], w["embed"].to(dtype), targets.reshape(-1))


def objective(w, piece, one_layer, head, progress, update):
    """The sum of the losses of a piece of a batch: what a `Team` minimizes."""
    return losses(w, piece, one_layer=one_layer, head=head).sum()
