"""What `diffusion.py` trains with: the network with any mask of attention, and the losses of blocks and of a canvas."""

import random

import model
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

import export

SEED, VOCAB, MASK, BLOCK, CANVAS, LENGTH = 31, model.V + 16, model.V, 8, 256, 512
WARMUP, PEAK, FALL, DECAY, CERTAIN_FROM, TEMPERATURE = 100, 0.4, 0.6, 0.999, 0.75, 0.5
OPENING = 0.5  # of the blocks begin with a mask
SIZES = ((0.1, (2,)), (0.25, (4,)), (0.4, (8,)), (1.0, (8, 8, 8, 4)))  # until this share of the time; blocks


# ---- the network ------------------------------------------------------------------------------------


def widened(weights):
    """With rows for MASK and 15 more, which begin as the mean of the others."""
    mean = weights["embed"].mean(0, keepdim=True).expand(VOCAB - model.V, -1)
    return weights | {"embed": torch.cat([weights["embed"], mean])}


def started(folder):
    """The weights of a folder that this wrote."""
    return export.stacked({name: w.float() for name, w in load_file(folder / "model.safetensors").items()})


def states(w, tokens, positions, mask, dtype):
    """tokens [B, T], mask [T, T] or [B, 1, T, T] (True: seen) -> the last layer's output [B, T, D]."""
    cos, sin = (t.to(tokens.device, dtype)[positions] for t in model.rope_tables(int(positions.max()) + 1))
    x = F.embedding(tokens, w["embed"])
    stacks = [w[n].to(dtype).unbind(0) for n in model.MATRICES] + [w[n].unbind(0) for n in model.NORMS]
    for parts in zip(*stacks):
        x = layer(x, cos, sin, mask, *parts)
    return x


