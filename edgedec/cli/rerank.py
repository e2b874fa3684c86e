"""`edgedec rerank`: documents by how well they fit a query."""

from __future__ import annotations

from typing import Annotated

import typer

from edgedec.cli import _flags as o
from edgedec.cli._encoding import Encoder, EncoderFlags, Texts, Truncate, texts_of
from edgedec.cli._output import print_json
from edgedec.cli._visible import visible

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@o.grouped
def rerank(
    documents: Texts = None,
    *,
    query: Annotated[str, typer.Option("--query", "-q", metavar="TEXT", show_default=False, help="What is sought.")],
    model: Encoder,
    top: Annotated[int, typer.Option("--top", "-n", min=0, show_default=False, help="Only the best N.")] = 0,
    truncate: Truncate = False,
    machine: EncoderFlags,
    json: o.Json = False,
) -> None:
    """Rank documents by how well they fit a query.

    \b
    Examples:
      edgedec rerank -q "what do cats eat?" notes.txt -m ./bge-reranker
      edgedec rerank -q "who sat?" "The cat sat." "A dog ran." -m ./colbert -n 1 --json
    """
    given = texts_of(documents)
    found = machine.open(model).rerank(query, given, top=top or None, truncate=truncate)
    if json:
        print_json([{"index": rank.index, "score": rank.score, "document": given[rank.index]} for rank in found])
        return
    for rank in found:
        print(f"{rank.score:.4f}\t{rank.index}\t{visible(given[rank.index])}")
