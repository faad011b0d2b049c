"""`dataloader-svc quarantine readmit`: have samples delivered whose data was repaired, each of them once.

The command proves that from the plan log (`quarantine_past.py`), tries the samples as a loader would
(`quarantine_trial.py`), and writes one request to the store. What a planner makes of it, and why it is safe
to kill anything at any moment, is in docs/decisions/0006.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

import click

from dataloader_svc import faultpoint
from dataloader_svc.cli.output import (
    config_argument,
    console,
    examples,
    json_option,
    print_json,
    progress_bars,
    table,
)
from dataloader_svc.cli.plan_log import PlanLog
from dataloader_svc.cli.quarantine import as_values, choosing, chosen, open_job_store
from dataloader_svc.cli.quarantine_past import Fate, Past, Verdict
from dataloader_svc.cli.quarantine_rows import Found, find_blocks
from dataloader_svc.cli.quarantine_trial import try_samples
from dataloader_svc.config.load import LoadedConfig, load_config
from dataloader_svc.errors import ConfigError, StoreError
from dataloader_svc.planner.requests import next_number, read_requests
from dataloader_svc.registry import nearest
from dataloader_svc.sample import SampleId
from dataloader_svc.store.base import Store
from dataloader_svc.store.quarantine_log import Quarantined
from dataloader_svc.store.readmission_log import Readmission, Repaired, add_readmission

Outcome = Literal["readmit", "asked", "readmitted", "still bad", "refused"]

_MOST_SHOWN = 50


@dataclass(frozen=True, slots=True)
class Result:
    """What is done about a sample, and why."""

    row: Quarantined
    outcome: Outcome
    why: str = ""


@click.command(
    name="readmit",
    epilog=examples(
        "dataloader-svc quarantine readmit mixture.yaml --source captions --dry-run",
        "dataloader-svc quarantine readmit mixture.yaml --reason missing_file --shard 'web-00*.parquet'",
        "dataloader-svc quarantine readmit mixture.yaml captions/0/412 captions/0/977",
        "dataloader-svc quarantine readmit mixture.yaml --from mended.jsonl --at-step 5000",
    ),
)
@config_argument
@click.argument("samples", nargs=-1)
@choosing
@click.option("--shard", help="Only samples in shards of this name or path; * and ? stand for any text.")
@click.option("--all", "everything", is_flag=True, help="All that is in quarantine.")
@click.option(
    "--from",
    "listed",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Samples that a JSON lines file names, as `export` writes it.",
)
@click.option("--at-step", type=click.IntRange(min=0), help="Not before this step.  [default: the next one]")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@json_option
def command(
    config: Path,
    samples: tuple[str, ...],
    source: str | None,
    reason: tuple[str, ...],
    store: str | None,
    shard: str | None,
    *,
    everything: bool,
    listed: Path | None,
    at_step: int | None,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Have repaired samples delivered: SAMPLES by name (source/epoch/position), or those that options choose.

    Each is read and decoded first, as the job would. The job may run or be stopped: it takes them in line
    with its next step, or the first one after it is started. A sample that was skipped comes once; one that
    was delivered without loss comes again, with loss. Exit code 1 where any of them can't be readmitted.
    """
    if not (samples or source or reason or shard or everything or listed):
        raise ConfigError(
            "nothing is chosen: name samples, give --source, --reason, --shard or --from, or --all"
        )
    loaded = load_config(config)
    opened = open_job_store(loaded, store)
    if opened is None:
        raise ConfigError("the job has no state store yet: nothing is in quarantine")
    with closing(opened):
        rows = chosen(loaded, opened, source, reason)
        if shard is not None:
            rows = [row for row in rows if _in_shard(row, shard)]
        if samples or listed:
            wanted = {_parse(name, "SAMPLES") for name in samples} | set(_read_list(listed))
            rows = _named(wanted, rows)
        past = Past(PlanLog.of(opened), read_requests(opened))
        if at_step is not None and at_step < past.stop:
            raise ConfigError(f"--at-step: step {at_step} is planned already; the next one is {past.stop}")
        results, request = _readmit(loaded, opened, past, rows, at_step or past.stop, dry_run=dry_run)
    _report(results, request, past.stop, dry_run=dry_run, as_json=as_json)
    return 1 if any(result.outcome in ("still bad", "refused") for result in results) else 0


def _in_shard(row: Quarantined, pattern: str) -> bool:
    path = row.row.shard
    return fnmatchcase(path, pattern) or fnmatchcase(path.rpartition("/")[2], pattern)


def _parse(name: str, where: str) -> SampleId:
    source, *place = name.rsplit("/", 2)
    if len(place) != 2 or not all(number.isdecimal() for number in place):
        raise ConfigError(
            f"{where}: {name!r} is no sample; it is called source/epoch/position, as in the list"
        )
    return SampleId(source, int(place[0]), int(place[1]))


def _read_list(path: Path | None) -> Iterable[SampleId]:
    """Samples of a file of JSON lines: each has `sample`, or `source`, `epoch` and `position`."""
    if path is None:
        return
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--from: {path} can't be read: {error}") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
            name = values.get("sample") or "{source}/{epoch}/{position}".format_map(values)
        except (ValueError, AttributeError, KeyError):
            raise ConfigError(
                f"--from: {path}, line {number}: no JSON object that names a sample; needed is `sample`, or "
                "`source`, `epoch` and `position`, as `quarantine export` writes them"
            ) from None
        yield _parse(str(name), f"--from: {path}, line {number}")


