"""Writing without halves."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgedec.errors import UsageError
from edgedec.storage.files import replacing, replacing_folder


def tree(folder: Path) -> dict[str, str]:
    """Every file under a folder, hidden ones too."""
    return {str(p.relative_to(folder)): p.read_text() for p in sorted(folder.rglob("*")) if p.is_file()}


def _fail(error: type[BaseException], written: int) -> None:
    assert written
    raise error


@pytest.mark.parametrize("before", [None, "old"])
def test_a_file_is_replaced_whole(tmp_path: Path, before: str | None) -> None:
    path = tmp_path / "file"
    if before is not None:
        path.write_text(before)
    with replacing(path) as file:
        file.write(b"new")
        file.flush()
        assert (path.read_text() if path.exists() else None) == before
    assert tree(tmp_path) == {"file": "new"}


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("before", [{}, {"file": "old"}])
def test_a_failed_file_was_never_there(tmp_path: Path, before: dict[str, str], error: type[BaseException]) -> None:
    for name, text in before.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(error), replacing(tmp_path / "file") as file:
        _fail(error, file.write(b"half"))
    assert tree(tmp_path) == before


def test_two_writers_of_one_file_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with replacing(path) as a, replacing(path) as b:
        a.write(b"a")
        b.write(b"b")
    assert tree(tmp_path) in ({"file": "a"}, {"file": "b"})


def test_a_file_in_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), replacing(tmp_path / "no" / "file"):
        pass


def test_a_folder_appears_whole(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "folder"
    with replacing_folder(path) as staging:
        (staging / "a").write_text("1")
        assert not path.exists()
        assert staging.parent == path.parent  # a rename across disks would be a copy
    assert tree(tmp_path) == {"deep/folder/a": "1"}


def test_an_existing_folder_needs_force(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    path.mkdir()
    (path / "old").write_text("1")
    with (
        pytest.raises(UsageError, match="exists already; choose another place or pass --force"),
        replacing_folder(path),
    ):
        pytest.fail("the block must not run")
    assert tree(tmp_path) == {"folder/old": "1"}
    with replacing_folder(path, force=True) as staging:
        (staging / "new").write_text("2")
        assert tree(path) == {"old": "1"}
    assert tree(tmp_path) == {"folder/new": "2"}
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("force", [False, True])
def test_a_failed_folder_was_never_there(tmp_path: Path, force: bool, error: type[BaseException]) -> None:
    path = tmp_path / "folder"
    if force:
        path.mkdir()
        (path / "old").write_text("1")
    with pytest.raises(error), replacing_folder(path, force=force) as staging:
        _fail(error, (staging / "half").write_text("2"))
    assert tree(tmp_path) == ({"folder/old": "1"} if force else {})
    assert [p.name for p in tmp_path.iterdir()] == (["folder"] if force else [])


def test_the_old_folder_comes_back_if_the_new_one_cannot_take_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "folder"
    path.mkdir()
    (path / "old").write_text("1")
    rename = Path.rename

    def fails(self: Path, target: Path) -> Path:
        if (self / "new").exists():
            raise OSError("disk on fire")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fails)
    with pytest.raises(OSError, match="on fire"), replacing_folder(path, force=True) as staging:
        (staging / "new").write_text("2")
    assert tree(tmp_path) == {"folder/old": "1"}


def test_the_current_folder_may_be_replaced_by_its_dot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with replacing_folder(Path(), force=True) as staging:
        (staging / "new").write_text("1")
    assert tree(tmp_path) == {"here/new": "1"}


@pytest.mark.parametrize("kind", ["file", "link to a folder", "link to nothing"])
def test_force_replaces_folders_only(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "out"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "kept").write_text("1")
    if kind == "file":
        path.write_text("2")
    else:
        path.symlink_to(tmp_path / "other" if kind == "link to a folder" else tmp_path / "nothing")
    before = tree(tmp_path)
    with pytest.raises(UsageError, match="is not a folder"), replacing_folder(path, force=True) as staging:
        (staging / "new").write_text("3")
    assert tree(tmp_path) == before
    assert path.is_symlink() == (kind != "file")
