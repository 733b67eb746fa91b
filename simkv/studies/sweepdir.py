"""The directory of a sweep: what is asked, what has come so far, and what it comes to.

``sweep.json`` says which sweep it is, before the first point is run. ``points.jsonl`` gets a line as each point ends, so
that whatever ends the process, what was simulated is there. Only when all points are in come ``points.parquet``, the
figures, and both files once more, in the order of the grid.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from simkv.errors import Problem, ScenarioError
from simkv.studies.points import Point, PointResult

__all__ = ["POINTS", "TABLE", "SweepDirectory", "read_head", "read_points"]

HEAD, POINTS, TABLE, FIGURES = "sweep.json", "points.jsonl", "points.parquet", "figures"
# Of a head, what must be the same for points to be of one sweep; versions of libraries besides simkv's need not be.
_SAME = ("schema", "scenario", "axes", "provenance.simkv", "provenance.given_in_python", "provenance.files")
# A fault of the place where it ran, and not an answer: such points are run again.
_AGAIN = ("error",)


class SweepDirectory:
    """Where a sweep is written while it runs.

    Parameters
    ----------
    path : Path
    points : sequence of Point
        All of the sweep, in order.
    kept : dict
        Results that are there already, by index.
    """

    def __init__(self, path: Path, points: Sequence[Point], kept: dict[int, PointResult]) -> None:
        self.path = path
        self.points = points
        self.kept = kept
        self._file: Any = None

    @classmethod
    def found(
        cls, target: str | Path, head: dict[str, Any], points: Sequence[Point], *, force: bool, resume: bool
    ) -> SweepDirectory:
        """The directory of a sweep, to be made or gone on with; nothing is changed yet.

        Raises
        ------
        ScenarioError
            It cannot be written, is something else, holds another sweep, or is there and neither ``force`` nor
            ``resume`` is given.
        """
        path = Path(target)
        if force and resume:
            raise _refused("--resume", "stated beside --force, which would throw away what is to be gone on with")
        there = _state(path)
        if there == "foreign":
            raise _refused(path, "exists and is no sweep directory; name another one")
        if there == "sweep" and not (force or resume):
            message = "exists already; name another directory, pass --resume to go on with it or --force to replace it"
            raise _refused(path, message)
        kept: dict[int, PointResult] = {}
        if there == "sweep" and resume:
            _same_sweep(path, head)
            kept = {index: one for index, one in read_points(path, len(points)).items() if one.state not in _AGAIN}
        return cls(path, points, kept)

    def begin(self, head: dict[str, Any]) -> None:
        """Write down which sweep it is, and of points those that are kept: a torn last line goes, as do other sweeps.

        Raises
        ------
        ScenarioError
            It cannot be written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if not self.kept:
                # Before the head: points of another sweep are never under this one's.
                (self.path / POINTS).unlink(missing_ok=True)
            # What is drawn from all points, and nothing that is not a sweep's.
            (self.path / TABLE).unlink(missing_ok=True)
            shutil.rmtree(self.path / FIGURES, ignore_errors=True)
            self.write(head, self.kept)
        except (OSError, ValueError) as error:
            raise _refused(self.path, f"cannot be written: {_reason(error)}") from None

    # ---- while it runs
    def __enter__(self) -> Self:
        self._file = open(self.path / POINTS, "a", encoding="utf-8", newline="\n")
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, result: PointResult) -> None:
        """Write down what came of a point; it is there when this returns."""
        self._file.write(_line(self.points[result.index].changes, result))
        self._file.flush()

    def write(self, head: dict[str, Any], results: Mapping[int, PointResult]) -> None:
        """Write both files anew, in the order of the grid: whoever ran the points, they are the same."""
        _replaced(self.path / HEAD, json.dumps(head, indent=1, allow_nan=False) + "\n")
        lines = (_line(point.changes, results[point.index]) for point in self.points if point.index in results)
        _replaced(self.path / POINTS, "".join(lines))


