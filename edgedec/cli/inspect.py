"""`edgedec inspect`: what stands in a bundle."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from math import prod
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgedec.cli._output import print_json, print_table, size
from edgedec.cli.options import Json

if TYPE_CHECKING:
    from edgedec.bundle.folder import Bundle
    from edgedec.bundle.manifest import Manifest, Tensor

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def inspect(
    bundle: Annotated[str, typer.Argument(metavar="BUNDLE", help="Bundle folder, or `nano`.")],
    json: Json = False,
) -> None:
    """Show what stands in a bundle: model, formats, sizes, parity.

    \b
    Examples:
      edgedec inspect ./smol
      edgedec inspect nano --json
    """
    from edgedec.bundle.folder import Bundle
    from edgedec.bundle.locate import find

    report = describe(Bundle.open(find(bundle)))
    if json:
        print_json(report)
    else:
        _show(report)


def describe(bundle: Bundle) -> dict[str, Any]:
    """Everything `inspect` tells, as plain data."""
    manifest, spec = bundle.manifest, bundle.spec
    return {
        "name": manifest.name,
        "path": str(bundle.path),
        "digest": bundle.digest,
        "producer": manifest.producer,
        "source": manifest.source,
        "architecture": spec.architecture,
        "layers": spec.n_layers,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "heads": spec.n_heads,
        "kv_heads": spec.n_kv_heads,
        "head_dim": spec.head_dim,
        "context": spec.context_length,
        "vocabulary": spec.vocab_size,
        "tied": spec.tied,
        "parameters": sum(prod(tensor.shape) for tensor in manifest.tensors.values()),
        "windows": _windows(manifest),
        "ropes": _ropes(manifest),
        "quantization": manifest.quantization,
        "parts": parts(manifest),
        "bits_per_weight": bits(manifest.tensors.values()),
        "kv": kv_costs(manifest),
        "chat_template": manifest.text.chat_template is not None,
        "eos": list(manifest.text.eos),
        "sampling": manifest.text.sampling,
        "parity": None if manifest.parity is None else asdict(manifest.parity),
        "bytes": sum(file.size for file in manifest.files.values()),
        "files": {name: asdict(file) for name, file in manifest.files.items()},
    }


def parts(manifest: Manifest) -> dict[str, dict[str, Any]]:
    """Bytes and bits a weight of the body, the embedding and the head; a tied head is the embedding's."""
    groups: dict[str, list[Tensor]] = {"body": [], "embed": [], "head": []}
    for name, tensor in manifest.tensors.items():
        groups[name if name in groups else "body"].append(tensor)
    return {
        part: {
            "format": manifest.quantization.get(part, ""),
            "bytes": sum(t.data_bytes + t.scale_bytes for t in tensors),
            "bits_per_weight": bits(tensors),
        }
        for part, tensors in groups.items()
        if tensors
    }


def bits(tensors: Iterable[Tensor]) -> float:
    """Stored bits for each weight, scales and padding included."""
    every = list(tensors)
    stored = sum(t.data_bytes + t.scale_bytes for t in every)
    return round(8 * stored / sum(prod(t.shape) for t in every), 3)


def kv_costs(manifest: Manifest) -> dict[str, dict[str, int]]:
    """Cache bytes of one token, and of a full context, for every format of the bundle."""
    from edgedec.cache.host import kv_bytes_per_token

    tokens = {kv: kv_bytes_per_token(manifest.spec, kv) for kv in manifest.kv_formats}
    context = manifest.spec.context_length
    return {kv: {"bytes_per_token": n, "bytes_full": n * context} for kv, n in tokens.items()}


def parity_rows(facts: dict[str, Any]) -> list[tuple[str, ...]]:
    """(KV format, perplexity, KL, top-1 agreement) for print_table."""
    return [
        ("checkpoint", f"{facts['reference_perplexity']:.3f}", "", ""),
        *(
            (f"kv {kv}", f"{value:.3f}", f"{facts['kl'][kv]:.2e}", f"{facts['top1'][kv]:.1%}")
            for kv, value in facts["perplexity"].items()
        ),
    ]


PARITY_HEADER = ("", "perplexity", "KL nats/token", "same top token")


def _windows(manifest: Manifest) -> dict[str, int]:
    """How many layers have which window: {"full": 4, "512": 20}."""
    found: dict[str, int] = {}
    for layer in manifest.spec.layers:
        name = "full" if layer.window is None else str(layer.window)
        found[name] = found.get(name, 0) + 1
    return found


def _ropes(manifest: Manifest) -> list[dict[str, Any]]:
    spec = manifest.spec
    return [
        {
            "layers": sum(layer.rope == i for layer in spec.layers),
            "rotated_dims": 2 * len(rope.inv_freq),
            "slowest_frequency": rope.inv_freq[-1],
            "scale": rope.scale,
        }
        for i, rope in enumerate(spec.ropes)
    ]


def _show(r: dict[str, Any]) -> None:
    print_table(list(_facts(r)), title=f"{r['name']}  ({r['path']})")
    weights = [(part, p["format"], f"{p['bits_per_weight']:.2f}", size(p["bytes"])) for part, p in r["parts"].items()]
    print_table(weights, ("part", "format", "bits/weight", "size"), "Weights")
    costs = [(kv, size(c["bytes_per_token"]), size(c["bytes_full"])) for kv, c in r["kv"].items()]
    print_table(costs, ("format", "per token", "full context"), "KV cache")
    if r["parity"]:
        title = f"Parity with the float checkpoint on {r['parity']['tokens']} tokens ({r['parity']['text']})"
        print_table(parity_rows(r["parity"]), PARITY_HEADER, title)
    files = sorted(r["files"].items(), key=lambda item: -item[1]["size"])
    print_table([(name, size(f["size"])) for name, f in files], title=f"Files, {size(r['bytes'])}")


def _facts(r: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "architecture", r["architecture"]
    yield "parameters", f"{r['parameters'] / 1e6:.1f} M, {r['bits_per_weight']:.2f} bits each"
    yield "layers", f"{r['layers']} of width {r['hidden_size']}, MLP {r['intermediate_size']}"
    yield "heads", f"{r['heads']} of {r['head_dim']} dims, {r['kv_heads']} for keys and values"
    yield "context", f"{r['context']} tokens"
    yield "windows", ", ".join(f"{name} in {n} layers" for name, n in r["windows"].items())
    for i, rope in enumerate(r["ropes"]):
        scale = "" if rope["scale"] == 1 else f", scaled by {rope['scale']:.4g}"
        yield f"rope {i}", f"{rope['rotated_dims']} dims in {rope['layers']} layers{scale}"
    yield "vocabulary", f"{r['vocabulary']} tokens, embedding and head {'shared' if r['tied'] else 'apart'}"
    yield "chat template", "yes" if r["chat_template"] else "no"
    yield "sampling", ", ".join(f"{k} {v:g}" for k, v in r["sampling"].items()) or "greedy"
    yield "made by", r["producer"]
