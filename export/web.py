"""A bundle as a web page: static files that decode in the browser, with the engine compiled to WebAssembly.

The page is that of `edgedec serve`; `runtimes/web/page/local.js` answers its requests in place of a server. A content
security policy restricts requests to the page's own folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import runpy
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import edgedec
from edgedec.bundle.folder import Bundle
from edgedec.bundle.packed import pack
from edgedec.errors import RuntimeUnavailable, UsageError
from edgedec.export.chat_table import chat_table
from edgedec.export.writer import write_manifest
from edgedec.spec import KV_FORMATS
from edgedec.storage.files import cache_folder, replacing_folder

Progress = Callable[[str, int, int], None]
_PACKAGE = Path(__file__).resolve().parents[1]
WEB = _PACKAGE / "runtimes" / "web"
MODULES = ("edgedec.wasm", "edgedec-relaxed.wasm", "edgedec-threads.wasm", "edgedec-relaxed-threads.wasm")
DRAFTERS = ("copy", "suffix", "recycling", "trigram")
ENGINE = ("edgedec.js", "bundle.js", "constraints.js", "generation.js", "memory.js", "module.js", "options.js")
LIBRARY = (*ENGINE, "client.js", "worker.js", "threads.js", "helper.js")
POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; connect-src 'self'; "
    "worker-src 'self'; manifest-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'"
)


@dataclass(frozen=True)
class SiteSettings:
    """How the page decodes. kv: "" for the bundle's first; spec, draft: as libedgedec's `speculate` and `draft`;
    threads: 0 for as many as pay, where the browser lets a page have them."""

    kv: str = ""
    spec: str = "auto"
    draft: int = 0
    threads: int = 0

    def __post_init__(self) -> None:
        if self.kv and self.kv not in KV_FORMATS:
            raise UsageError(f"{self.kv}: not a cache format; there are {', '.join(KV_FORMATS)}")
        unknown = sorted({*self.spec.split("+")} - {*DRAFTERS}) if self.spec not in ("off", "auto") else []
        if unknown:
            raise UsageError(
                f"{unknown[0]}: no drafter of the browser's engine; there are off, auto, {', '.join(DRAFTERS)}"
            )
        if not 0 <= self.draft <= 64:
            raise UsageError(f"--draft {self.draft}: must be from 0 to 64")
        if self.threads < 0:
            raise UsageError(f"--threads {self.threads}: must be 0 (as many as pay) or more")


def write_site(
    bundle: Bundle, out: Path, settings: SiteSettings, *, force: bool = False, show: Progress | None = None
) -> int:
    """Write the page of a bundle to folder `out`, whole or not at all; returns its bytes."""
    name = bundle.manifest.name
    facts = {"name": name, "chat": chat_table(bundle), "sampling": _sampling(bundle), **asdict(settings)}
    modules = wasm_modules()
    with replacing_folder(out, force=force) as site:
        (site / "edgedec").mkdir()
        for file in LIBRARY:
            shutil.copyfile(WEB / file, site / "edgedec" / file)
        for module in modules:
            shutil.copyfile(module, site / "edgedec" / module.name)
        _write_page(site)
        _write_app(site, name)
        packed = f"{_plain(name)}-{bundle.digest[:12]}.edb"
        pack(_lean(bundle, site / ".lean"), site / packed, show or (lambda stage, done, total: None))
        shutil.rmtree(site / ".lean")
        (site / "site.json").write_text(json.dumps(facts | {"bundle": packed}), "utf-8")
        _write_service_worker(site, packed)
        return sum(path.stat().st_size for path in site.rglob("*") if path.is_file())


def wasm_modules() -> list[Path]:
    """The engine's modules: from the library's folder, or built with zig and kept in the cache folder."""
    if all((WEB / name).is_file() for name in MODULES):
        return [WEB / name for name in MODULES]
    kernels = _PACKAGE / "kernels"
    if not (kernels / "wasm" / "files.cpp").is_file():
        raise RuntimeUnavailable(
            "the engine's WebAssembly modules are not in this package; run it in a checkout of edgedec"
        )
    build = runpy.run_path(str(kernels / "wasm" / "build.py"))
    sources = b"\0".join(path.read_bytes() for path in build["sources"]())
    folder = cache_folder() / "wasm" / hashlib.sha256(sources).hexdigest()[:16]
    found = [folder / name for name in MODULES]
    if not all(path.is_file() for path in found):
        try:
            build["build"](folder)
        except build["BuildFailed"] as error:
            raise RuntimeUnavailable(f"WebAssembly: {error}") from None
    return found


def _sampling(bundle: Bundle) -> dict[str, float]:
    """The suggested sampling settings, by JavaScript's names."""
    names = {"temperature": "temperature", "top_p": "topP", "min_p": "minP", "top_k": "topK", "typical_p": "typicalP"}
    names |= {"repetition_penalty": "repetitionPenalty"}
    return {names[name]: value for name, value in bundle.manifest.text.sampling.items() if name in names}


