"""One run in the peer's environment: prints what it said, as a last line of JSON.

python -m tests.bench.peers.correct.child MODULE PEER FOLDER STYLE
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

if __name__ == "__main__":
    module, peer, folder, style = sys.argv[1:]
    print(json.dumps(importlib.import_module(module).run(peer, Path(folder), style)))
