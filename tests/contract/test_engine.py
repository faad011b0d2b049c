"""Every engine through the exam that any engine must pass."""

import sys
from pathlib import Path

from dataloader_svc.engine.base import Engine
from dataloader_svc.engine.local import LocalEngine
from dataloader_svc.engine.restart import RestartPolicy
from dataloader_svc.testing.engine import EngineContract


def scripted(spec):
    return [
        sys.executable,
        "-m",
        "dataloader_svc.testing.scripted_role",
        spec.role,
        str(spec.index),
        *spec.args,
    ]


class TestLocalEngine(EngineContract):
    def engine(self, run_dir: Path) -> Engine:
        return LocalEngine(run_dir, scripted, policy=RestartPolicy(first_delay_s=0.01, max_delay_s=0.02))