def _line(changes: Iterable[tuple[str, Any]], result: PointResult) -> str:
    told = {"index": result.index, "changes": dict(changes), **result.to_dict()}
    return json.dumps(told, allow_nan=False) + "\n"


def _replaced(path: Path, text: str) -> None:
    """Write a file: the old one or the new one is there, never a part."""
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(text, encoding="utf-8", newline="\n")
    os.replace(fresh, path)


def _state(path: Path) -> str:
    """``absent``, ``sweep``, or ``foreign``.

    Raises
    ------
    ScenarioError
        There can be nothing of this name.
    """
    try:
        path.lstat()
    except FileNotFoundError:
        return "absent"
    except (OSError, ValueError) as error:
        raise _refused(path, f"cannot be written: {_reason(error)}") from None
    if (path / HEAD).is_file():
        return "sweep"
    # A sweep that was killed before it had said which one it is.
    begun = path.is_dir() and all(one.name == HEAD + ".new" for one in path.iterdir())
    return "absent" if begun else "foreign"


def _same_sweep(path: Path, head: Mapping[str, Any]) -> None:
    """Refuse to go on with another sweep.

    Raises
    ------
    ScenarioError
        Everything that differs.
    """
    before = read_head(path)
    problems = [
        Problem(place, f"is {_shown(new)}, and {_shown(old)} in {path}; it is another sweep: name another directory")
        for key in _SAME
        for place, old, new in _differences(key, _at(before, key), _at(head, key))
    ]
    if problems:
        raise ScenarioError("--resume", problems)


def _at(head: Any, key: str) -> Any:
    for part in key.split("."):
        head = head.get(part) if isinstance(head, dict) else None
    return head


def _differences(place: str, old: Any, new: Any) -> Iterable[tuple[str, Any, Any]]:
    """Places where two values of JSON differ, as deep as both are tables."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            yield from _differences(f"{place}.{key}", old.get(key), new.get(key))
        # Axes in another order make another grid.
        if place == "axes" and old == new and list(old) != list(new):
            yield place, list(old), list(new)
    elif old != new or type(old) is not type(new):
        yield place, old, new


def _shown(value: Any) -> str:
    text = "not there" if value is None else json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def _refused(place: Any, message: str) -> ScenarioError:
    shown = str(place) if str(place).isprintable() else repr(str(place))
    return ScenarioError("--out", [Problem(shown, message)])


# ------------------------------------------------------------------------------------------------- reading
def read_head(path: Path) -> dict[str, Any]:
    """What ``sweep.json`` says.

    Raises
    ------
    ScenarioError
        There is none, or it is something else.
    """
    try:
        head = json.loads((path / HEAD).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ScenarioError(str(path), [Problem(str(path), f"is no sweep directory: {_reason(error)}")]) from None
    lacking = [key for key in (*_SAME, "points") if _at(head, key) is None]
    if lacking:
        raise ScenarioError(str(path), [Problem(HEAD, f"lacks {', '.join(lacking)}; run the sweep again")])
    return dict(head)


def read_points(path: Path, count: int) -> dict[int, PointResult]:
    """Results in ``points.jsonl``, by index; the last line may be torn, and is not there then.

    Parameters
    ----------
    path : Path
        The directory.
    count : int
        Points of the sweep.

    Raises
    ------
    ScenarioError
        A line that is no result of this sweep.
    """
    try:
        lines = (path / POINTS).read_bytes().split(b"\n")
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ScenarioError(str(path), [Problem(POINTS, f"cannot be read: {error.strerror}")]) from None
    found: dict[int, PointResult] = {}
    for number, line in enumerate(lines[:-1], 1):
        try:
            told = json.loads(line)
            told.pop("changes")
            one = PointResult(**told)
            if not 0 <= one.index < count:
                raise ValueError(f"there is no point {one.index}")
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            message = f"is no result of this sweep: {error}; take the line out, and resume"
            raise ScenarioError(str(path), [Problem(f"{POINTS}:{number}", message)]) from None
        found[one.index] = one
    return found
