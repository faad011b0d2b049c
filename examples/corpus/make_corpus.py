"""Makes a larger corpus for benchmarks and soaks under build/corpus, from Debian packages and without root.

    python examples/corpus/make_corpus.py --out build/corpus --size small

Spoken captions and backgrounds (WebDataset), pages with pictures and long texts (Parquet), sayings (JSONL).
Fetching: `debian.py`; what is taken: `material.py`; rights: `README.md`. This file writes the sources.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # examples/, for recipe.py

import debian  # noqa: E402
import material  # noqa: E402
import recipe  # noqa: E402
from recipe import Count, Recipe, RecipeError, TarShard, keyed  # noqa: E402
from rich.console import Console  # noqa: E402

NAME = "corpus"
DEBS = "debs"
CHILDREN = ("triples", "pages", "texts", "short", "large")
SMALL = ("tuxpaint-stamps-default", "debian-handbook", "manpages", "fortunes", "fortunes-min")
FULL = (*SMALL, "gimp-help-en", "gnome-backgrounds", "manpages-dev", "python3.11-doc", "anarchism")
SEED = 17
SHARD_BYTES = 32 << 20
TEXT_SHARDS = 4
PAGES_PER_FILE = 256
PAGES_PER_GROUP = 32

Tick = Callable[[], None]
Tasks = Callable[[str, int], Tick]


@dataclass(frozen=True, slots=True)
class Size:
    """How much is taken. `spoken`: languages a stamp at most; `languages`: of the handbook, None for all."""

    packages: tuple[str, ...]
    stamps: int | None
    spoken: int
    languages: tuple[str, ...] | None
    space_bytes: int


SIZES = {
    "small": Size(SMALL, 200, 2, ("en-US", "fr-FR", "ja-JP"), 1 << 30),
    "full": Size(FULL, None, 4, None, 4 << 30),
}


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse(argv)
    size = SIZES[arguments.size]
    unknown = set(arguments.without) - set(size.packages)
    if unknown:
        raise RecipeError(f"--without {min(unknown)}: not among {', '.join(size.packages)}")
    packages = [package for package in size.packages if package not in arguments.without]
    if not packages:
        raise RecipeError("--without leaves no package")
    debian.need_tools()
    archive = arguments.out / DEBS
    console = Console()
    sources = sorted([*HERE.glob("*.py"), HERE.parent / "recipe.py"])
    # Apt is asked only after the folder is known to be ours; what it answers is an ingredient.
    job = Recipe(NAME, arguments.out, CHILDREN, {}, keeps=(DEBS,))
    with job.locked():
        archive.mkdir(exist_ok=True)
        debs = debian.resolve(packages)
        ingredients = {deb.package: deb.file for deb in debs}
        ingredients |= {"recipe": recipe.digest_of(sources), "size": arguments.size}
        job = dataclasses.replace(job, ingredients=ingredients)
        counts = None if arguments.force else job.finished()
        if counts is not None:
            console.print(f"{job.out} is up to date (--force makes it again)", highlight=False)
        else:
            recipe.need_space(job.out, size.space_bytes)
            with job.staging() as staging:
                counts = build(staging, archive, debs, size, console)
                job.publish(staging, counts)
        recipe.show_counts(console, counts)
    return 0


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Make a corpus for benchmarks and soaks from Debian packages, without root.",
        epilog="examples:\n"
        "  python examples/corpus/make_corpus.py --out build/corpus --size small   # 200 MB of downloads\n"
        "  python examples/corpus/make_corpus.py --out build/corpus --size full    # 300 MB of downloads\n"
        "  python examples/corpus/make_corpus.py --size full --without gnome-backgrounds anarchism\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--out", type=Path, default=Path("build/corpus"), help="folder (default: build/corpus)"
    )
    parser.add_argument("--size", choices=sorted(SIZES), default="full", help="(default: full)")
    parser.add_argument("--without", nargs="+", default=[], metavar="PACKAGE", help="packages to do without")
    parser.add_argument("--force", action="store_true", help="make it again even if it is up to date")
    return parser.parse_args(argv)


def build(
    staging: Path, archive: Path, debs: Sequence[debian.Deb], size: Size, console: Console
) -> list[Count]:
    with recipe.progress_bar(console) as bar:

        def task(name: str, total: int) -> Tick:
            added = bar.add_task(name, total=total)
            return lambda: bar.advance(added)

        debian.fetch(debs, archive.resolve(), task("download", len(debs)))
        tick = task("unpack", len(debs))
        folders: dict[str, Path] = {}
        for deb in debs:
            folders[deb.package] = debian.unpack(deb, archive, staging / "unpacked")
            tick()
        counts: list[Count] = []
        if "tuxpaint-stamps-default" in folders:
            counts.append(write_triples(staging, folders["tuxpaint-stamps-default"], size, task))
        counts += write_documents(staging, folders, size, task)
        counts += write_short(staging / "short", folders)
        if "gnome-backgrounds" in folders:
            counts.append(write_large(staging, folders["gnome-backgrounds"], task))
    return counts


def write_triples(staging: Path, root: Path, size: Size, task: Tasks) -> Count:
    """One row for each stamp and chosen language, in a shuffled order, a shard when 32 MiB are full."""
    stamps = material.stamps(root)
    keyed(SEED, "stamps").shuffle(stamps)
    chosen = [
        triple
        for triples in stamps[: size.stamps]
        for triple in keyed(SEED, triples[0].picture.name).sample(triples, min(size.spoken, len(triples)))
    ]
    keyed(SEED, "triples").shuffle(chosen)
    return write_tars(staging / "triples", "stamps", map(triple_row, chosen), task("triples", len(chosen)))


def triple_row(triple: material.Triple) -> dict[str, bytes]:
    record = {"language": triple.language, "stamp": triple.picture.stem}
    return {
        "png": triple.picture.read_bytes(),
        "txt": triple.caption.encode(),
        "ogg": triple.sound.read_bytes(),
        "json": json.dumps(record).encode(),
    }


def write_large(staging: Path, root: Path, task: Tasks) -> Count:
    """Desktop backgrounds: few, but with the most pixels a picture has here."""
    found = material.backgrounds(root)
    rows = ({"webp": one.picture.read_bytes(), "txt": one.caption.encode()} for one in found)
    return write_tars(staging / "large", "backgrounds", rows, task("large", len(found)))


def write_tars(folder: Path, stem: str, rows: Iterable[Mapping[str, bytes]], tick: Tick) -> Count:
    """A new shard when the one before has SHARD_BYTES; sizes are the captions' characters."""
    folder.mkdir()
    paths: list[Path] = []
    characters: list[int] = []
    remaining = iter(rows)
    row = next(remaining, None)
    while row is not None:
        paths.append(folder / f"{stem}-{len(paths):04d}.tar")
        with TarShard(paths[-1]) as tar:
            filled = 0
            while row is not None and filled < SHARD_BYTES:
                tar.add(f"{len(characters):06d}", row)
                filled += sum(len(content) for content in row.values())
                characters.append(len(row["txt"].decode()))
                tick()
                row = next(remaining, None)
    if not paths:
        raise RecipeError(f"no material for {folder.name}: the package's layout has changed")
    return Count.of(folder.name, "characters", characters, paths)


