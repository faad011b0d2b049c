"""The constructor over real sockets: what ranks get, and what they get when others die or refuse."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import re
from contextlib import asynccontextmanager

import pytest

from dataloader_client import methods
from dataloader_client._pb import common_pb2, constructor_service_pb2, plan_pb2
from dataloader_client.batch import check_fields, split
from dataloader_svc.constructor import encoding
from dataloader_svc.constructor import service as service_module
from dataloader_svc.constructor import session as session_module
from dataloader_svc.constructor.core import Asked, GaveUp, Rank, Window
from dataloader_svc.constructor.session import Session
from dataloader_svc.errors import (
    ConfigError,
    DataError,
    MeshError,
    Overloaded,
    PeerError,
    RoleFailed,
    SessionSuperseded,
    SourceError,
    StateError,
    VersionError,
)
from dataloader_svc.rpc.stubs import Peer
from dataloader_svc.store import quarantine
from dataloader_svc.testing.scripted_job import ScriptedJob
from dataloader_svc.testing.scripted_roles import Script
from tests.unit.constructor.naive_batch import naive_microbatch


class Reader:
    """Ranks that read over one channel."""

    def __init__(self, peer):
        self.peer = peer
        self.session = 0

    async def join(self, *, dp=1, cp=1, tp=1, pp=1, state="", protocol=methods.PROTOCOL, dp_rank=0):
        request = plan_pb2.JoinRequest(
            protocol=protocol,
            mesh=common_pb2.Mesh(dp=dp, cp=cp, tp=tp, pp=pp),
            coords=common_pb2.Coords(dp=dp_rank),
            state_json=state,
        )
        response = await self.peer.call(methods.JOIN, request, timeout_s=20)
        self.session = response.session
        return response

    async def read(self, step, *, session=None, **place):
        request = constructor_service_pb2.ReadRequest(
            session=self.session if session is None else session,
            step=step,
            coords=common_pb2.Coords(**place),
        )
        return await self.peer.fetch(methods.READ, request, timeout_s=20)

    async def status(self):
        return await self.peer.call(methods.CONSTRUCTOR_STATUS, common_pb2.Empty(), timeout_s=20)


def run(test):
    """Run a coroutine function as a test, with a limit that only a hang reaches."""

    @functools.wraps(test)
    def wrapped(**fixtures):
        async def limited():
            async with asyncio.timeout(60):
                await test(**fixtures)

        asyncio.run(limited())

    return wrapped


def heard(session, event):
    """A future that is done when the session's core has been told `event`."""
    future = asyncio.get_running_loop().create_future()
    apply = session.apply

    def watched(told):
        apply(told)
        if told == event and not future.done():
            future.set_result(None)

    session.apply = watched
    return future


@asynccontextmanager
async def serving(script=None, **options):
    async with ScriptedJob(script, **options) as job, Peer(job.address, "constructor") as peer:
        yield job, Reader(peer)


@run
async def test_every_rank_of_every_step_gets_its_part():
    async with serving(strategy={"context_parallel": "per_sequence"}) as (job, reader):
        joined = await reader.join(dp=2, cp=2)
        assert (joined.num_microbatches, joined.address, joined.start_step) == (4, "", 0)
        records = job.script.records()
        for step, record in enumerate(records):
            placed = job.script.place(record, 2, 1, ["a"])
            weights = 0.0
            for dp in range(2):
                expected = [naive_microbatch(job.script, placed, dp, m, 4) for m in range(4)]
                ids = [sorted(token.id for row in rows for token in row) for rows in expected]
                found: list[list[int]] = [[], [], [], []]
                for cp in range(2):
                    frame = await reader.read(step, dp=dp, cp=cp)
                    batches = split(frame)
                    assert [(b.step, b.microbatch, b.num_microbatches) for b in batches] == [
                        (step, number, 4) for number in range(4)
                    ]
                    for number, batch in enumerate(batches):
                        check_fields(batch.numpy, "packed")
                        found[number] += batch.numpy["input_ids"].tolist()
                        weights += float(batch.numpy["loss_weight"].sum())
                    assert frame.meta["state"]["step"] == step + 1
                    assert frame.meta["digest"] == record.digest.hex()
                    assert not frame.meta["end"]
                assert [sorted(part) for part in found] == ids
            assert weights == batches[0].loss_weight_sum
        assert (await reader.read(len(records))).meta["end"]
        assert split(await reader.read(len(records) + 3)) == []


