"""The Prometheus metrics of several servers as one text: each line with the number of its replica."""

from __future__ import annotations

import re
from collections.abc import Mapping

from edgedec.server.replicas.balancer import Load

_SAMPLE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)$")
_SUFFIXES = ("_bucket", "_sum", "_count")


def merged(texts: Mapping[int, str]) -> str:
    """The merged text, with families kept together as the format requires."""
    heads, rows = dict[str, list[str]](), dict[str, list[str]]()
    for number, text in texts.items():
        for line in text.splitlines():
            if line.startswith("# "):
                _add_head(heads, line)
            elif found := _SAMPLE.match(line):
                rows.setdefault(_family(found[1], heads), []).append(_labelled(found, number))
    lines = [line for name in rows for line in (*heads.get(name, ()), *rows[name])]
    return "\n".join(lines) + "\n" if lines else ""


def _add_head(heads: dict[str, list[str]], line: str) -> None:
    known = heads.setdefault(line.split(" ", 3)[2], [])
    if line not in known:
        known.append(line)


def _family(name: str, heads: Mapping[str, list[str]]) -> str:
    """The family of a sample: a histogram's have names of their own."""
    shorter = next((name.removesuffix(end) for end in _SUFFIXES if name.endswith(end)), name)
    return shorter if name not in heads and shorter in heads else name


def _labelled(sample: re.Match[str], number: int) -> str:
    own = f'replica="{number}"'
    return f"{sample[1]}{{{own}{',' + sample[2] if sample[2] else ''}}} {sample[3]}"


def router_lines(loads: Mapping[int, Load], starts: Mapping[int, int]) -> str:
    """The router's own metrics."""
    families = (
        ("edgedec_replica_up", "gauge", "Does the replica take requests?", {k: int(v.up) for k, v in loads.items()}),
        ("edgedec_replica_texts", "gauge", "Requests under way.", {k: v.running for k, v in loads.items()}),
        ("edgedec_replica_starts_total", "counter", "How often its process was started.", starts),
        ("edgedec_routed_total", "counter", "Requests that it was given.", {k: v.chosen for k, v in loads.items()}),
        (
            "edgedec_routed_by_prefix_total",
            "counter",
            "Those of them whose beginning it had read.",
            {k: v.matched for k, v in loads.items()},
        ),
    )
    lines = list[str]()
    for name, kind, about, values in families:
        lines += [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
        lines += [f'{name}{{replica="{k}"}} {n}' for k, n in values.items()]
    return "\n".join(lines) + "\n"
