"""The gain of speculative decoding: plain decoding and every drafter on the same prompts, in turns, on one model.

For each prompt all contestants decode once, one after another (plain A B, B A plain, …), so that a slower machine
affects all of them. A repetition begins with new sessions, which go through all of its prompts: drafters keep what they
learned from prompt to prompt, as in use, but never see a prompt twice. Counted are the tokens after the first call,
which reads the prompt; a ratio is that of the seconds a token took.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from edgedec.bench.prompts import Prompt
from edgedec.bundle.folder import Bundle
from edgedec.bundle.read_grams import MODEL, ReadRecord, Seen, readers_of
from edgedec.decoding.loop import StepTrace
from edgedec.diffusion.words import OFF
from edgedec.errors import UsageError
from edgedec.sampling import Sampling

if TYPE_CHECKING:
    from edgedec.model import Model
    from edgedec.session import Session

PLAIN = "off"
# Random text runs a second time, sampled, so that the answer is as hard to predict.
RANDOM, HOT = "random", "random T=1"
_WARM_UP = 16


@dataclass(frozen=True)
class Task:
    """A prompt, how to sample its answer, the category it counts for, and whether the model read it in training."""

    prompt: Prompt
    category: str
    sampling: Sampling
    seen: Seen = "unknown"


@dataclass
class Run:
    """A task done once. Tokens, calls and seconds are those after the first call of each turn; between_s: of these
    seconds, what was in no forward call, of the model or of a draft."""

    ids: list[int] = field(default_factory=list)
    tokens: int = 0
    calls: int = 0
    seconds: float = 0.0
    forward_s: float = 0.0
    between_s: float = 0.0
    proposed: int = 0
    accepted: int = 0
    drafted_at: Counter[int] = field(default_factory=Counter)
    accepted_at: Counter[int] = field(default_factory=Counter)
    by: Counter[str] = field(default_factory=Counter)

    def add(self, step: StepTrace) -> None:
        """Count how deep the draft of a call went, and how deep it was accepted."""
        if not step.draft.tokens:
            return
        reached = len(step.step.path) - 1
        for depth in range(1, _depth(step.draft.parents) + 1):
            self.drafted_at[depth] += 1
            self.accepted_at[depth] += depth <= reached


Runs = list[list[Run]]
"""By repetition, then by task."""


@dataclass(frozen=True)
class Measured:
    """`runs` by drafter, plain decoding among them; `skipped`: the drafters left out, and why; `notes` for people;
    `tasks`: how many were done; interrupted: not all rounds were."""

    runs: dict[str, Runs]
    skipped: dict[str, str]
    notes: list[str]
    tasks: int
    interrupted: bool = False


def tasks_of(prompts: Sequence[Prompt], sampling: Sampling, seed: int, bundle: Bundle | None = None) -> list[Task]:
    """One a prompt; random text is also sampled at temperature 1. `bundle`: the model and heads that may have read
    them."""
    record, readers = (ReadRecord.of(bundle), readers_of(bundle)) if bundle else (ReadRecord(), [MODEL])
    tasks = [Task(prompt, prompt.category, sampling, record.seen(prompt.turns, readers)) for prompt in prompts]
    if sampling.temperature != 1:
        hot = Sampling(temperature=1.0, seed=seed)
        tasks += [replace(task, category=HOT, sampling=hot) for task in tasks if task.category == RANDOM]
    return tasks


class Bench:
    """One model, and the drafters that it can have."""

    def __init__(self, model: Model, tasks: Sequence[Task], tokens: int, ignore_eos: bool = False) -> None:
        self.model, self.tasks, self.tokens, self.ignore_eos = model, tasks, tokens, ignore_eos
        self.capacity = _capacity(model, tasks, tokens)
        self.notes: dict[str, None] = {}
        self._plain_s = 0.0

    def measure(
        self,
        names: Sequence[str],
        repetitions: int,
        optional: bool = False,
        progress: Callable[[int, int], None] = lambda done, total: None,
        expect: Callable[[float], None] = lambda seconds: None,
    ) -> Measured:
        """Everyone on every task, `repetitions` times. optional: a drafter that this bundle cannot have is left out.
        `expect` is called with the seconds that it may take. Interrupted, it returns what is done."""
        ready, skipped = self._warm_up(names, optional)
        total = repetitions * len(self.tasks) * len(ready)
        expect(self._plain_s * self.tokens * (total + len(self.tasks) * (len(ready) - 1)))
        rounds: list[dict[str, list[Run]]] = []
        try:
            for _ in range(repetitions):
                rounds.append({name: [] for name in ready})
                self._round(rounds[-1], lambda done: progress(done + (len(rounds) - 1) * total // repetitions, total))
            self._count_depths(rounds[0])
        except KeyboardInterrupt:
            return self._partial(rounds, skipped)
        return Measured(_by_name(rounds, ready), skipped, list(self.notes), len(self.tasks))

    def _round(self, found: dict[str, list[Run]], progress: Callable[[int], None]) -> None:
        sessions = [(name, self._session(name)) for name in found]
        gc.collect()  # otherwise garbage of earlier sessions would be collected during a measured text
        for at, task in enumerate(self.tasks):
            for i, (name, session) in enumerate(sessions if at % 2 == 0 else sessions[::-1], 1):
                found[name].append(self._run(session, task, self.tokens))
                progress(at * len(sessions) + i)

    def _count_depths(self, found: Mapping[str, list[Run]]) -> None:
        """Go through all tasks once more and count how deep drafts went. Not while speed is measured: the steps of a
        text that is traced are not the engine's own."""
        for name, runs in found.items():
            if name == PLAIN:
                continue
            session = self._session(name)
            for task, run in zip(self.tasks, runs, strict=True):
                traced = self._run(session, task, self.tokens, [])
                run.drafted_at, run.accepted_at = traced.drafted_at, traced.accepted_at

    def _partial(self, rounds: list[dict[str, list[Run]]], skipped: dict[str, str]) -> Measured:
        """The whole rounds; of a first one that was interrupted, the tasks that all have done."""
        last, every = rounds[-1], len(self.tasks)
        whole = [found for found in rounds if all(len(runs) == every for runs in found.values())]
        tasks = len(self.tasks) if whole else min(map(len, last.values()))
        if not tasks:
            raise KeyboardInterrupt
        kept = whole or [{name: runs[:tasks] for name, runs in last.items()}]
        note = f"interrupted: {len(kept)} of the rounds, {tasks} of {len(self.tasks)} tasks"
        return Measured(_by_name(kept, list(last)), skipped, [*self.notes, note], tasks, True)

    def _warm_up(self, names: Sequence[str], optional: bool) -> tuple[list[str], dict[str, str]]:
        """Plain decoding and the drafters that the bundle can have, after a few tokens; the others, and why not."""
        ready, skipped = [PLAIN], dict[str, str]()
        few = min(self.tokens, _WARM_UP)
        run = self._run(self._session(PLAIN), self.tasks[0], few)
        self._plain_s = run.seconds / max(run.tokens, 1)
        for name in names:
            try:
                session = self._session(name)
            except UsageError as error:
                if not optional:
                    raise
                skipped[name] = str(error)
                continue
            self._run(session, self.tasks[0], few)
            ready.append(name)
        return ready, skipped

    def _session(self, name: str) -> Session:
        # A diffusion model is read token by token: drafts are of that.
        diffusion = None if self.model.bundle.manifest.diffusion is None else OFF
        return self.model.session(context=self.capacity, speculate=name, diffusion=diffusion)

    def _run(self, session: Session, task: Task, tokens: int, trace: list[StepTrace] | None = None) -> Run:
        """All turns of a task, the answers in between. trace: to count how deep drafts went, which takes time."""
        run, messages = Run(), list[dict[str, object]]()
        for text in task.prompt.turns:
            messages.append({"role": "user", "content": text})
            answer = self._turn(session, self._ids(messages, tokens), task.sampling, tokens, run, trace)
            run.ids += answer
            if len(task.prompt.turns) > 1:
                messages.append({"role": "assistant", "content": self.model.tokenizer.decode(answer)})
        return run

    def _turn(
        self,
        session: Session,
        ids: list[int],
        sampling: Sampling,
        tokens: int,
        run: Run,
        trace: list[StepTrace] | None,
    ) -> list[int]:
        answer, first, before = list[int](), 0, 0.0
        generation = session.tokens(ids, max_tokens=tokens, sampling=sampling, ignore_eos=self.ignore_eos, trace=trace)
        for token in generation:
            if session.stats.calls <= 1:
                first, before = first + 1, session.between_calls
            answer.append(int(token))
            run.by[token.by] += 1
            _drain(trace, run)
        _drain(trace, run)
        stats = session.stats
        # The end token took its call, though it is no part of the text.
        run.tokens += max(0, stats.generated + (stats.finish == "eos") - first)
        run.calls += stats.calls - 1
        run.seconds += stats.decode_s
        run.forward_s += stats.forward_s
        run.between_s += session.between_calls - before
        run.proposed += stats.proposed
        run.accepted += stats.accepted
        return answer

    def _ids(self, messages: Sequence[Mapping[str, object]], tokens: int) -> list[int]:
        """The conversation so far as tokens; too long, its front is cut."""
        ids = _encode(self.model, messages)
        room = self.capacity - tokens
        if len(ids) > room:
            self.notes[
                f"a prompt of {len(ids)} tokens was cut to its last {room}: {str(messages[-1]['content'])[:40]!r}"
            ] = None
            # The first token may be the one that begins every text.
            ids = [*ids[:1], *ids[len(ids) - room + 1 :]]
        return ids