@run
async def test_metadata_says_where_the_time_went_and_what_is_in_the_step():
    async with serving() as (_, reader):
        await reader.join()
        meta = (await reader.read(0)).meta
        assert meta["presence"] == {"image": True, "video": True, "audio": False}
        assert meta["trace"]["plan"] == 0.25
        assert meta["trace"]["probe_wait"] == 0.125
        assert meta["trace"]["read"] == 0.5
        assert meta["trace"]["decode"] == 0.25
        assert {"fetch", "build"} <= meta["trace"].keys()
        assert 0 < meta["metrics"]["packing_efficiency"] <= 1
        assert meta["sources"] == ["web", "captions"]
        status = await reader.status()
        assert status.session == 1
        assert status.trace["plan"] == 0.25
        assert 0 < status.held_bytes <= status.limit_bytes


@run
async def test_undecodable_samples_are_quarantined():
    async with serving(Script(bad_every=2)) as (job, reader):
        await reader.join()
        await reader.read(0)
        record = job.script.records()[0]
        bad = [p for s, p in zip(record.source, record.position, strict=True) if s == 1 and p % 2 == 0]
        found = [row for row in quarantine(job.store) if row.sample.position <= max(bad)]
        assert [(row.sample.source, row.sample.position) for row in found] == [("captions", p) for p in bad]
        assert found[0].row == ("captions.tar", bad[0])
        assert found[0].reason == "decode_failed"


@run
async def test_what_could_not_be_decoded_is_not_tried_again_in_a_step_that_is_built_again():
    script = Script(num_steps=10, bad_every=2)
    async with serving(script, num_loaders=1, constructor={"memory": 60_000}) as (job, reader):
        await reader.join(dp=2)
        for step in range(10):
            await reader.read(step, dp=0)
        for step in range(10):  # of those that were dropped for others, the plans are still there
            await reader.read(step, dp=1)
        (loader,) = job.loaders
        bad = {
            step: [row.sample.position for row in quarantine(job.store) if row.step == step]
            for step in range(10)
        }
        first, again = {}, {}
        for step, masked in zip(loader.requests, loader.masked, strict=True):
            (again if step in first else first)[step] = sorted(masked)
        assert set(map(tuple, first.values())) == {()}
        assert again
        assert again == {step: bad[step] for step in again}


@run
async def test_reads_may_be_repeated_in_any_order():
    async with serving() as (_, reader):
        await reader.join()
        first = {step: await reader.read(step) for step in (0, 1, 2, 3, 4, 5)}
        for step in (3, 0, 5, 0, 2):
            again = await reader.read(step)
            assert again.arrays.keys() == first[step].arrays.keys()
            assert all((again.arrays[n] == first[step].arrays[n]).all() for n in again.arrays)
            assert again.meta["digest"] == first[step].meta["digest"]


@run
async def test_steps_are_fetched_once_for_all_ranks_and_ahead_of_need():
    async with serving(Script(num_steps=8), num_loaders=1) as (job, reader):
        await reader.join(dp=2, tp=2)
        await asyncio.gather(*(reader.read(0, dp=dp, tp=tp) for dp in range(2) for tp in range(2)))
        await asyncio.gather(*(reader.read(1, dp=dp, tp=tp) for dp in range(2) for tp in range(2)))
        requests = job.loaders[0].requests
        assert sorted(requests) == sorted(set(requests))
        # The steps ahead come without being asked for.
        await job.loaders[0].until_asked(2)
        await job.loaders[0].until_asked(3)
        assert job.planner.streams == [0]


@run
async def test_pipeline_stages_get_their_fields():
    async with serving() as (_, reader):
        await reader.join(pp=3)
        first, middle, last = [split(await reader.read(0, pp=pp))[0].numpy for pp in range(3)]
        assert {"input_ids", "pixel_values"} <= first.keys()
        assert {"labels", "loss_weight"} <= last.keys()
        assert middle.keys() == {"position_ids", "cu_seqlens"}
        assert first.keys() & last.keys() == middle.keys()


