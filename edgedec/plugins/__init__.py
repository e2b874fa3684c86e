"""Plug-ins: a family is a package, a plug-in one of its files, its options the arguments of the file's `make`.

A family's package holds `FAMILY = Family(...)`. A plug-in is a file of the package, or a module that another
distribution names as an entry point of the group of that name:

    # edgedec/drafters/echo.py
    FACTS = DrafterFacts(auto=20)

    def make(host: DrafterContext, length: Annotated[int, Opt("Tokens drafted at most.", 1, 64)] = 8) -> Drafter: ...

From that come parsing (`echo:length=4+copy`), checks and their messages, `edgedec plugins`, the server's list, JSON
schemas and the tables of docs/plugins.md. A file whose name begins with an underscore is no plug-in.
"""

from edgedec.plugins.family import Family, NoFacts
from edgedec.plugins.options import Opt, PluginOption
from edgedec.plugins.words import PluginChoice, Words

__all__ = ["Family", "NoFacts", "Opt", "PluginChoice", "PluginOption", "Words"]
