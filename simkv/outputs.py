"""Files and folders that are whole or absent."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from simkv.errors import Problem, ScenarioError

__all__ = ["check_free", "file_problem", "folder_problem", "write_directory", "write_file", "write_folder"]


def file_problem(path: Path, option: str, *, force: bool) -> Problem | None:
    """Why a file cannot be written; None where it can.

    Parameters
    ----------
    path : Path
        The file.
    option : str
        What asked for it; the problem's place.
    force : bool
        An existing file may be replaced.
    """
    shown = str(path) if str(path).isprintable() else repr(str(path))
    try:
        if path.is_dir():
            return Problem(option, f"{shown} is a directory; name a file")
        if _exists(path) and not force:
            return Problem(option, f"{shown} exists already; name another file or pass --force")
    except (OSError, ValueError) as error:
        return Problem(option, f"{shown} cannot be written: {_reason(error)}")
    return None


def folder_problem(path: Path, option: str, *, force: bool, ours: str) -> Problem | None:
    """Why a folder of results cannot be written; None where it can.

    Parameters
    ----------
    path : Path
        The folder.
    option : str
        What asked for it; the problem's place.
    force : bool
        An existing folder may be replaced, if it holds nothing else.
    ours : str
        Glob pattern of the files that a folder of this kind holds.
    """
    shown = str(path) if str(path).isprintable() else repr(str(path))
    try:
        if not _exists(path):
            return None
        if not path.is_dir():
            return Problem(option, f"{shown} is a file; name a directory")
        others = sorted(one.name for one in path.iterdir() if not (one.is_file() and one.match(ours)))
        if others:
            return Problem(option, f"{shown} exists and holds other things ({others[0]}); name another directory")
        if not force and any(path.iterdir()):
            return Problem(option, f"{shown} exists already; name another directory or pass --force")
    except (OSError, ValueError) as error:
        return Problem(option, f"{shown} cannot be written: {_reason(error)}")
    return None


def write_file(path: Path, content: bytes | str) -> None:
    """Write a file whole, or leave what was there.

    Raises
    ------
    ScenarioError
        It cannot be written.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    try:
        # A link stays one; what it points to is replaced.
        target = path.resolve()
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".simkv-", dir=target.parent) as name:
            fresh = Path(name) / "file"
            fresh.write_bytes(data)
            os.replace(fresh, target)
    except (OSError, ValueError) as error:
        raise ScenarioError("output", [Problem(str(path), f"cannot be written: {_reason(error)}")]) from None


def write_folder(path: Path, files: Mapping[str, bytes]) -> None:
    """Write a folder that holds just these files, or leave what was there.

    Raises
    ------
    ScenarioError
        It cannot be written.
    """

    def write(fresh: Path) -> None:
        fresh.mkdir()
        for one, data in files.items():
            (fresh / one).write_bytes(data)

    _place(path.resolve(), write, "output")


def write_directory(
    directory: str | Path, write: Callable[[Path], None], *, force: bool = False, holds: str = "run.json"
) -> Path:
    """Write a directory whole, or not at all.

    Parameters
    ----------
    directory : str or Path
        Where it is to be.
    write : callable
        Makes a directory of this name, and what is in it.
    force : bool
        Replace one that is there.
    holds : str
        A file that tells such a directory from others; no other is replaced.

    Raises
    ------
    ScenarioError
        The directory exists and ``force`` is not given, or cannot be written.
    """
    target = Path(directory)
    check_free(target, force=force, holds=holds)
    # A link stays one; what it points to is replaced.
    target = target.resolve()
    _place(target, write, "--out")
    return target


def check_free(target: Path, *, force: bool, holds: str = "run.json") -> None:
    """Refuse a directory that cannot be, or to overwrite one that was not meant to be.

    Raises
    ------
    ScenarioError
        With what to do instead.
    """
    try:
        target.lstat()
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        shown = str(target) if str(target).isprintable() else repr(str(target))
        raise ScenarioError("--out", [Problem(shown, f"cannot be written: {reason}")]) from None
    if not (target / holds).is_file() and (not target.is_dir() or any(target.iterdir())):
        raise ScenarioError(
            "--out", [Problem(str(target), f"exists and is no {holds[:-5]} directory; name another one")]
        )
    if not force:
        raise ScenarioError("--out", [Problem(str(target), "exists already; name another directory or pass --force")])


def _place(target: Path, write: Callable[[Path], None], option: str) -> None:
    """Make a directory and put it in the place of what is there; if that fails, the other one is there as before."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".simkv-", dir=target.parent) as name:
            fresh, aside = Path(name) / "fresh", Path(f"{name}.old")
            write(fresh)
            if not target.exists():
                fresh.rename(target)
                return
            target.rename(aside)
            try:
                fresh.rename(target)
            except BaseException:
                aside.rename(target)
                raise
            shutil.rmtree(aside)
    except (OSError, ValueError) as error:
        raise ScenarioError(option, [Problem(str(target), f"cannot be written: {_reason(error)}")]) from None


def _exists(path: Path) -> bool:
    """Whether anything is there, a broken link included."""
    try:
        path.lstat()
    except FileNotFoundError:
        return False
    return True


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
