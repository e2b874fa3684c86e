"""lm-evaluation-harness (`lm_eval`, EleutherAI) on bundles: the model `edgedec` among its models.

    python -m edgedec.harness run --model edgedec --model_args bundle=./smol --tasks hellaswag

is its own command `lm_eval` after `register()`: it finds models by its registry alone, which no installed package can
add to. Needs the `evals` extra.
"""

from __future__ import annotations

from edgedec.errors import RuntimeUnavailable

NAME = "edgedec"


def register() -> None:
    """Make `--model edgedec` known to the harness in this process."""
    try:
        import lm_eval.models  # noqa: F401  (registers the harness's own)
        from lm_eval.api.registry import model_registry
    except ModuleNotFoundError:
        raise RuntimeUnavailable("the evaluation harness is not installed: pip install lm_eval") from None
    if NAME not in model_registry:
        model_registry.register(NAME, target="edgedec.harness.model:BundleLM")
