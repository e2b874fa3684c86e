"""LayerSkip's training (S10): layers left out at random, deeper ones more often, and losses at early exits.

Layer l of L is left out with probability `DROP` times 2^(l / (L - 1)) - 1, for a whole row at once. All exits read
through the model's own last norm and head. At an update one in `TURN` of `EXITS` is trained (rotational curriculum);
exit e weighs `EARLY` times 0 + … + (e - 1), the whole model L - 1 + `EARLY` times 0 + … + (L - 2), normalized to sum 1.
Every other token is enough for an exit. It learns half from the text and half from what the whole model predicts at
that moment: a draft is right when it is what the model would say.
"""

import random

import model
import torch
import torch.nn.functional as F

EXITS = (3, 4, 5, 6, 7, 8, 9)  # layers computed: what a draft may cost
DROP, EARLY, TURN, SOFT, LAST_FREE = 0.1, 1.0, 4, 0.5, 0.15


def drop_rates(most):
    """-> how often each layer is left out, 0 for the first and `most` for the last."""
    return [most * (2 ** (i / (model.L - 1)) - 1) for i in range(model.L)]


def shares(exits):
    """{exit: share of the loss} of these exits (layers computed) and of the whole model, under the key L."""
    each = {e: EARLY * (e - 1) * e / 2 for e in exits}
    each[model.L] = model.L - 1 + EARLY * (model.L - 2) * (model.L - 1) / 2
    total = sum(each.values())
    return {e: value / total for e, value in each.items()}


def turn(update):
    """The exits trained at an update: every `TURN`-th, another set each time."""
    return [e for e in EXITS if e % TURN == update % TURN]


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
    stacks = [w[n].unbind(0) for n in (*model.MATRICES, *model.NORMS)]
    for i, parts in enumerate(zip(*stacks)):
        if draw.random() >= rates[i]:
            x = one_layer(x, cos, sin, *parts)
        if i + 1 in exits:
            left[i + 1] = x.reshape(-1, model.D)
    x, share = x.reshape(-1, model.D), shares(exits)
    total = head(x, w["norm"], w["embed"], targets).sum() * share[model.L]
    some = slice(update // TURN % 2, None, 2)
    with torch.no_grad():
        predicted = F.softmax(F.linear(model.rms(x[some], w["norm"]), w["embed"]), -1)
    for e, state in left.items():
        each = soft_losses(state[some], w["norm"], w["embed"], targets[some], predicted)
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
