"""A bigram model whose data follows what it learns: each rank reports what its tokens lost, by source.

    dataloader-svc serve examples/adaptive/mixture.yaml
    python examples/adaptive/train.py --address HOST:PORT
    torchrun --standalone --nproc-per-node 2 examples/adaptive/train.py --address HOST:PORT

Prints the loss of each source, and at the end the weights that the service made of them. What is done for
it is `losses_by_source` and `loader.report`; docs/adaptive.md says what becomes of it.
"""

from __future__ import annotations

import argparse
import json
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from dataloader_client import Batch, DataServiceLoader
from dataloader_client.losses import losses_by_source


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--address", required=True, help="HOST:PORT that `dataloader-svc serve` printed")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--vocab-size", type=int, default=129_280)
    return parser.parse_args()


def token_losses(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Of each token, in the shape of the labels; 0 where nothing is predicted."""
    return cross_entropy(model(batch.input_ids), batch.labels, ignore_index=-100, reduction="none")


def main() -> None:
    args = parse()
    torch.manual_seed(17)  # every rank starts from the same weights
    if "RANK" in os.environ:  # under torchrun; the loader then takes its rank from torch.distributed
        dist.init_process_group("gloo")
    world = dist.get_world_size() if dist.is_initialized() else 1
    model: nn.Module = nn.Sequential(nn.Embedding(args.vocab_size, 32), nn.Linear(32, args.vocab_size))
    if world > 1:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with DataServiceLoader(
        args.address, dp_rank=None if world > 1 else 0, dp_size=None if world > 1 else 1
    ) as loader:
        sums = 0.0
        for batch in loader:
            losses = token_losses(model, batch)
            (losses * batch.loss_weight).sum().mul(world / batch.loss_weight_sum).backward()
            sums = sums + losses_by_source(batch, losses)
            if not batch.is_last_microbatch:
                continue
            optimizer.step()
            optimizer.zero_grad()
            loader.report(losses=sums)
            if loader.coords.dp == 0:
                rows = zip(batch.manifest.sources, sums.tolist(), strict=True)
                means = {name: round(loss / weight, 3) for name, (loss, weight) in rows if weight}
                print(json.dumps({"step": batch.step, "losses": means}), flush=True)
            sums = 0.0
            if batch.step + 1 >= args.steps:
                break
        if loader.coords.dp == 0:
            made = loader.state_dict()["service"].get("mixture", [])
            print(json.dumps({"weights": [[change["at_step"], change["weights"]] for change in made]}))
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
