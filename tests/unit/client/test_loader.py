"""DataServiceLoader against real constructors with a scripted planner and loaders, over loopback."""

from __future__ import annotations

import gc
import json
import signal
import socket
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import grpc
import numpy as np
import pytest

from dataloader_client import (
    Coords,
    DataServiceError,
    DataServiceLoader,
    DataStoppedError,
    Mesh,
    MeshMismatchError,
    ServiceUnavailableError,
    SessionSupersededError,
    StateMismatchError,
    VersionMismatchError,
    WireError,
)
from dataloader_svc import errors
from dataloader_svc.testing.scripted_job import JobThread
from dataloader_svc.testing.scripted_roles import Script

SHORT = {"timeout_s": 0.3, "connect_timeout_s": 0.3}


@pytest.fixture
def service():
    with JobThread(Script(num_steps=6)) as service:
        yield service


def spans(batch):
    return [tuple(span)[:5] for span in batch.manifest.spans()]


def planned(script: Script):
    """All pieces of the script, by step."""
    out = []
    for record in script.records():
        columns = (record.source, record.epoch, record.position, record.start, record.length)
        rows = zip(*columns, strict=True)
        out.append({(record.sources[source], *rest) for source, *rest in rows})
    return out


def rank_loaders(service, mesh, **options):
    return [DataServiceLoader(service.address, mesh=mesh, rank=r, **options) for r in range(mesh.world_size)]


def close_all(loaders):
    for loader in loaders:
        loader.close()


@pytest.mark.parametrize(("dp", "per_microbatch"), [(1, 1), (2, 1), (2, 2), (4, 1)])
def test_ranks_together_read_every_piece_once_and_end_together(dp, per_microbatch):
    script = Script(num_steps=4, per_microbatch=per_microbatch)
    with JobThread(script) as service:
        loaders = rank_loaders(service, Mesh(dp=dp))
        steps: dict[int, list] = {}
        counts = []
        for loader in loaders:
            batches = list(loader)
            counts.append([(b.step, b.microbatch, b.num_microbatches) for b in batches])
            for batch in batches:
                steps.setdefault(batch.step, []).extend(spans(batch))
            with pytest.raises(StopIteration):
                next(loader)
        assert [set(pieces) for _, pieces in sorted(steps.items())] == planned(script)
        assert sum(map(len, steps.values())) == sum(map(len, planned(script)))
        microbatches = 8 // dp // per_microbatch
        assert all(c == [(s, m, microbatches) for s in range(4) for m in range(microbatches)] for c in counts)
        close_all(loaders)


def test_the_join_and_the_stats_are_there(service):
    with DataServiceLoader(service.address) as loader:
        assert loader.mesh == Mesh()
        assert loader.coords == Coords()
        assert loader.info.sequence_length == 96
        batches = list(islice(loader, 9))
        assert [batch.step for batch in batches] == [0] * 8 + [1]
        stats = loader.stats
        assert stats.steps == 2
        assert stats.wait_s > 0
        received = sum(array.nbytes for batch in batches[:8] for array in batch.numpy.values())
        assert stats.num_bytes > received
        with pytest.raises(TypeError, match="islice"):
            len(loader)


def test_a_broken_loop_goes_on_where_it_stopped(service):
    with DataServiceLoader(service.address) as loader:
        seen = []
        for batch in loader:
            seen.append((batch.step, batch.microbatch))
            if len(seen) == 11:
                break
        seen += [(batch.step, batch.microbatch) for batch in loader]
        assert seen == [(step, microbatch) for step in range(6) for microbatch in range(8)]


def test_read_gives_any_step_and_leaves_the_iteration_alone(service):
    with DataServiceLoader(service.address) as loader:
        first = next(loader)
        for step in (4, 0, 4):
            batches = loader.read(step)
            assert [batch.step for batch in batches] == [step] * 8
        again = loader.read(0)[0]
        assert all(np.array_equal(again.numpy[name], first.numpy[name]) for name in first.numpy)
        assert loader.read(6) == []
        assert next(loader).microbatch == 1


# ---- state


