"""Muon for the layers' matrices, AdamW for embeddings and norms.

Muon (K. Jordan and others, 2024) replaces a matrix's momentum by the nearest orthogonal matrix,
found by a few Newton-Schulz steps, so that every direction of the update has the same size. The
layers are stacked here, so one batched product serves all of them.
"""

import torch

BETAS, EPS, MOMENTUM, DECAY = (0.9, 0.98), 1e-8, 0.95, 0.05


@torch.no_grad()
def orthogonal(g, steps=5):
    """g [L, m, n] -> [L, m, n] with singular values near 1."""
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = g.shape[-2] > g.shape[-1]
    x = g.mT if tall else g
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x.mT if tall else x


class Optimizer:
    """State is a flat {name: tensor}, so that it goes into a safetensors file as it is."""

    def __init__(self, weights, matrices, muon_lr=0.02, adam_lr=0.003):
        self.weights, self.matrices = weights, set(matrices)
        self.muon_lr, self.adam_lr, self.steps = muon_lr, adam_lr, 0
        self.state = {f"m.{n}": torch.zeros_like(w) for n, w in weights.items()}
        self.state |= {f"v.{n}": torch.zeros_like(w) for n, w in weights.items() if n not in self.matrices}

    @torch.no_grad()
    def step(self, grads, scale, clip=1.0):
        """One update from {name: gradient}, with the learning rates times `scale` -> gradient norm before clipping."""
        self.steps += 1
        norm = float(sum(g.square().sum() for g in grads.values())) ** 0.5
        for name, g in grads.items():
            g.mul_(min(1.0, clip / (norm + 1e-6)))
            (self._muon if name in self.matrices else self._adam)(name, self.weights[name], g, scale)
        return norm

    def _muon(self, name, w, g, scale):
        m = self.state[f"m.{name}"].lerp_(g, 1 - MOMENTUM)
        update = orthogonal(g.lerp(m, MOMENTUM)) * max(1, w.shape[-2] / w.shape[-1]) ** 0.5
        w.mul_(1 - self.muon_lr * scale * DECAY).sub_(update, alpha=self.muon_lr * scale)

    def _adam(self, name, w, g, scale):
        m = self.state[f"m.{name}"].lerp_(g, 1 - BETAS[0])
        v = self.state[f"v.{name}"].lerp_(g.square(), 1 - BETAS[1])
        m, v = m / (1 - BETAS[0] ** self.steps), v / (1 - BETAS[1] ** self.steps)
        w.sub_(self.adam_lr * scale * m / (v.sqrt() + EPS))
