"""Names that a language server knows: after a point, only members of what stands before it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from edgedec.constraints._facts import ConstraintFacts
from edgedec.constraints.automata.language_server import LanguageServer
from edgedec.constraints.automata.monitors import Analysis, MonitorConstraint
from edgedec.constraints.automata.tokens import token_tree
from edgedec.constraints.vocabulary import vocabulary
from edgedec.errors import UsageError
from edgedec.opened import OpenedModel
from edgedec.plugins import Opt

# It starts a program: neither a request nor a row of a batch can name one.
FACTS = ConstraintFacts(text="command", request=False, files=("before",))


def make(
    host: OpenedModel,
    command: Annotated[str, Opt("Names after a point are those that this language server (LSP) completes.")],
    trigger: Annotated[str, Opt("What stands before such a name.")] = ".",
    language: Annotated[str, Opt("The language, in LSP's words.")] = "python",
    name: Annotated[str, Opt("The name of the file that the text is of.")] = "generated.py",
    before: Annotated[str, Opt("A file with the text before the generated one.")] = "",
    seconds: Annotated[float, Opt("How long an answer may take.", above=0, high=600)] = 10.0,
) -> MonitorConstraint:
    """Names that a language server knows; the server runs until the constraint is no longer used."""
    server = LanguageServer(command, Path(name).absolute().as_uri(), language, seconds)
    return monitor(host, server.names, trigger=trigger, before=before)


def monitor(model: OpenedModel, analysis: Analysis, *, trigger: str = ".", before: str = "") -> MonitorConstraint:
    """After `trigger`, a name must be one that `analysis(text)` returns, or any if it returns none. text: `before` and
    what was generated, up to the trigger."""
    if not trigger or not callable(analysis):
        raise UsageError("monitor: needs a trigger and an analysis that can be called")
    return MonitorConstraint(analysis, trigger, token_tree(vocabulary(model)), before)
