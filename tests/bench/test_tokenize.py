"""Text parquet to probe columns, against fastokens alone and a loop over rows: `tokenize_path.py` in small.

make bench          or, for the figures of docs/benchmarks.md: python tests/bench/tokenize_path.py --gb 1
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.bench

SCRIPT = Path(__file__).with_name("tokenize_path.py")


def test_tokenize() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--json"], capture_output=True, text=True, check=True)
    figures = json.loads(done.stdout)
    assert all(value > 0 for value in figures.values())
    print()
    for name, value in figures.items():
        print(f"{name:20} {value:.2f}" if "/" in name else f"{name:20} {value / 1e6:.2f} Mtokens/s")
