# SPDX-License-Identifier: Apache-2.0
"""Times training steps of transformers' model under PyTorch's DDP and FSDP2 over gloo.

The counterpart of bench_step: the same weights (a Hugging Face directory), the same data set (.h5, in the order of the
file), the same optimizer; samples padded to the longest of a rank's, with an attention mask and labels, as users of
transformers do it. Variants (ddp/fp32, ddp/bf16, fsdp2/fp32, fsdp2/bf16) take turns of a few steps; "/plain" behind one
takes AdamW's default loop instead of the fused one. Every process is one rank with one thread.

usage: RANK=r WORLD_SIZE=n MASTER_ADDR=127.0.0.1 MASTER_PORT=p peer_step.py DECK.json STEPS VARIANT...
DECK.json: model, data, batch, lr, betas, eps, weight_decay, clip_norm, mean, std, threads
"""

import json
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from transformers import LlavaForConditionalGeneration
from transformers.utils.logging import disable_progress_bar

from peer_data import Data, decayed
from variant_turns import take_turns


def shard(model, precision):
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if precision == "bf16" else MixedPrecisionPolicy()
    layers = list(model.model.language_model.layers)
    layers += list(getattr(model.model.vision_tower, "vision_model", model.model.vision_tower).encoder.layers)
    for layer in layers:
        fully_shard(layer, mp_policy=policy)
    return fully_shard(model, mp_policy=policy)


class Run:
    def __init__(self, variant, deck):
        self.variant, self.deck = variant, deck
        strategy, precision, *rest = variant.split("/")
        model = LlavaForConditionalGeneration.from_pretrained(deck["model"], dtype=torch.float32)
        model.train()
        for name, parameter in model.named_parameters():
            if "post_layernorm" in name:  # of the class token, which no loss sees: DDP insists on knowing
                parameter.requires_grad_(False)
        self.autocast = precision == "bf16" and strategy == "ddp"
        self.model = DistributedDataParallel(model) if strategy == "ddp" else shard(model, precision)
        self.optimizer = torch.optim.AdamW(
            decayed(self.model, deck["weight_decay"]),
            lr=deck["lr"],
            betas=deck["betas"],
            eps=deck["eps"],
            fused=None if "plain" in rest else True,
        )
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.seconds, self.cpu_seconds, self.losses = [], [], []
        self.tokens = self.samples = 0

    def step(self, batch, all_targets, is_timed):
        dist.barrier()
        start, cpu_start = time.perf_counter(), time.process_time()
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            # The mean over the targets of all ranks, whose gradients the wrappers average.
            output = self.model(**batch, use_cache=False, num_items_in_batch=all_targets / dist.get_world_size())
        output.loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, self.deck["clip_norm"])
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        loss = output.loss.detach().float().reshape(1)
        dist.all_reduce(loss)
        self.losses.append(loss.item() / dist.get_world_size())
        dist.barrier()
        if is_timed:
            self.seconds.append(time.perf_counter() - start)
            self.cpu_seconds.append(time.process_time() - cpu_start)

    def report(self, tokens, samples):
        median = statistics.median(self.seconds)
        return {
            "variant": self.variant,
            "median_s": median,
            "min_s": min(self.seconds),
            "min_cpu_s": min(self.cpu_seconds),
            "tokens_per_s": tokens / median,
            "samples_per_s": samples / median,
            "seconds": self.seconds,
            "losses": self.losses,
        }


def main():
    deck = json.loads(open(sys.argv[1]).read())
    steps, variants = int(sys.argv[2]), sys.argv[3:]
    torch.set_num_threads(1)
    disable_progress_bar()
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    data = Data(deck["data"], deck["mean"], deck["std"])
    runs = [Run(variant, deck) for variant in variants]

    def ids_of(number):
        return [(number * deck["batch"] + i) % len(data) for i in range(deck["batch"])]

    def step(run, number, is_timed):
        batch, targets = data.batch(ids_of(number)[rank::ranks])
        all_targets = torch.tensor(targets)
        dist.all_reduce(all_targets)
        run.step(batch, all_targets.item(), is_timed)

    made = take_turns(runs, steps, step)
    if rank == 0:
        tokens = sum(len(data.sample(i)[0]) for number in range(made) for i in ids_of(number))
        print(json.dumps([run.report(tokens / made, deck["batch"]) for run in runs]))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
