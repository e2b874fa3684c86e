"""`edgedec bench targets`: every engine that is here, on every device of it, on one bundle, in one run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgedec.cli import options as o
from edgedec.cli._bench_about import describe
from edgedec.cli._output import print_json, print_table, progress_bar
from edgedec.cli._trust import TrustCode
from edgedec.errors import RuntimeUnavailable

if TYPE_CHECKING:
    from edgedec.bench.timing import Ratio, TimingResult
    from edgedec.bundle import Bundle

Show = Callable[[dict[str, Any], "list[TimingResult]", "list[Ratio]"], None]
# It is written to be read, and takes minutes where others take seconds.
_ORACLE = "reference"


def targets_command(show_results: Show) -> Callable[..., None]:
    """The command; `show_results` prints as `edgedec bench` does."""

    def targets(
        model: o.ModelName = "nano",
        prompt: Annotated[int, typer.Option("--prompt", "-p", min=1, help="Tokens to read.")] = 128,
        generate: Annotated[int, typer.Option("--generate", "-n", min=1, help="Tokens to generate, one a call.")] = 64,
        repetitions: Annotated[int, typer.Option("--repetitions", "-r", min=1, help="Runs, after one to warm up.")] = 5,
        threads: o.Threads = 0,
        trust_code: TrustCode = False,
        json: o.Json = False,
    ) -> None:
        """Measure every engine that is here on one bundle, in turns: ort on each of its devices.

        \b
        Examples:
          edgedec bench targets -m ./smol
          edgedec bench targets -m ./smol --trust-code -t 2 --json
        """
        from edgedec.bench.timing import Config, bench
        from edgedec.bundle.folder import Bundle
        from edgedec.bundle.locate import find

        bundle = Bundle.open(find(model))
        present, absent = engines_here(bundle, trust_code)
        configs = [
            Config(engine, model, prompt, generate, threads, trust_code=trust_code, device=device)
            for engine, device in present
        ]
        about = {**describe(bundle), "prompt": prompt, "generate": generate, "repetitions": repetitions}
        with progress_bar(quiet=json) as show:
            results, ratios = bench(
                configs,
                repetitions,
                lambda done, total: show("bench", done, total),
                lambda config, why: absent.update({config.label: why}),
            )
        if not results:
            raise RuntimeUnavailable(f"{bundle.path}: no engine can open it here; see edgedec targets")
        if json:
            rows = [result.to_json() for result in results]
            print_json({**about, "results": rows, "ratios": [asdict(ratio) for ratio in ratios], "absent": absent})
            return
        show_results(about, results, ratios)
        print_table(list(absent.items()), ("not here", "why"), "Not measured")

    return targets


def engines_here(bundle: Bundle, trust_code: bool = False) -> tuple[list[tuple[str, str]], dict[str, str]]:
    """The engines, each with the device that it is opened with ("": its usual one), that can run the bundle here; why
    the others, named by both words, cannot."""
    from edgedec.runtime import unavailable_reason
    from edgedec.runtime.trust import why_not_run
    from edgedec.targets import all_targets

    names = sorted(
        {target.engine for target in all_targets()} - {"", _ORACLE}, key=lambda name: (name != "native", name)
    )
    pairs = [(name, device) for name in names for device in ("", *_further_devices(name, bundle))]
    reasons = {pair: unavailable_reason(pair[0], bundle, pair[1]) for pair in pairs}
    if reasons.get(("tvm", ""), "") is None and not trust_code and why_not_run(bundle) is not None:
        reasons["tvm", ""] = "it is machine code in the bundle: --trust-code"
    present = [pair for pair, reason in reasons.items() if reason is None]
    return present, {" ".join(pair).strip(): reason for pair, reason in reasons.items() if reason is not None}


def _further_devices(engine: str, bundle: Bundle) -> list[str]:
    """The devices of an engine beside its usual one, by what the bundle has files for: `qnn:SM8650`."""
    from edgedec.runtime.registry import devices_of

    found = list[str]()
    for device in devices_of(engine)[1:]:
        found += [name for name in bundle.manifest.artifacts if name.startswith(f"{device}:")] or [device]
    return found
