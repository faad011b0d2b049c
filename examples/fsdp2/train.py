"""The model of examples/train in FSDP2 (`fully_shard`) on batches of the service; resumes by itself.

    torchrun --standalone --nproc-per-node 2 examples/fsdp2/train.py --address HOST:PORT --out build/fsdp2

Checkpoints are of torch.distributed.checkpoint: each rank writes its part of the weights, with the loader's
state beside them. They fit any number of ranks. Where data has media, the service needs
`ensure_modality: true`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

from dataloader_client import DataServiceLoader
from dataloader_client.device import DeviceLoader
from dataloader_client.integrations.distributed_checkpoint import LoaderState

sys.path.append(str(Path(__file__).parents[1] / "train"))
from model import ModelConfig, TinyVlm


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--address", required=True, help="HOST:PORT that `dataloader-svc serve` printed")
    parser.add_argument("--out", required=True, type=Path, help="folder of checkpoints")
    parser.add_argument("--steps", type=int, default=24, help="train up to this step")
    parser.add_argument("--checkpoint-every", type=int, default=1)
    parser.add_argument("--vocab-size", type=int, default=129_280)
    parser.add_argument("--image-token", type=int, default=129_279)
    parser.add_argument("--video-token", type=int, default=128_000)
    return parser.parse_args()


def shard(model: TinyVlm, mesh: DeviceMesh) -> None:
    """Each block and the encoder is gathered when it runs; the rest from forward to backward."""
    for part in (*model.blocks, model.vision):
        fully_shard(part, mesh=mesh)
    fully_shard(model, mesh=mesh)


class Training:
    """Weights and optimizer for `torch.distributed.checkpoint`, which writes each part where it is."""

    def __init__(self, model: TinyVlm, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model, optimizer

    def state_dict(self) -> dict:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: dict) -> None:
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )


def last_checkpoint(out: Path) -> Path | None:
    """The last whole one: `.metadata` is written when all ranks have written their parts."""
    steps = [int(path.parent.name) for path in out.glob("*/.metadata")]
    return out / str(max(steps)) if steps else None


def main() -> None:
    args = parse()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    # Joins the ranks too. The loader knows this rank's place on it by the names of its dims.
    mesh = init_device_mesh(device, (int(os.environ["WORLD_SIZE"]),), mesh_dim_names=("dp_shard",))
    torch.manual_seed(17)  # every rank cuts its part from the same weights
    model = TinyVlm(ModelConfig(args.vocab_size, args.image_token, args.video_token)).to(device)
    shard(model, mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    with DataServiceLoader(args.address, mesh=mesh) as service:
        loader = DeviceLoader(service, device)
        state = {"training": Training(model, optimizer), "data": LoaderState(loader)}
        if last := last_checkpoint(args.out):
            dcp.load(state, checkpoint_id=last)
        loss_sum = torch.zeros((), device=device)
        for batch in loader:
            # The mean over the step's target tokens on all ranks, over which gradients are averaged.
            loss = model(batch.inputs) * (mesh.size() / batch.loss_weight_sum)
            model.set_requires_gradient_sync(batch.is_last_microbatch)  # once a step
            loss.backward()
            loss_sum += loss.detach() / mesh.size()
            if not batch.is_last_microbatch:
                continue
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            dist.all_reduce(loss_sum)
            done = batch.step + 1
            if mesh.get_rank() == 0:
                print(
                    json.dumps({"step": batch.step, "loss": loss_sum.item(), "digest": batch.digest}),
                    flush=True,
                )
            loss_sum.zero_()
            if done % args.checkpoint_every == 0:
                dcp.save(state, checkpoint_id=args.out / str(done))
            if done >= args.steps:
                break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
