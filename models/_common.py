"""What the architecture files share: a strict reader of configs, and the common sizes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict, TypeVar

from edgedec.errors import BundleCorrupt, CheckpointError
from edgedec.spec import Activation, ModelSpec

T = TypeVar("T")

# Keys that do not touch the arithmetic of inference: bookkeeping, training, sampling defaults.
HARMLESS = re.compile(
    r"_.*|unsloth.*|transformers.*|.*_token_id|.*_token_index|.*dropout(_prob)?|.*pdrop|.*initializer.*"
    r"|architectures|auto_map|model_type|name_or_path|tokenizer_class|torch_?dtype|dtype|use_cache"
    r"|pretraining_tp|torchscript|gradient_checkpointing|chunk_size_feed_forward|return_dict.*|output_.*"
    r"|id2label|label2id|problem_type|task_specific_params|is_llama_config|attn_implementation"
    r"|cache_implementation|max_sequence_length|seq_length|max_length|min_length|temperature|top_k|top_p|typical_p|num_beam.*"
    r"|num_return_sequences|repetition_penalty|length_penalty|diversity_penalty|.*ngram_size|early_stopping"
    r"|num_nextn_predict_layers|router_aux_loss_coef|router_jitter_noise|z_loss_coefficient|num_logits_to_keep|init_method"
    r"|diffusion"  # how it decodes, not its layers (edgedec.export.diffusion)
)
REFUSED = {
    "quantization_config": "is already quantized; export the original checkpoint",
    "compression_config": "is already quantized; export the original checkpoint",
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), "this architecture has no experts"),
}
ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "relu": "relu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu2": "relu2",
    "xielu": "xielu",
}
IGNORED = (r".*rotary_emb\.inv_freq", r"lm_head\.weight")
REQUIRED: Any = object()


@dataclass(frozen=True)
class ConfigReader:
    """Reads a JSON object key by key and refuses what is missing, of another type, or never read.

    An absent key has the default given; a null is None where None is allowed and wrong elsewhere.
    """

    values: Mapping[str, Any]
    where: str = "config.json"
    read: set[str] = field(default_factory=set)

    def fail(self, key: str, why: str) -> CheckpointError:
        return CheckpointError(f"{self.where}: {key} {why}")

    def value(self, key: str, default: Any = REQUIRED) -> Any:
        self.read.add(key)
        found = self.values.get(key, default)
        if found is REQUIRED:
            raise self.fail(key, "is missing")
        return found

    def maybe_whole(self, key: str, default: int | None = None, least: int = 1) -> int | None:
        found = self.value(key, default)
        if found is not None and (type(found) is not int or found < least):
            raise self.fail(key, f"must be a whole number of at least {least}, found {found!r}")
        return found

    def whole(self, key: str, default: int = REQUIRED, least: int = 1) -> int:
        found = self.maybe_whole(key, default, least)
        if found is None:
            raise self.fail(key, "must be a whole number, found null")
        return found

    def maybe_number(self, key: str, default: float | None = None) -> float | None:
        found = self.value(key, default)
        if found is None:
            return None
        if type(found) not in (int, float) or not 0 < found < math.inf:
            raise self.fail(key, f"must be a positive number, found {found!r}")
        return float(found)

    def number(self, key: str, default: float = REQUIRED) -> float:
        found = self.maybe_number(key, default)
        if found is None:
            raise self.fail(key, "must be a positive number, found null")
        return found

    def flag(self, key: str, default: bool) -> bool:
        return self._of(key, self.value(key, default), bool, "true or false")

    def text(self, key: str, default: str = REQUIRED) -> str:
        return self._of(key, self.value(key, default), str, "a string")

    def table(self, key: str) -> dict[str, Any]:
        """The JSON object under `key`; an empty one if absent or null."""
        found = self.value(key, None)
        return {} if found is None else self._of(key, found, dict, "an object")

    def _of(self, key: str, found: Any, kind: type[T], wanted: str) -> T:
        if type(found) is not kind:
            raise self.fail(key, f"must be {wanted}, found {found!r:.60}")
        return found

    def items(self, key: str, kind: type[T]) -> list[T] | None:
        """The list under `key`, each item a `kind` (an int will do for a float)."""
        found = self.value(key, None)
        kinds: tuple[type, ...] = (int, float) if kind is float else (kind,)
        if found is not None and not (isinstance(found, list) and all(type(item) in kinds for item in found)):
            raise self.fail(key, f"must be a list of {kind.__name__}, found {found!r:.60}")
        return found

    def done(self) -> None:
        """Refuse every key that was not read, unless it is harmless or switched off."""
        for key, found in self.values.items():
            if key in REFUSED and found and key not in self.read:
                raise self.fail(key, f"is set: {REFUSED[key]}")
            if found and key not in self.read and not HARMLESS.fullmatch(key):
                raise self.fail(key, f"is not known ({found!r:.40}); if it changes no arithmetic, remove it")


class Sizes(TypedDict):
    """The fields of a ModelSpec that every architecture reads alike."""

    architecture: str
    vocab_size: int
    hidden_size: int
    norm_eps: float
    tied: bool


class Heads(TypedDict):
    """The fields of an Attention that every architecture reads alike."""

    n_heads: int
    n_kv_heads: int
    head_dim: int
    scale: float


def sizes(r: ConfigReader, *, tied: bool, eps: float = 1e-6, eps_key: str = "rms_norm_eps") -> Sizes:
    """The common fields of the model; the keywords are what the architecture assumes where the config is silent."""
    return Sizes(
        architecture=r.text("model_type"),
        vocab_size=r.whole("vocab_size"),
        hidden_size=r.whole("hidden_size"),
        norm_eps=r.number(eps_key, eps),
        tied=r.flag("tie_word_embeddings", tied),
    )


def heads(r: ConfigReader, *, kv_heads: int | None = None, head_dim: int | None = None) -> Heads:
    """The common fields of its attention; a scale of 1 over the root of the width of a head."""
    hidden, n = r.whole("hidden_size"), r.whole("num_attention_heads")
    dim = r.maybe_whole("head_dim", head_dim)
    if dim is None and hidden % n:
        raise r.fail("head_dim", f"is missing and hidden_size {hidden} is not a multiple of {n} heads")
    dim = dim or hidden // n
    return Heads(
        n_heads=n,
        n_kv_heads=r.maybe_whole("num_key_value_heads", kv_heads) or n,
        head_dim=dim,
        scale=dim**-0.5,
    )


def unrotated_length(
    r: ConfigReader, asked: int | None, default: int = REQUIRED, key: str = "max_position_embeddings"
) -> int:
    """The requested length of a model without ropes; by default the longest, `default` where the config is silent."""
    longest = r.whole(key, default)
    if asked is not None and not 1 <= asked <= longest:
        raise r.fail(key, f"is {longest}; a context of {asked} is out of range")
    return asked or longest


def require_usual(r: ConfigReader, facts: Mapping[str, Any]) -> None:
    """Refuse a config that says something else of these than the usual, or nothing."""
    for key, usual in facts.items():
        if r.value(key, usual) not in (usual, None):
            raise r.fail(key, f"{r.values[key]!r:.40} is not supported; known: {usual!r}")


def require_supported(r: ConfigReader, facts: Mapping[str, tuple[Any, Any]]) -> None:
    """Refuse another value of a fact than the supported one; facts: that, and what a silent config means."""
    for key, (wanted, usual) in facts.items():
        if (found := r.value(key, usual)) != wanted:
            raise r.fail(key, f"is {found!r:.40}; supported is {wanted!r} only")


def either(r: ConfigReader, usual: str, other: str) -> str:
    """Which of two names of one fact the config has; `usual` if neither or both alike."""
    values = [r.value(key, None) for key in (usual, other)]
    if None not in values and values[0] != values[1]:
        raise r.fail(usual, f"is {values[0]!r:.40}, {other} is {values[1]!r:.40}: make them equal")
    return other if values[0] is None and values[1] is not None else usual


def activation(r: ConfigReader, key: str = "hidden_act", default: str = "silu") -> Activation:
    name = r.text(key, default)
    if name not in ACTIVATIONS:
        raise r.fail(key, f"{name!r} is not supported; known: {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def sliding(r: ConfigReader, default: Sequence[bool]) -> list[bool]:
    """Which layers have a window: `layer_types`, or the architecture's own pattern if absent."""
    types = r.items("layer_types", str)
    if types is None:
        return list(default)
    if len(types) != len(default):
        raise r.fail("layer_types", f"names {len(types)} layers of {len(default)}")
    unknown = sorted(set(types) - {"full_attention", "sliding_attention"})
    if unknown:
        raise r.fail("layer_types", f"{unknown[0]!r} is not supported")
    return [kind == "sliding_attention" for kind in types]


def windows(r: ConfigReader, slides: Sequence[bool], window: int | None, context: int) -> list[int | None]:
    """The window of every layer. A window as wide as the context hides nothing and is left out."""
    if any(slides) and window is None:
        raise r.fail("sliding_window", "is missing though layers use it")
    return [window if on and window is not None and window < context else None for on in slides]


def finish(r: ConfigReader, spec: ModelSpec) -> ModelSpec:
    """`spec`, once nothing in the config is left unread and its numbers are possible."""
    r.done()
    try:
        return spec.check(r.where)
    except BundleCorrupt as error:
        raise CheckpointError(str(error)) from None
