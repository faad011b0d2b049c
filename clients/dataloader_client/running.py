"""What runs for a loader: its reads ahead, its connection, and a service that was started with it."""

from __future__ import annotations

import os
from dataclasses import dataclass

from dataloader_client.local import LocalService
from dataloader_client.prefetch import Prefetch
from dataloader_client.transport import Transport


@dataclass(slots=True)
class Running:
    """What must be ended with a loader; it does not know the loader, so that that can be dropped."""

    transport: Transport
    pid: int
    prefetch: Prefetch | None = None
    service: LocalService | None = None

    def embed(self, service: LocalService) -> None:
        """End `service` with the rest; where it ends by itself, nobody waits for it any longer."""
        self.service = service
        service.on_end(self.end_reads)

    def end_reads(self) -> None:
        """Whoever waits gets Closed."""
        self.stop_prefetch()
        self.transport.close()

    def stop_prefetch(self) -> None:
        prefetch, self.prefetch = self.prefetch, None
        if prefetch is not None:
            prefetch.stop()

    def close(self) -> None:
        if os.getpid() == self.pid:  # in a forked child the threads are the parent's
            self.end_reads()
            if self.service is not None:
                self.service.close()
