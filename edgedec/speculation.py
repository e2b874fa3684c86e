"""`--spec auto|off|NAME[:option=value,…][+NAME…]`: words to a drafter."""

from __future__ import annotations

from edgedec.drafters import Drafter, Host, make_drafter


def make_speculation(words: str, host: Host) -> Drafter:
    """The drafter that `words` mean."""
    name, _, rest = words.partition(":")
    return make_drafter(name, host, dict(item.partition("=")[::2] for item in rest.split(",") if item))
