"""What a process has freed goes back to the system, in a real process."""

import subprocess
import sys

import pytest

FREED = """
import os
from dataloader_svc import allocator

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

blocks = [bytes(4000) for _ in range(25_000)]
last = blocks[-1]
full = resident()
del blocks
before = resident()
allocator.give_back()
print(full, before, resident())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks the C library of Linux")
def test_what_was_freed_below_what_is_held_goes_back() -> None:
    done = subprocess.run([sys.executable, "-c", FREED], capture_output=True, text=True, check=True)
    full, before, after = map(int, done.stdout.split())
    assert full - before < 10e6, "the C library gave it back by itself: there is nothing to test"
    assert full - after > 90e6
