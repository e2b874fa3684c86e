"""An opened bundle as its sessions use it: runtime, tokenizer, chat template, shared prefixes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from edgedec.bundle import Bundle
from edgedec.decoding.sharing import ModelPrefixes
from edgedec.errors import TextError, UsageError
from edgedec.runtime import Runtime
from edgedec.sampling import Sampling
from edgedec.spec import ModelSpec
from edgedec.text.template import render_chat
from edgedec.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from edgedec.encoding import TextEncoder

# Names that a template always gets.
_TEMPLATE_NAMES = frozenset({"template", "messages", "tools", "add_generation_prompt", "documents"})


class OpenedModel:
    """Weights, a runtime and a tokenizer. `prefixes`: cached prefixes from which texts may continue."""

    def __init__(self, bundle: Bundle, runtime: Runtime, prefixes: ModelPrefixes) -> None:
        self.bundle, self.runtime, self.prefixes = bundle, runtime, prefixes
        # By default the bundle's; callers may replace it.
        self.chat_template = bundle.manifest.text.chat_template
        # Of a server's texts that name none (`edgedec.fusion`).
        self.fuse = ""

    @property
    def spec(self) -> ModelSpec:
        return self.bundle.spec

    @cached_property
    def tokenizer(self) -> Tokenizer:
        name = self.bundle.manifest.text.tokenizer
        if name is None:
            raise TextError(f"{self.bundle.path}: the bundle has no tokenizer; use session.tokens(ids)")
        return Tokenizer.load(self.bundle.file(name))

    @cached_property
    def encoder(self) -> TextEncoder:
        """Embeddings, scores and labels of texts; UsageError for a model that generates text."""
        output = self.bundle.output
        if output is None:
            raise UsageError(
                f"{self.bundle.manifest.name}: generates text; embed, rerank and classify need a text encoder"
            )
        from edgedec.encoding import TextEncoder

        return TextEncoder(self.bundle, self.runtime, self.tokenizer, output)

    def require_decoder(self) -> None:
        """UsageError for a text encoder, which generates nothing."""
        self.bundle.require_decoder()

    @property
    def eos(self) -> frozenset[int]:
        return frozenset(self.bundle.manifest.text.eos)

    @cached_property
    def sampling(self) -> Sampling:
        """The bundle's default sampling settings; greedy if it has none."""
        suggested = self.bundle.manifest.text.sampling
        known = {"temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty"}
        values = {key: int(v) if key == "top_k" else v for key, v in suggested.items() if key in known}
        return Sampling(**values)  # type: ignore[arg-type]

    def chat_prompt(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """The messages ({"role": …, "content": …}) as the model's template writes them; `tools`: the functions that
        the model may call, as OpenAI describes them; `variables`: further names for the template, such as
        enable_thinking."""
        text = self.bundle.manifest.text
        taken = _TEMPLATE_NAMES & set(variables or ())
        if taken:
            raise TextError(f"chat template: {min(taken)!r} is set by the chat itself; choose other variables")
        if self.chat_template is None:
            raise TextError(f"{self.bundle.manifest.name}: the bundle has no chat template; use a plain prompt")
        return render_chat(
            self.chat_template,
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            **{**(variables or {}), "bos_token": text.bos_token, "eos_token": text.eos_token},
        )

    def chat_ids(self, messages: Sequence[Mapping[str, object]]) -> list[int]:
        """The messages as tokens. The template writes the special tokens, so none are added; a special token in a
        message's text is encoded as such."""
        return self.tokenizer.encode(self.chat_prompt(messages), around=False)
