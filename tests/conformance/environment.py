"""The Python environment of the live comparison: SGLang 0.5.23 on the CPU, built once, outside the tree.

Usage: ``environment.py [--build]`` prints the environment's python, or one line that says why there is none (exit 2).

It lies in ``$SIMKV_ORACLE``, or in ``simkv/sglang-0.5.23`` under the user's cache folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

VERSION = "0.5.23"
PYTHON = (3, 11)  # the pins are those of this version
ROOM = 4 << 30  # bytes a build needs, wheels on the way included
REQUIREMENTS = Path(__file__).resolve().parent / "oracle" / "requirements.txt"
CHECK = f"import importlib.metadata as m, torch; assert m.version('sglang') == '{VERSION}', m.version('sglang')"


class Unavailable(Exception):
    """Why there is no environment, in one line."""


def folder() -> Path:
    """Where the environment lies, or would."""
    if stated := os.environ.get("SIMKV_ORACLE"):
        return Path(stated).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "simkv" / f"sglang-{VERSION}"


def works(python: Path) -> bool:
    """Whether this python has the engine."""
    return (
        python.exists()
        and subprocess.run([python, "-c", CHECK], capture_output=True, check=False, timeout=300).returncode == 0
    )


def find(build: bool = False) -> Path:
    """The environment's python; raises :class:`Unavailable`."""
    place = folder()
    python = place / "bin" / "python"
    if works(python):
        return python
    if not build:
        raise Unavailable(f"SGLang {VERSION} is not in {place} (--build builds it)")
    if place.exists() and any(place.iterdir()) and not (place / "pyvenv.cfg").exists():
        raise Unavailable(f"{place} is there and is no virtual environment")
    _build(place)
    if not works(python):
        raise Unavailable(f"the environment in {place} does not import the engine")
    return python


def _base() -> str:
    """A python of the version the pins are for."""
    if sys.version_info[:2] == PYTHON:
        return sys.executable
    name = ".".join(["python" + str(PYTHON[0]), str(PYTHON[1])])
    found = shutil.which(name)
    if found is None:
        raise Unavailable(f"{name} is not installed (the engine's pins are for it)")
    return found


def _build(place: Path) -> None:
    base = _base()
    above = next(p for p in [place, *place.parents] if p.exists())
    free = shutil.disk_usage(above).free
    if free < ROOM:
        raise Unavailable(f"{free / (1 << 30):.1f} GiB free at {above}, building takes {ROOM >> 30}")
    print(f"building SGLang {VERSION} for the CPU in {place}: some minutes, 2.4 GB", file=sys.stderr, flush=True)
    pins = [line.strip() for line in REQUIREMENTS.read_text().splitlines() if line.strip()]
    torch = next(pin for pin in pins if pin.startswith("torch=="))
    rest = [pin for pin in pins if pin != torch]
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        _call([base, "-m", "venv", "--clear", str(place)], "no virtual environment")
        pip = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        pip += ["--retries", "1", "--timeout", "20"]
        try:
            _call([*pip, torch], "torch")
        except Unavailable:  # an index without CPU builds: the ordinary build, which is larger, works too
            _call([*pip, torch.split("+")[0]], "torch cannot be installed")
        _call([*pip, "--no-deps", *rest], "the engine cannot be installed")
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise


def _call(command: list[str], what: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        why = next(
            (line for line in reversed(said) if line.startswith("ERROR")), said[-1] if said else "no reason given"
        )
        raise Unavailable(f"{what}: {why.strip()[:300]}")


if __name__ == "__main__":
    try:
        print(find(build="--build" in sys.argv[1:]))
    except Unavailable as reason:
        print(f"no engine to ask: {reason}")
        sys.exit(2)
