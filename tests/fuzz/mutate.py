"""Valid bytes -> damaged ones, by a seeded generator: what disks, networks and other people's writers do."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

_BLOCKS = (1, 8, 64, 512, 4096)
_LENGTHS = (0, 1, 2, 3, 127, 128, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1)

Mutation = Callable[[bytearray, np.random.Generator], bytearray]


def flip_bits(data: bytearray, rng: np.random.Generator) -> bytearray:
    for place in rng.integers(len(data), size=rng.integers(1, 9)).tolist():
        data[place] ^= 1 << int(rng.integers(8))
    return data


def flip_near_an_end(data: bytearray, rng: np.random.Generator) -> bytearray:
    """Headers and footers are where lengths are."""
    reach = min(len(data), 400)
    for place in rng.integers(reach, size=rng.integers(1, 5)).tolist():
        data[place if rng.random() < 0.4 else len(data) - 1 - place] = int(rng.integers(256))
    return data


def wrong_length(data: bytearray, rng: np.random.Generator) -> bytearray:
    """An extreme number, or one that is off by one, where there may be a length."""
    size = min(int(rng.choice([1, 2, 4, 8])), len(data))
    place = int(rng.integers(len(data) - size + 1))
    order = "little" if rng.random() < 0.8 else "big"
    if rng.random() < 0.5:
        number = int.from_bytes(data[place : place + size], order) + int(rng.choice([-1, 1]))
    else:
        number = _LENGTHS[int(rng.integers(len(_LENGTHS)))]
    data[place : place + size] = (number % 256**size).to_bytes(size, order)
    return data


def wrong_digits(data: bytearray, rng: np.random.Generator) -> bytearray:
    """Another number where one stands as text: tar sizes, JSON."""
    digits = np.flatnonzero((np.frombuffer(data, np.uint8) - 48) < 10)
    for place in rng.choice(digits, size=min(len(digits), 3)).tolist() if len(digits) else ():
        data[place] = 48 + int(rng.integers(10))
    return data


def truncate(data: bytearray, rng: np.random.Generator) -> bytearray:
    return data[: int(rng.integers(len(data)))]


def swap(data: bytearray, rng: np.random.Generator) -> bytearray:
    """Two blocks change places: members and pages out of order."""
    size = _block(data, rng)
    first, second = sorted((rng.integers(len(data) // size, size=2) * size).tolist())
    if second - first >= size:
        data[first : first + size], data[second : second + size] = (
            data[second : second + size],
            data[first : first + size],
        )
    return data


def remove(data: bytearray, rng: np.random.Generator) -> bytearray:
    size = _block(data, rng)
    place = int(rng.integers(len(data) // size)) * size
    del data[place : place + size]
    return data


def repeat(data: bytearray, rng: np.random.Generator) -> bytearray:
    size = _block(data, rng)
    place = int(rng.integers(len(data) // size)) * size
    data[place:place] = data[place : place + size] * int(rng.integers(1, 4))
    return data


def blank(data: bytearray, rng: np.random.Generator) -> bytearray:
    """Zeros, as after a crash of the machine, or noise."""
    size = _block(data, rng)
    place = int(rng.integers(len(data) // size)) * size
    part = len(data[place : place + size])
    data[place : place + part] = bytes(part) if rng.random() < 0.7 else rng.bytes(part)
    return data


def behind(data: bytearray, rng: np.random.Generator) -> bytearray:
    """More than there should be."""
    return data + (rng.bytes(int(rng.integers(1, 2000))) if rng.random() < 0.5 else bytes(data[:1000]))


MUTATIONS: tuple[Mutation, ...] = (
    flip_bits,
    flip_bits,
    flip_near_an_end,
    flip_near_an_end,
    wrong_length,
    wrong_length,
    wrong_digits,
    truncate,
    swap,
    remove,
    repeat,
    blank,
    behind,
)
SAME_SIZE: tuple[Mutation, ...] = (flip_bits, flip_near_an_end, wrong_length, wrong_digits, swap, blank)


def mutated(data: bytes, rng: np.random.Generator, mutations: tuple[Mutation, ...] = MUTATIONS) -> bytes:
    """One mutation, and often a second or third."""
    damaged = bytearray(data)
    for _ in range(int(rng.choice([1, 1, 1, 2, 3]))):
        if damaged:
            damaged = mutations[int(rng.integers(len(mutations)))](damaged, rng)
    return bytes(damaged)


def _block(data: bytearray, rng: np.random.Generator) -> int:
    return int(rng.choice([size for size in _BLOCKS if size <= len(data)]))
