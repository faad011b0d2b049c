"""`dataloader-svc incidents`: samples that were delivered, and what should not be about them."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path

import click

from dataloader_svc.cli.output import config_argument, console, examples, json_option, print_json, table
from dataloader_svc.config.load import load_config
from dataloader_svc.engine.spec import job_spec
from dataloader_svc.errors import ConfigError
from dataloader_svc.registry import nearest
from dataloader_svc.store.incident_log import incidents
from dataloader_svc.store.open import open_existing
from dataloader_svc.store.quarantine_log import Quarantined


@click.command(
    epilog=examples(
        "dataloader-svc incidents mixture.yaml",
        "dataloader-svc incidents mixture.yaml --source captions --json",
    )
)
@config_argument
@click.option("--source", help="Only this source.")
@click.option("--limit", default=50, show_default=True, help="Rows to print; --json prints all.")
@click.option("--store", help="State store to read, instead of the configured one.")
@json_option
def command(config: Path, source: str | None, limit: int, store: str | None, *, as_json: bool) -> None:
    """List the documents that fastokens encodes otherwise than the library that defines the ids.

    They were delivered. `tokenizer_verify` says which share of the documents is looked at twice.
    """
    loaded = load_config(config)
    if source is not None and source not in loaded.config.sources:
        known = sorted(loaded.config.sources)
        raise ConfigError(
            f"no source is called {source!r}; sources: {', '.join(known)}{nearest(source, known)}"
        )
    spec = job_spec(loaded, loaded.base_dir, "127.0.0.1:0", store)
    opened = open_existing(spec.store, spec.base_dir)
    rows: list[Quarantined] = []
    if opened is not None:
        with closing(opened):
            rows = incidents(opened, source)
    if as_json:
        print_json(
            [
                {
                    "source": row.sample.source,
                    "epoch": row.sample.epoch,
                    "position": row.sample.position,
                    "shard": row.row.shard,
                    "row": row.row.row,
                    "kind": row.reason,
                    "detail": row.detail,
                }
                for row in rows
            ]
        )
        return
    out = console()
    if not rows:
        out.print("no incidents")
        return
    shown = [(r.sample, f"{r.row.shard}:{r.row.row}", r.reason, r.detail) for r in rows[:limit]]
    out.print(table("", ("sample", "row", "kind", "detail"), shown))
    counts = Counter((row.sample.source, row.reason) for row in rows)
    out.print(f"\n{len(rows)} incidents" + (f", {limit} shown" if len(rows) > limit else ""))
    for (name, kind), count in counts.most_common():
        out.print(f"  {count:6} {name}: {kind}", markup=False)
