"""Several one-thread processes share a batch: each takes the next small piece until none is left.

Threads that synchronize after every matrix product become very slow when another program uses a core. These processes
synchronize once a step, and a slow one takes fewer pieces.
"""

import os

import model
import torch
import torch.multiprocessing as mp

PIECE = 1024  # tokens


class Team:
    """weights: {name: tensor}, moved to shared memory; their gradients sum up over the team."""

    def __init__(self, weights, tokens, lengths, size=2, objective=model.objective):
        self.objective = objective
        context = mp.get_context("spawn")
        self.weights, self.grads = weights, [{n: torch.zeros_like(w) for n, w in weights.items()} for _ in range(size)]
        self.batches = {length: torch.zeros(tokens // length, length + 1, dtype=torch.int64) for length in lengths}
        self.losses = torch.zeros(size)
        for tensor in (
            *weights.values(),
            *self.batches.values(),
            self.losses,
            *(t for g in self.grads for t in g.values()),
        ):
            tensor.share_memory_()
        self.turn, self.length = context.Value("i", 0), context.Value("i", 0)
        self.progress, self.updates = context.Value("d", 0.0), context.Value("i", 0)
        self.go, self.done = context.Semaphore(0), context.Semaphore(0)
        self.helpers = [
            context.Process(target=helper, args=(Share(self, rank),), daemon=True) for rank in range(1, size)
        ]
        for process in self.helpers:
            process.start()
        self.own = Share(self, 0)
        self.own.attach()

    def step(self, batch, progress=0.0, update=0):
        """batch [B, T + 1] -> mean loss; leaves the summed gradients in each weight's `grad`.

        The objective gets the progress of the training (0 to 1) and the number of the update.
        """
        self.progress.value, self.updates.value = progress, update
        self.length.value, self.turn.value = batch.shape[1] - 1, 0
        self.batches[self.length.value].copy_(batch)
        for _ in self.helpers:
            self.go.release()
        self.own.work()
        for _ in self.helpers:
            if not self.done.acquire(timeout=1800):
                raise RuntimeError("a training process has died: start the recipe again, it resumes")
        for grads in self.grads[1:]:
            for name, grad in grads.items():
                self.grads[0][name].add_(grad)
        return float(self.losses.sum())


class Share:
    """The shared state in one process of the team."""

    def __init__(self, team, rank):
        self.weights, self.grads, self.losses = team.weights, team.grads[rank], team.losses
        self.batches, self.turn, self.length = team.batches, team.turn, team.length
        self.go, self.done, self.rank = team.go, team.done, rank
        self.progress, self.updates, self.objective = team.progress, team.updates, team.objective
        self.parent = os.getpid()

    def attach(self):
        torch.set_num_threads(1)
        self.weights = {n: w.detach().requires_grad_() for n, w in self.weights.items()}
        self.layer = torch.compile(model.layer, dynamic=False)
        self.head = torch.compile(model.token_losses, dynamic=False)
        for name, w in self.weights.items():
            w.grad = self.grads[name]

    def work(self):
        batch = self.batches[self.length.value]
        pieces = batch.split(max(1, PIECE // self.length.value))
        self.losses[self.rank] = 0
        for grad in self.grads.values():
            grad.zero_()
        while (i := self.take()) < len(pieces):
            torch.manual_seed(self.updates.value * 1000 + i)  # the same numbers in whichever process
            total = self.objective(
                self.weights, pieces[i], self.layer, self.head, self.progress.value, self.updates.value
            )
            loss = total / (batch.numel() - len(batch))
            loss.backward()
            self.losses[self.rank] += loss.item()

    def take(self):
        with self.turn.get_lock():
            self.turn.value += 1
            return self.turn.value - 1


def helper(share):
    """The loop of a worker process, until its parent ends."""
    share.attach()
    while os.getppid() == share.parent:
        if share.go.acquire(timeout=5):
            share.work()
            share.done.release()
