"""A newer service takes a running job over from the one that serves it, between two steps.

Who takes over asks in the store, and who serves looks there twice a second. It answers why not, or it stops
its processes, gives its right to serve back, and waits until its successor serves: if that one dies before,
it goes on itself. A step is in the log or it is not, so any moment is between two steps; sessions are in the
store too, so trainers see an outage of seconds at the address that they know (decision 0010).

    successor     ask ─────────────────────────> take the right ──> start ──> done
    predecessor        compare ──> stop ──> give it up ──> wait ─────────────> end
                          └─ refuse                          └─ successor is gone ──> take it back, start
"""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Self

import dataloader_svc
from dataloader_client import methods
from dataloader_svc import faultpoint
from dataloader_svc.config.digest import compare, config_hash, read_digest
from dataloader_svc.engine.serving import TTL_S, Holder, Serving
from dataloader_svc.engine.spec import JobSpec
from dataloader_svc.errors import StateError, StoreError, StoreUnreachable
from dataloader_svc.store.base import Store

log = logging.getLogger(__name__)

REQUEST_KEY, ANSWER_KEY = "serving/takeover", "serving/takeover-answer"

LOOK_S = 0.5
PATIENCE_S = 60.0
"""For an answer, or the right to serve. A predecessor stops its processes in some seconds."""


@dataclass(frozen=True, slots=True)
class Offer:
    """Who would serve the job, and what it would make of it. `number` is of this try alone."""

    number: str
    holder: Holder
    version: str
    protocol: int
    config_hash: str
    digest: Mapping[str, str]

    @classmethod
    def of(cls, spec: JobSpec) -> Self:
        """Of this process and this job."""
        return cls(
            uuid.uuid4().hex,
            Holder.this_process(spec.address),
            dataloader_svc.__version__,
            methods.PROTOCOL,
            config_hash(spec.config, spec.base_dir),
            read_digest(spec.config, spec.base_dir),
        )

    def to_json(self) -> bytes:
        """For the store."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, text: bytes | None) -> Self | None:
        """None for what is no offer of this version."""
        try:
            values = None if text is None else json.loads(text)
            return None if values is None else cls(**{**values, "holder": Holder(**values["holder"])})
        except (ValueError, TypeError, KeyError):
            return None

    def refuses(self, successor: Offer) -> str | None:
        """Why the job can't go on under `successor` with the trainers that it has; None: it can."""
        if successor.holder.machine != self.holder.machine:
            return (
                "it runs on another machine, where trainers would not find it: stop the service "
                f"({self.holder}), start the other, and resume the trainers at its address"
            )
        if successor.protocol != self.protocol:
            return (
                f"it speaks protocol {successor.protocol} ({successor.version}), the trainers that read now "
                f"{self.protocol} ({self.version}): stop the service, and start both anew"
            )
        if successor.config_hash != self.config_hash:
            fields = compare(self.digest, successor.digest) or [
                "the sources, the mixture, the batch or packing"
            ]
            return (
                f"its configuration would make other steps of the job: {', '.join(fields)} changed. Stop the "
                "service and start the other; trainers resume from their state_dict"
            )
        return None


async def take_over(store: Store, job: str, offer: Offer) -> Serving:
    """Ask for the job and wait until it is ours; at once where nobody serves it.

    StateError: the one that serves refuses, and says why. StoreError: it does not answer.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + PATIENCE_S
    while loop.time() < until:
        serving = await Serving.take(store, offer.holder)
        if serving is not None:
            faultpoint.point("takeover.taken")
            return serving
        await asyncio.to_thread(store.put, REQUEST_KEY, offer.to_json(), ttl_s=TTL_S)
        faultpoint.point("takeover.asked")
        answer = await _answer(store, offer)
        if answer:
            raise StateError(f"job {job!r} can't be taken over: {answer}")
        await asyncio.sleep(LOOK_S)
    raise StoreError(
        f"job {job!r} was not handed over in {PATIENCE_S:.0f} s: the service that has it is of a version "
        "that can't, or hangs; stop it, and start this one without --take-over"
    )


async def done(store: Store, offer: Offer) -> None:
    """Tell the predecessor that trainers are served."""
    await asyncio.to_thread(store.put, ANSWER_KEY, json.dumps([offer.number, ""]).encode())
    await asyncio.to_thread(store.delete, REQUEST_KEY)


async def asked(store: Store, ours: Offer) -> Offer:
    """Wait until somebody asks for the job who can have it; others are told why not."""
    refused = {ours.number}
    while True:
        try:
            offer = Offer.from_json(await asyncio.to_thread(store.get, REQUEST_KEY))
            if offer is not None and offer.number not in refused and not offer.holder.is_gone():
                why = ours.refuses(offer)
                if why is None:
                    return offer
                refused.add(offer.number)
                log.warning("not handed over to %s: %s", offer.holder, why)
                await asyncio.to_thread(store.put, ANSWER_KEY, json.dumps([offer.number, why]).encode())
        except StoreUnreachable as error:
            log.debug("take-over: %s", error)
        await asyncio.sleep(LOOK_S)


async def successor_serves(store: Store, offer: Offer) -> bool:
    """Wait until it does, or is gone before."""
    while True:
        try:
            if await _answer(store, offer) == "":
                return True
        except StoreUnreachable as error:
            log.debug("take-over: %s", error)
        if offer.holder.is_gone():
            return False
        await asyncio.sleep(LOOK_S)


async def take_back(store: Store, spec: JobSpec) -> Serving:
    """The job, after a successor that is gone. StoreError: somebody else has it.

    One that died before it could write who it was holds the right until that expires.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + 1.5 * TTL_S
    while loop.time() < until:
        serving = await Serving.take(store, Holder.this_process(spec.address))
        if serving is not None:
            return serving
        await asyncio.sleep(LOOK_S)
    return await Serving.begin(store, spec.config.job, spec.address)


async def _answer(store: Store, offer: Offer) -> str | None:
    """Why not, "" where it serves, None while there is no answer to this offer."""
    value = await asyncio.to_thread(store.get, ANSWER_KEY)
    number, text = (None, "") if value is None else json.loads(value)
    return text if number == offer.number else None
