"""Whether files are still those that the log was made with: loaders are asked before it is gone on from."""

from __future__ import annotations

import asyncio

from dataloader_svc.errors import StateError
from dataloader_svc.planner.loaders import LoaderPool
from dataloader_svc.planner.state import State


class FilesCheck:
    """Asks once for all ranks of a job that start together."""

    def __init__(self, loaders: LoaderPool) -> None:
        self._loaders = loaders
        self._one = asyncio.Lock()
        self._asked_for: tuple[int, int] | None = None
        self._changed = False

    async def changed(self, known: State, key: tuple[int, int]) -> bool:
        """Whether the epochs that `known` has begun are of other files; asked again for another `key`.

        Waits for a loader. Any other trouble with the data is left to be told to who asks for plans.
        """
        async with self._one:
            if self._asked_for != key:
                self._changed = await self._ask(known)
                self._asked_for = key
            return self._changed

    async def _ask(self, known: State) -> bool:
        begun = [(name, at.epoch, at.listing(at.epoch)) for name, at in known.sources.items() if at.index]
        calls = [self._loaders.describe(name, epoch, made_of, grown=False) for name, epoch, made_of in begun]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        return any(isinstance(answer, StateError) for answer in answers)
