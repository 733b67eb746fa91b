"""Files and folders that are whole or absent."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from simkv.errors import Problem, ScenarioError

__all__ = ["file_problem", "folder_problem", "write_file", "write_folder"]


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
    try:
        target = path.resolve()
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".simkv-", dir=target.parent) as name:
            fresh, aside = Path(name) / "folder", Path(name) / "old"
            fresh.mkdir()
            for one, data in files.items():
                (fresh / one).write_bytes(data)
            if target.exists():
                target.rename(aside)
            try:
                fresh.rename(target)
            except BaseException:
                if aside.exists():
                    aside.rename(target)
                raise
            shutil.rmtree(aside, ignore_errors=True)
    except (OSError, ValueError) as error:
        raise ScenarioError("output", [Problem(str(path), f"cannot be written: {_reason(error)}")]) from None


def _exists(path: Path) -> bool:
    """Whether anything is there, a broken link included."""
    try:
        path.lstat()
    except FileNotFoundError:
        return False
    return True


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
