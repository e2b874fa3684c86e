"""Flags that several verbs share, declared once; named as in llama.cpp and Hugging Face.

Those that verbs take together are groups: one parameter stands for all of them (see `groups.py`).
"""

from edgedec.cli._flags.choices import ChoiceFlags
from edgedec.cli._flags.constraints import ConstraintFlags
from edgedec.cli._flags.device import DeviceWord
from edgedec.cli._flags.diffusion import DiffusionWords
from edgedec.cli._flags.generation import GenerationFlags, SeededGeneration, parse_bias, with_seed
from edgedec.cli._flags.groups import grouped
from edgedec.cli._flags.lossy import CacheWords, SkipSpeed
from edgedec.cli._flags.machine import (
    KV,
    MODEL_HELP,
    CtxSize,
    Engine,
    KVFormat,
    Learn,
    Lora,
    MachineFlags,
    ModelName,
    OnFull,
    OnFullMode,
    Speculate,
    Threads,
    Weights,
    open_lora,
    open_model,
)
from edgedec.cli._flags.option import option
from edgedec.cli._flags.output import Json, Logprobs, ShowStats, Verbose
from edgedec.cli._flags.shaping import FuseWords, ShapingFlags
from edgedec.cli._flags.template import TemplateFlags
from edgedec.cli._flags.texts import PromptFlags, read_prompt, read_text
from edgedec.cli._flags.training import PartTrainFlags, TrainFlags
from edgedec.cli._flags.trust import TrustCode

__all__ = [
    "KV",
    "MODEL_HELP",
    "CacheWords",
    "ChoiceFlags",
    "ConstraintFlags",
    "CtxSize",
    "DeviceWord",
    "DiffusionWords",
    "Engine",
    "FuseWords",
    "GenerationFlags",
    "Json",
    "KVFormat",
    "Learn",
    "Logprobs",
    "Lora",
    "MachineFlags",
    "ModelName",
    "OnFull",
    "OnFullMode",
    "PartTrainFlags",
    "PromptFlags",
    "SeededGeneration",
    "ShapingFlags",
    "ShowStats",
    "SkipSpeed",
    "Speculate",
    "TemplateFlags",
    "Threads",
    "TrainFlags",
    "TrustCode",
    "Verbose",
    "Weights",
    "grouped",
    "open_lora",
    "open_model",
    "option",
    "parse_bias",
    "read_prompt",
    "read_text",
    "with_seed",
]