def _named(wanted: set[SampleId], rows: Sequence[Quarantined]) -> list[Quarantined]:
    """The rows of these names. ConfigError for one that is not among them, with the nearest."""
    known = {row.sample: row for row in rows}
    for sample in sorted(wanted - known.keys()):
        same = [other for other in known if other.source == sample.source]
        by_distance = sorted(same, key=lambda other: (abs(other[1] - sample[1]), abs(other[2] - sample[2])))
        sources = sorted({other.source for other in known})
        hint = (
            f"; nearest: {', '.join(map(str, by_distance[:3]))}" if same else nearest(sample.source, sources)
        )
        raise ConfigError(f"sample {sample} is not in quarantine, or not among those that are chosen{hint}")
    return [known[sample] for sample in sorted(wanted)]


def _readmit(
    loaded: LoadedConfig,
    store: Store,
    past: Past,
    rows: Sequence[Quarantined],
    at_step: int,
    *,
    dry_run: bool,
) -> tuple[list[Result], int | None]:
    """What is done about each of `rows`, and the number of the request that was written, if one was."""
    verdicts = {row.sample: past.of(row) for row in rows}
    open_rows = [row for row in rows if verdicts[row.sample].fate in (Fate.SKIPPED, Fate.MASKED)]
    with progress_bars() as progress:
        found = find_blocks(loaded, store, open_rows, progress, repaired=True)
        bad = try_samples(loaded, found, progress)
    results = [_result(row, verdicts[row.sample], found.lost, bad) for row in rows]
    good = [result.row for result in results if result.outcome == "readmit"]
    if dry_run or not good:
        return results, None
    return results, _request(store, past, found, [(row, verdicts[row.sample]) for row in good], at_step)


def _result(
    row: Quarantined, verdict: Verdict, lost: Mapping[SampleId, str], bad: Mapping[SampleId, str]
) -> Result:
    match verdict.fate:
        case Fate.ASKED:
            return Result(row, "asked", verdict.why)
        case Fate.READMITTED:
            return Result(row, "readmitted", verdict.why)
        case Fate.REFUSED:
            return Result(row, "refused", verdict.why)
    if row.sample in lost:
        return Result(row, "refused", lost[row.sample])
    if row.sample in bad:
        return Result(row, "still bad", bad[row.sample])
    was = "was skipped" if verdict.fate == Fate.SKIPPED else "was delivered without loss"
    return Result(row, "readmit", f"{was} in step {verdict.step}")


def _request(
    store: Store, past: Past, found: Found, rows: Sequence[tuple[Quarantined, Verdict]], at_step: int
) -> int:
    """Note which files were repaired, then write the request. A kill between them has asked for nothing."""
    state = past.state
    names = sorted({row.sample.source for row, _ in rows})
    for name in found.repaired.intersection(names):
        found.readers[name].accept_repair(*state.sources[name].listings)
    faultpoint.point("readmit.files_noted")
    blocks = {row.sample: block.block for block, inside in found.blocks.items() for row in inside}
    samples = (
        Repaired(row.sample, blocks[row.sample], verdict.step, verdict.fate == Fate.MASKED)
        for row, verdict in rows
    )
    request = Readmission(
        number=next_number(past.requests.last, state.readmitted[0]),
        generation=past.log.parts[0].generation.number,
        at_step=at_step,
        config={
            name: value
            for name, value in state.config.items()
            if name == "job" or name.partition("/")[2] in names
        },
        index={name: state.sources[name].index for name in names},
        # Those of a block come one after the other: it is read once for all of them.
        samples=tuple(sorted(samples, key=lambda each: (each.sample[:2], each.block, each.sample))),
    )
    if not add_readmission(store, request):
        raise StoreError(f"request {request.number} was written by somebody else meanwhile; run this again")
    faultpoint.point("readmit.requested")
    return request.number


def _report(
    results: Sequence[Result], request: int | None, at_step: int, *, dry_run: bool, as_json: bool
) -> None:
    counts = Counter(result.outcome for result in results)
    if as_json:
        print_json(
            {
                "request": request,
                "dry_run": dry_run,
                "next_step": at_step,
                "counts": dict(counts),
                "samples": [
                    {
                        "sample": str(result.row.sample),
                        **as_values(result.row, {}),
                        "outcome": result.outcome,
                        "why": result.why,
                    }
                    for result in results
                ],
            }
        )
        return
    out = console()
    if not results:
        out.print("nothing that is chosen is in quarantine")
        return
    shown = [
        (result.row.sample, result.row.row, result.row.reason, result.outcome, result.why)
        for result in results[:_MOST_SHOWN]
    ]
    out.print(table("", ("sample", "row", "reason", "outcome", "why"), shown))
    listed = ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common())
    out.print(f"\n{len(results)} samples: {listed}", markup=False)
    if request is not None:
        out.print(f"request {request} is written: the job takes it up with its next step, {at_step} or later")
    elif dry_run and counts["readmit"]:
        out.print("nothing was done: --dry-run")