@run
async def test_a_dead_loader_is_replaced_by_another():
    async with serving() as (job, reader):
        await reader.join()
        await job.stop("loader/0")
        frame = await reader.read(0)
        assert frame.meta["microbatches"] == 8
        assert set(job.loaders[1].requests) >= {0}


@run
async def test_a_loader_without_memory_is_replaced_or_asked_again():
    async with serving(num_loaders=1) as (job, reader):
        job.loaders[0].errors[0] = [Overloaded("no memory"), Overloaded("no memory")]
        await reader.join()
        assert (await reader.read(0)).meta["microbatches"] == 8


@run
async def test_what_a_loader_says_of_the_data_reaches_the_reader():
    async with serving(num_loaders=1) as (job, reader):
        job.loaders[0].errors[0] = [SourceError("web: shard a.jsonl is gone")]
        await reader.join()
        with pytest.raises(SourceError, match=r"web: shard a.jsonl is gone(.|\n)*built step 0"):
            await reader.read(0)
        assert (await reader.read(0)).meta["microbatches"] == 8  # asked for again: tried again


@run
async def test_a_loader_that_makes_a_mistake_is_replaced_or_asked_again_but_not_for_ever():
    async with serving(num_loaders=1) as (job, reader):
        job.loaders[0].errors[0] = [ZeroDivisionError("x") for _ in range(2)]
        job.loaders[0].errors[1] = [ZeroDivisionError("x") for _ in range(100)]  # it is built ahead too
        await reader.join()
        assert (await reader.read(0)).meta["microbatches"] == 8
        with pytest.raises(RoleFailed, match=r"failed in Fetch: ZeroDivisionError: x\. (.|\n)*built step 1"):
            await reader.read(1)


@run
async def test_a_restarted_planner_is_found_at_its_new_address():
    async with serving(Script(num_steps=12)) as (job, reader):
        await reader.join()
        await reader.read(0)
        await job.stop("planner/0")
        await job.start_planner()
        for step in range(1, 12):
            assert (await reader.read(step)).meta["step"] == step
        assert (await reader.read(12)).meta["end"]
        assert job.planner.streams[1] > 0  # not from the beginning


@run
async def test_a_restarted_constructor_goes_on_with_the_session():
    async with serving(Script(num_steps=12)) as (job, reader):
        await reader.join(dp=2)
        await reader.read(3, dp=1)
        await job.stop("constructor/0")
        await job.start_constructor()
        async with Peer(job.address, "constructor") as peer:
            again = Reader(peer)
            again.session = reader.session
            assert (await again.read(4, dp=0)).meta["step"] == 4


@run
async def test_the_planners_refusal_reaches_readers_and_built_steps_are_still_served():
    async with serving(Script(num_steps=12)) as (job, reader):
        job.planner.error, job.planner.error_step = DataError("too many bad samples in web"), 2
        await reader.join()
        await reader.read(0)
        await reader.read(1)
        for _ in range(2):
            with pytest.raises(DataError, match="too many bad samples in web"):
                await reader.read(2)
        assert (await reader.read(1)).meta["step"] == 1


@run
async def test_a_new_session_ends_the_old_one():
    async with serving() as (job, reader):
        await reader.join(dp=1)
        await reader.read(0)
        job.planner.error, job.planner.error_step = PeerError("slow"), 3
        asked = heard(job.constructors[0]._session, Asked(4, Rank(0, 0, 0, 0)))
        waiting = asyncio.create_task(reader.read(4))
        await asked
        other = Reader(reader.peer)
        await other.join(dp=2)
        await other.read(0, dp=1)
        with pytest.raises(SessionSuperseded, match="session 1 is over.*session 2"):
            await waiting
        with pytest.raises(SessionSuperseded, match="join again"):
            await reader.read(0)


@run
async def test_unknown_places_and_protocols_are_refused():
    async with serving() as (_, reader):
        with pytest.raises(VersionError, match="upgrade the client"):
            await reader.join(protocol=0)
        with pytest.raises(VersionError, match="upgrade the service"):
            await reader.join(protocol=99)
        with pytest.raises(MeshError, match="does not divide"):
            await reader.join(dp=3)
        await reader.join(dp=2)
        with pytest.raises(MeshError, match=r"cp rank 1 is not in 0 to 0"):
            await reader.read(0, cp=1)
        with pytest.raises(SessionSuperseded):
            await reader.read(0, session=9)


