"""What encoding brings on links of several speeds: seconds a step, plain and by `wire: {compression: auto}`.

    PYTHONPATH=tests python -m tests.bench.slow_link

Two real services, the same steps in turn through a proxy that lets so many bytes a second through; medians,
after steps by which the link is measured. The ratio must not be above 1 by more than noise.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from dataloader_client import DataServiceLoader, Mesh
from real_job import job_values, serve, write_config, write_data
from throttle import slow_link

SPEEDS = (1e6, 1e7, 1e8, 1e12)
WARM, STEPS = 5, 15


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        folder = Path(scratch)
        data = write_data(folder / "data")
        served = []
        for compression in ("off", "auto"):
            (folder / compression).mkdir()
            values = job_values(
                data,
                sequence_length=2048,
                wire={"compression": compression},
                constructor={"shared_memory": False},
            )
            config = write_config(folder / compression / "job.yaml", values)
            served.append(stack.enter_context(serve(config)))
        print(f"{'MB/s':>10} {'plain s':>10} {'auto s':>10} {'ratio':>7} {'plain MB':>9} {'auto MB':>9}")
        for speed in SPEEDS:
            links = [stack.enter_context(slow_link(service.address, speed)) for service in served]
            loaders = [stack.enter_context(DataServiceLoader(link.address, mesh=Mesh())) for link in links]
            took: list[list[float]] = [[], []]
            sent = [0, 0]
            for step in range(WARM + STEPS):
                for number, loader in enumerate(loaders):
                    before, began = links[number].num_bytes, time.perf_counter()
                    loader.read(step)
                    if step >= WARM:
                        took[number].append(time.perf_counter() - began)
                        sent[number] += links[number].num_bytes - before
            plain, auto = (statistics.median(each) for each in took)
            megabytes = " ".join(f"{each / STEPS / 1e6:9.2f}" for each in sent)
            print(
                f"{speed / 1e6:10.0f} {plain:10.3f} {auto:10.3f} {auto / plain:7.2f} {megabytes}", flush=True
            )


if __name__ == "__main__":
    main()
