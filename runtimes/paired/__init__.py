"""`--device auto`: the fastest engine on this machine, or two of them, one for prefill and one for decode.

The CPU engine and the GPU engines are measured once with this bundle (`measure`); the costs are kept (`kept`) until a
driver or the host changes. If one engine is faster at both, it is opened alone; if the CPU is faster at decode and a
GPU at prefill, or the other way round, a runtime over both is opened (`runtime`). Without a GPU nothing is measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from edgedec.bundle import Bundle
from edgedec.errors import EdgedecError
from edgedec.runtime import DeviceName, Runtime, RuntimeFacts, RuntimeOptions, choose_runtime, note_choice, open_engine
from edgedec.runtime import unavailable_reason as reason_against
from edgedec.runtimes.paired.cache import PairedCache
from edgedec.runtimes.paired.costs import CPU, READ, EngineCosts, Rule, Split, best_split, hand_over
from edgedec.runtimes.paired.kept import kept_path, read_costs, write_costs
from edgedec.runtimes.paired.layout import Handover
from edgedec.runtimes.paired.measure import measured
from edgedec.runtimes.paired.runtime import PairedRuntime

__all__ = ["FACTS", "PairedCache", "PairedRuntime", "Surveyed", "open", "unavailable_reason"]

# No kinds of its own: it runs what its engines run.
FACTS = RuntimeFacts(devices=("auto",), files=False, low_bits=True, kept=True)
# The engine of each candidate device. ONNX Runtime's need files in the bundle, and its import.
_OWN = {"cuda": "cuda", "opencl": "opencl"}
_BY_FILES = {"webgpu": "ort", "dml": "ort", "coreml": "ort"}


def unavailable_reason(bundle: Bundle, device: DeviceName) -> str | None:
    """None for the device `auto`, also without a GPU: the CPU engine is used then. Engines are paired only if none is
    named."""
    if device.name in FACTS.devices:
        return None
    return "takes other engines together; it is opened by --device auto"


def open(bundle: Bundle, options: RuntimeOptions) -> Runtime:  # noqa: A001
    found = Surveyed.of(bundle, options)
    runtime = found.runtime()
    note_choice(runtime, found.why())
    return runtime


@dataclass
class Surveyed:
    """The available engines by device, the CPU's first, and the costs of their calls; `missing`: why other devices have
    none."""

    bundle: Bundle
    engines: dict[str, Runtime]
    missing: dict[str, str] = field(default_factory=dict)
    costs: dict[str, EngineCosts] = field(default_factory=dict)
    measured: bool = False

    @classmethod
    def of(cls, bundle: Bundle, options: RuntimeOptions, again: bool = False) -> Surveyed:
        """Open the available engines; their costs are read from the cache folder or measured."""
        on_cpu = replace(options, device=CPU)
        found = cls(bundle, {CPU: open_engine(choose_runtime(bundle, device=CPU), bundle, on_cpu)})
        for device, engine in (_OWN | (_BY_FILES if "devices" in bundle.manifest.artifacts else {})).items():
            found._add(device, engine, options)
        if len(found.engines) > 1:
            found._measure(again)
        return found

    @property
    def split(self) -> Split:
        """The engines for prefill and for decode."""
        return best_split(self.costs, self.bundle.spec.context_length) if self.costs else Split(CPU, CPU)

    def runtime(self) -> Runtime:
        """The engine of the split, or the runtime over its two."""
        split = self.split
        if split.alone:
            return self.engines[split.decode]
        rule = Rule.of(self.costs, split)
        return PairedRuntime(self.engines[split.decode], self.engines[split.prefill], rule)

    def why(self) -> str:
        """The choice of engines with its reasons, in one line."""
        if not self.costs:
            return f"{CPU} alone: no other engine here ({_listed(self.missing)})"
        prefill, decode = self.split.prefill, self.split.decode
        head = f"{decode} alone" if prefill == decode else f"{prefill} for prefill, {decode} for decode"
        figures = [f"{name} {_figures(costs)}" for name, costs in self.costs.items()]
        if prefill != decode:
            figures.append(f"handing {READ} tokens over {1e3 * hand_over(self.costs, self.split, READ):.1f} ms")
        return f"{head}: {'; '.join(figures)}" + (f" ({_listed(self.missing)})" if self.missing else "")

    def _add(self, device: str, engine: str, options: RuntimeOptions) -> None:
        """Add the engine of a device, if it is available and can exchange caches with the CPU's."""
        reason = reason_against(engine, self.bundle, device)
        if reason is None:
            try:
                runtime = open_engine(engine, self.bundle, replace(options, device=device))
                reason = None if _share(runtime, self.engines[CPU]) else "keeps its cache in another format"
            except (EdgedecError, MemoryError, OSError) as error:
                reason = _words(error)
        if reason is None:
            self.engines[device] = runtime
        else:
            self.missing[device] = reason

    def _measure(self, again: bool) -> None:
        path = kept_path(self.bundle, self.engines)
        known = None if again else read_costs(path, self.engines)
        self.costs, self.measured = known or {}, known is None
        if known is None:
            self._measure_each()
            write_costs(path, self.costs)
        for device in self.engines.keys() - self.costs.keys():
            self.missing.setdefault(device, "failed when it was measured; `edgedec doctor --device auto` tries again")
            del self.engines[device]

    def _measure_each(self) -> None:
        for device, runtime in self.engines.items():
            try:
                self.costs[device] = measured(runtime, self.engines[CPU])
            except (EdgedecError, MemoryError, OSError) as error:
                if device == CPU:
                    raise
                self.missing[device] = f"failed when it was measured: {_words(error)}"


def _share(runtime: Runtime, cpu: Runtime) -> bool:
    return Handover.between(runtime, cpu) is not None and Handover.between(cpu, runtime) is not None


def _words(error: BaseException) -> str:
    """The error's message; its class if it has none, as some memory errors."""
    return str(error) or type(error).__name__


def _figures(costs: EngineCosts) -> str:
    rows = costs.rows[-1]
    return f"{rows / costs.seconds[-1]:,.0f} tokens/s of prefill, {1e3 * costs.seconds[0]:.1f} ms a token"


def _listed(reasons: Mapping[str, str]) -> str:
    return "; ".join(f"{device}: {reason}" for device, reason in reasons.items())
