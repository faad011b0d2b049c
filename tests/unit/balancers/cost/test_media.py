import numpy as np
import pytest

from dataloader_balancers.cost import AudioCost, AudioShape, EncoderCost, VisionShape


def test_patches_cost_in_proportion():
    assert EncoderCost(0.5).of_patches([0, 4, 100]).tolist() == [0, 2, 50]


def test_pictures_cost_by_the_square_of_their_patches():
    cost = EncoderCost(1.0, quadratic=0.5)
    one_large, four_small = cost.of_images([40])[0], 4 * cost.of_images([10])[0]
    assert one_large == 40 + 0.5 * 1600
    assert four_small == 40 + 4 * 0.5 * 100


def test_windowed_layers_cost_in_proportion_beyond_their_window():
    cost = EncoderCost(0.0, windowed=((64, 2.0),))
    assert cost.of_images([32, 64, 640]).tolist() == [2 * 32 * 32, 2 * 64 * 64, 2 * 640 * 64]


def test_what_pictures_cost_can_not_be_told_from_their_sum():
    with pytest.raises(ValueError, match="linearised"):
        EncoderCost(1.0, quadratic=0.5).of_patches([40])


def test_linearised_is_exact_for_the_usual_picture():
    cost = EncoderCost(1.0, 0.5, ((64, 2.0),))
    line = cost.linearised(100)
    assert line.of_patches([100, 300])[0] == pytest.approx(cost.of_images([100])[0])
    assert line.of_patches([300])[0] == pytest.approx(3 * cost.of_images([100])[0])


def test_qwen2_vl_is_an_encoder_of_over_half_a_billion_weights():
    """675 million with patch embedding and merger (Qwen2-VL, arXiv 2409.12191, table 1)."""
    shape = VisionShape(1280, 32, 5120)
    assert shape.num_weights == pytest.approx(0.675e9, rel=0.1)
    patches = 1024
    layer = [(1280, 3 * 1280), (1280, 1280), (1280, 5120), (5120, 1280)]
    matrices = 32 * sum(2 * rows * columns for rows, columns in layer) * patches
    attention = 32 * 2 * 2 * 1280 * patches**2
    assert shape.cost.of_images([patches])[0] * 1e9 == pytest.approx(matrices + attention)


def test_qwen2_5_vl_sees_windows_of_64_patches_in_28_of_32_layers():
    shape = VisionShape(1280, 32, 3420, window=64, full_layers=4, gated=True)
    pair = 4 * 1280
    attention = (4 * 4096**2 + 28 * 4096 * 64) * pair
    matrices = 2 * shape.num_weights * 4096
    assert shape.cost.of_images([4096])[0] * 1e9 == pytest.approx(matrices + attention)


def test_whisper_large_is_an_encoder_of_637_million_weights():
    """Counted layer by layer for one chunk of 30 s: 3,000 frames, 1,500 positions."""
    shape = AudioShape(1280, 32, 5120, mel_bins=128)
    assert shape.num_weights == pytest.approx(0.637e9, rel=0.01)
    first, second = 3000 * 2 * 3 * 128 * 1280, 1500 * 2 * 3 * 1280 * 1280
    layer = [(1280, 3 * 1280), (1280, 1280), (1280, 5120), (5120, 1280)]
    matrices = 1500 * 32 * sum(2 * rows * columns for rows, columns in layer)
    attention = 32 * 2 * 2 * 1280 * 1500**2
    total = shape.cost.of_frames([3000])[0] * 1e9
    assert total == pytest.approx(first + second + matrices + attention)


def test_sounds_are_cut_into_chunks():
    frames = [0, 1, 10, 11, 25]
    assert AudioCost(1.0, 2.0, 10, padded=False).of_frames(frames).tolist() == [0, 3, 210, 213, 475]
    assert AudioCost(1.0, 2.0, 10, padded=True).of_frames(frames).tolist() == [0, 210, 210, 420, 630]


def test_scaled_is_all_of_it():
    cost = EncoderCost(1.0, 0.5, ((64, 2.0),))
    assert np.array_equal(cost.scaled([0.25]).of_images([10, 100]), 0.25 * cost.of_images([10, 100]))


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_coefficients_are_finite_and_not_negative(value):
    for make in (lambda: EncoderCost(value), lambda: AudioCost(value, 1.0, 10, padded=True)):
        with pytest.raises(ValueError, match=f"is {value}"):
            make()


def test_sizes_that_no_encoder_has():
    with pytest.raises(ValueError, match="layers is 0"):
        VisionShape(10, 0, 10)
    with pytest.raises(ValueError, match="5 of 4 layers full"):
        VisionShape(10, 4, 10, window=2, full_layers=5)
    with pytest.raises(ValueError, match="mel_bins is 0"):
        AudioShape(10, 1, 10, mel_bins=0)
    with pytest.raises(ValueError, match="chunks of 0"):
        AudioCost(1.0, 1.0, 0, padded=True)
    with pytest.raises(ValueError, match="picture of 0"):
        EncoderCost().linearised(0)
