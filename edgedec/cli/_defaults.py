"""Defaults of flags: `config.toml` and EDGEDEC_ variables. A flag wins over a variable, a variable over the file.

    model = "/models/smol"          # of every command that has the option
    threads = 4

    [run]                           # of one command
    temp = 0.7
    stop = ["\\n\\n"]

Names are those of the long flags; EDGEDEC_MODEL, EDGEDEC_THREADS, … are the same as variables.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from edgedec.errors import UsageError

CONFIG = "EDGEDEC_CONFIG"
# Options without defaults, because they belong to a single call.
_NEVER = {"help", "prompt", "file", "session", "source", "out", "output", "force", "in_place", "json_schema", "version"}


def config_path() -> Path:
    """EDGEDEC_CONFIG, else edgedec/config.toml under XDG_CONFIG_HOME, else ~/.config."""
    own = os.environ.get(CONFIG)
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "edgedec" / "config.toml"


def read_config() -> dict[str, Any]:
    """The file's content; empty if there is none, unless EDGEDEC_CONFIG names it."""
    path = config_path()
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        if os.environ.get(CONFIG):
            raise UsageError(f"{CONFIG}={path}: no such file") from None
        return {}
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not TOML: {error}") from None


def defaults(verb: str, command: Any, verbs: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """The defaults of a command's parameters, by parameter."""
    named, found = _names(command), dict[str, Any]()
    if verb == "doctor":
        named.pop("device", None)  # there the option names the device to test
    config = read_config()
    for key, value in config.items():
        if isinstance(value, dict):
            _section(key, value, verbs)
        elif (param := named.get(_plain(key))) is not None:
            found[param.name] = _value(param, value)
        elif not any(_plain(key) in _names(make()) for make in verbs.values()):
            raise UsageError(f"{config_path()}: no option {key!r} of any command")
    for key, value in config.get(verb, {}).items():
        if (param := named.get(_plain(key))) is None:
            known = ", ".join(sorted({param.name.replace("_", "-") for param in named.values()}))
            raise UsageError(f"{config_path()}: [{verb}] has no option {key!r}; there are: {known}")
        found[param.name] = _value(param, value)
    for name, param in named.items():
        given = os.environ.get(f"EDGEDEC_{name.upper()}")
        if given is not None and getattr(param, "envvar", None) is None:
            found[param.name] = _value(param, given)
    return found


def _section(key: str, value: object, verbs: Mapping[str, Callable[[], Any]]) -> None:
    if key not in verbs:
        raise UsageError(f"{config_path()}: [{key}] is no command; there are: {', '.join(verbs)}")


def _names(command: Any) -> dict[str, Any]:
    """The options that may have defaults, by every long name."""
    return {
        name: param
        for param in command.params
        if param.param_type_name == "option" and param.name not in _NEVER
        for name in {param.name, *(_plain(flag[2:]) for flag in param.opts if flag.startswith("--"))}
    }


def _plain(name: str) -> str:
    return name.replace("-", "_")


def _value(param: Any, value: Any) -> Any:
    """The value in the parser's form: a list if the option may be repeated."""
    return value if not param.multiple or isinstance(value, list) else [value]
