"""The table of attacks, measured: what the others get while each goes on.

    python -m tests.hostile --report [--as smollm-135m] [--only PART]
    python -m tests.hostile --soak SECONDS [--as smollm-135m]

A server for each attack, as people start it; 4 streams and a poller of /health run meanwhile, the attack in a process
of its own. gap: the longest between two pieces of a stream; health: the slowest answer.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep

sys.path.insert(0, str(Path(__file__).parents[1]))

from hostile import attacks
from hostile.servers import server
from hostile.soak import soaked
from hostile.watch import Watch, memory

# Seconds without an attack, for the gap and the call that the machine shows by itself.
_QUIET = 6.0
# More of `edgedec serve`, and its descriptors.
_MORE: dict[str, tuple[list[str], int]] = {
    "eight prompts of 4.1 MB, --max-body 8 MiB": (["--slots", "8", "--max-body", str(8 << 20)], 0),
    "400 silent connections, 256 descriptors": ([], 256),
    "30 abandoned schemas": (["--slots", "8", "--timeout", "5"], 0),
    "n=68, 1,000 tokens": (["--slots", "4"], 0),
}


def measured(bundle: str, name: str, log: Path) -> dict[str, object]:
    flags, descriptors = _MORE.get(name, (["--slots", "8"], 0))
    with server(bundle, [*flags, "-c", "1024"], descriptors, log) as (place, pid):
        watch = Watch(place, streams=0 if name.startswith("n=") else 4).start()
        sleep(2 + _QUIET)
        began, before = monotonic(), memory(pid)
        quiet = watch.worst(began - _QUIET, began)
        code = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})\n"
        code += f"from hostile import attacks; attacks.main({name!r}, {place!r})"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
        ended = monotonic()
        after = memory(pid)
        sleep(10)
        gap, health = watch.worst(began, ended)
        usual, later = watch.usual(began - _QUIET, began), memory(pid)
        watch.stop()
        said = json.loads(done.stdout) if done.returncode == 0 else {"failed": done.stderr[-300:]}
    return {
        "attack": name,
        "seconds": round(ended - began, 1),
        "call ms": round(1000 * usual, 1),
        "gap ms, quiet": round(1000 * quiet[0]),
        "gap ms": round(1000 * gap),
        "health ms, quiet": round(1000 * quiet[1]),
        "health ms": round(1000 * health),
        "MiB": f"{before} {after} {later}",
        "log bytes": log.stat().st_size,
        **said,
        **({"failed": dict.fromkeys(watch.failed)} if watch.failed else {}),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--report", action="store_true")
    what.add_argument("--soak", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--as", dest="geometry", default="", help="pad nano to this geometry: smollm-135m")
    parser.add_argument("--only", default="", help="attacks whose name holds this")
    given = parser.parse_args()
    bundle = "nano"
    if given.geometry:
        from edgedec.cli.bench._flags import padded

        bundle = str(padded("nano", given.geometry, lambda *said: None).path)
    log = Path(os.environ.get("TMPDIR", "/tmp")) / f"edgedec-hostile-{os.getpid()}.log"
    if given.soak:
        with server(bundle, ["--slots", "16", "-c", "512"], 1024, log) as (place, pid):
            found = soaked(place, pid, 200, 50, given.soak)
            print(found)
            if found["wrong"]:
                sys.exit(f"the server's log: {log}")
    for name in attacks.ATTACKS if given.report else ():
        if given.only in name:
            for key, value in measured(bundle, name, log).items():
                print(f"{'' if key == 'attack' else '    '}{key}: {value}", flush=True)
    log.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
