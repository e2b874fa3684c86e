"""Downloads from the Hugging Face Hub into the cache shared by its clients; each file is checked against its hash.

The client is `huggingface_hub`: it resumes interrupted downloads and needs no network for cached files. Only
safetensors and text files are downloaded, which hold no code; files of torch only by name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgedec.bundle.cached import HubName
from edgedec.bundle.locate import GGUF, HUB
from edgedec.errors import CheckpointError, RuntimeUnavailable
from edgedec.export.gguf.file import MAX_PARTS, PART
from edgedec.export.hub_names import check_snapshot, checked_names

Progress = Callable[[str, int, int], None]
HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]


@dataclass(frozen=True)
class Fetched:
    """A model as it lies in the shared cache. offline: the Hub could not be reached to check for a newer revision."""

    folder: Path
    commit: str
    offline: str = ""


def download(model: HubName, progress: Progress = lambda *_: None, torch_files: Sequence[str] = ()) -> Fetched:
    """The model's files in the shared cache, checked against their hashes. torch_files: names of files that torch wrote
    which may be there in the place of safetensors, for a reader that builds tensors and nothing else."""
    hub, problems = _client(model), list[str]()
    try:
        with checked_names():
            folder = check_snapshot(
                Path(
                    hub.snapshot_download(model.id, revision=model.revision, allow_patterns=[*HUB_FILES, *torch_files])
                )
            )
    except CheckpointError as error:
        raise CheckpointError(f"{model}: {error}") from None
    except Exception as error:  # the exception classes of the client and its HTTP library change by version
        raise CheckpointError(f"{model}: {_why(hub, error)}") from None
    if not list(folder.glob("*.safetensors")) and not any((folder / name).is_file() for name in torch_files):
        raise CheckpointError(
            f"{model}: no safetensors among its files, and edgedec reads no pickles; {_other(hub, model)}"
        )
    files = [path for path in sorted(folder.iterdir()) if path.is_file()]
    for i, path in enumerate(files):
        progress("hashes", i, len(files))
        problems += _damaged(path)
    progress("hashes", len(files), len(files))
    if problems:
        raise CheckpointError(f"{model}: {problems[0]}: content differs from its hash, and was removed; pull it again")
    return Fetched(folder, folder.name)


def _other(hub: Any, model: HubName) -> str:
    """Advice for a repository without a checkpoint: its GGUF files, if it has some."""
    try:
        names = [name for name in hub.list_repo_files(model.id, revision=model.revision) if name.endswith(GGUF)]
    except Exception:  # a hint only
        names = []
    at = "" if model.revision == "main" else f"@{model.revision}"
    files = [f"{HUB}{model.id}/{name}{at}" for name in sorted(names)]
    more = f" and {len(files) - 8} more" if len(files) > 8 else ""
    return f"name one of its GGUF files: {', '.join(files[:8])}{more}" if files else "choose another"


def download_file(model: HubName) -> Path:
    """One file of a repository in the shared cache, checked against its hash; all parts of a split GGUF file."""
    assert model.file is not None
    hub, found = _client(model), list[Path]()
    for file in _parts(model.file):
        try:
            with checked_names():
                found.append(Path(hub.hf_hub_download(model.id, file, revision=model.revision)))
        except CheckpointError as error:
            raise CheckpointError(f"{model}: {error}") from None
        except Exception as error:
            raise CheckpointError(f"{model}: {file}: {_why(hub, error)}") from None
        for name in _damaged(found[-1]):
            raise CheckpointError(f"{model}: {name}: content differs from its hash, and was removed; pull it again")
    return next(path for path in found if path.name == Path(model.file).name)


def _parts(file: str) -> list[str]:
    """The names of all parts of a GGUF file, by the name of one; the file itself if it is whole."""
    named = PART.fullmatch(Path(file).name)
    if named is None or not 0 < (count := int(named[3])) <= MAX_PARTS:
        return [file]
    folder = file[: len(file) - len(Path(file).name)]
    return [f"{folder}{named[1]}-{i:05}-of-{count:05}{GGUF}" for i in range(1, count + 1)]


def ask(model: HubName) -> None:
    """Check with the Hub that the model can be downloaded, before a download is announced; CheckpointError if not."""
    hub = _client(model)
    try:
        if model.file is None:
            hub.model_info(model.id, revision=model.revision)
        else:
            hub.get_hf_file_metadata(hub.hf_hub_url(model.id, model.file, revision=model.revision))
    except Exception as error:
        raise CheckpointError(f"{model}: {_why(hub, error)}") from None


def missing_from(model: HubName) -> Path | None:
    """The folder of the shared cache if the model's config or named file is not in it; else None."""
    hub = _client(model)
    found = hub.try_to_load_from_cache(model.id, model.file or "config.json", revision=model.revision)
    return None if isinstance(found, str) else Path(hub.constants.HF_HUB_CACHE)


def forget(model: HubName) -> int:
    """Delete a model's files from the shared cache: the bytes that this freed."""
    hub = _client(model)
    for repository in hub.scan_cache_dir().repos if Path(hub.constants.HF_HUB_CACHE).is_dir() else ():
        if (repository.repo_type, repository.repo_id) == ("model", model.id):
            plan = hub.scan_cache_dir().delete_revisions(*(r.commit_hash for r in repository.revisions))
            plan.execute()
            return int(plan.expected_freed_size)
    return 0


def _client(model: HubName) -> Any:
    try:
        import huggingface_hub
        import huggingface_hub.constants
    except ImportError:
        raise RuntimeUnavailable(f"{model}: downloading needs huggingface_hub: pip install huggingface_hub") from None
    return huggingface_hub


def _why(hub: Any, error: Exception) -> str:
    """The message for a failed download, with advice."""
    kinds, endpoint = [kind.__name__ for kind in type(error).__mro__], hub.constants.ENDPOINT
    if "GatedRepoError" in kinds:
        return f"its owners ask for their terms to be accepted, on {endpoint}; then log in with `hf auth login`"
    if "RepositoryNotFoundError" in kinds:
        return f"no such model on {endpoint}, or a private one (log in with `hf auth login`)"
    if "RevisionNotFoundError" in kinds:
        return f"no such revision on {endpoint}"
    if "EntryNotFoundError" in kinds and "LocalEntryNotFoundError" not in kinds:
        return f"no such file in it on {endpoint}"
    if hub.constants.HF_HUB_OFFLINE:
        return "not in the cache, and HF_HUB_OFFLINE is set: unset it, or pull the model on a machine with a network"
    why = (str(error).strip() or kinds[0]).splitlines()[0]
    if any(kind in f"{why} {kinds}" for kind in ("ConnectError", "ConnectTimeout", "ConnectionError")):
        return f"not in the cache, and {endpoint} cannot be reached; pull it where there is a network"
    return f"not in the cache, and {endpoint} gave no whole answer ({why}); pull it again to go on where it ended"


def _damaged(path: Path) -> Iterator[str]:
    """The name of the file if its content does not match its hash; the file is removed, so that it is downloaded again.

    The shared cache names content by its hash on the Hub: sha256, or that of a git object.
    """
    blob = path.resolve()
    size = blob.stat().st_size
    start = {64: b"", 40: b"blob %d\0" % size}.get(len(blob.name))
    if start is None or not path.is_symlink():
        return
    digest = hashlib.new("sha256" if len(blob.name) == 64 else "sha1", start)
    with blob.open("rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
    if digest.hexdigest() != blob.name:
        path.unlink()
        blob.unlink()
        yield path.name
