"""One rank of a data-parallel trainer that takes its batches from the service.

    python examples/train/train.py --address localhost:7077 --rank 0 --world-size 2 --steps 24 --out build/run

All that has to do with data is: `DataServiceLoader(...)`, `for batch in loader`, `loader.state_dict()`.
Started by run_demo.py, once a rank; under torchrun the rank and world size come from its environment.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from model import ModelConfig, TinyVlm, idle
from torch.nn.parallel import DistributedDataParallel

from dataloader_client import DataServiceLoader


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--address", required=True, help="HOST:PORT that `dataloader-svc serve` printed")
    parser.add_argument("--steps", type=int, default=24, help="train up to this step")
    parser.add_argument("--checkpoint-at", type=int, help="save a checkpoint after this step")
    parser.add_argument("--resume", type=Path, help="checkpoint to go on from, on any number of ranks")
    parser.add_argument("--out", type=Path, required=True, help="folder for checkpoints and logs")
    parser.add_argument("--name", default="run", help="name of the log: OUT/NAME-rankN.jsonl")
    parser.add_argument("--vocab-size", type=int, default=129_280)
    parser.add_argument("--image-token", type=int, default=129_279)
    parser.add_argument("--video-token", type=int, default=128_000)
    parser.add_argument("--rank", type=int, default=int(os.environ.get("RANK", "0")))
    parser.add_argument("--world-size", type=int, default=int(os.environ.get("WORLD_SIZE", "1")))
    parser.add_argument("--rendezvous", default="env://", help="torch.distributed init method")
    return parser.parse_args()


def main() -> None:
    args = parse()
    torch.manual_seed(17)  # every rank starts from the same weights
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // args.world_size))
    dist.init_process_group("gloo", init_method=args.rendezvous, rank=args.rank, world_size=args.world_size)
    model = TinyVlm(ModelConfig(args.vocab_size, args.image_token, args.video_token))
    trainer = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    state = None
    if args.resume:
        saved = torch.load(args.resume, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        state = json.loads(saved["data"])

    # The mesh comes from torch.distributed: every rank is a data-parallel rank.
    with DataServiceLoader(args.address, state=state) as loader, _log(args) as log:
        began, waited, loss_sum = time.perf_counter(), 0.0, torch.zeros(())
        for batch in loader:
            # The mean over the step's target tokens, wherever they are: DDP divides by the number of
            # ranks, so multiply by it. Ranks with more target tokens count for more, as they should.
            loss = trainer(batch.inputs) * (args.world_size / batch.loss_weight_sum)
            # Steps without media anywhere: the all-reduce of the encoder's gradients wants some all the same.
            loss = loss + idle(model.vision)
            if batch.is_last_microbatch:
                loss.backward()
            else:
                with trainer.no_sync():
                    loss.backward()
            loss_sum += loss.detach() / args.world_size
            _record(log, batch)
            if not batch.is_last_microbatch:
                continue
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            dist.all_reduce(loss_sum)
            now, wait = time.perf_counter(), loader.stats.wait_s
            log.write(
                json.dumps(
                    {
                        "step": batch.step,
                        "loss": loss_sum.item(),
                        "seconds": now - began,
                        "wait_s": wait - waited,
                        "metrics": batch.metrics,
                        "digest": batch.digest,
                    }
                )
                + "\n"
            )
            log.flush()
            if args.rank == 0:
                print(f"step {batch.step:3}  loss {loss_sum.item():.4f}  {now - began:.2f} s", flush=True)
            began, waited, loss_sum = now, wait, torch.zeros(())
            if batch.step + 1 == args.checkpoint_at and args.rank == 0:
                _save(args, model, optimizer, loader.state_dict())
            if batch.step + 1 >= args.steps:
                break
    dist.destroy_process_group()


def _log(args: argparse.Namespace):
    args.out.mkdir(parents=True, exist_ok=True)
    return (args.out / f"{args.name}-rank{args.rank}.jsonl").open("w")


def _record(log, batch) -> None:
    """Which document pieces this rank was given: what the audit of the run is made from."""
    spans = [
        [span.source, span.epoch, span.position, span.start, span.length] for span in batch.manifest.spans()
    ]
    log.write(json.dumps({"step": batch.step, "spans": spans, "tokens": batch.num_tokens}) + "\n")


def _save(args: argparse.Namespace, model: TinyVlm, optimizer: torch.optim.Optimizer, data: object) -> None:
    """Model, optimizer and data state in one file, in place at once or not at all."""
    path = args.out / "checkpoint.pt"
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "data": json.dumps(data)}
    torch.save(saved, path.with_suffix(".tmp"))
    path.with_suffix(".tmp").rename(path)


if __name__ == "__main__":
    main()
