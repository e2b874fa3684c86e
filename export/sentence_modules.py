"""sentence-transformers' files beside a checkpoint: pooling, dense layers, normalisation, prompts, the longest text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from edgedec.bundle.manifest import EncoderFacts
from edgedec.errors import CheckpointError
from edgedec.export.safetensors import Stored, read_header, read_json_list, read_optional
from edgedec.models import Part, Source
from edgedec.spec import Dense, Mlp, ModelSpec, Output
from edgedec.spec.encoder import Squash, squash_of

MODULES, PROMPTS, SETTINGS = "modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"
POOLS = {"cls_token": "cls", "mean_tokens": "mean", "max_tokens": "max", "lasttoken": "last"}
_ACTIVATIONS: dict[str, Squash] = {
    "torch.nn.modules.linear.Identity": "none",
    "torch.nn.modules.activation.Tanh": "tanh",
    "torch.nn.modules.activation.ReLU": "relu",
    "torch.nn.modules.activation.GELU": "gelu",
    "torch.nn.modules.activation.SiLU": "silu",
    "torch.nn.modules.activation.Sigmoid": "sigmoid",
}
# A length that says there is none.
_NO_LIMIT = 1 << 24


@dataclass(frozen=True)
class Modules:
    """What the files say. output: None if nothing becomes of the rows but the model's own; tensors: of dense layers, by
    names with their folder in front."""

    facts: EncoderFacts
    output: Output | None = None
    tensors: Mapping[str, Stored] = field(default_factory=dict)
    sources: Mapping[str, Source] = field(default_factory=dict)

    def applied(self, spec: ModelSpec) -> ModelSpec:
        """The model with these modules after it; a classifier stays what it is."""
        if self.output is None or (spec.output is not None and spec.output.kind != "vector"):
            return spec
        if self.output.of_terms:
            act = next(block.activation for block in spec.blocks if isinstance(block, Mlp))
            width = (spec.entry.width if spec.entry else 0) or spec.hidden_size
            if act in ("relu2", "xielu"):
                raise CheckpointError(f"{spec.architecture}: term weights after {act} are not supported")
            return replace(spec, output=replace(self.output, dense=(Dense(width, True, squash_of(act), "layer"),)))
        return replace(spec, output=self.output, tied=True)


def read_modules(folder: Path) -> Modules:
    """The modules of the checkpoint in a folder, which may have none."""
    facts = _facts(folder)
    if not (folder / MODULES).is_file():
        return Modules(facts)
    output, dense = Output(normalize=False), list[tuple[Path, Dense]]()
    pooled = False
    for module in read_json_list(folder / MODULES):
        kind, place = str(module.get("type", "")).rpartition(".")[2], _place(folder, module.get("path", ""))
        match kind:
            case "Transformer" | "MLMTransformer":
                continue
            case "SpladePooling" if not pooled and not dense:
                _check_splade(place / "config.json")
                return Modules(facts, Output("terms", "rows"))
            case "Duplex" if not pooled and not dense:
                return _duplex(facts, place)
            case "Pooling" if not pooled and not dense:
                output, pooled = replace(output, pool=_pool(place / "config.json")), True
            case "Dense" if not output.normalize:
                dense.append((place, _dense(place / "config.json")))
            case "Normalize" if not output.normalize:
                output = replace(output, normalize=True)
            case _:
                raise CheckpointError(f"{folder / MODULES}: a module {kind!r} in this place is not supported")
    if not pooled and dense:  # late interaction: a vector of every token
        output = replace(output, kind="vectors", pool="rows", normalize=True)
    elif not pooled:
        return Modules(facts)
    return _with_tensors(Modules(facts, replace(output, dense=tuple(layer for _, layer in dense))), dense)


def _place(folder: Path, path: Any) -> Path:
    if not isinstance(path, str) or not re.fullmatch(r"[\w-]*", path):
        raise CheckpointError(f"{folder / MODULES}: {path!r} is not the plain name of a folder")
    return folder / path


def _facts(folder: Path) -> EncoderFacts:
    told, settings = read_optional(folder / PROMPTS), read_optional(folder / SETTINGS)
    prompts, usual = told.get("prompts") or {}, told.get("default_prompt_name") or ""
    if not isinstance(prompts, dict) or not all(isinstance(words, str) for words in prompts.values()):
        raise CheckpointError(f"{folder / PROMPTS}: prompts must be words by name")
    if usual and usual not in prompts:
        raise CheckpointError(f"{folder / PROMPTS}: default_prompt_name {usual!r} is not one of its prompts")
    longest = settings.get("max_seq_length") or read_optional(folder / "tokenizer_config.json").get("model_max_length")
    limit = int(longest) if isinstance(longest, int | float) and 0 < longest < _NO_LIMIT else 0
    sides = {side: told.get(f"{side}_prefix") for side in ("query", "document")}  # of late interaction (PyLate)
    prompts = {**{side: words for side, words in sides.items() if isinstance(words, str)}, **prompts}
    named = {str(name): words for name, words in prompts.items() if words}
    return EncoderFacts(named, usual if usual in named else "", limit, lower=bool(settings.get("do_lower_case")))


def _pool(file: Path) -> Any:
    """Which rows one vector is made of."""
    config = read_optional(file)
    if config.get("include_prompt", True) is not True:
        raise CheckpointError(f"{file}: include_prompt false is not supported")
    given = config.get("pooling_mode")
    modes = [key.removeprefix("pooling_mode_") for key, on in config.items() if on is True and key != "include_prompt"]
    if isinstance(given, str):
        modes = [name for name, pool in POOLS.items() if given == pool] or [
            {"lasttoken": "lasttoken"}.get(given, given)
        ]
    if len(modes) != 1 or modes[0] not in POOLS:
        raise CheckpointError(f"{file}: pooling by {' and '.join(modes) or 'nothing'} is not supported")
    return POOLS[modes[0]]


def _check_splade(file: Path) -> None:
    """CheckpointError unless weights of terms are the largest log(1 + relu) of the rows."""
    config = read_optional(file)
    for key, value in (("pooling_strategy", "max"), ("activation_function", "relu")):
        if config.get(key, value) != value:
            raise CheckpointError(f"{file}: {key} must be {value!r}, found {config[key]!r:.40}")


def terms_sources(names: tuple[str, str, str] | None) -> dict[str, Source]:
    """The head over the vocabulary by the names of its dense layer, norm and bias."""
    if names is None:
        raise CheckpointError(f"{MODULES}: weights of terms are supported of bert and distilbert only")
    dense, norm, bias = names
    tensors = {"dense.0": f"{dense}.weight", "dense.0_bias": f"{dense}.bias", "terms_bias": bias}
    tensors |= {"dense.0_norm": f"{norm}.weight", "dense.0_norm_bias": f"{norm}.bias"}
    return {name: (Part(tensor),) for name, tensor in tensors.items()}


def _dense(file: Path) -> Dense:
    config = read_optional(file)
    size, name = config.get("out_features"), config.get("activation_function", "torch.nn.modules.activation.Tanh")
    if type(size) is not int or size < 1:
        raise CheckpointError(f"{file}: out_features must be a whole number, found {size!r}")
    if name not in _ACTIVATIONS:
        raise CheckpointError(f"{file}: activation_function {name!r} is not one of {', '.join(_ACTIVATIONS)}")
    if config.get("use_residual"):
        raise CheckpointError(f"{file}: use_residual is not supported")
    return Dense(size, config.get("bias", True) is True, _ACTIVATIONS[name])


def _duplex(facts: EncoderFacts, place: Path) -> Modules:
    """What `train-embedder` writes for an embedding of [CLS] and terms."""
    config, file = read_optional(place / "config.json"), place / "model.safetensors"
    cls, top, share = (config.get(key) for key in ("cls", "top", "share"))
    if type(cls) is not int or type(top) is not int or min(cls, top) < 1:
        raise CheckpointError(f"{place / 'config.json'}: cls and top must be whole numbers, found {[cls, top]}")
    if not file.is_file():
        raise CheckpointError(f"{file}: missing")
    names = {"cls": "cls.weight", "cls_bias": "cls.bias", "terms_bias": "terms.bias"}
    if not isinstance(share, int | float) or not 0 <= share <= 1:
        raise CheckpointError(f"{place / 'config.json'}: share must be from 0 to 1, found {share!r:.40}")
    sources = {name: (Part(f"{place.name}/{stored}"),) for name, stored in names.items()}
    tensors = {f"{place.name}/{name}": stored for name, stored in read_header(file).items()}
    return Modules(facts, Output("duplex", "rows", cls=cls, top=top, share=float(share)), tensors, sources)


def _with_tensors(modules: Modules, dense: list[tuple[Path, Dense]]) -> Modules:
    tensors, sources = dict[str, Stored](), dict[str, Source]()
    for i, (place, layer) in enumerate(dense):
        file = place / "model.safetensors"
        if not file.is_file():
            raise CheckpointError(f"{file}: missing; save the model again with sentence-transformers' save_pretrained")
        tensors |= {f"{place.name}/{name}": stored for name, stored in read_header(file).items()}
        sources[f"dense.{i}"] = (Part(f"{place.name}/linear.weight"),)
        if layer.bias:
            sources[f"dense.{i}_bias"] = (Part(f"{place.name}/linear.bias"),)
    return replace(modules, tensors=tensors, sources=sources)
