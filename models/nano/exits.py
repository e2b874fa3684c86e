"""LayerSkip's training: layers left out at random, deeper ones more often, and losses at early exits.

Layer l of L is left out with probability `DROP` times 2^(l / (L - 1)) - 1, for a whole row at once. All exits read
through the model's own last norm and head. At an update one in `TURN` of `EXITS` is trained (rotational curriculum).
LayerSkip lets an exit weigh more the deeper it is; what pays in decoding are the first ones, so that here each exit
has the same share `EARLY` of the loss, and the whole model the rest. Every other token is enough for an exit. By the
share `SOFT` it learns what the whole model predicts at that moment, else the text: because a draft token is accepted if
the model predicts it. Matrix products are computed in bfloat16 where the processor has instructions for it.
"""

import functools
import random

import model
import torch
import torch.nn.functional as F

EXITS = (2, 3, 4, 5, 6, 7)  # layers computed: what a draft may cost
DROP, EARLY, TURN, SOFT, LAST_FREE = 0.1, 0.2, 3, 0.75, 0.15
PRODUCTS = torch.bfloat16 if torch.cpu._is_avx512_bf16_supported() else torch.float32


def drop_rates(most):
    """-> how often each layer is left out, 0 for the first and `most` for the last."""
    return [most * (2 ** (i / (model.L - 1)) - 1) for i in range(model.L)]


def shares(exits):
    """{exit: share of the loss} of these exits (layers computed) and of the whole model, under the key L."""
    return dict.fromkeys(exits, EARLY) | {model.L: 1 - EARLY * len(exits)}


def turn(update):
    """The exits trained at an update: every `TURN`-th, another set each time."""
    return [e for e in EXITS if e % TURN == update % TURN]


@functools.cache
def compiled(function):
    return torch.compile(function, dynamic=False)


def predictions(x, norm, embed):
    """x [N, D] -> probabilities [N, V] of the next token."""
    return F.softmax(F.linear(model.rms(x, norm).to(embed.dtype), embed).float(), -1)


def soft_losses(x, norm, embed, targets, predicted):
    """x [N, D], predicted [N, V] probabilities -> cross entropy [N] with a mix of the text and the prediction."""
    logs = F.log_softmax(F.linear(model.rms(x, norm).to(embed.dtype), embed).float(), -1)
    text = -logs.gather(1, targets.clamp(min=0)[:, None])[:, 0]
    each = (1 - SOFT) * text - SOFT * (predicted * logs).sum(-1)
    return torch.where(targets < 0, 0.0, each)


def objective(w, piece, one_layer, head, progress, update):
    """Sum over a piece of the whole model's losses and those of this update's exits, as `Team` takes it."""
    tokens, targets = model.parted(piece)
    targets, exits = targets.reshape(-1), turn(update)
    rates = drop_rates(DROP if progress < 1 - LAST_FREE else 0.0)
    draw = random.Random(int(torch.initial_seed()))
    cos, sin = model.rope_tables(tokens.shape[1])
    x, left = F.embedding(tokens, w["embed"]), {}
    embed = w["embed"].to(PRODUCTS)
    stacks = [w[n].to(PRODUCTS).unbind(0) for n in model.MATRICES] + [w[n].unbind(0) for n in model.NORMS]
    for i, parts in enumerate(zip(*stacks)):
        if draw.random() >= rates[i]:
            x = one_layer(x, cos, sin, *parts)
        if i + 1 in exits:
            left[i + 1] = x.reshape(-1, model.D)
    x, share = x.reshape(-1, model.D), shares(exits)
    total = head(x, w["norm"], embed, targets).sum() * share[model.L]
    some = slice(update // TURN % 2, None, 2)
    with torch.no_grad():
        predicted = compiled(predictions)(x[some], w["norm"], embed)
    for e, state in left.items():
        each = compiled(soft_losses)(state[some], w["norm"], embed, targets[some], predicted)
        total = total + 2 * each.sum() * share[e]
    return total


@torch.no_grad()
def agreement(w, stories):
    """{layers: share of tokens at which leaving after so many layers predicts what the whole model does}."""
    right, total = dict.fromkeys(range(1, model.L), 0), 0
    for story in stories:
        tokens = torch.from_numpy(story.astype("int64"))[None]
        cos, sin = model.rope_tables(tokens.shape[1])
        x, guesses = F.embedding(tokens, w["embed"]), []
        for parts in zip(*(w[n].unbind(0) for n in (*model.MATRICES, *model.NORMS))):
            x = model.layer(x, cos, sin, *parts)
            guesses.append((model.rms(x[0], w["norm"]) @ w["embed"].T).argmax(-1))
        total += len(story)
        for e in right:
            right[e] += int((guesses[e - 1] == guesses[-1]).sum())
    return {e: n / total for e, n in right.items()}