def layer(x, cos, sin, mask, q, k, v, o, gate, up, down, norm1, norm2):
    b, t, _ = x.shape
    h = model.rms(x, norm1).to(q.dtype)
    heads = [F.linear(h, w).view(b, t, -1, model.HD).transpose(1, 2) for w in (q, k, v)]
    q, k, v = model.rotate(heads[0], cos, sin), model.rotate(heads[1], cos, sin), heads[2]
    k, v = (a.repeat_interleave(model.H // model.K, 1) for a in (k, v))
    a = F.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v, attn_mask=mask)
    x = x + F.linear(a.transpose(1, 2).reshape(b, t, model.H * model.HD), o)
    h = model.rms(x, norm2).to(gate.dtype)
    return x + F.linear(F.silu(F.linear(h, gate)) * F.linear(h, up), down)


def logits(w, x, dtype):
    """Of tokens that are texts: never MASK."""
    return F.linear(model.rms(x, w["norm"]).to(dtype), w["embed"][: model.V].to(dtype)).float()


# ---- losses -----------------------------------------------------------------------------------------


def block_sight(length, first, size, device):
    """[2 length, 2 length]: rows with masks, then rows as they are; a block begins at `first`, all have `size`."""
    at = torch.arange(length, device=device)
    block = (at - first).div(size, rounding_mode="floor")
    plain = at[:, None] >= at[None]
    own, before = block[:, None] == block[None], block[:, None] > block[None]
    nothing = torch.zeros_like(plain)
    return torch.cat([torch.cat([own, before], 1), torch.cat([nothing, plain], 1)]), block


def shares(count, progress, generator, device):
    """Shares of masks, of `count` blocks."""
    mean, sharp = 0.5 + 0.3 * progress, 4 + 21 * progress
    one = torch._standard_gamma(torch.full((count,), mean * sharp, device=device), generator=generator)
    other = torch._standard_gamma(torch.full((count,), (1 - mean) * sharp, device=device), generator=generator)
    return one / (one + other)


def certainty(found, target, weight):
    """dParallel: the entropy of what is predicted rightly, at a lower temperature."""
    right = (found.argmax(-1) == target).float()
    logs = F.log_softmax(found / TEMPERATURE, -1)
    return -(logs.exp() * logs).sum(-1) * right * weight


class MaskedBlocks:
    def __init__(self, args, weights, own):
        self.args, self.weights, self.own = args, weights, own
        self.generator = torch.Generator(args.device).manual_seed(SEED)
        self.draw = random.Random(SEED)

    def grown(self, progress):
        """How far blocks have grown: what goes on begins where they are largest."""
        return progress if self.args.start is None else 1.0

    def loss(self, batch, progress):
        size = self.draw.choice(next(sizes for until, sizes in SIZES if self.grown(progress) <= until))
        first, dtype = self.draw.randrange(size), self.args.dtype
        tokens, targets = model.parted(batch)
        b, t = tokens.shape
        sight, block = block_sight(t, first, size, batch.device)
        learned = F.pad(targets[:, :-1] >= 0, (1, 0))  # may this token be masked? it is target i - 1
        inside = (torch.arange(t, device=batch.device) - first) % size != 0
        number = block - block.min()
        each = shares(b * int(number.max() + 1), progress, self.generator, batch.device).view(b, -1)[:, number]
        masked = torch.rand(b, t, generator=self.generator, device=batch.device) < each
        masked = masked & learned & inside
        # The first token is not known either while a block's other places are predicted for the first time.
        unknown = torch.rand(b, int(number.max() + 1), generator=self.generator, device=batch.device) < OPENING
        opening = unknown[:, number] & learned & ~inside
        noisy = torch.where(masked | opening, MASK, tokens)
        positions = torch.arange(t, device=batch.device).repeat(2)
        x = states(self.weights, torch.cat([noisy, tokens], 1), positions, sight, dtype)
        # A masked place is predicted by the place before it, which is of the same block.
        where = F.pad(masked[:, 1:], (0, 1))
        counts = torch.zeros(b, int(number.max() + 1), device=batch.device).scatter_add_(
            1, number.expand(b, -1), masked.float()
        )
        weight = ((size - 1) / counts.clamp(min=1))[:, number].roll(-1, 1)[where]
        found, target = logits(self.weights, x[:, :t][where], dtype), tokens.roll(-1, 1)[where]
        each = F.cross_entropy(found, target, reduction="none") * weight
        if self.args.certainty and progress > CERTAIN_FROM:
            each = each + self.args.certainty * certainty(found, target, weight)
        filled = each.sum() / max(1, inside.sum().item() * b)
        # As it is: what nano itself predicts there.
        some = torch.arange(t, device=batch.device)[:: 1 if size == 2 else 2]
        with torch.no_grad():
            causal = sight[t:, t:]
            told = states(self.own, tokens, positions[:t], causal, dtype)[:, some].flatten(0, 1)
            told = F.softmax(logits(self.own, told, dtype), -1)
        logs = F.log_softmax(logits(self.weights, x[:, t:][:, some].flatten(0, 1), dtype), -1)
        text = F.nll_loss(logs, targets[:, some].flatten(), ignore_index=-100)
        kept = (text - (told * logs).sum(-1).mean()) / 2
        return self.args.masks * filled + kept, filled.detach(), kept.detach()


class MaskedCanvas:
    def __init__(self, args, weights, own):
        self.args, self.weights = args, weights
        self.generator = torch.Generator(args.device).manual_seed(SEED)

    def loss(self, batch, progress):
        tokens, targets = model.parted(batch)
        b, t = tokens.shape
        learned, dtype = F.pad(targets[:, :-1] >= 0, (1, 0)), self.args.dtype
        share = torch.rand(b, 1, generator=self.generator, device=batch.device).clamp(min=0.03)
        masked = (torch.rand(b, t, generator=self.generator, device=batch.device) < share) & learned
        noisy = torch.where(masked, MASK, tokens)
        x = states(self.weights, noisy, torch.arange(t, device=batch.device), None, dtype)
        where = F.pad(masked[:, 1:], (0, 1))
        weight = (learned.sum(1, keepdim=True) / masked.sum(1, keepdim=True).clamp(min=1)).expand(b, t)[where]
        found, target = logits(self.weights, x[where], dtype), tokens.roll(-1, 1)[where]
        weight = torch.where(target == 0, 0.2 * weight, weight)  # most of a canvas is what follows the end
        each = F.cross_entropy(found, target, reduction="none") * weight
        if self.args.certainty and progress > CERTAIN_FROM:
            each = each + self.args.certainty * certainty(found, target, weight)
        filled = each.sum() / max(1, int(learned.sum()))
        return filled, filled.detach(), torch.zeros(())


KINDS = {"block": MaskedBlocks, "canvas": MaskedCanvas}