def write_documents(staging: Path, folders: Mapping[str, Path], size: Size, task: Tasks) -> list[Count]:
    """Pages with pictures, and everything longer than a saying: pages without, manuals, books."""
    pages, texts = html_documents(folders, size, task)
    for package in ("manpages", "manpages-dev"):
        if package in folders:
            texts += [(package, name, text) for name, text in material.manual_pages(folders[package])]
    if "python3.11-doc" in folders:
        documents = material.plain_files(folders["python3.11-doc"], "_sources/**/*.rst.txt")
        texts += [("python3.11-doc", name, text) for name, text in documents]
    keyed(SEED, "pages").shuffle(pages)
    keyed(SEED, "texts").shuffle(texts)
    counts = []
    if pages:
        counts.append(write_pages(staging / "pages", pages, task("pages", len(pages))))
    if texts:
        counts.append(write_texts(staging / "texts", texts))
    return counts


def html_documents(
    folders: Mapping[str, Path], size: Size, task: Tasks
) -> tuple[list[tuple[str, material.Page]], list[tuple[str, str, str]]]:
    """(package, page) with pictures and (package, name, text) without, of the packages that are HTML."""
    files: list[tuple[str, Path]] = []
    for package in ("gimp-help-en", "debian-handbook", "anarchism"):
        if package in folders:
            files += [(package, file) for file in material.html_files(folders[package])]
    if size.languages is not None:
        kept = set(size.languages)
        files = [(p, file) for p, file in files if p != "debian-handbook" or kept.intersection(file.parts)]
    tick = task("html", len(files))
    pages: list[tuple[str, material.Page]] = []
    texts: list[tuple[str, str, str]] = []
    for package, file in files:
        page = material.html_page(file, folders[package])
        if page.pictures and page.text.replace(material.MARKER, "").strip():
            pages.append((package, page))
        elif not page.pictures and page.text:
            texts.append((package, page.name, page.text))
        tick()
    return pages, texts


