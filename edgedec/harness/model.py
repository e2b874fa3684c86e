"""A bundle as a model of lm-evaluation-harness: log-probabilities of continuations, of whole texts, and generation.

Many requests run together, and a beginning that they have in common is read once. Tokens are cut, and texts are split
into windows, as the harness does it for models of transformers, so that the numbers can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

import edgedec
from edgedec.decoding.batch_score import score_all
from edgedec.decoding.config import GenerationConfig
from edgedec.decoding.messages import Token
from edgedec.decoding.scheduler.batch import Batch, Job
from edgedec.decoding.sharing import SharedPrefixes
from edgedec.errors import UsageError
from edgedec.sampling import Sampling
from edgedec.text.stream import TextStream

_TOKENS, _TOGETHER = 1 << 20, 32


class BundleLM(TemplateLM):  # type: ignore[misc]
    """`--model edgedec`. Arguments: bundle, engine, threads, kv, max_length, max_gen_toks, speculate. batch_size:
    requests at a time, 32 unless more than 1 are asked for."""

    def __init__(
        self,
        bundle: str = "nano",
        engine: str = "auto",
        threads: int = 0,
        kv: str | None = None,
        batch_size: int | str = 1,
        max_length: int | None = None,
        max_gen_toks: int = 256,
        speculate: str = "auto",
        device: str | None = None,
        max_batch_size: int | None = None,
        **unknown: Any,
    ) -> None:
        super().__init__()
        if unknown:
            raise UsageError(f"model_args {next(iter(unknown))!r}: not an argument of --model edgedec")
        self.model = edgedec.open(str(bundle), engine=engine, threads=int(threads), kv=kv)
        limit = self.model.spec.context_length
        self.max_length = min(int(max_length or limit), limit)
        self.max_gen_toks = int(max_gen_toks)
        # The harness gives 1, or "auto", where the user said nothing; the numbers do not depend on it.
        self.batch_size = int(batch_size) if str(batch_size).isdigit() and int(batch_size) > 1 else _TOGETHER
        self._speculate, self._prefixes = speculate, SharedPrefixes(self.model.runtime.capabilities)

    @property
    def eot_token_id(self) -> int:
        ends = self.model.bundle.manifest.text.eos
        if not ends:
            raise UsageError(f"{self.model.bundle.path}: the bundle has no end token, which the harness needs")
        return ends[0]

    @property
    def prefix_token_id(self) -> int:
        bos = self.model.bundle.manifest.text.bos
        return self.eot_token_id if bos is None else bos

    @property
    def tokenizer_name(self) -> str:
        return f"{self.model.bundle.manifest.name}-{self.model.bundle.digest[:16]}"

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The template that stands in results; one name of several cannot be chosen."""
        return self.model.bundle.manifest.text.chat_template if chat_template else None

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The messages as the bundle's template writes them; without a prompt for an answer, up to the end of the last
        message, which generation continues."""
        text = self.model.chat_prompt(chat_history, add_generation_prompt=add_generation_prompt)
        content = chat_history[-1]["content"].strip() if chat_history and not add_generation_prompt else ""
        at = text.rfind(content) if content else -1
        return text if at < 0 else text[: at + len(content)]

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Tokens, with those that the tokenizer puts around a text unless the text begins with them."""
        begin = self.model.bundle.manifest.text.bos_token
        around = not (begin and string.startswith(begin)) if add_special_tokens is None else add_special_tokens
        return self.model.tokenizer.encode(string, around=around)

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False, **_: Any
    ) -> list[tuple[float, bool]]:
        """(log-probability, is it what greedy decoding gives?) of the last tokens after the first ones."""
        texts = [self._cut(context, ids) for _, context, ids in requests]
        with tqdm(total=len(texts), disable=disable_tqdm, desc="Scoring") as bar:
            found = score_all(self.model.runtime, texts, self.batch_size, self._prefixes, partial(bar.update, 1))
        for request, one in zip(requests, found, strict=True):
            if request[0] is not None:
                self.cache_hook.add_partial("loglikelihood", request[0], tuple(one))
        return [(one.logprob, one.greedy) for one in found]

    def _cut(self, context: list[int], ids: list[int]) -> tuple[list[int], list[int]]:
        """Both, without the first tokens of a context that is too long."""
        if not ids or len(ids) > self.max_length:
            raise UsageError(f"a continuation of {len(ids)} tokens: must have 1 to {self.max_length}")
        whole = [*context, *ids][-(self.max_length + 1) :]
        return whole[: -len(ids)], ids

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """The log-probability of each whole text, in windows of the model's context that do not overlap."""
        windows: list[tuple[Any, list[int], list[int]]] = []
        counts = []
        for (string,) in (request.args for request in requests):
            rolling = get_rolling_token_windows(self.tok_encode(string), self.prefix_token_id, self.max_length, 1)
            parts = [(None, *make_disjoint_window(window)) for window in rolling]
            windows += parts
            counts.append(len(parts))
        scored, found = iter(self._loglikelihood_tokens(windows, disable_tqdm)), []
        for request, count in zip(requests, counts, strict=True):
            found.append(sum(next(scored)[0] for _ in range(count)))
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, found[-1])
        return found

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """The text after each context, up to the first of its stop strings."""
        batch = Batch(self.model.runtime, tokens=_TOKENS, most=self.batch_size)
        with tqdm(total=len(requests), disable=disable_tqdm, desc="Generating") as bar:
            args = [request.args for request in requests]
            made = [_Generation(self, batch, prompt, how, partial(bar.update, 1)) for prompt, how in args]
            batch.run()
        for request, one in zip(requests, made, strict=True):
            if one.job.error is not None:
                raise one.job.error
            self.cache_hook.add_partial("generate_until", request.args, one.text)
        return [one.text for one in made]


class _Generation:
    """One text in the making."""

    def __init__(self, lm: BundleLM, batch: Batch, prompt: str, options: Mapping[str, Any], ended: Any) -> None:
        wanted: dict[str, Any] = dict(normalize_gen_kwargs(dict(options), lm.max_gen_toks))
        room = lm.max_length - int(wanted["max_gen_toks"])
        if room < 1:
            raise UsageError(f"max_gen_toks {wanted['max_gen_toks']}: must be less than the context, {lm.max_length}")
        end = lm.model.tokenizer.token(lm.eot_token_id)
        stops = tuple(filter(None, handle_stop_sequences(wanted["until"], end)))
        ids = lm.tok_encode(prompt)[-room:]
        session = lm.model.session(speculate=lm._speculate)
        self.text, self._stopped, self._ended, self._batch = "", False, ended, batch
        self._stream = TextStream(lm.model.tokenizer, stops, ids)
        config = GenerationConfig(sampling=_sampling(wanted)).override({"max_tokens": int(wanted["max_gen_toks"])})
        self.job: Job = session.submit(batch, ids, self._take, config)

    def _take(self, token: Token | None) -> None:
        if token is None:
            self.text += "" if self._stopped else self._stream.flush().text
            self._ended()
            return
        piece = self._stream.push(int(token))
        self.text += piece.text
        if piece.stopped:
            self._stopped = True
            self._batch.cancel(self.job)


def _sampling(wanted: Mapping[str, Any]) -> Sampling:
    """Greedy unless the task asks to sample."""
    if not wanted.get("do_sample"):
        return Sampling(temperature=0.0)
    kept = {key: wanted[key] for key in ("temperature", "top_k", "top_p", "min_p") if wanted.get(key) is not None}
    return Sampling(**{"seed": 1234, **kept})
