"""A whole job on a real Redis, which dies with the roles: what is delivered is what SQLite delivers."""

from __future__ import annotations

import json
import threading
from contextlib import closing
from pathlib import Path

from dataloader_client import DataServiceLoader, Mesh
from dataloader_svc.engine.role import HEARTBEAT_S
from dataloader_svc.store.redis import FIRST_PATIENCE_S
from reading import Reader, assert_equal
from real_job import job_values, run_cli, serve, write_config
from redis_server import needs_redis, redis_server

pytestmark = needs_redis
ROUND = 8


def test_the_store_and_the_roles_die(data: Path, tmp_path: Path) -> None:
    (tmp_path / "calm").mkdir()
    with (
        serve(write_config(tmp_path / "calm" / "job.yaml", job_values(data))) as served,
        Reader(served.address) as expected,
    ):
        expected.allow(5 * ROUND)
        expected.wait()
    with redis_server(tmp_path / "redis", "requirepass s3cret") as server:
        url = f"redis://:s3cret@{server.address}/0"
        config = write_config(tmp_path / "job.yaml", job_values(data, store=url))
        with serve(config) as served, Reader(served.address) as reader:
            for number, victim in enumerate(("", "planner-0", "constructor-0", "loader-0", "planner-0")):
                reader.allow(ROUND)
                reader.wait(number * ROUND + 2)
                server.kill()
                if victim:
                    served.roles()[victim].kill()
                threading.Event().wait(0.5)  # the outage
                server.start()
                reader.wait()
            state = reader.states[5 * ROUND - 1]
            assert_equal(reader.steps, expected.steps)
            assert "s3cret" not in served.stderr + served.logs()
        explained = run_cli("explain", config, "--step", 5 * ROUND - 1, "--json")
        assert explained.returncode == 0, explained.stderr
        assert json.loads(explained.stdout)["step"] == 5 * ROUND - 1
        # Another life, on other ranks, of the same store.
        with (
            serve(config) as served,
            DataServiceLoader(served.address, mesh=Mesh(dp=2), rank=0) as loader,
        ):
            loader.load_state_dict(state)
            assert next(loader).step == 5 * ROUND


def test_an_outage_longer_than_a_start_may_take(data: Path, tmp_path: Path) -> None:
    """Whoever runs waits for the store, also a role that starts meanwhile; a service is stopped in it too."""
    with redis_server(tmp_path / "redis") as server:
        config = write_config(tmp_path / "job.yaml", job_values(data, store=f"redis://{server.address}/0"))
        with serve(config) as served, Reader(served.address) as reader:
            reader.allow(ROUND)
            reader.wait()
            server.kill()
            served.roles()["planner-0"].kill()
            reader.allow(2 * ROUND)
            threading.Event().wait(FIRST_PATIENCE_S + 3)  # the outage
            assert served.process.poll() is None
            server.start()
            reader.wait()
            assert sorted(reader.steps) == list(range(3 * ROUND))
            reader.close()
            server.kill()
            assert served.stop() == 0, served.stderr


def test_a_full_store_is_waited_for(data: Path, tmp_path: Path) -> None:
    """Nothing can be appended and no lease renewed for a while: that ends and restarts nobody."""
    with redis_server(tmp_path / "redis") as server:
        config = write_config(tmp_path / "job.yaml", job_values(data, store=f"redis://{server.address}/0"))
        with serve(config) as served, Reader(served.address) as reader:
            reader.allow(4 * ROUND)
            reader.wait(ROUND)
            with closing(server.client()) as client:
                client.config_set("maxmemory", "1mb")
                served.wait_said("waiting for it")
                threading.Event().wait(HEARTBEAT_S)  # all renewals of all roles fall into this
                client.config_set("maxmemory", "0")
            reader.wait()
            assert "started again" not in served.stderr
            assert "waiting for it" in (served.run_dir / "logs" / "planner-0.log").read_text()