def write_pages(folder: Path, pages: Sequence[tuple[str, material.Page]], tick: Tick) -> Count:
    """`text` with a marker for each picture, `images` in that order; a few dozen pages a row group."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema(
        {"text": pa.string(), "images": pa.list_(pa.binary()), "page": pa.string(), "package": pa.string()}
    )
    folder.mkdir()
    paths: list[Path] = []
    for start in range(0, len(pages), PAGES_PER_FILE):
        paths.append(folder / f"pages-{len(paths):04d}.parquet")
        with pq.ParquetWriter(paths[-1], schema, compression="zstd") as writer:
            part = pages[start : start + PAGES_PER_FILE]
            for first in range(0, len(part), PAGES_PER_GROUP):
                rows = []
                for package, page in part[first : first + PAGES_PER_GROUP]:
                    images = [picture.read_bytes() for picture in page.pictures]
                    rows.append({"text": page.text, "images": images, "page": page.name, "package": package})
                    tick()
                writer.write_table(pa.Table.from_pylist(rows, schema))
    return Count.of("pages", "pictures", [len(page.pictures) for _, page in pages], paths)


def write_texts(folder: Path, texts: Sequence[tuple[str, str, str]]) -> Count:
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    paths: list[Path] = []
    for shard in range(TEXT_SHARDS):
        part = texts[shard * len(texts) // TEXT_SHARDS : (shard + 1) * len(texts) // TEXT_SHARDS]
        package, name, content = zip(*part, strict=True) if part else ((), (), ())
        table = pa.table({"content": list(content), "name": list(name), "package": list(package)})
        paths.append(folder / f"texts-{shard:04d}.parquet")
        pq.write_table(table, paths[-1], compression="zstd", row_group_size=64)
    return Count.of("texts", "lines", [len(text.splitlines()) for _, _, text in texts], paths)


def write_short(folder: Path, folders: Mapping[str, Path]) -> list[Count]:
    rows = [
        row
        for name in ("fortunes", "fortunes-min")
        if name in folders
        for row in material.fortunes(folders[name])
    ]
    if not rows:
        return []
    keyed(SEED, "short").shuffle(rows)
    folder.mkdir()
    target = folder / "fortunes.jsonl"
    with target.open("w", encoding="utf-8") as stream:
        for file, saying in rows:
            stream.write(json.dumps({"text": saying, "file": file}, ensure_ascii=False) + "\n")
    return [Count.of("short", "characters", [len(saying) for _, saying in rows], [target])]


if __name__ == "__main__":
    sys.exit(recipe.run(main))
