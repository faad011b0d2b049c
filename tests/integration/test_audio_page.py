"""docs/audio.md, run: its configuration on clips of many kinds, by the commands and a service that it names.

What must come out is said here from how the clips were made, without the code that reads them.
"""

from __future__ import annotations

import base64
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dataloader_client import Batch, DataServiceLoader
from dataloader_svc.config.load import load_config
from dataloader_svc.config.schema import AudioFields, Mel
from dataloader_svc.errors import Reason
from dataloader_svc.testing.tokenizer import AUDIO, make_tokenizer
from dataloader_svc.transforms.tokenizers import Tokenizer
from document_kinds import write_jsonl, write_tar
from reading import take_step
from real_job import REPO, run_cli, serve
from sounds import encoded, tone

PAGE = (REPO / "docs" / "audio.md").read_text()
KINDS = [
    ("wav", "wav", "pcm_s16le", 16_000),
    ("flac", "flac", "flac", 44_100),
    ("mp3", "mp3", "libmp3lame", 22_050),
    ("ogg", "ogg", "libopus", 48_000),
    ("m4a", "ipod", "aac", 32_000),
]
LONG_S = 34.5  # above max_seconds


def block(language: str) -> str:
    (text,) = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    return str(text)


def clip(kind: int, seconds: float) -> bytes:
    _, container, codec, rate = KINDS[kind]
    count = round(seconds * rate)
    voices = np.stack([tone(count, rate, 300 + 50 * kind), tone(count, rate, 900)])[: 1 + kind % 2]
    return encoded(voices, rate, container, codec)


def seconds_of(number: int) -> float:
    return 0.3 + 0.17 * number


def tokens_of(seconds: float) -> int:
    return math.ceil(round(seconds * 16_000) / 640)


def write_data(folder: Path) -> None:
    """Of 26 rows of speech one is long, one no sound, and one holds what is no number."""
    make_tokenizer(folder / "tokenizer")
    speech = []
    for number in range(24):
        name = f"{number}.{KINDS[number % 5][0]}"
        (folder / name).write_bytes(clip(number % 5, LONG_S if number == 7 else seconds_of(number)))
        speech.append({"transcript": f"{number}: <audio> was said", "file": name})
    (folder / "lies.wav").write_bytes(b"RIFF and so on, but no sound")
    (folder / "infinite.wav").write_bytes(
        encoded(np.full((1, 16_000), np.inf, np.float32), 16_000, codec="pcm_f32le")
    )
    speech += [
        {"transcript": "not sound", "file": "lies.wav"},
        {"transcript": "loud", "file": "infinite.wav"},
    ]
    write_jsonl(folder / "speech.jsonl", *speech)
    members = {}
    for number in range(12):
        members |= {
            f"{number}.{KINDS[number % 3][0]}": clip(number % 3, seconds_of(number)),
            f"{number}.txt": f"word {number}".encode(),
        }
    write_tar(folder / "words.tar", members)
    answer = {"role": "assistant", "content": "A tone."}
    data = base64.b64encode(clip(0, 1.0)).decode()
    asked: list[dict[str, Any]] = [
        {"type": "audio", "audio": "3.ogg"},
        {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}},
    ]
    chats = [
        {"messages": [{"role": "user", "content": [asked[i % 2], {"type": "text", "text": f"{i}?"}]}, answer]}
        for i in range(8)
    ]
    write_jsonl(folder / "chats.jsonl", *chats)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audio")
    write_data(folder)
    (folder / "speech.yaml").write_text(block("yaml"))
    return folder / "speech.yaml"


def test_the_configuration_spells_out_defaults(config: Path) -> None:
    loaded = load_config(config).config
    assert loaded.mel == Mel()
    assert loaded.sources["speech"].audio == AudioFields(field="file")
    assert loaded.strategy.cost.encoder.frames == 0.64


