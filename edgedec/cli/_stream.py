"""One generation as the CLI needs it: text piece by piece, and its tokens, log-probabilities and times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from edgedec.constraints import Constraint
from edgedec.decoding.loop import Token
from edgedec.sampling import Sampling
from edgedec.session import Session
from edgedec.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Limits:
    """What ends a generation; `max_tokens` -1: only the model, a stop string or a full context.
    `constraint`: what the text must be, and a complete one ends."""

    max_tokens: int = -1
    stop: Sequence[str] = ()
    ignore_eos: bool = False
    constraint: Constraint | None = None


@dataclass
class Generation:
    """Iterate it once for the text; what it counted is there afterwards, also after an early end."""

    session: Session
    sampling: Sampling
    limits: Limits = field(default_factory=Limits)
    logprobs: int | None = None
    tokens: list[Token] = field(default_factory=list)

    def pieces(self, prompt: Sequence[int] | None) -> Iterator[str]:
        """The text behind `prompt` (None: behind the session's text), as `Session.generate` gives it."""
        limits = self.limits
        for piece in self.session.stream(
            prompt,
            max_tokens=None if limits.max_tokens < 0 else limits.max_tokens,
            sampling=self.sampling,
            stop=limits.stop,
            ignore_eos=limits.ignore_eos,
            logprobs=self.logprobs,
            constraint=limits.constraint,
        ):
            if piece.token is not None:
                self.tokens.append(piece.token)
            if piece.text:
                yield piece.text

    def stats(self) -> dict[str, Any]:
        """Counts, and tokens per second: read tokens up to the first new one, then one call a token."""
        counts = asdict(self.session.stats)
        read = max(counts["prompt"] - counts["cached"], 1)
        return {
            "prompt_tokens": counts.pop("prompt"),
            "cached_tokens": counts.pop("cached"),
            "generated_tokens": counts.pop("generated"),
            "prefill_tokens_per_s": rate(read, counts["prefill_s"]),
            "decode_tokens_per_s": rate(self.session.stats.generated - 1, counts["decode_s"]),
            "finish_reason": counts.pop("finish"),
            "seed": self.sampling.seed,
            **counts,
            "tokens_per_call": round(self.session.stats.generated / max(counts["calls"], 1), 3),
            "speculation": self.session.report(),
        }


def rate(count: int, seconds: float) -> float | None:
    """Per second; None if nothing was counted."""
    return round(count / seconds, 2) if count > 0 and seconds > 0 else None


def stats_line(stats: dict[str, Any]) -> str:
    """The statistics as one line for people."""
    speeds = [f"{stats[f'{part}_tokens_per_s'] or 0:.1f} tokens/s {part}" for part in ("prefill", "decode")]
    seed = "" if stats["seed"] is None else f", seed {stats['seed']}"
    return (
        f"prompt {stats['prompt_tokens']} tokens ({stats['cached_tokens']} cached), "
        f"generated {stats['generated_tokens']} in {stats['calls']} calls, {', '.join(speeds)}, "
        f"finish: {stats['finish_reason'] or 'none, stopped early'}{seed}{_drafting(stats)}"
    )


def _drafting(stats: dict[str, Any]) -> str:
    """A second line: who guessed what, what the governor chose, and where the time went."""
    report = stats["speculation"]
    if not report or not stats["decode_s"]:
        return ""
    sizes = ", ".join(f"{size} tokens {calls}x" for size, calls in report["sizes"].items())
    drafters = [
        f"{name} {facts['accepted']} of {facts['proposed']} in {facts['seconds'] * 1000:.1f} ms"
        for name, facts in report["drafters"].items()
        if facts["proposed"]
    ]
    return (
        f"\ndrafted {stats['proposed']}, accepted {stats['accepted']}, {stats['tokens_per_call']:.2f} tokens a call; "
        f"{stats['forward_s'] / stats['decode_s']:.0%} of the time in calls; "
        f"session so far: drafts of {sizes or 'nothing'}, {report['silent']} calls silent"
        f"{'; ' if drafters else ''}{', '.join(drafters)}"
    )


def describe(token: Token, tokenizer: Tokenizer) -> dict[str, Any]:
    """A token and its log-probabilities for JSON."""
    top = [{"token": t, "text": tokenizer.decode([t], special=True), "logprob": p} for t, p in token.top]
    text = tokenizer.decode([token.token], special=True)
    return {"token": token.token, "text": text, "logprob": token.logprob, "top": top}