@run
async def test_without_a_planner_joining_is_retryable():
    async with serving() as (job, reader):
        job.store.delete("endpoint/planner/0")
        with pytest.raises(PeerError, match="no planner"):
            await reader.join()


@run
async def test_a_step_above_the_memory_is_refused_with_the_field_to_change():
    async with serving(constructor={"memory": 1000}) as (_, reader):
        await reader.join()
        with pytest.raises(ConfigError, match=r"step 0 may take .* above constructor.memory"):
            await reader.read(0)


@run
async def test_memory_holds_however_far_ranks_are_apart():
    async with serving(Script(num_steps=10), constructor={"memory": 60_000}) as (job, reader):
        await reader.join(dp=2)
        window = None
        for step in range(10):
            await reader.read(step, dp=0)
            window = job.constructors[0]._session.window
            window.validate()
        for step in range(10):
            await reader.read(step, dp=1)
            window.validate()


@pytest.mark.parametrize("leaves", [False, True])
def test_an_encoded_copy_counts_while_it_is_sent(monkeypatch, leaves):
    monkeypatch.setattr(encoding, "LEAST_BYTES", 1)  # the scripted steps are small

    async def test():
        # One step, so that none is built ahead while this looks at what is held.
        async with serving(Script(num_steps=1), wire={"compression": "zstd"}) as (job, reader):
            await reader.join()
            await reader.read(0)
            service = job.constructors[0]
            window = service._session.window
            before = window.held_bytes
            request = constructor_service_pb2.ReadRequest(
                session=reader.session, codecs=["zstd"], coords=common_pb2.Coords()
            )
            frames = service.read(request)
            frame = await anext(frames)
            assert 0 < frame.packed_bytes < frame.num_bytes
            assert window.held_bytes == before + frame.packed_bytes
            if leaves:
                await frames.aclose()
            else:
                assert [more async for more in frames] == []
            assert window.held_bytes == before
            # No room for the whole, which is what a codec may make of it: plain, and on its way all the same.
            window.limit_bytes = window.held_bytes + frame.num_bytes - 1
            frames = service.read(request)
            assert (await anext(frames)).packed_bytes == 0
            await frames.aclose()

    run(test)()


@run
async def test_a_reader_that_goes_away_holds_nothing():
    async with serving() as (job, reader):
        job.planner.error, job.planner.error_step = PeerError("slow"), 1
        await reader.join()
        await reader.read(0)
        session, rank = job.constructors[0]._session, Rank(0, 0, 0, 0)
        asked, gave_up = heard(session, Asked(5, rank)), heard(session, GaveUp(5, rank))
        waiting = asyncio.create_task(reader.read(5))
        await asked
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await gave_up
        await reader.peer.call(
            methods.LEAVE,
            constructor_service_pb2.LeaveRequest(session=1, coords=common_pb2.Coords()),
            timeout_s=20,
        )
        assert session.window.held_bytes == 0


@run
async def test_a_mistake_of_ours_reaches_all_readers_in_words_and_the_next_read_starts_afresh(monkeypatch):
    async with serving(Script(num_steps=3)) as (job, reader):
        await reader.join(dp=2)
        monkeypatch.setattr(session_module, "build_step", lambda *_: {}["input_ids"])
        said = (
            r"^constructor-0 failed to build step \d: KeyError: 'input_ids'\. This is a mistake of the "
            r"service.*its log has the traceback.*start the trainers again from their last state_dict"
        )
        waiting = [asyncio.create_task(reader.read(0, dp=rank)) for rank in range(2)]
        for error in await asyncio.gather(*waiting, return_exceptions=True):
            assert type(error) is RoleFailed
            assert re.search(said, str(error))
        failed = job.constructors[0]._session
        assert failed.failure is not None
        monkeypatch.undo()
        for step in range(3):
            assert not (await reader.read(step, dp=1)).meta["end"]
        assert job.constructors[0]._session is not failed
        assert not failed._tasks  # it follows no plans and builds nothing any more


