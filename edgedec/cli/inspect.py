"""`edgedec inspect`: the content of a bundle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from math import prod
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgedec.bench.report import bits_per_weight
from edgedec.cli._dynamics import dynamics_of, show_dynamics
from edgedec.cli._flags import Json
from edgedec.cli._memory import memory_at, show_memory
from edgedec.cli._output import print_json, print_table, size

if TYPE_CHECKING:
    from edgedec.bundle.folder import Bundle
    from edgedec.bundle.manifest import Manifest, Tensor
    from edgedec.spec import ModelSpec

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def inspect(
    bundle: Annotated[str, typer.Argument(metavar="BUNDLE", help="Bundle folder, or `nano`.")],
    files: Annotated[bool, typer.Option("--files", help="List every file with its size.")] = False,
    context: Annotated[
        int,
        typer.Option(
            "--context", "-c", min=0, metavar="TOKENS", show_default=False, help="Memory that so many tokens take."
        ),
    ] = 0,
    dynamics: Annotated[
        bool,
        typer.Option("--dynamics", help="Whether Mamba's layers drive tokens apart or together."),
    ] = False,
    json: Json = False,
) -> None:
    """Show the content of a bundle: model, formats, files.

    \b
    Examples:
      edgedec inspect ./smol
      edgedec inspect ./smol --files
      edgedec inspect ./smol --context 131072
      edgedec inspect nano --json
    """
    from edgedec.bundle.folder import Bundle
    from edgedec.bundle.locate import find

    opened = Bundle.open(find(bundle))
    report = describe(opened)
    if context:
        report["memory"] = memory_at(opened, context)
    if dynamics:
        report["dynamics"] = dynamics_of(opened)
    if json:
        print_json(report)
        return
    _show(report, files)
    if context:
        show_memory(report["memory"])
    if dynamics:
        show_dynamics(report["dynamics"])


def describe(bundle: Bundle) -> dict[str, Any]:
    """Everything that `inspect` shows, as plain data."""
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
        "blocks": blocks(spec),
        "context": spec.context_length,
        "vocabulary": spec.vocab_size,
        "tied": spec.tied,
        "parameters": sum(prod(tensor.shape) for tensor in manifest.tensors.values()),
        "windows": _windows(manifest),
        "ropes": _ropes(manifest),
        "quantization": manifest.quantization,
        "parts": parts(manifest),
        "bits_per_weight": bits_per_weight(manifest.tensors.values()),
        "kv": kv_costs(manifest),
        "chat_template": manifest.text.chat_template is not None,
        "eos": list(manifest.text.eos),
        "sampling": manifest.text.sampling,
        "parity": None if manifest.parity is None else asdict(manifest.parity),
        "artifacts": {name: list(artifact.files) for name, artifact in manifest.artifacts.items()},
        "drafts": _drafts(manifest),
        "bytes": sum(file.size for file in manifest.files.values()),
        "files": {name: asdict(file) for name, file in manifest.files.items()},
    }


def parts(manifest: Manifest) -> dict[str, dict[str, Any]]:
    """Bytes and bits a weight of the body, the embedding and the head; a tied head is the embedding's."""
    groups: dict[str, list[Tensor]] = {"body": [], "embed": [], "head": []}
    for name, tensor in manifest.tensors.items():
        groups[name if name in groups else "embed" if name == "lookup" else "body"].append(tensor)
    return {
        part: {
            "format": manifest.quantization.get(part, ""),
            "bytes": sum(t.stored_bytes for t in tensors),
            "bits_per_weight": bits_per_weight(tensors),
        }
        for part, tensors in groups.items()
        if tensors
    }


def kv_costs(manifest: Manifest) -> dict[str, dict[str, int]]:
    """Cache bytes of one token, and of a full context with the states of recurrent blocks, for every format of the
    bundle."""
    from edgedec.cache import kv_bytes_per_token
    from edgedec.cache.memory import cache_bytes

    spec = manifest.spec
    return {
        kv: {
            "bytes_per_token": kv_bytes_per_token(spec, kv),
            "bytes_full": cache_bytes(spec, kv, spec.context_length),
        }
        for kv in manifest.kv_formats
    }


def parity_rows(facts: dict[str, Any]) -> list[tuple[str, ...]]:
    """(KV format, perplexity, KL, top-1 agreement) for print_table."""
    return [
        ("checkpoint", f"{facts['reference_perplexity']:.3f}", "", ""),
        *(
            (f"kv {kv}", f"{value:.3f}", f"{facts['kl'][kv]:.2e}", f"{facts['top1'][kv]:.1%}")
            for kv, value in facts["perplexity"].items()
        ),
    ]


def integers_kept(source: dict[str, Any]) -> str:
    """The conversion of a quantized checkpoint: "awq: the integers of 28 matrices kept (28 int4 in blocks of 128)" …"""
    kept, quantized, of = source["kept"], source["quantized"], source["method"]
    count = sum(kept.values())
    said = []
    if count:
        kinds = ", ".join(f"{n} {kind}" for kind, n in kept.items())
        exact = "their scales rounded to float16" if source["rounded_scales"] else "their scales as they were"
        said.append(f"the integers of {count} matrices kept ({kinds}), {exact}")
    if quantized > count:
        said.append(f"{quantized - count} matrices rounded anew")
    return f"{of}: {'; '.join(said)}"


