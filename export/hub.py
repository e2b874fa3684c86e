"""Models of the Hugging Face Hub as bundles in the cache folder: downloaded, checked, exported once."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from edgedec.bundle.cached import HubName, Origin, origin_of, write_origin
from edgedec.bundle.locate import Announce
from edgedec.bundle.manifest import MANIFEST, VERSION
from edgedec.errors import RuntimeUnavailable, UnknownArchitecture
from edgedec.export.download import Fetched, Progress, ask, download, download_file, forget, missing_from

__all__ = ["Fetched", "download", "download_file", "exported", "fetched", "forget"]


def fetched(name: str, announce: Announce) -> Path:
    """The bundle of `hf:ORG/NAME`, made if it is not cached; the file itself of `hf:ORG/NAME/FILE.gguf`."""
    model = HubName.parse(name)
    if model.file is not None:
        with _downloading(model, announce):
            return download_file(model)
    origin = origin_of(model)
    if origin is not None and origin.version == VERSION and (model.folder / MANIFEST).is_file():
        return model.folder
    with _downloading(model, announce) as progress:
        files = download(model, progress)
    with announce(f"{model} is converted", model.folder) as progress:
        return exported(model, files, progress=progress)


def _downloading(model: HubName, announce: Announce) -> AbstractContextManager[Progress]:
    """Announce a download, if one is needed and the Hub allows it."""
    cache = missing_from(model)
    if cache is None:
        return nullcontext(lambda *_: None)
    ask(model)
    return announce(f"{model} is downloaded", cache)


def exported(model: HubName, found: Fetched, weights: str | None = None, progress: Progress = lambda *_: None) -> Path:
    """The bundle of a downloaded model, in the cache folder; made again only if the model or `weights` changed."""
    try:
        from edgedec.export.export_options import ExportOptions
        from edgedec.export.exporter import export
    except ModuleNotFoundError as error:
        raise RuntimeUnavailable(f"{model}: exporting needs {error.name}: pip install {error.name}") from None
    from edgedec.kernels.cpu import loader

    origin = Origin(model.id, model.revision, found.commit, weights or "", VERSION)
    if origin_of(model) == origin and (model.folder / MANIFEST).is_file():
        return model.folder
    # Files for other engines would take time: they are made only if the native engine cannot run the model.
    runtimes = ("native",) if loader.why_not() is None else None
    name = model.id.rpartition("/")[2]
    options = ExportOptions(weights=weights, check=False, runtimes=runtimes, name=name, force=True)
    try:
        export(str(found.folder), model.folder, options, progress)
    except UnknownArchitecture as error:
        if not error.decoder:
            raise
        way = f"edgedec export {model.id} --via optimum -o {name}"
        raise UnknownArchitecture(f"{error}; `{way}` may run it through ONNX Runtime") from None
    write_origin(model, origin)
    return model.folder
