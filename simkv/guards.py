"""What is watched while a run lasts: the interrupt key, and objects of the user's own."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simkv.errors import Problem, ScenarioError
from simkv.steptime import StepTime, StepWork
from simkv.workload.acceptance import Acceptance
from simkv.workload.request import IntArray

__all__ = ["GuardedAcceptance", "GuardedStepTime", "guarded_order", "interrupt_calls", "is_usable"]

Order = Callable[[IntArray, IntArray], NDArray[np.intp]]


def is_usable(**given: tuple[Any, str]) -> None:
    """Refuse objects of the user's own that lack what is asked of them.

    Parameters
    ----------
    **given : (object, str)
        Argument name to the object, None for one that is left out, and the attribute it needs.

    Raises
    ------
    ScenarioError
        Every one that lacks it.
    """
    problems = [
        Problem(name, f"{value!r} cannot be used here: it has no {needed}")
        for name, (value, needed) in given.items()
        if value is not None and not hasattr(value, needed)
    ]
    if problems:
        raise ScenarioError("simulate", problems)


@contextmanager
def interrupt_calls(stop: Callable[[], None]) -> Iterator[None]:
    """Let the first Ctrl-C call ``stop`` and the second one interrupt at once.

    Elsewhere than in the main thread, or where somebody else already handles the signal, nothing is changed.
    """
    mine = threading.current_thread() is threading.main_thread()
    if not mine or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return

    def handler(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        stop()

    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@dataclass(frozen=True)
class GuardedAcceptance:
    """An acceptance model of the user's own, each draw checked.

    Parameters
    ----------
    model : Acceptance
    width : int
        Longest length a step can yield.
    """

    model: Acceptance
    width: int

    def draw(self, request: IntArray, verify_index: IntArray) -> IntArray:
        """The model's draw.

        Raises
        ------
        ScenarioError
            It is not one integer in [1, width] a request.
        """
        drawn = np.asarray(self.model.draw(request, verify_index))
        whole = drawn.shape == request.shape and np.issubdtype(drawn.dtype, np.integer)
        if not whole or drawn.min(initial=1) < 1 or drawn.max(initial=1) > self.width:
            shown = np.array2string(drawn, threshold=8)
            message = f"drew {shown} ({drawn.dtype}) for {len(request)} requests: one integer in [1, {self.width}] each"
            raise ScenarioError("simulate", [Problem("acceptance", message)])
        return drawn.astype(np.int64, copy=False)

    def mean_length(self, width: int | None = None) -> float:
        """The model's own."""
        return self.model.mean_length(width)


@dataclass(frozen=True)
class GuardedStepTime:
    """A step-time model of the user's own, each duration checked."""

    model: StepTime

    def __call__(self, work: StepWork) -> tuple[int, int]:
        """The model's durations.

        Raises
        ------
        ScenarioError
            They are not a pair of integers, the first not negative, the second above 0.
        """
        times: Any = self.model(work)
        if not isinstance(times, tuple) or len(times) != 2 or not all(isinstance(t, (int, np.integer)) for t in times):
            message = f"gave {times!r}: a pair of integers is needed, ns of the draft worker and of the target worker"
            raise ScenarioError("simulate", [Problem("steptime", message)])
        if times[0] < 0 or times[1] < 1:
            raise ScenarioError("simulate", [Problem("steptime", f"gave {times!r} ns: >= 0 and > 0 are needed")])
        return int(times[0]), int(times[1])


def guarded_order(order: Order) -> Order:
    """A retraction order of the user's own, each answer checked to hold every position once."""

    def checked(output: IntArray, input_tokens: IntArray) -> NDArray[np.intp]:
        kept = np.asarray(order(output, input_tokens))
        if not np.array_equal(np.sort(kept), np.arange(len(output))):
            shown = np.array2string(kept, threshold=8)
            message = f"gave {shown} for {len(output)} requests: positions 0 to {len(output) - 1} are needed, each once"
            raise ScenarioError("simulate", [Problem("retraction_order", message)])
        return kept.astype(np.intp, copy=False)

    return checked