def passes_run(source: dict[str, Any]) -> str:
    """What was done to the weights: "gptq, calibrated on 16384 tokens of notes.txt (sha256 5e4ab2ad…)"."""
    text = source["calibration"]
    what = "its own text" if text["text"] == "own" else text["text"]
    return f"{source['passes']}, calibrated on {text['tokens']} tokens of {what} (sha256 {text['sha256'][:8]}…)"


# Fields of blocks that have lines of their own.
_SHOWN_APART = ("count", "rope", "window")
PARITY_HEADER = ("", "perplexity", "KL nats/token", "same top token")


def blocks(spec: ModelSpec) -> list[dict[str, Any]]:
    """The distinct blocks of the stack, in order of first use, each with its dimensions and how often it occurs."""
    counts = Counter(spec.blocks)
    return [{"count": n, **asdict(block)} for block, n in counts.items()]


def _windows(manifest: Manifest) -> dict[str, int]:
    """How many attention blocks have which window: {"full": 4, "512": 20}."""
    windows = (block.window for block in manifest.spec.attention.values())
    return dict(Counter("full" if window is None else str(window) for window in windows))


def _drafts(manifest: Manifest) -> dict[str, int]:
    """Bytes of each draft head and draft model, by the name that --spec takes."""
    found = {kind: manifest.files[head.file].size for kind, head in manifest.heads.items()}
    for kind in manifest.drafts:
        own = [file.size for name, file in manifest.files.items() if name.startswith(f"draft_{kind}.")]
        found[kind] = found.get(kind, 0) + sum(own)
    return found


def _ropes(manifest: Manifest) -> list[dict[str, Any]]:
    spec = manifest.spec
    return [
        {
            "blocks": sum(block.rope == i for block in spec.attention.values()),
            "rotated_dims": 2 * len(rope.inv_freq),
            "slowest_frequency": rope.inv_freq[-1],
            "scale": rope.scale,
        }
        for i, rope in enumerate(spec.ropes)
    ]


def _show(r: dict[str, Any], every_file: bool) -> None:
    print_table(list(_facts(r)), title=f"{r['name']}  ({r['path']})")
    weights = [(part, p["format"], f"{p['bits_per_weight']:.2f}", size(p["bytes"])) for part, p in r["parts"].items()]
    if weights:
        print_table(weights, ("part", "format", "bits/weight", "size"), "Weights")
    costs = [(kv, size(c["bytes_per_token"]), size(c["bytes_full"])) for kv, c in r["kv"].items()]
    print_table(costs, ("format", "per token", "full context"), "KV cache")
    if r["parity"]:
        title = f"Parity with the float checkpoint on {r['parity']['tokens']} tokens ({r['parity']['text']})"
        print_table(parity_rows(r["parity"]), PARITY_HEADER, title)
    files = sorted(r["files"].items(), key=lambda item: -item[1]["size"])
    if every_file:
        print_table([(name, size(f["size"])) for name, f in files], title=f"Files, {size(r['bytes'])}")
    else:
        print(f"\n{len(files)} files, {size(r['bytes'])} (--files lists them)")


def _facts(r: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "architecture", r["architecture"]
    counted = f"{r['parameters'] / 1e6:.1f} M, {r['bits_per_weight']:.2f} bits each"
    yield "parameters", counted if r["parameters"] else "inside an ONNX graph, not counted"
    yield "layers", f"{r['layers']} of width {r['hidden_size']}"
    for block in r["blocks"]:
        yield f"{block['kind']} x {block['count']}", _dimensions(block)
    yield "context", f"{r['context']} tokens"
    if r["windows"]:
        yield "windows", ", ".join(f"{name} in {n} blocks" for name, n in r["windows"].items())
    for i, rope in enumerate(r["ropes"]):
        scale = "" if rope["scale"] == 1 else f", scaled by {rope['scale']:.4g}"
        yield f"rope {i}", f"{rope['rotated_dims']} dims in {rope['blocks']} blocks{scale}"
    head = f", embedding and head {'shared' if r['tied'] else 'apart'}" if r["parameters"] else ""
    yield "vocabulary", f"{r['vocabulary']} tokens{head}"
    yield "chat template", "yes" if r["chat_template"] else "no"
    yield "sampling", ", ".join(f"{k} {v:g}" for k, v in r["sampling"].items()) or "greedy"
    yield "drafts", ", ".join(f"{kind} {size(n)}" for kind, n in r["drafts"].items()) or "none of its own"
    yield "files for", ", ".join(r["artifacts"]) or "runtimes that need none"
    if r["source"].get("method"):
        yield "made of", integers_kept(r["source"])
    if r["source"].get("bundle"):
        yield "made of", f"the bundle {r['source']['bundle']} ({r['source']['stored']})"
    if r["source"].get("passes"):
        yield "passes", passes_run(r["source"])
    yield "made by", r["producer"]


def _dimensions(block: dict[str, Any]) -> str:
    """The sizes of a block for people: {"n_heads": 6, "head_dim": 32, …} -> "n_heads 6, head_dim 32"."""
    whole = {name: value for name, value in block.items() if type(value) is int and value and name not in _SHOWN_APART}
    said = [f"{name.removeprefix('n_').replace('_', ' ')} {value}" for name, value in whole.items()]
    if levels := block.get("levels"):
        said.append(f"experts by format {' + '.join(str(levels.count(level)) for level in sorted(set(levels)))}")
    if below := block.get("drop_below"):
        said.append(f"rows leave out their last one below {below:.3g} of the first (lossy)")
    return ", ".join(said)
