"""Up to which step the ranks of a session have safe checkpoints. Pure.

Kept in memory alone: a planner that starts again hears it at the next checkpoint, and removes nothing before.
"""

from __future__ import annotations

from typing import NamedTuple

from dataloader_client._pb import common_pb2
from dataloader_svc.planner.session import Session


class _Place(NamedTuple):
    dp: int
    cp: int
    tp: int
    pp: int


class Commits:
    """Of the session that was heard of last."""

    def __init__(self) -> None:
        self._session = 0
        self._steps: dict[_Place, int] = {}

    def add(self, session: Session, coords: common_pb2.Coords, step: int) -> int:
        """A rank has committed `step`. The step that all ranks of the mesh have; 0 while one hasn't."""
        if session.number != self._session:
            self._session, self._steps = session.number, {}
        mesh = session.mesh
        place = _Place(coords.dp, coords.cp, coords.tp, coords.pp)
        if place.dp < mesh.dp and place.cp < mesh.cp and place.tp < mesh.tp and place.pp < mesh.pp:
            self._steps[place] = max(step, self._steps.get(place, 0))
        world = mesh.dp * mesh.cp * mesh.tp * mesh.pp
        return min(self._steps.values()) if len(self._steps) == world else 0
