"""The geometry against worked examples and hypothesis; the patches against a slow loop."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataloader_svc.config.schema import Images
from dataloader_svc.errors import BadSample, Reason
from dataloader_svc.transforms.vision import (
    VisionRule,
    from_patches,
    grid,
    num_tokens,
    smart_resize,
    to_patches,
)

RULE = VisionRule()
SMALL = VisionRule(patch=2, merge=2, min_pixels=16, max_pixels=16 * 64)


def test_defaults_are_those_of_the_configuration():
    schema = Images()
    assert VisionRule(**schema.model_dump()) == RULE


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        # Worked by hand from the published rule, sides of 28.
        ((480, 640), (476, 644)),  # 17.14 -> 17, 22.86 -> 23
        ((56, 56), (56, 56)),
        ((27, 332), (28, 336)),
        ((1, 1), (56, 56)),  # grown by 56
        ((1080, 1920), (728, 1316)),  # shrunk by sqrt(2073600 / 1003520) = 1.4375: 26.83, 47.70 down
        ((15420, 690), (4732, 196)),  # by 3.2561: 169.1, 7.57 down
        ((3, 400), (28, 392)),
        ((10, 2000), (28, 1988)),  # aspect exactly 200 is allowed; 71.43 -> 71
    ],
)
def test_smart_resize_examples(size, expected):
    assert smart_resize(*size, RULE) == expected


@pytest.mark.parametrize("size", [(1, 400), (400, 1), (0, 10), (10, 0), (9, 1801)])
def test_hopeless_shapes_are_refused(size):
    with pytest.raises(BadSample) as refused:
        smart_resize(*size, RULE)
    assert refused.value.reason is Reason.BAD_SHAPE


def test_the_cap_holds_where_a_thin_side_cannot_shrink():
    rule = VisionRule(min_pixels=784, max_pixels=4 * 784)
    assert smart_resize(15400, 100, rule) == (112, 28)


sides = st.integers(1, 20_000)


@given(sides, sides, st.integers(1, 16), st.integers(1, 3), st.integers(1, 10**6), st.integers(0, 10**6))
def test_every_size_is_a_grid_within_the_cap(height, width, patch, merge, low, extra):
    high = max(low, (patch * merge) ** 2) + extra
    rule = VisionRule(patch=patch, merge=merge, min_pixels=low, max_pixels=high)
    try:
        new_h, new_w = smart_resize(height, width, rule)
    except BadSample:
        assert max(height, width) > 200 * min(height, width)
        return
    assert new_h % rule.side == new_w % rule.side == 0
    assert 0 < new_h * new_w <= high
    grid_h, grid_w = grid(new_h, new_w, rule)
    assert num_tokens(1, grid_h, grid_w, rule) * rule.side**2 == new_h * new_w


@given(sides, sides)
def test_a_resized_size_stays(height, width):
    if max(height, width) > 200 * min(height, width):
        return
    once = smart_resize(height, width, RULE)
    if max(once) <= 200 * min(once) and once[0] * once[1] >= RULE.min_pixels:
        assert smart_resize(*once, RULE) == once


def test_impossible_rules_are_refused():
    with pytest.raises(ValueError, match="max_pixels 100 is below"):
        VisionRule(min_pixels=50, max_pixels=100)
    with pytest.raises(ValueError, match="positive"):
        VisionRule(patch=0)


def _patches_by_loop(frames, patch, merge):
    """The stated order, said with loops."""
    rows = []
    count, height, width, _ = frames.shape
    side = patch * merge
    for t in range(count):
        for block_y in range(0, height, side):
            for block_x in range(0, width, side):
                for y in range(block_y, block_y + side, patch):
                    for x in range(block_x, block_x + side, patch):
                        square = frames[t, y : y + patch, x : x + patch]
                        rows.append(np.concatenate([square[..., c].ravel() for c in range(3)]))
    return np.array(rows)


@pytest.mark.parametrize("merge", [1, 2, 3])
def test_patch_order(merge):
    rule = VisionRule(patch=2, merge=merge, min_pixels=1, max_pixels=10**4)
    shape = (3, 2 * rule.side, 4 * rule.side, 3)
    frames = np.random.default_rng(1).integers(0, 256, shape, dtype=np.uint8)
    patches = to_patches(frames, rule)
    np.testing.assert_array_equal(patches, _patches_by_loop(frames, 2, merge))
    assert patches.dtype == np.uint8
    np.testing.assert_array_equal(from_patches(patches, (3, 2 * merge, 4 * merge), rule), frames)


def test_patches_into_a_given_buffer():
    frames = np.arange(8 * 8 * 3, dtype=np.uint8).reshape(1, 8, 8, 3)
    buffer = np.zeros((40, 12), np.uint8)
    out = buffer[10:26]
    assert to_patches(frames, SMALL, out=out) is out
    np.testing.assert_array_equal(out, to_patches(frames, SMALL))
    assert not buffer[:10].any()
    assert not buffer[26:].any()
    with pytest.raises(AssertionError, match="expected"):
        to_patches(frames, SMALL, out=buffer)


def test_frames_that_are_a_view_are_cut_alike():
    frames = np.random.default_rng(2).integers(0, 256, (2, 8, 12, 3), dtype=np.uint8)
    np.testing.assert_array_equal(
        to_patches(frames[:, ::-1], SMALL), to_patches(np.ascontiguousarray(frames[:, ::-1]), SMALL)
    )
