"""A tiny Llama in Hugging Face's Trainer on batches of the service; resumes from its last checkpoint.

    python examples/huggingface/train.py --address localhost:7077 --vocab-size 129280 --out build/hf

Also under torchrun, where each rank reads its own part. Needs transformers and accelerate.
"""

from __future__ import annotations

import argparse
import contextlib
import json

from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint

from dataloader_client import DataServiceLoader
from dataloader_client.integrations.transformers import ServiceTrainer


def tiny_llama(vocab_size: int) -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocab_size,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--address", required=True, help="HOST:PORT that `dataloader-svc serve` printed")
    parser.add_argument("--out", required=True, help="folder of checkpoints")
    parser.add_argument("--vocab-size", type=int, required=True)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--microbatches", type=int, default=1, help="of a step, on a rank")
    parser.add_argument(
        "--evaluate", action="store_true", help="every second step, on the job's `evaluation`"
    )
    parser.add_argument("--cpu", action="store_true")
    args = parser.parse_args()
    set_seed(17)
    arguments = TrainingArguments(  # initialises torch.distributed under torchrun
        output_dir=args.out,
        max_steps=args.steps,
        gradient_accumulation_steps=args.microbatches,
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        logging_steps=1,
        save_steps=2,
        eval_strategy="steps" if args.evaluate else "no",
        eval_steps=2,
        use_cpu=args.cpu,
        report_to="none",
        disable_tqdm=True,
    )
    with contextlib.ExitStack() as stack:
        loader = stack.enter_context(DataServiceLoader(args.address))
        held_out = None
        if args.evaluate:
            held_out = stack.enter_context(DataServiceLoader(args.address, split="eval"))
        model = tiny_llama(args.vocab_size)
        trainer = ServiceTrainer(model, arguments, loader=loader, eval_loader=held_out)
        trainer.train(resume_from_checkpoint=get_last_checkpoint(args.out))
        if trainer.is_world_process_zero():
            log = trainer.state.log_history
            for name in ("eval_loss", "loss"):
                print(json.dumps({entry["step"]: entry[name] for entry in log if name in entry}))


if __name__ == "__main__":
    main()
