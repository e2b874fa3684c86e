"""Shared by all runtimes: rows, calls, outputs, capabilities, the registry."""

from edgedec.cache.rows import Rows
from edgedec.runtime.best import best
from edgedec.runtime.call import (
    ALL_LOGITS,
    Adapter,
    Call,
    CallResult,
    Hidden,
    Logits,
    Outputs,
    Runtime,
    forward_one,
    head_outputs,
    logits_of,
)
from edgedec.runtime.capabilities import Capabilities
from edgedec.runtime.checks import check_calls, check_readout, check_views
from edgedec.runtime.chosen import note_choice, why_chosen
from edgedec.runtime.devices import DEVICE_NAMES, DeviceName, parse_device
from edgedec.runtime.drafting import (
    Calibrated,
    DraftGroup,
    DraftingParts,
    DraftTable,
    TableRows,
    TableSettings,
    WatchPrices,
)
from edgedec.runtime.long_ropes import rope_key, rope_room, suit, suits
from edgedec.runtime.readout import Readout
from edgedec.runtime.registry import (
    RUNTIMES,
    RuntimeFacts,
    RuntimeOptions,
    available_cores,
    choose_kv,
    choose_runtime,
    lacking_kinds,
    open_engine,
    open_runtime,
    opened_with,
    unavailable_reason,
)
from edgedec.runtime.sampler import Drawing, MakeSampler, SamplingSettings, TokenSampler
from edgedec.runtime.steps import (
    SILENT,
    DecodingStep,
    StepCosts,
    StepCounts,
    StepGovernor,
    StepParts,
    Stepped,
    StepSettings,
)
from edgedec.runtime.view import PAGE, View

__all__ = [
    "ALL_LOGITS",
    "DEVICE_NAMES",
    "PAGE",
    "RUNTIMES",
    "SILENT",
    "Adapter",
    "Calibrated",
    "Call",
    "CallResult",
    "Capabilities",
    "DecodingStep",
    "DeviceName",
    "DraftGroup",
    "DraftTable",
    "DraftingParts",
    "Drawing",
    "Hidden",
    "Logits",
    "MakeSampler",
    "Outputs",
    "Readout",
    "Rows",
    "Runtime",
    "RuntimeFacts",
    "RuntimeOptions",
    "SamplingSettings",
    "StepCosts",
    "StepCounts",
    "StepGovernor",
    "StepParts",
    "StepSettings",
    "Stepped",
    "TableRows",
    "TableSettings",
    "TokenSampler",
    "View",
    "WatchPrices",
    "available_cores",
    "best",
    "check_calls",
    "check_readout",
    "check_views",
    "choose_kv",
    "choose_runtime",
    "forward_one",
    "head_outputs",
    "lacking_kinds",
    "logits_of",
    "note_choice",
    "open_engine",
    "open_runtime",
    "opened_with",
    "parse_device",
    "rope_key",
    "rope_room",
    "suit",
    "suits",
    "unavailable_reason",
    "why_chosen",
]