@run
async def test_a_mistake_in_what_a_read_causes_ends_the_session_as_well(monkeypatch):
    async with serving() as (job, reader):
        await reader.join()
        await reader.read(0)
        failed = job.constructors[0]._session

        def broken(window, event, apply=Window.apply):
            match event:
                case Asked():
                    raise AssertionError("bytes held")
            return apply(window, event)

        monkeypatch.setattr(Window, "apply", broken)
        with pytest.raises(RoleFailed, match=r"failed in Read: AssertionError: bytes held\. "):
            await reader.read(4)
        assert "failed after Asked(step=4" in str(failed.failure)
        monkeypatch.undo()
        assert not (await reader.read(4)).meta["end"]


@run
async def test_two_constructors_share_the_ranks_and_agree_on_the_step():
    async with serving(constructor={"count": 2}) as (job, reader):
        assert (await reader.join(dp=2, dp_rank=0)).address == ""
        address = (await reader.join(dp=2, dp_rank=1)).address
        assert address not in ("", job.address)
        with pytest.raises(PeerError, match="does not serve dp rank 1"):
            await reader.read(0, dp=1)
        async with Peer(address, "constructor 1") as peer:
            other = Reader(peer)
            other.session = reader.session
            mine, theirs = await reader.read(0, dp=0), await other.read(0, dp=1)
            for key in ("loss_weight_sum", "presence", "digest", "microbatches", "state"):
                assert mine.meta[key] == theirs.meta[key]
        await job.stop("constructor/1")
        job.store.delete("endpoint/constructor/1")
        with pytest.raises(PeerError, match="constructor-1, which serves dp rank 1, is not up"):
            await reader.join(dp=2, dp_rank=1)


@run
async def test_steps_that_the_job_skips_are_neither_fetched_nor_waited_for():
    async with serving(Script(num_steps=10)) as (job, reader):
        await reader.join(state=json.dumps({"version": 1, "step": 0, "skips": [[2, 5, "spike"]]}))
        for step in (0, 1):
            await reader.read(step)
        await asyncio.gather(*(loader.until_asked(6) for loader in job.loaders))  # ahead of it, nobody asks
        for step in (5, 6, 7):
            await reader.read(step)
        fetched = {step for loader in job.loaders for step in loader.requests}
        assert not fetched & {2, 3, 4}
        frame = await reader.read(3)  # whoever wants to see it all the same
        assert split(frame)[0].step == 3


@run
async def test_nothing_is_kept_for_ranks_that_are_silent_and_who_comes_back_reads_on(caplog, monkeypatch):
    caplog.set_level(logging.INFO, "dataloader_svc.constructor")
    gone, let_go = asyncio.Event(), Session._let_go

    def watched(session, silent):
        let_go(session, silent)
        if session.readers.are_gone:
            gone.set()

    monkeypatch.setattr(Session, "_let_go", watched)
    async with serving(Script(num_steps=2), constructor={"idle_timeout": 0.2}) as (job, reader):
        await reader.join(dp=2)
        frame = await reader.read(1, dp=1)  # the last step: nothing is built ahead of it
        expected = frame.meta["digest"]
        del frame
        await gone.wait()
        status = await reader.status()
        assert (status.held_bytes, status.silent_ranks) == (0, 2)
        constructor = job.constructors[0]
        assert constructor._segments.resident_bytes == 0
        assert constructor._session._following is None
        by_level = [(record.levelname, record.getMessage()) for record in caplog.records]
        (warned,) = (text for level, text in by_level if level == "WARNING")
        assert "dp=1 asked for step 1 last" in warned
        assert any("dp=0 has never read" in text for _, text in by_level)
        assert (await reader.read(1, dp=1)).meta["digest"] == expected
        assert (await reader.read(2, dp=1)).meta["end"]


@run
async def test_where_the_job_is_stays_known_when_nobody_reads(monkeypatch):
    monkeypatch.setattr(service_module, "MOST_AHEAD", 3)
    async with serving(Script(num_steps=10)) as (_, reader):
        await reader.join()
        for step in (2, 4):
            await reader.read(step)
        leave = constructor_service_pb2.LeaveRequest(session=1, coords=common_pb2.Coords())
        await reader.peer.call(methods.LEAVE, leave, timeout_s=20)
        with pytest.raises(StateError, match="step 8 is far beyond step 4, where the job is"):
            await reader.read(8)
        assert (await reader.read(7)).meta["step"] == 7