def _plain(name: str) -> str:
    """The name as a part of a URL."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "model"


def _lean(bundle: Bundle, folder: Path) -> Bundle:
    """The bundle without the artifacts of other runtimes, in a folder of its own."""
    manifest = bundle.manifest
    needed = [manifest.weights, *([manifest.text.tokenizer] if manifest.text.tokenizer else [])]
    folder.mkdir()
    for name in needed:
        _linked(bundle.file(name).resolve(), folder / name)
    files = {name: manifest.files[name] for name in needed}
    write_manifest(folder, replace(manifest, artifacts={}, heads={}, drafts={}, files=files))
    return Bundle.open(folder)


def _linked(path: Path, to: Path) -> None:
    """A hard link to the file, or a copy if the two folders are on different disks."""
    try:
        os.link(path, to)
    except OSError:
        shutil.copyfile(path, to)


def _write_page(site: Path) -> None:
    """The server's page, its style and its script in files of their own."""
    page = (Path(edgedec.__file__).parent / "server" / "page.html").read_text("utf-8")
    (style,) = re.findall(r"<style>\n(.*?)</style>", page, re.S)
    (script,) = re.findall(r"<script>\n(.*?)</script>", page, re.S)
    (site / "page.css").write_text(style, "utf-8")
    (site / "page.js").write_text(script.replace("The server ", "The engine "), "utf-8")
    shutil.copyfile(WEB / "page" / "local.js", site / "local.js")
    page = re.sub(r"<style>.*?</style>", '<link rel="stylesheet" href="page.css">', page, flags=re.S)
    head = '<link rel="icon" href="icon.svg">\n<link rel="manifest" href="app.webmanifest">'
    page, icons = re.subn(r'<link rel="icon"[^>]*>', head, page)
    scripts = "".join(f'<script type="module" src="{file}"></script>\n' for file in ("local.js", "page.js"))
    page = re.sub(r"<script>.*?</script>\n", lambda _: scripts, page, flags=re.S)
    page, n = re.subn(r'(http-equiv="Content-Security-Policy" content=")[^"]*', lambda found: found[1] + POLICY, page)
    if n != 1 or icons != 1 or "<style" in page or "style=" in page:
        raise AssertionError("the server's page has changed: the policy of static pages would not let it work")
    (site / "index.html").write_text(page, "utf-8")


def _write_app(site: Path, name: str) -> None:
    """Write the files that a browser needs to install the page as an app with a window of its own."""
    icon = {"src": "icon.svg", "sizes": "any", "type": "image/svg+xml"}
    facts = {
        "name": f"{name} by edgedec",
        "short_name": name,
        "start_url": "./",
        "scope": "./",
        "display": "standalone",
    }
    colours = {"background_color": "#f6f6f3", "theme_color": "#2c5d8f"}
    (site / "app.webmanifest").write_text(json.dumps(facts | colours | {"icons": [icon]}), "utf-8")
    shutil.copyfile(WEB / "page" / "icon.svg", site / "icon.svg")


def _write_service_worker(site: Path, packed: str) -> None:
    """Write the service worker with its list of files (all but the bundle) and a version, the hash of them all."""
    files = sorted(path.relative_to(site).as_posix() for path in site.rglob("*") if path.is_file())
    digest = hashlib.sha256(packed.encode())
    for file in files:
        if file != packed:
            digest.update(file.encode() + b"\0" + (site / file).read_bytes())
    kept = ["./", *(file for file in files if file != packed)]
    told = json.dumps({"version": digest.hexdigest()[:16], "files": kept})
    script = (WEB / "page" / "sw.js").read_text("utf-8")
    (site / "sw.js").write_text(re.sub(r"/\* SITE \*/ \{.*?\};", lambda _: f"{told};", script), "utf-8")
