"""`dataloader-svc preview`: what a step is made of, read through a real client from real processes."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import click
from rich.progress import Progress

from dataloader_client import Batch, DataServiceLoader, Mesh
from dataloader_svc import __version__
from dataloader_svc.cli.contents import PieceKey, read_contents
from dataloader_svc.cli.output import (
    config_argument,
    console,
    examples,
    json_option,
    print_json,
    progress_bars,
)
from dataloader_svc.cli.plan_log import PlanLog
from dataloader_svc.cli.preflight import load_checked
from dataloader_svc.cli.preview_page import render_page
from dataloader_svc.cli.preview_table import step_lines
from dataloader_svc.cli.rows import find_rows
from dataloader_svc.cli.step_view import StepView, sequences_of, shares, spread_over, step_json
from dataloader_svc.config.load import LoadedConfig
from dataloader_svc.config.schema import Config
from dataloader_svc.engine.job import Job
from dataloader_svc.engine.spec import job_spec, private
from dataloader_svc.errors import ConfigError, DataError
from dataloader_svc.media.mel import MelRule
from dataloader_svc.planner.mixture import Schedule
from dataloader_svc.planner.place import Strategy
from dataloader_svc.planner.plan import Plan
from dataloader_svc.store.open import open_store
from dataloader_svc.transforms.tokenizers import Tokenizer
from dataloader_svc.transforms.vision import VisionRule


@click.command(
    epilog=examples(
        "dataloader-svc preview mixture.yaml",
        "dataloader-svc preview mixture.yaml -n 8 --html step.html",
        "dataloader-svc preview mixture.yaml --step 100 --json",
    )
)
@config_argument
@click.option(
    "-n",
    "--sequences",
    "count",
    default=4,
    show_default=True,
    type=click.IntRange(min=1),
    help="Sequences to show, evenly spread over the step.",
)
@click.option("--step", default=0, show_default=True, type=click.IntRange(min=0), help="Which step.")
@click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a page with texts and pictures to this file.",
)
@click.option(
    "--documents", default=12, show_default=True, help="Documents of each sequence to print; --json has all."
)
@json_option
def command(config: Path, count: int, step: int, html: Path | None, documents: int, *, as_json: bool) -> None:
    """Show packed sequences of a step: documents, text, pictures.

    Starts the service for a moment, with an empty state store of its own: a job that runs or has run is
    neither needed nor disturbed. Later steps take longer, since every step before must be planned.
    """
    loaded = load_checked(config)
    if html is not None and not html.parent.is_dir():
        raise ConfigError(f"--html {html}: there is no folder {html.parent}")
    with progress_bars() as progress:
        view = step_view(loaded, step, count, progress)
    if html is not None:
        page = render_page(view, version=__version__, source_file=str(config))
        try:
            html.write_text(page, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--html {html}: {error.strerror}") from None
    if as_json:
        print_json(step_json(view))
        return
    out = console()
    for line in step_lines(view, max_documents=documents, width=out.width, bars=out.is_terminal):
        out.print(line)
    if html is not None:
        out.print(f"\npage: {html}", markup=False, soft_wrap=True)


def step_view(loaded: LoadedConfig, step: int, count: int, progress: Progress) -> StepView:
    """Run the job as far as `step`, and look at `count` sequences of it.

    Raises DataError where the data ends before that step, and whatever keeps the job from running.
    """
    bar = progress.add_task("starting the service", total=None)
    with tempfile.TemporaryDirectory(prefix="dataloader-preview-") as scratch:
        folder = Path(scratch)
        alone = replace(loaded, config=_for_one_rank(loaded.config))
        spec = job_spec(alone, folder, "127.0.0.1:0", f"sqlite:///{folder / 'preview.db'}")
        with Job(private(spec)) as job:
            progress.update(bar, description=f"planning and building step {step}")
            with DataServiceLoader(job.address, mesh=Mesh(), token=job.token, tls=False) as loader:
                batches = loader.read(step)
        with closing(open_store(spec.store, spec.base_dir)) as store:
            log = PlanLog.of(store)
            if not batches:
                raise DataError(
                    f"{loaded.path}: the data ends before step {step}; its plan log says: {log.words()}"
                )
            _, plan = log.read(step, loaded.config.sequence_length)
    progress.update(bar, description="reading texts and pictures")
    return _view(loaded, plan, batches, count, progress)


_NO_LIMIT = 2**50  # bytes; how large a step of so many samples is, its plan says


def _for_one_rank(config: Config) -> Config:
    """The job as one rank can take a whole step of it; plans and contents are the same.

    A step is meant for many ranks: its batches may exceed what a constructor is to hold for one.
    """
    images = config.images
    pixels = images.merge**2 * 3 * images.patch**2  # bytes of a token, if all are of pictures
    step_bytes = _NO_LIMIT
    if config.num_sequences is not None:
        step_bytes = config.num_sequences * config.sequence_length * (3 * pixels + 200)
    memory = {"memory": max(config.constructor.memory, step_bytes)}
    return config.model_copy(
        update={
            "layout": "packed",
            "planner": config.planner.model_copy(update={"ahead": 1}),
            "constructor": config.constructor.model_copy(update=memory),
        }
    )


def _view(
    loaded: LoadedConfig, plan: Plan, batches: Sequence[Batch], count: int, progress: Progress
) -> StepView:
    config = loaded.config
    rows = find_rows(loaded, plan.state, config.sources, progress)
    bare = sequences_of(plan, Strategy.of(config, loaded.base_dir), rows.row)
    shown = spread_over(count, len(bare))
    wanted: set[PieceKey] = {piece.key for number in shown for piece in bare[number].pieces}
    tokenizer = Tokenizer.of(config, loaded.base_dir)
    vision, mel = VisionRule(**config.images.model_dump()), MelRule(**config.mel.model_dump())
    contents = read_contents(batches, wanted, tokenizer, vision, mel)
    sequences = sequences_of(plan, Strategy.of(config, loaded.base_dir), rows.row, contents)
    weights = Schedule.of(config.mixture.schedule, plan.sources).weights(plan.step)
    return StepView(
        job=config.job,
        step=plan.step,
        digest=plan.digest.hex(),
        sequence_length=config.sequence_length,
        unit=config.mixture.unit,
        sequences=sequences,
        shown=shown,
        sources=shares(sequences, plan.sources, weights.tolist()),
        skipped=Counter(row.reason for _, _, row in plan.skipped),
    )
