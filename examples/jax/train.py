"""A bigram model in JAX on batches of the service, in one process.

    python examples/jax/train.py mixture.yaml --steps 4 --vocab-size 129280

Needs jax and dataloader-svc[server]. With `layout: padded` shapes stay, and it compiles once.
"""

from __future__ import annotations

import argparse

import jax
import jax.numpy as jnp

from dataloader_client import DataServiceLoader
from dataloader_client.integrations.jax import iter_numpy

RATE = 5.0


def loss_of(table: jax.Array, ids: jax.Array, labels: jax.Array, weight: jax.Array) -> jax.Array:
    """Sum over tokens of weight times the negative log likelihood of the label after the token."""
    logp = jax.nn.log_softmax(table[ids])
    picked = jnp.take_along_axis(logp, jnp.maximum(labels, 0)[..., None], axis=-1)[..., 0]
    return -(picked * weight).sum()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("config")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--vocab-size", type=int, required=True)
    args = parser.parse_args()
    gradient = jax.jit(jax.value_and_grad(loss_of))
    table = jnp.zeros((args.vocab_size, args.vocab_size))
    total, change = 0.0, jnp.zeros_like(table)
    with DataServiceLoader.local(args.config) as loader:
        for batch, arrays in iter_numpy(loader):
            loss, part = gradient(table, arrays["input_ids"], arrays["labels"], arrays["loss_weight"])
            total, change = total + float(loss), change + part
            if batch.is_last_microbatch:
                print(f"step {batch.step} loss {total / batch.loss_weight_sum:.4f}", flush=True)
                table = table - RATE * change / batch.loss_weight_sum
                total, change = 0.0, jnp.zeros_like(table)
                if batch.step + 1 == args.steps:
                    break


if __name__ == "__main__":
    main()
