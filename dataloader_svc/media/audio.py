"""Audio: clips of sound as log-mel features, their number of frames known before anything is decoded.

The probe counts packets (`sound.py`), so tokens follow from what is in the file, not from what its header
claims. Decoding keeps to that count: features have exactly the planned frames. A decoder may give some
samples more or fewer than its packets promise (an encoder's delay that a container doesn't tell): more are
cut off, and fewer, up to `SLACK_S`, are filled with silence; beyond that the file is TRUNCATED.

Loaders call this in worker processes that can be killed (`worker_reader.py`): FFmpeg's decoders are native
code on a stranger's bytes. A second library (libsndfile) would have to run there too, and reads no MP4.
What features are is `mel.py`; what becomes of them `loader/decode.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataloader_svc.errors import BadSample, Reason
from dataloader_svc.media.base import MediaProbe, Stretch
from dataloader_svc.media.mel import MelRule, log_mel
from dataloader_svc.media.sound import decoded, mono, opened, read_length, resampled, sound_stream

SLACK_S = 0.1
"""Seconds that decoding may fall short of the packets: four frames of the slowest codec in use."""


@dataclass(frozen=True, slots=True)
class AudioReader:
    """`SoundReader` for one encoder. `max_source_seconds`: longer clips are refused undecoded."""

    rule: MelRule
    max_source_seconds: float

    def probe(self, data: bytes | str) -> MediaProbe:
        """`frames`: mel frames of the whole clip, filled up to a whole token. `data`: bytes, or a path.

        Raises BadSample NOT_MEDIA, NO_STREAM, TRUNCATED, BAD_SHAPE, TOO_LONG, DECODE_FAILED, MISSING_FILE.
        """
        sound = read_length(data)
        seconds = sound.samples / sound.rate
        if seconds > self.max_source_seconds:
            raise BadSample(
                Reason.TOO_LONG,
                f"{seconds:.1f} s of sound, max_source_seconds is {self.max_source_seconds:g}",
            )
        samples = math.ceil(sound.samples * self.rule.sample_rate / sound.rate)
        return MediaProbe("audio", 0, 0, frames=self.rule.num_frames(samples), format=sound.codec)

    def features(self, data: bytes | str, stretches: Sequence[Stretch]) -> NDArray[np.float32]:
        """float32 (frames of all stretches, bins): each one's log-mel features, as if it were a clip alone.

        stretches   ascending, not overlapping, each of whole tokens, within the probe's frames

        Nothing behind the last is decoded, and no memory is taken for what is before the first. Raises
        BadSample as `probe` does; TRUNCATED where the sound ends before the stretches do.
        """
        hop = self.rule.hop
        wanted = [(first * hop, (first + count) * hop) for first, count in stretches]
        parts = [log_mel(samples, self.rule) for samples in self._samples(data, wanted)]
        return np.concatenate([np.empty((0, self.rule.bins), np.float32), *parts])

    def _samples(self, data: bytes | str, wanted: Sequence[tuple[int, int]]) -> Iterator[NDArray[np.float32]]:
        """Mono samples of each [start, stop) at the rule's rate, the last filled up with silence."""
        left = list(wanted)
        part: list[NDArray[np.float32]] = []
        at = 0
        with opened(data) as container:
            rate = sound_stream(container).codec_context.sample_rate
            sound = resampled(mono(decoded(container)), rate, self.rule.sample_rate) if left else iter(())
            for samples in sound:
                end = at + len(samples)
                while left and left[0][0] < end:
                    start, stop = left[0]
                    part.append(samples[max(0, start - at) : stop - at])
                    if end < stop:
                        break
                    yield np.concatenate(part)
                    part.clear()
                    left.pop(0)
                at = end
                if not left:
                    return
        if left:
            self._check_end(at, left[-1][1])
        for start, stop in left:
            samples = np.concatenate([np.empty(0, np.float32), *part])
            yield np.pad(samples, (0, stop - start - len(samples)))
            part.clear()

    def _check_end(self, samples: int, wanted: int) -> None:
        """Raises BadSample TRUNCATED where too few samples came."""
        # Whole tokens were planned: up to a token of silence is our own.
        promised = wanted - (self.rule.samples_per_token - 1)
        rate = self.rule.sample_rate
        if promised - samples > SLACK_S * rate:
            raise BadSample(
                Reason.TRUNCATED,
                f"the sound ends after {samples / rate:.3f} s; its packets promise at least "
                f"{promised / rate:.3f} s",
            )


def reader_of(settings: Mapping[str, Any]) -> AudioReader:
    """Of what a worker is told: the fields of AudioReader, `rule` as a mapping of its own."""
    return AudioReader(**{**settings, "rule": MelRule(**settings["rule"])})
