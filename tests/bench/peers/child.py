"""A process of a peer, in the peer's own environment.

    python child.py rank TASK        consume batches; answer each line on standard input with what came so far
    python child.py host TASK        run the peer's service; print its address; end with standard input
    python child.py convert TASK     write the material in the peer's format

What it says goes to what was standard output; what libraries print goes to standard error.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import time
from typing import Any

from tests.bench.peers.task import Task

BEGAN = time.perf_counter()


def _tokens(batch: Any) -> int:
    return len(batch["input_ids"])


AMOUNTS = {"text": _tokens, "sources": _tokens, "images": len}


class Answers:
    """Lines of JSON to the harness, out of the way of what libraries print."""

    def __init__(self) -> None:
        self.out = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)

    def say(self, **values: Any) -> None:
        self.out.write(json.dumps(values) + "\n")
        self.out.flush()


def consume(task: Task, module: Any, answers: Answers) -> None:
    """Take batches as fast as they come until standard input ends."""
    counted = {"amount": 0, "batches": 0}

    def answer() -> None:
        for _ in sys.stdin:
            answers.say(**counted, at=time.perf_counter())
        os._exit(0)

    amount = AMOUNTS[task.workload]
    for batch in getattr(module, task.workload)(task):
        counted["amount"] += amount(batch)
        counted["batches"] += 1
        if counted["batches"] == 1:
            answers.say(first_s=time.perf_counter() - BEGAN)
            threading.Thread(target=answer, daemon=True).start()
    answers.say(error=f"the data ended after {counted['batches']} batches")


def main() -> None:
    action, text = sys.argv[1:]
    answers, task = Answers(), Task.from_json(text)
    module = importlib.import_module(f"tests.bench.peers.loaders.{task.peer}")
    if action == "rank":
        consume(task, module, answers)
    elif action == "host":
        with module.service(task) as address:
            answers.say(address=address)
            sys.stdin.read()
    else:
        module.convert(task)
        answers.say(seconds=time.perf_counter() - BEGAN)


if __name__ == "__main__":
    main()
