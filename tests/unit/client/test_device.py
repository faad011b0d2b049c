"""Batches ahead on a device: their order, their state, and pixels. On the CPU; copies are scripted."""

from __future__ import annotations

import numpy as np
import pytest

from dataloader_client import DataServiceLoader
from dataloader_client.device import STATISTICS, DeviceLoader, normalize_patches
from dataloader_svc.testing.scripted_job import JobThread
from dataloader_svc.testing.scripted_roles import Script

torch = pytest.importorskip("torch")


@pytest.fixture
def loader():
    with JobThread(Script(num_steps=3)) as service, DataServiceLoader(service.address) as loader:
        yield loader


class Recorded:
    """Copies that only note what was asked of them."""

    def __init__(self):
        self.events = []

    def start(self, batch):
        self.events.append(("start", batch.step, batch.microbatch))
        return batch

    def finish(self, batch):
        self.events.append(("finish", batch.step, batch.microbatch))
        return batch


def place(batch):
    return batch.step, batch.microbatch


@pytest.mark.parametrize("ahead", [1, 2, 5])
def test_copies_begin_so_many_batches_ahead_and_are_finished_in_turn(loader, ahead):
    copies = Recorded()
    device = DeviceLoader(loader, "cpu", ahead=ahead, copies=copies)
    order = [(step, microbatch) for step in range(3) for microbatch in range(8)]
    for number, batch in enumerate(device):
        assert place(batch) == order[number]
        started = [event[1:] for event in copies.events if event[0] == "start"]
        assert started == order[: number + 1 + ahead]
        assert copies.events.index(("start", *place(batch))) < copies.events.index(("finish", *place(batch)))
    assert [event[1:] for event in copies.events if event[0] == "finish"] == order
    with pytest.raises(StopIteration):
        next(device)


def test_its_state_is_of_what_was_handed_out(loader):
    device = DeviceLoader(loader, "cpu", ahead=3)
    states = [device.state_dict()]
    batches = []
    for batch in device:
        batches.append(place(batch))
        states.append(device.state_dict())
    for number in (0, 5, 8, 13):
        device.load_state_dict(states[number])
        assert device.state_dict() == states[number]
        assert place(next(device)) == batches[number]


def test_an_error_comes_after_the_batches_before_it():
    class Failing:
        def __init__(self):
            self.left = [1, 2]

        def __next__(self):
            if not self.left:
                raise RuntimeError("the source is gone")
            return self.left.pop(0)

        def state_dict(self):
            return {"left": len(self.left)}

    class Same:
        start = finish = staticmethod(lambda batch: batch)

    device = DeviceLoader(Failing(), "cpu", ahead=4, copies=Same())
    assert [next(device), next(device)] == [1, 2]
    for _ in range(2):  # and again, where the trainer tries again
        with pytest.raises(RuntimeError, match="the source is gone"):
            next(device)


def test_a_plain_copy_and_the_rest_of_the_loader(loader):
    device = DeviceLoader(loader, "cpu")
    batch = next(device)
    assert batch["input_ids"].device.type == "cpu"
    assert np.array_equal(batch["input_ids"].numpy(), batch.numpy["input_ids"])
    assert device.stats.steps == 1
    assert device.mesh == loader.mesh
    assert not hasattr(device, "sampler")
    with pytest.raises(ValueError, match="at least 1"):
        DeviceLoader(loader, "cpu", ahead=0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_the_batches_are_the_same(loader):
    device = DeviceLoader(loader, "cuda")
    for batch in device:
        torch.cuda._sleep(1_000_000)  # the trainer's stream is behind: copies run ahead of it
        assert all(
            np.array_equal(tensor.cpu().numpy(), batch.numpy[name])
            for name, tensor in batch.tensors().items()
        )


@pytest.mark.parametrize("statistics", [*STATISTICS, ((0.1, 0.2, 0.3), (1.0, 0.5, 2.0))])
def test_patches_are_normalized_a_channel(statistics):
    patches = torch.randint(
        0, 256, (7, 3 * 14 * 14), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    means, deviations = STATISTICS[statistics] if isinstance(statistics, str) else statistics
    wanted = np.empty((7, 3 * 196))
    for channel in range(3):
        part = slice(196 * channel, 196 * (channel + 1))
        wanted[:, part] = (patches.numpy()[:, part] / 255 - means[channel]) / deviations[channel]
    got = normalize_patches(patches, statistics)
    assert got.dtype == torch.float32
    np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-5, atol=2e-6)
    assert normalize_patches(patches, statistics, dtype=torch.bfloat16).dtype == torch.bfloat16
    assert normalize_patches(patches[:0], statistics).shape == (0, 588)


@pytest.mark.parametrize(
    ("patches", "statistics", "text"),
    [
        (torch.zeros(2, 588, dtype=torch.uint8), "qwen9", "none of clip, qwen2_vl"),
        (torch.zeros(2, 588, dtype=torch.uint8), ((0.0, 0.0), (1.0, 1.0)), "3 means and 3 positive"),
        (torch.zeros(2, 588, dtype=torch.uint8), ((0.0,) * 3, (1.0, 0.0, 1.0)), "3 means and 3 positive"),
        (torch.zeros(2, 588), "clip", "need uint8"),
        (torch.zeros(2, 587, dtype=torch.uint8), "clip", "need uint8"),
    ],
)
def test_what_can_not_be_normalized_is_told(patches, statistics, text):
    with pytest.raises(ValueError, match=text):
        normalize_patches(patches, statistics)