@pytest.mark.parametrize("taken", [0, 1, 7, 8, 9, 24, 47, 48])
def test_resuming_anywhere_gives_exactly_the_rest(service, taken):
    with DataServiceLoader(service.address) as loader:
        batches = [spans(batch) for batch in islice(loader, taken)]
        state = json.loads(json.dumps(loader.state_dict()))
        batches += [spans(batch) for batch in loader]
    with DataServiceLoader(service.address, state=state) as resumed:
        assert resumed.state_dict() == state
        assert [spans(batch) for batch in resumed] == batches[taken:]


def test_steps_of_samples_have_as_many_microbatches_on_every_rank_and_are_resumed_anywhere():
    """5 dp ranks, two sequences in a microbatch, steps of 1 to 11: one microbatch or two, on all alike."""
    script = Script(num_steps=5, num_sequences=12, per_microbatch=2, uneven=True)
    with JobThread(script) as service:
        ranks = [list(loader) for loader in rank_loaders(service, Mesh(dp=5))]
        shape = [(b.step, b.microbatch, b.num_microbatches) for b in ranks[0]]
        assert {count for _, _, count in shape} == {1, 2}
        assert all([(b.step, b.microbatch, b.num_microbatches) for b in rank] == shape for rank in ranks)
        for step, pieces in enumerate(planned(script)):
            got = [piece for rank in ranks for b in rank if b.step == step for piece in spans(b)]
            assert len(got) == len(set(got))
            assert set(got) == pieces
        for batch in (b for rank in ranks for b in rank):
            assert batch.num_tokens or batch.numpy["loss_weight"].tolist() == [0.0, 0.0]
        for taken in range(len(shape) + 1):
            with DataServiceLoader(service.address, mesh=Mesh(dp=5), rank=1) as loader:
                for _ in range(taken):
                    next(loader)
                state = loader.state_dict()
            with DataServiceLoader(service.address, mesh=Mesh(dp=5), rank=1, state=state) as resumed:
                assert resumed.state_dict() == state
                assert [spans(b) for b in resumed] == [spans(b) for b in ranks[1]][taken:]


def test_a_place_inside_a_step_that_divides_otherwise_is_refused_when_the_step_comes():
    script = Script(num_steps=3, num_sequences=12, per_microbatch=1, uneven=True)
    with JobThread(script) as service:
        with DataServiceLoader(service.address, mesh=Mesh(dp=2), rank=0) as loader:
            batch = next(loader)
            while batch.num_microbatches == 1 or batch.is_last_microbatch:
                batch = next(loader)
            state = loader.state_dict()
        state["num_microbatches"] += 1  # of a run with other sequences a microbatch
        with DataServiceLoader(service.address, mesh=Mesh(dp=2), rank=0, state=state) as loader:
            for _ in range(2):
                with pytest.raises(StateMismatchError, match=r"has \d+ microbatches a step"):
                    next(loader)


def test_load_state_dict_goes_back_and_forth(service):
    with DataServiceLoader(service.address) as loader:
        states, seen = [loader.state_dict()], []
        for batch in islice(loader, 20):
            seen.append(spans(batch))
            states.append(loader.state_dict())
        for place in (3, 16, 0, 11):
            loader.load_state_dict(states[place])
            assert [spans(batch) for batch in islice(loader, 4)] == seen[place : place + 4]


def test_the_state_is_the_same_on_all_ranks_and_small(service):
    loaders = rank_loaders(service, Mesh(dp=2, cp=2))
    for _ in range(7):
        for loader in loaders:
            next(loader)
        states = [json.dumps(loader.state_dict()) for loader in loaders]
        assert len(set(states)) == 1
        assert len(states[0]) < 1000
    close_all(loaders)