def _by_name(rounds: Sequence[Mapping[str, list[Run]]], names: Sequence[str]) -> dict[str, Runs]:
    return {name: [found[name] for found in rounds] for name in names}


def _drain(trace: list[StepTrace] | None, run: Run) -> None:
    """Count the steps and drop them: with sampling each holds the logits of all its rows."""
    if trace:
        for step in trace:
            run.add(step)
        trace.clear()


def _capacity(model: Model, tasks: Sequence[Task], tokens: int) -> int:
    """A context for the longest conversation, as far as the model has one."""
    limit = model.spec.context_length
    if tokens >= limit:
        raise UsageError(f"{tokens} tokens leave no room for a prompt in the model's context of {limit}")
    longest = 0
    for turns in {task.prompt.turns for task in tasks}:
        read = len(_encode(model, [{"role": "user", "content": text} for text in turns]))
        # Answers read again may be more tokens than were generated.
        longest = max(longest, read + 2 * tokens * len(turns) + 64)
    return min(limit, longest)


def _encode(model: Model, messages: Sequence[Mapping[str, object]]) -> list[int]:
    """By the model's chat template; where there is none, as one text."""
    if model.chat_template is not None:
        return model.chat_ids(messages)
    return model.tokenizer.encode("\n\n".join(str(message["content"]) for message in messages))


def _depth(parents: Sequence[int]) -> int:
    """The depth of a tree whose parents come before their children: [-1, 0, 0, 1] -> 3."""
    depths: list[int] = []
    for parent in parents:
        depths.append(1 if parent < 0 else depths[parent] + 1)
    return max(depths, default=0)
