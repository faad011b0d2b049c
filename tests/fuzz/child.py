"""Runs cases in a process of its own, and says on its output which one is being run: `fuzz.py` watches it.

    python -m tests.fuzz.child TARGET:FIRST_SEED:COUNT ...

A line `begin TARGET SEED` before each case and `end OUTCOME` or `found WORDS` after it.
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

from tests.fuzz.targets import TARGETS

MOST_ADDRESSES = 8 * 2**30
MOST_GROWTH = 256 * 2**20
"""Bytes that the process may grow over all cases of a target: inputs have kilobytes."""


def main(specs: list[str]) -> None:
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a library prints is no message of ours
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MOST_ADDRESSES, MOST_ADDRESSES))
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(prefix="fuzz-") as scratch:
        for spec in specs:
            target, first, count = spec.rsplit(":", 2)
            folder = Path(scratch) / target
            folder.mkdir(exist_ok=True)
            case = TARGETS[target](folder)
            case(-1)  # what is loaded on first use is no growth
            peak = _peak()
            for seed in range(int(first), int(first) + int(count)):
                out.write(f"begin {target} {seed}\n")
                try:
                    said = f"end {case(seed)}"
                except Exception as problem:
                    frames = traceback.extract_tb(problem.__traceback__)
                    ours = [frame for frame in frames if "dataloader_svc" in frame.filename] or frames
                    said = f"found {problem!r:.200} at {Path(ours[-1].filename).name}:{ours[-1].lineno}"
                if (now := _peak()) > peak + MOST_GROWTH:
                    said = f"found grew by {(now - peak) >> 20} MiB"
                    peak = now
                out.write(said.replace("\n", " ") + "\n")


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main(sys.argv[1:])