def test_a_boundary_state_fits_another_mesh_and_one_inside_a_step_does_not(service):
    loaders = rank_loaders(service, Mesh(dp=2))
    for loader in loaders:
        for _ in range(8):
            next(loader)
    boundary = loaders[0].state_dict()
    assert "dp" not in boundary
    next(loaders[0])
    inside = loaders[0].state_dict()
    close_all(loaders)
    with pytest.raises(StateMismatchError, match=r"middle of step 2 \(after microbatch 1 of 4.*boundary"):
        DataServiceLoader(service.address, dp_rank=0, dp_size=4, state=inside)
    wider = rank_loaders(service, Mesh(dp=4), state=boundary)
    got = {piece for loader in wider for batch in islice(loader, 2) for piece in spans(batch)}
    assert got == planned(service.job.script)[2]
    close_all(wider)


@pytest.mark.parametrize(
    "state", [{}, {"version": 1}, {"version": 2, "service": {}, "step": 0, "microbatch": 0}]
)
def test_what_is_no_state_is_refused(service, state):
    with pytest.raises(StateMismatchError, match="no state_dict of a DataServiceLoader of version 1"):
        DataServiceLoader(service.address, state=state)


# ---- the service goes away


def restart(service, name):
    service.do(service.job.stop(name))
    role, _, index = name.partition("/")
    start = getattr(service.job, f"start_{role}")
    service.do(start() if role == "planner" else start(int(index)))


def test_restarts_of_every_role_are_invisible(service):
    with DataServiceLoader(service.address, prefetch=1) as loader:
        seen = []
        for batch in loader:
            seen.append((batch.step, spans(batch)))
            if batch.is_last_microbatch:
                name = ("constructor/0", "planner/0", "loader/0", "constructor/0", "loader/1", None)[
                    batch.step
                ]
                if name is not None:
                    service.do(service.job.stop(name))
                    role, _, index = name.partition("/")
                    start = getattr(service.job, f"start_{role}")
                    service.do(start() if role == "planner" else start(int(index)))
        pieces = [{piece for step, part in seen for piece in part if step == s} for s in range(6)]
        assert pieces == planned(service.job.script)
        assert len(seen) == 48


def test_nobody_there_is_said_with_the_address_and_what_to_check():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(ServiceUnavailableError, match=rf"127.0.0.1:{port}.*dataloader-svc serve"):
        DataServiceLoader(f"127.0.0.1:{port}", **SHORT)


def test_gone_for_too_long_is_an_error_and_trying_again_works(service):
    with DataServiceLoader(service.address, prefetch=1, **SHORT) as loader:
        first = next(loader)
        for _ in range(7):
            next(loader)
        service.do(service.job.stop("constructor/0"))
        state = loader.state_dict()
        with pytest.raises(ServiceUnavailableError, match="step [12] does not come from"):
            for _ in range(16):
                next(loader)
        assert loader.state_dict()["step"] >= state["step"]
        service.do(service.job.start_constructor())
        loader._running.transport.timeout_s = 30
        rest = [batch.step for batch in loader]
        assert first.step == 0
        assert rest[-1] == 5


def test_a_server_that_is_not_ours_is_recognised():
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with pytest.raises(WireError, match="no dataloader-svc"):
            DataServiceLoader(f"127.0.0.1:{port}", **SHORT)
    finally:
        server.stop(None).wait()


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (errors.MeshError("dp 3 does not divide 8 sequences"), MeshMismatchError),
        (errors.StateError("seed changed from 1 to 2"), StateMismatchError),
        (errors.VersionError("upgrade the client"), VersionMismatchError),
        (errors.SourceError("web: no such file"), DataStoppedError),
        (errors.StoreError("disk full"), DataStoppedError),
        (errors.SessionSuperseded("join again"), SessionSupersededError),
        (errors.NotLeader("another planner leads"), ServiceUnavailableError),
        (errors.Overloaded("no memory"), ServiceUnavailableError),
        (RuntimeError("a bug"), DataStoppedError),  # a mistake of the planner would come again
    ],
)
def test_what_the_service_says_keeps_its_meaning_and_text(service, raised, expected):
    service.job.planner.join_error = raised
    with pytest.raises(expected, match=str(raised)):
        DataServiceLoader(service.address, **SHORT)


