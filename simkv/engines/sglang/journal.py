"""What happened to whom: names, events, and the engine's own faults as they are met."""

from __future__ import annotations

from simkv.engines.base import Event
from simkv.engines.sglang.faults import ENGINE_FAULTS
from simkv.errors import EngineFault

__all__ = ["Journal"]


class Journal:
    """Events since they were last drained, by requests' handles.

    Attributes
    ----------
    names : list of str
        Name of each request.
    lost : set of int
        Requests the engine takes for fully prefilled although their prompt was cut (fault F1).
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.lost: set[int] = set()
        self._events: list[Event] = []
        self._repaired: set[tuple[str, int]] = set()

    def note(self, event: str, request: int, pool: str, tokens: int, cause: str, detail: str = "") -> None:
        """Add an event."""
        self._events.append(Event(event, request, pool, tokens, cause, detail))

    def drain(self) -> list[Event]:
        """Events since the last call."""
        events, self._events = self._events, []
        return events

    def fault(self, name: str, detail: str, request: int = -1, pool: str = "-") -> EngineFault:
        """The engine's end: a fault of :data:`.faults.ENGINE_FAULTS`, to be raised."""
        return EngineFault(name, f"{detail} ({ENGINE_FAULTS[name]})", request, pool)

    def note_fault(self, name: str, request: int, pool: str, detail: str = "") -> None:
        """Note a fault that the engine survives, at least for now."""
        self.note("fault", request, pool, 0, f"{name}: {detail or ENGINE_FAULTS[name]}")

    def note_repair(self, name: str, request: int = -1, pool: str = "-") -> None:
        """Say, once for each fault and request, where the engine would have broken."""
        if (name, request) not in self._repaired:
            self._repaired.add((name, request))
            self.note("repair", request, pool, 0, f"{name}: {ENGINE_FAULTS[name]}")
