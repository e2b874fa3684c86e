"""`edgedec verify`: is every byte of a bundle what it was at export, and does the bundle open?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgedec.cli._flags import Json
from edgedec.cli._output import print_json, progress_bar, size
from edgedec.errors import EdgedecError

if TYPE_CHECKING:
    from edgedec.bundle.folder import Bundle
    from edgedec.signing import Signed

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def verify(
    bundle: Annotated[str, typer.Argument(metavar="BUNDLE", help="Bundle folder, or `nano`.")],
    json: Json = False,
) -> None:
    """Check each file of a bundle by its hash, and that it runs.

    \b
    Examples:
      edgedec verify ./smol
      edgedec verify nano --json
    """
    from edgedec.bundle.folder import Bundle
    from edgedec.bundle.locate import find
    from edgedec.bundle.packed import is_packed, verify_packed
    from edgedec.signing import signed_by

    try:
        path = find(bundle)
        if is_packed(Path(bundle)):
            verify_packed(Path(bundle))
        opened = Bundle.open(path)
        n, total = len(opened.manifest.files), _check(opened, quiet=json)
        _use(opened)
        signed = signed_by(opened)
    except EdgedecError as error:
        if json:
            print_json({"ok": False, "bundle": bundle, "error": str(error)})
        raise
    if json:
        facts = {"bundle": str(opened.path), "digest": opened.digest, "files": n, "bytes": total}
        print_json({"ok": True, **facts, **({} if signed is None else {"key": signed.id, "signer": signed.signer})})
    else:
        print(f"{opened.path}: ok, {n} files, {size(total)}{_signer(signed)}")


def _use(bundle: Bundle) -> None:
    """Raise what `edgedec run` would raise: check every graph, open the model, its tokenizer and its draft heads, and
    generate a token."""
    from edgedec import model as models
    from edgedec.bundle.onnx_rules import check_graphs

    check_graphs(bundle)
    model = models.open(bundle.path)
    text = model.bundle.manifest.text
    prompt = [text.bos or 0] if text.tokenizer is None else model.tokenizer.encode("Once") or [0]
    if model.chat_template is not None:
        model.chat_prompt([{"role": "user", "content": "Once"}])
    for _ in model.session(context=min(model.spec.context_length, len(prompt) + 1)).tokens(prompt, max_tokens=1):
        pass


def _signer(signed: Signed | None) -> str:
    """The description of a signature."""
    if signed is None:
        return ""
    if signed.signer is None:
        return f"; signed by key {signed.id}, which is not trusted here, so the signature was not checked"
    return f"; signed by {signed.signer} (key {signed.id}): {signed.comment}"


def _check(bundle: Bundle, quiet: bool) -> int:
    """Verify with a progress bar; the bytes that were read."""
    total, done = sum(file.size for file in bundle.manifest.files.values()), 0
    with progress_bar(quiet) as show:
        show("hashes", 0, total)

        def count(name: str, n: int) -> None:
            nonlocal done
            done += n
            show("hashes", done, total)

        bundle.verify(count)
    return total
