"""Directories of results: whole or absent, never written over by mistake."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from simkv.errors import Problem, ScenarioError

__all__ = ["check_free", "write_directory"]


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
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".simkv-", dir=target.parent) as name:
            fresh = Path(name) / "run"
            write(fresh)
            _replace(target, fresh, aside=Path(f"{name}.old"))
    except OSError as error:
        reason = error.strerror or str(error)
        raise ScenarioError("--out", [Problem(str(target), f"cannot be written: {reason}")]) from None
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


def _replace(target: Path, fresh: Path, aside: Path) -> None:
    """Put a directory in the place of another; if that fails, the other one is there as before."""
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
