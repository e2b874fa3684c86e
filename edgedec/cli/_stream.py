"""One generation as the CLI shows it: text piece by piece, tokens with log-probabilities, times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from edgedec.cli._drafting import drafting_lines
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.messages import Token
from edgedec.session import Session
from edgedec.skipping import SkippingRuntime
from edgedec.text.tokenizer import Tokenizer


@dataclass
class Generation:
    """Iterate `pieces` once for the text; tokens and counts are there afterwards, also after an early end."""

    session: Session
    config: GenerationConfig = field(default_factory=GenerationConfig)
    tokens: list[Token] = field(default_factory=list)

    def pieces(self, prompt: Sequence[int] | None) -> Iterator[str]:
        """The text after `prompt` (None: after the session's text), as `Session.generate` gives it."""
        for piece in self.session.stream(prompt, self.config):
            if piece.token is not None:
                self.tokens.append(piece.token)
            if piece.text:
                yield piece.text

    def stats(self) -> dict[str, Any]:
        """Counts, and tokens per second: of the prompt up to the first new token, then of the new ones."""
        counts = asdict(self.session.stats)
        read = max(counts["prompt"] - counts["cached"], 1)
        return {
            "prompt_tokens": counts.pop("prompt"),
            "cached_tokens": counts.pop("cached"),
            "generated_tokens": counts.pop("generated"),
            "prefill_tokens_per_s": rate(read, counts["prefill_s"]),
            "decode_tokens_per_s": rate(self.session.stats.generated - 1, counts["decode_s"]),
            "finish_reason": counts.pop("finish"),
            "seed": self.config.sampling.seed,
            **counts,
            "tokens_per_call": round(self.session.stats.generated / max(counts["calls"], 1), 3),
            "speculation": self.session.report(),
            **_lossy(self.session),
        }


def _lossy(session: Session) -> dict[str, Any]:
    """A note on skipped layers, a lossy cache policy, the passes of diffusion decoding or a search; empty without
    these."""
    runtime = session.model.runtime
    skipped = {"skipped": runtime.about()} if isinstance(runtime, SkippingRuntime) else {}
    kept = session.cache_report()
    found = {"cache": kept, "diffusion": session.diffusion_report(), "search": session.search_report()}
    return {**skipped, **{name: report for name, report in found.items() if report}}


def rate(count: int, seconds: float) -> float | None:
    """Per second; None if nothing was counted."""
    return round(count / seconds, 2) if count > 0 and seconds > 0 else None


def stats_line(stats: dict[str, Any]) -> str:
    """The statistics for display: a line, and what the drafters did below it."""
    speeds = [f"{stats[f'{part}_tokens_per_s'] or 0:.1f} tokens/s {part}" for part in ("prefill", "decode")]
    seed = "" if stats["seed"] is None else f", seed {stats['seed']}"
    skipped = f"\n{stats['skipped']}" if "skipped" in stats else ""
    skipped += _kept(stats["cache"]) if "cache" in stats else ""
    skipped += _filled(stats["diffusion"]) if "diffusion" in stats else ""
    skipped += _searched(stats["search"]) if "search" in stats else ""
    skipped += f"\nlossy: {stats['speculation']['lossy']}" if "lossy" in stats["speculation"] else ""
    return (
        f"prompt {stats['prompt_tokens']} tokens ({stats['cached_tokens']} cached), "
        f"generated {stats['generated_tokens']} in {stats['calls']} calls, {', '.join(speeds)}, "
        f"finish: {stats['finish_reason'] or 'none, stopped early'}{seed}{skipped}"
        + "".join(f"\n{line}" for line in ([] if "search" in stats else drafting_lines(stats)))
    )


def _kept(cache: dict[str, Any]) -> str:
    """A line about the cache policy."""
    if not cache["lossy"]:
        return f"\ncache policy {cache['policy']}: nothing at {cache['absent']}, so this is the text of the whole cache"
    share = f"{cache['slots']} of {cache['of']} slots ({cache['share']:.0%})"
    return f"\nlossy: cache policy {cache['policy']} keeps {share}"


def _filled(diffusion: dict[str, Any]) -> str:
    """A line about the passes of diffusion decoding."""
    counts = f"{diffusion['passes']} passes of {diffusion['rows']} rows, {diffusion['blocks']} blocks"
    return f"\ndiffusion {diffusion['methods']}: {counts}, {diffusion['tokens_per_pass']} tokens a pass"


def _searched(found: dict[str, Any]) -> str:
    """A line about a search."""
    counts = f"{found['candidates']} texts, {found['tokens']} tokens, {found['forwards']} forwards"
    for kind in ("latents", "scorer_calls"):
        counts += f", {found[kind]} {kind.replace('_', ' ')}" if found[kind] else ""
    return f"\n{'lossy: ' if found['lossy'] else ''}search {found['search']}: {counts}"


def describe(token: Token, tokenizer: Tokenizer) -> dict[str, Any]:
    """A token and its log-probabilities for JSON."""
    top = [{"token": t, "text": tokenizer.decode([t], special=True), "logprob": p} for t, p in token.top]
    text = tokenizer.decode([token.token], special=True)
    return {"token": token.token, "text": text, "logprob": token.logprob, "top": top}
