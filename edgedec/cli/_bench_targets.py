"""`edgedec bench targets`: every engine that is here, on one bundle, in one run."""

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
        """Measure every engine that is here on one bundle, in turns.

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
        if not present:
            raise RuntimeUnavailable(f"{bundle.path}: no engine can open it here; see edgedec targets")
        configs = [Config(name, model, prompt, generate, threads, trust_code=trust_code) for name in present]
        about = {**describe(bundle), "prompt": prompt, "generate": generate, "repetitions": repetitions}
        with progress_bar(quiet=json) as show:
            results, ratios = bench(configs, repetitions, lambda done, total: show("bench", done, total))
        if json:
            rows = [result.to_json() for result in results]
            print_json({**about, "results": rows, "ratios": [asdict(ratio) for ratio in ratios], "absent": absent})
            return
        show_results(about, results, ratios)
        print_table(list(absent.items()), ("not here", "why"), "Not measured")

    return targets


def engines_here(bundle: Bundle, trust_code: bool = False) -> tuple[list[str], dict[str, str]]:
    """The engines that can run the bundle here, and why the others cannot."""
    from edgedec.runtime import unavailable_reason
    from edgedec.runtime.trust import why_not_run
    from edgedec.targets import all_targets

    names = dict.fromkeys(target.engine for target in all_targets() if target.engine not in ("", _ORACLE))
    reasons = {name: unavailable_reason(name, bundle) for name in names}
    if reasons.get("tvm", "") is None and not trust_code and why_not_run(bundle) is not None:
        reasons["tvm"] = "it is machine code in the bundle: --trust-code"
    present = [name for name in sorted(names, key=lambda name: (name != "native", name)) if reasons[name] is None]
    return present, {name: reason for name, reason in reasons.items() if reason is not None}