def test_reasons_exist() -> None:
    words = set(re.findall(r"`([a-z]+_[a-z]+)`", PAGE)) - {"n_fft", "max_seconds", "sample_rate", "input_ids"}
    reasons = {str(reason) for reason in Reason}
    named = {"too_long", "truncated", "decode_failed", "bad_shape", "no_stream", "not_media"}
    assert named <= reasons
    assert words & reasons == named - {"truncated"}


def test_check_deep_finds_what_is_bad(config: Path) -> None:
    result = run_cli("check", config, "--deep", "--json")
    assert result.returncode in (0, 1), result.stderr
    sources = json.loads(result.stdout)["sources"]
    speech = sources["speech"]
    assert (speech["rows"], speech["bad"], speech["undecodable"]) == (
        26,
        {"not_media": 1},
        {"decode_failed": 1},
    )
    assert sources["words"]["fine"] == 12
    assert sources["chats"]["fine"] == 8
    assert speech["media"] == 24 + 1 + 1, "one is split in two, one is undecodable"
    lengths = [tokens_of(seconds_of(n)) for n in range(24) if n != 7]
    assert speech["tokens"]["max"] > tokens_of(LONG_S) > max(lengths)


def test_preview_shows_it(config: Path) -> None:
    page = config.parent / "step.html"
    result = run_cli("preview", config, "-n", 2, "--html", page, "--json")
    assert result.returncode == 0, result.stderr
    documents = [d for sequence in json.loads(result.stdout)["sequences"] for d in sequence["documents"]]
    heard = 0
    for document in documents:
        for medium in document["media"]:
            assert medium["kind"] == "audio"
            assert medium["seconds"] == pytest.approx(medium["tokens"] * 0.04)
            heard += medium["mel_frames"]
        if document["source"] == "speech" and document["text"].startswith(("1:", "2:")):
            seconds = sum(medium["seconds"] for medium in document["media"])
            number = int(document["text"].partition(":")[0])
            assert seconds == pytest.approx(tokens_of(seconds_of(number)) * 0.04)
    assert heard == sum(document["mel_frames"] for document in documents) > 1000
    assert "clips of sound" in page.read_text()


def test_every_mesh_gets_the_same(config: Path) -> None:
    meshes = ("--mesh", "dp=1", "--mesh", "dp=2", "--mesh", "dp=1,cp=2")
    result = run_cli("audit", config, "--steps", 4, *meshes, "--json")
    assert result.returncode == 0, result.stdout + result.stderr
    report = json.loads(result.stdout)
    assert report["ok"]
    assert len({tuple(mesh["digests"]) for mesh in report["meshes"]}) == 1


def test_a_trainer_puts_embeddings_in_their_places(config: Path) -> None:
    tokenizer = Tokenizer.load(config.parent / "tokenizer")
    seen = 0
    with serve(config) as served, DataServiceLoader(served.address) as loader:
        for _ in range(4):
            for batch in take_step(loader):
                assert batch.presence == {"image": False, "video": False, "audio": True}
                seen += placed(batch, tokenizer.control[AUDIO])
    assert seen > 500


def placed(batch: Batch, token: int) -> int:
    """Run the page's own lines with an encoder that keeps the frames as they are."""

    def encoder(clip: torch.Tensor) -> torch.Tensor:
        return clip.reshape(-1, 4 * 128)

    hidden = torch.full((len(batch.input_ids), 4 * 128), torch.nan)
    exec(block("python"), {"batch": batch, "torch": torch, "encoder": encoder, "hidden": hidden})
    is_sound = batch.input_ids == token
    assert torch.equal(torch.isfinite(hidden).all(1), is_sound)
    assert torch.equal(hidden[is_sound].reshape(-1, 128), batch.audio_features), "in the order of the tokens"
    assert (batch.labels[:-1][is_sound[1:]] == -100).all()
    assert batch.audio_lengths.max() <= 30 * 100
    return int(is_sound.sum())
