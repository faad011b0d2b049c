"""Pictures encoded elsewhere: loss and gradients are those of encoding at home, on real ranks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from real_job import environment

torch = pytest.importorskip("torch")

from dataloader_client.integrations.encoder_dispatch import near_home  # noqa: E402

RANK = '''
import json, sys
import numpy as np
import torch
import torch.distributed as dist
from dataloader_client.integrations.encoder_dispatch import encode, near_home

rank, ranks, rendezvous, out = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
FEATURES, WIDTH, MERGE = 12, 5, 2
dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=ranks)


class Encoder(torch.nn.Module):
    """Each picture by itself, all of its patches seeing each other; counts what it was given."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(7)
        self.into, self.out = torch.nn.Linear(FEATURES, 8), torch.nn.Linear(8, WIDTH)
        self.patches = self.calls = 0

    def forward(self, pixels, grids):
        self.patches, self.calls = self.patches + len(pixels), self.calls + 1
        x = self.into(pixels.float() / 255)
        parts = torch.split(x, grids.prod(dim=1).tolist())
        seen = [torch.softmax(part @ part.T / 4, dim=1) @ part for part in parts]
        return self.out(torch.cat(seen).reshape(-1, MERGE**2, 8).mean(dim=1))


def pictures(step):
    """Rank 0 has many, rank 1 none, others one or two, of unlike sizes."""
    rng = np.random.default_rng(100 * step + rank)
    count = {0: 7, 1: 0}.get(rank, 1 + step)
    grids = torch.tensor(2 * rng.integers(1, 5, (count, 3)), dtype=torch.int64).reshape(-1, 3)
    grids[:, 0] = 1
    pixels = torch.from_numpy(rng.integers(0, 256, (int(grids.prod(dim=1).sum()), FEATURES), np.uint8))
    return pixels, grids


def run(place):
    encoder, losses = Encoder(), []
    for step in range(3):
        pixels, grids = pictures(step)
        if place is None:
            made = encoder(pixels, grids) if len(grids) else torch.zeros((0, WIDTH))
        else:
            made = encode(encoder, pixels, grids, width=WIDTH, merge=MERGE, place=place)
        weight = torch.sin(torch.arange(made.numel(), dtype=torch.float32)).reshape(made.shape)
        loss = ((made * weight) ** 2).sum()
        if loss.requires_grad:
            loss.backward()
        losses.append(float(loss))
    grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in encoder.parameters()]
    for grad in grads:
        dist.all_reduce(grad)
    return losses, torch.cat([g.flatten() for g in grads]).tolist(), encoder.patches, encoder.calls


told = {name: run(place) for name, place in {
    "home": None,
    "near": near_home,
    "next": lambda costs, home, ranks: (home + 1) % ranks,
}.items()}
try:
    encode(Encoder(), *pictures(0), width=WIDTH, merge=MERGE, place=lambda costs, home, ranks: home + ranks)
except ValueError as error:
    told["wrong place"] = str(error)
with open(f"{out}/{rank}.json", "w") as file:
    json.dump(told, file)
dist.destroy_process_group()
'''


def test_losses_and_gradients_are_those_of_encoding_at_home(tmp_path: Path) -> None:
    ranks = 3
    (tmp_path / "rank.py").write_text(RANK)
    started = [
        subprocess.Popen(
            [sys.executable, "rank.py", str(rank), str(ranks), str(tmp_path / "meet"), str(tmp_path)],
            cwd=tmp_path,
            env=environment() | {"OMP_NUM_THREADS": "1"},
        )
        for rank in range(ranks)
    ]
    try:
        assert [process.wait(timeout=120) for process in started] == [0] * ranks
    finally:
        for process in started:
            process.kill()
            process.wait()
    told = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(ranks)]
    for each in told:
        losses, gradient, _, _ = each["home"]
        assert max(abs(value) for value in gradient) > 0.1
        for way in ("near", "next"):
            assert each[way][0] == pytest.approx(losses, rel=1e-5)
            assert each[way][1] == pytest.approx(gradient, rel=1e-4, abs=1e-6)
            assert each[way][3] == 3  # on every rank, in every step
        assert "need" in each["wrong place"]
    at_home, shared = ([each[way][2] for each in told] for way in ("home", "near"))
    assert sum(shared) == sum(at_home)
    assert max(shared) < 0.6 * max(at_home)


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5)), max_size=30),
    st.sampled_from([1, 2, 3, 6]),
    st.sampled_from([0.0, 0.1, 1.0]),
)
@settings(deadline=None)
def test_near_home_levels_and_moves_no_more_than_it_must(items, size, tolerance):
    costs = np.array([cost for cost, _ in items], np.float64)
    home = np.array([rank for _, rank in items], np.int64)
    where = near_home(costs, home, 6, ranks_per_node=size, tolerance=tolerance)
    share = (1 + tolerance) * costs.sum() / 6
    load = np.bincount(where, costs, 6)
    assert load.max(initial=0) <= max(share, costs.sum() / 6 + costs.max(initial=0)) + 1e-9
    assert where.tolist() == near_home(costs, home, 6, ranks_per_node=size, tolerance=tolerance).tolist()
    if np.bincount(home, costs, 6).max(initial=0) <= share:
        assert where.tolist() == home.tolist()
    for item in np.flatnonzero(where != home):
        assert np.bincount(home, costs, 6)[home[item]] > share


def test_work_leaves_its_node_last():
    """Two nodes of two ranks: what the node's other rank can take stays; else it goes to the emptier node."""
    assert near_home(np.full(4, 1.0), np.array([0, 0, 2, 2]), 4, ranks_per_node=2).tolist() == [0, 1, 2, 3]
    assert sorted(near_home(np.full(4, 1.0), np.zeros(4, int), 4, ranks_per_node=2).tolist()) == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="nodes of 3 ranks do not divide 4 ranks"):
        near_home(np.ones(1), np.zeros(1, int), 4, ranks_per_node=3)