def test_the_data_stops_after_the_last_good_step(service):
    service.job.planner.error, service.job.planner.error_step = errors.DataError("web: 30 % bad"), 2
    with DataServiceLoader(service.address) as loader:
        steps = []
        with pytest.raises(DataStoppedError, match="web: 30 % bad"):
            for batch in loader:
                steps.append(batch.step)
        assert steps == [0] * 8 + [1] * 8
        service.job.planner.error = None  # somebody mended it
        assert [batch.step for batch in loader][-1] == 5


def test_other_ranks_with_another_mesh_end_this_session(service):
    with DataServiceLoader(service.address, prefetch=1) as loader:
        next(loader)
        with DataServiceLoader(service.address, mesh=Mesh(dp=2), rank=0) as other:
            next(other)
            with pytest.raises(SessionSupersededError, match="join again"):
                list(loader)


def test_the_services_default_mesh_needs_a_rank(service):
    service.job.planner.default_mesh.dp = 2
    with pytest.raises(MeshMismatchError, match=r"configured for mesh pp=1,dp=2.*which of its 2 ranks"):
        DataServiceLoader(service.address)


def test_a_rank_follows_its_constructor():
    with JobThread(Script(num_steps=6), constructor={"count": 2}) as service:
        loaders = rank_loaders(service, Mesh(dp=2), prefetch=1)
        got = {}
        for step in range(6):
            for loader in loaders:
                for batch in islice(loader, 4):
                    got.setdefault(step, set()).update(spans(batch))
            if step == 2:
                service.do(service.job.stop("constructor/1"))
                service.do(service.job.start_constructor(1))  # on another port
        assert [got[step] for step in range(6)] == planned(service.job.script)
        close_all(loaders)


# ---- the end of a loader


def test_close_ends_the_thread_and_may_be_repeated(service):
    loader = DataServiceLoader(service.address)
    next(loader)
    thread = loader._running.prefetch._thread
    state = loader.state_dict()
    session = service.job.constructors[0]._session
    freed, apply = threading.Event(), session.apply

    def watched(event):
        apply(event)
        if session.window.held_bytes == 0:
            freed.set()

    session.apply = watched
    loader.close()
    loader.close()
    assert not thread.is_alive()
    with pytest.raises(DataServiceError, match="closed"):
        next(loader)
    assert loader.state_dict() == state
    assert freed.wait(30)  # the constructor knows that this rank has left


def test_a_dropped_loader_ends_its_thread(service):
    loader = DataServiceLoader(service.address)
    next(loader)
    thread, gone = loader._running.prefetch._thread, weakref.ref(loader)
    del loader
    gc.collect()
    assert gone() is None
    thread.join(30)
    assert not thread.is_alive()


def test_a_refused_loader_leaves_no_thread(service):
    service.job.planner.join_error = errors.MeshError("no")
    with pytest.raises(MeshMismatchError):
        DataServiceLoader(service.address)
    assert "dataloader-prefetch" not in {thread.name for thread in threading.enumerate()}


def test_ctrl_c_reaches_a_trainer_that_waits(service):
    service.job.planner.error, service.job.planner.error_step = errors.PeerError("slow"), 1
    with DataServiceLoader(service.address) as loader:
        for _ in range(8):
            next(loader)
        # Another thread sends the signal as soon as this one lets go of the lock, in its wait.
        change, main = loader._running.prefetch._change, threading.main_thread()

        def interrupt():
            with change:
                signal.pthread_kill(main.ident, signal.SIGINT)

        wait_for = change.wait_for

        def watched(predicate, timeout=None):
            if threading.current_thread() is main:
                threading.Thread(target=interrupt).start()
            return wait_for(predicate, timeout)

        change.wait_for = watched
        with pytest.raises(KeyboardInterrupt):
            next(loader)


def test_a_fork_is_told(service):
    with DataServiceLoader(service.address) as loader:
        loader._pid += 1
        with pytest.raises(DataServiceError, match="does not survive a fork"):
            next(loader)
        loader._pid -= 1
        next(loader)


@pytest.mark.parametrize("prefetch", [0, -1])
def test_prefetch_is_at_least_one_step(prefetch):
    with pytest.raises(ValueError, match="at least 1"):
        DataServiceLoader("127.0.0.1:1", prefetch=prefetch)
