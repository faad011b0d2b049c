"""`dataloader-svc audit CONFIG --log`: the job's own plan log, counted; nothing is started."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing

import numpy as np

from dataloader_svc.cli.output import console, print_json, table
from dataloader_svc.cli.plan_log import PlanLog
from dataloader_svc.config.digest import made_plans
from dataloader_svc.config.load import LoadedConfig
from dataloader_svc.engine.spec import job_spec
from dataloader_svc.errors import StateError
from dataloader_svc.observe.audit_log import COLUMNS, HELD, Account, Entry, account, mixture_findings
from dataloader_svc.observe.limits import log_findings
from dataloader_svc.planner.plan import Plan
from dataloader_svc.sources.reader import SourceReader
from dataloader_svc.storage import Storage
from dataloader_svc.store.base import shown
from dataloader_svc.store.open import open_existing


def audit_log(loaded: LoadedConfig, store_url: str | None, *, as_json: bool) -> int:
    """Count the log of the job; 1 where a contract is broken. StateError: there is none."""
    spec = job_spec(loaded, loaded.base_dir, "127.0.0.1:0", store_url)
    opened = open_existing(spec.store, spec.base_dir)
    if opened is None:
        raise StateError(f"job {loaded.config.job!r} has no plan log: there is no store {shown(spec.store)}")
    with closing(opened) as store:
        log = PlanLog.of(store)
        first, base = log.begins
        values = json.loads(base.to_json())
        found = account(values, _entries(log, first), _rows(loaded, json.loads(_last(log))))
        worst = _mixture(loaded, log, found)
    return _report(loaded, log, found, worst, as_json=as_json)


def _entries(log: PlanLog, first: int) -> Iterator[Entry]:
    for step in range(first, log.parts[0].stop):
        yield _entry(log.read(step, 0)[1])


def _entry(plan: Plan) -> Entry:
    names = plan.sources
    return Entry(
        plan.step,
        names,
        np.stack([getattr(plan.pieces, column) for column in COLUMNS]),
        [(names[source], epoch, row.position) for source, epoch, row in plan.skipped],
        [(names[source], epoch, position) for source, epoch, position in plan.readmitted],
        json.loads(plan.state_json),
        plan.sequence_offsets,
        {name: getattr(plan.pieces, column) for name, column in HELD.items()},
    )


def _last(log: PlanLog) -> str:
    part = log.parts[0]
    if part.stop == part.first:
        return part.generation.base.to_json()
    return log.read(part.stop - 1, 0)[1].state_json


def _rows(loaded: LoadedConfig, last: dict[str, dict[str, dict[str, object]]]) -> dict[str, int]:
    """Rows of an epoch, of the sources that are as they were in all of the log."""
    config, base = loaded.config, loaded.base_dir
    storage = Storage.of(config, base)
    steady = [name for name in config.sources if not last["sources"].get(name, {}).get("before")]
    return {
        name: SourceReader(
            name, config.sources[name], base, base / config.index_cache, config.seed, storage=storage
        ).num_rows
        for name in steady
    }


def _mixture(loaded: LoadedConfig, log: PlanLog, found: Account) -> float | None:
    """Add what is wrong with the mixture and the sequences of the newest generation; None where the file is
    another by now.
    """
    config, part = loaded.config, log.parts[0]
    if not made_plans(part.generation.config_hash, config, loaded.base_dir) or part.stop == part.first:
        return None
    first, base = part.first, part.generation.base
    if part.kept > part.first:
        first, base = log.begins
    schedule = [entry.model_dump() for entry in config.mixture.schedule]
    entries = list(_entries(log, first))
    findings, worst = mixture_findings(json.loads(base.to_json()), entries, schedule, config.mixture.unit)
    found.findings += findings
    found.findings += log_findings(
        entries, {"tokens": config.sequence_length, **config.strategy.limits.given}
    )
    return worst


def _report(loaded: LoadedConfig, log: PlanLog, found: Account, worst: float | None, *, as_json: bool) -> int:
    counts = {
        "steps": found.steps,
        "skipped_steps": found.skipped_steps,
        "delivered": found.delivered,
        "in_skipped_steps": found.on_purpose,
        "passed_over": found.passed_over,
        "waiting": found.waiting,
    }
    parts = [
        (part.generation.number, part.first, part.stop, part.generation.parent or "", part.generation.reason)
        for part in reversed(log.parts)
    ]
    if as_json:
        names = ("generation", "first", "stop", "parent", "reason")
        print_json(
            {
                "job": loaded.config.job,
                "generations": [dict(zip(names, row, strict=True)) for row in parts],
                "kept_from": log.kept,
                **counts,
                "mixture_deviation": worst,
                "findings": [str(finding) for finding in found.findings],
            }
        )
        return 1 if found.findings else 0
    out = console()
    out.print(table("", (">generation", ">from step", ">to before", ">after", "because"), parts))
    out.print(f"\n{log.words()}")
    out.print(table("", ("samples", ">"), [(name.replace("_", " "), n) for name, n in counts.items()]))
    if worst is None:
        out.print("mixture: not looked at, the configuration is another one by now")
    else:
        out.print(f"mixture: at most {worst:.2f} samples from the target")
    for finding in found.findings:
        out.print(f"BROKEN {finding}")
    if not found.findings:
        out.print("every position once, or passed over, or waiting")
    return 1 if found.findings else 0
