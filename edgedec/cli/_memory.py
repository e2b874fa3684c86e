"""The memory use of a context: `edgedec inspect --context`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edgedec.cli._output import print_table, size

if TYPE_CHECKING:
    from edgedec.bundle.folder import Bundle

# Slots of a page of the native engine (kernels/cpu/kv.h).
_PAGE = 64


def memory_at(bundle: Bundle, tokens: int) -> dict[str, Any]:
    """Bytes of the cache by format, on the native engine (all formats) and on plain arrays (those of the bundle), of
    the weights, and of what is free."""
    from edgedec.cache.memory import available_memory, cache_bytes
    from edgedec.spec import KV_FORMATS

    spec, manifest = bundle.spec, bundle.manifest
    weights, free = manifest.files[manifest.weights].size if manifest.weights else 0, available_memory()
    native = {kv: cache_bytes(spec, kv, tokens, _PAGE) for kv in KV_FORMATS}
    plain = {kv: cache_bytes(spec, kv, tokens) for kv in manifest.kv_formats}
    return {
        "context": tokens,
        "bundle_context": spec.context_length,
        "weights_bytes": weights,
        "available_bytes": free,
        "native": {} if spec.opaque else native,
        "plain": plain,
    }


def show_memory(r: dict[str, Any]) -> None:
    """Print the table of `memory_at`, and whether the memory is sufficient."""
    free, weights = r["available_bytes"], r["weights_bytes"]
    rows = []
    for engine, costs in (("native", r["native"]), ("ort, reference", r["plain"])):
        for kv, n in costs.items():
            fits = "" if free is None else "yes" if weights + n <= free else "no"
            rows.append((engine, kv, size(n), size(weights + n), fits))
    print_table(
        rows, ("engine", "format", "cache", "with the weights", "fits here"), f"Memory of {r['context']} tokens"
    )
    if free is not None:
        print(f"\n{size(free)} of memory are free here")
    if r["context"] > r["bundle_context"]:
        print(f"the bundle holds {r['bundle_context']} tokens: export it with --ctx-size {r['context']} for more")
