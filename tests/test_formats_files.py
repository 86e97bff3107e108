"""Files: every way in which reading or writing one can go wrong says what to do."""

from __future__ import annotations

import gzip
import os
import stat
from pathlib import Path

import pytest

from slackswap_opt.errors import InputError
from slackswap_opt.formats import files


def write(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "file.json"
    path.write_bytes(content)
    return path


def test_reads_plain_gzip_and_marked_text(tmp_path: Path) -> None:
    assert files.read_text(write(tmp_path, "é\n".encode())) == "é\n"
    assert files.read_text(write(tmp_path, b"\xef\xbb\xbfx")) == "x"
    assert files.read_text(
        write(tmp_path, gzip.compress(b"one", mtime=0) + gzip.compress(b"two"))
    ) == ("onetwo")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "the file is empty"),
        (b" \n\t\n", "the file is empty"),
        (gzip.compress(b"", mtime=0), "the file is empty"),
        (b"ok\n\xff\xffno", "line 2: byte 0xff is not UTF-8"),
        ("text".encode("utf-16"), "UTF-16; save it as UTF-8"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        (gzip.compress(b"x" * 5000, mtime=0)[:-9], "cut short or damaged"),
        (gzip.compress(b"x" * 5000, mtime=0)[:20], "cut short or damaged"),
        (b"\x1f\x8bnot gzip at all", "cut short or damaged"),
        (gzip.compress(b"x", mtime=0) + b"rubbish", "cut short or damaged"),
    ],
)
def test_unreadable_content(tmp_path: Path, content: bytes, expected: str) -> None:
    path = write(tmp_path, content)
    with pytest.raises(InputError) as error:
        files.read_text(path)
    assert expected in str(error.value)
    assert str(error.value).startswith(str(path))


def test_missing_folder_and_impossible_paths(tmp_path: Path) -> None:
    for path, expected in [
        (tmp_path / "none.json", "no such file"),
        (tmp_path, "this is a folder"),
        (tmp_path / ("n" * 5000), "cannot be read"),
        ("a\0b", "cannot be read"),
    ]:
        with pytest.raises(InputError, match=expected):
            files.read_bytes(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read everything")
def test_forbidden_file(tmp_path: Path) -> None:
    path = write(tmp_path, b"x")
    path.chmod(0)
    with pytest.raises(InputError, match="cannot be read: Permission denied"):
        files.read_bytes(path)


def test_size_limit_holds_before_and_after_decompression(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="more than 1000 bytes"):
        files.read_bytes(write(tmp_path, b"x" * 1001), limit=1000)
    bomb = write(tmp_path, gzip.compress(b"\0" * 50_000_000, mtime=0))
    with pytest.raises(InputError, match="more than 1000000 bytes"):
        files.read_bytes(bomb, limit=1_000_000)


def test_what_grows_more_than_files_of_steps_do_is_refused(tmp_path: Path) -> None:
    bomb = write(tmp_path, gzip.compress(b"\0" * (files.MOST_EXPANSION * 2**20), 9, mtime=0))
    with pytest.raises(InputError, match="more than 67108864 bytes"):
        files.read_bytes(bomb)


def test_writes_whole_files_with_ordinary_permissions(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    files.write_text(path, "a\né")
    assert path.read_bytes() == "a\né".encode()
    other = tmp_path / "other"
    other.touch()
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(other.stat().st_mode)
    assert {p.name for p in tmp_path.iterdir()} == {"out.json", "other"}


def test_overwrites_only_when_told_and_keeps_mode_and_link(tmp_path: Path) -> None:
    path, link = tmp_path / "out.json", tmp_path / "link.json"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path)
    with pytest.raises(InputError, match="exists; overwrite it with --force"):
        files.write_text(path, "new")
    assert path.read_text() == "old"
    files.write_text(link, "new", force=True)
    assert link.is_symlink()
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_refuses_impossible_targets(tmp_path: Path) -> None:
    for path, expected in [
        (tmp_path, "this is a folder"),
        (tmp_path / "no" / "out", "does not exist; create it"),
        (tmp_path / ("n" * 5000), "cannot be written"),
    ]:
        with pytest.raises(InputError, match=expected):
            files.write_text(path, "x")
    with pytest.raises(InputError, match="half of a character"):
        files.write_text(tmp_path / "out", "\ud800")
    assert not list(tmp_path.iterdir())


def test_a_failed_write_leaves_the_old_file_and_no_rubbish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out.json"
    path.write_text("old")

    def fail(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(InputError, match="No space left"):
        files.write_text(path, "new", force=True)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["out.json"]


def test_devices_are_written_directly() -> None:
    files.write_text("/dev/null", "x")
