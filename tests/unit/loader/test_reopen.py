"""A loader that is told of a repair: what it held of the block is gone, and the source is indexed again."""

from __future__ import annotations

from pathlib import Path

from dataloader_client import methods
from dataloader_svc.config.schema import Config
from dataloader_svc.loader.service import LoaderService
from dataloader_svc.rpc.stubs import Peer

from .conftest import write_jsonl
from .test_service import pb, probe, run


async def reopen(peer: Peer, source: str, block: int) -> None:
    request = pb.BlockRequest(source=source, block=block, reopen=True)
    await peer.call(methods.RELEASE, request, timeout_s=30)


def test_a_file_beside_the_rows(config: Config, folder: Path) -> None:
    """`pictures/none.png` is put in its place: rows and index are as before."""

    async def scenario(_: LoaderService, peer: Peer) -> None:
        before = await probe(peer, "captions", 0)
        gone = [row for row in before.bad if row.reason == "missing_file"]
        assert len(gone) == 1
        (folder / "pictures" / "none.png").write_bytes((folder / "pictures" / "0.png").read_bytes())
        assert (await probe(peer, "captions", 0)).bad == before.bad  # held
        await reopen(peer, "captions", 0)
        after = await probe(peer, "captions", 0)
        assert set(before.bad) - set(after.bad) == set(gone)
        assert after.tokens[gone[0].position - after.start] > 0

    run(config, folder, scenario)


def test_a_shard_of_another_size(config: Config, folder: Path) -> None:
    async def scenario(_: LoaderService, peer: Peer) -> None:
        before = await probe(peer, "web", 0)
        rows = (folder / "web.jsonl").read_text().splitlines()
        write_jsonl(folder / "web.jsonl", [{"text": f"mended {number}"} for number in range(len(rows))])
        await reopen(peer, "web", 0)
        after = await probe(peer, "web", 0)
        assert not after.bad
        assert after.tokens.tolist() != before.tokens.tolist()

    run(config, folder, scenario)


def test_what_is_not_held_is_no_error(config: Config, folder: Path) -> None:
    async def scenario(_: LoaderService, peer: Peer) -> None:
        await reopen(peer, "web", 0)
        await reopen(peer, "web", 7)
        assert len(await probe(peer, "web", 0)) > 0

    run(config, folder, scenario)
