# SPDX-License-Identifier: Apache-2.0
"""Trains transformers' model as a user's script does, a few steps at a time: the other side of bench_peer.py.

Llava by LlavaForConditionalGeneration, decoders by AutoModelForCausalLM; padded batches; fp32, or bf16 by autocast;
eager, or torch.compile; PyTorch's DDP over gloo where there are several ranks; fused AdamW. Each rank reads lines
"NUMBER-OF-THE-VARIANT STEPS" from its standard input; rank 0 answers each with a line of JSON (seconds, losses). A
variant is fp32, bf16, fp32/compile or bf16/compile, with experts also fp32/eager or fp32/grouped_mm; its model is made
at its first turn. The first steps of a compiled one compile: whoever gives the turns leaves them out.

usage: RANK=r WORLD_SIZE=n MASTER_ADDR=127.0.0.1 MASTER_PORT=p peer_training.py DECK.json VARIANT...
DECK.json: model, data, batch, threads, lr, betas, eps, weight_decay, clip_norm[, mean, std]
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from transformers.utils.logging import disable_progress_bar, set_verbosity_error

from peer_data import Data, decayed


EXPERTS = ("eager", "grouped_mm")  # transformers' ways to multiply with experts


def read_model(folder, experts):
    if json.loads((Path(folder) / "config.json").read_text())["model_type"] == "llava":
        from transformers import LlavaForConditionalGeneration as Model
    else:
        from transformers import AutoModelForCausalLM as Model
    how = {"experts_implementation": experts} if experts else {}
    model = Model.from_pretrained(folder, dtype=torch.float32, **how).train()
    for name, parameter in model.named_parameters():
        if "post_layernorm" in name:  # of the class token, which no loss sees: DDP insists on knowing
            parameter.requires_grad_(False)
    return model


class Run:
    def __init__(self, variant, deck, data):
        self.deck, self.data, self.done = deck, data, 0
        precision, *rest = variant.split("/")
        self.autocast = precision == "bf16"
        model = read_model(deck["model"], next((part for part in rest if part in EXPERTS), None))
        self.optimizer = torch.optim.AdamW(
            decayed(model, deck["weight_decay"]), lr=deck["lr"], betas=deck["betas"], eps=deck["eps"], fused=True
        )
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.ranks = dist.get_world_size() if dist.is_initialized() else 1
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.model = DistributedDataParallel(model) if self.ranks > 1 else model
        if "compile" in rest:
            self.model = torch.compile(self.model)

    def sum_over_ranks(self, tensor):
        if self.ranks > 1:
            dist.all_reduce(tensor)
        return tensor

    def next_batch(self):
        size = self.deck["batch"]
        ids = [(self.done * size + i) % len(self.data) for i in range(size)]
        batch, targets = self.data.batch(ids[self.rank :: self.ranks])
        self.done += 1
        return batch, self.sum_over_ranks(torch.tensor(float(targets)))

    def step(self):
        """Seconds and loss of one."""
        batch, all_targets = self.next_batch()
        self.sum_over_ranks(torch.zeros(1))  # all are there
        start = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            # The mean over the targets of all ranks, whose gradients DDP averages.
            output = self.model(**batch, use_cache=False, num_items_in_batch=all_targets / self.ranks)
        output.loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, self.deck["clip_norm"])
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.sum_over_ranks(output.loss.detach().float().reshape(1)).item() / self.ranks
        return time.perf_counter() - start, loss


def main():
    deck, variants = json.loads(Path(sys.argv[1]).read_text()), sys.argv[2:]
    torch.set_num_threads(deck["threads"])
    disable_progress_bar()
    set_verbosity_error()
    if int(os.environ["WORLD_SIZE"]) > 1:
        dist.init_process_group("gloo")
    data = Data(deck["data"], deck.get("mean", (0, 0, 0)), deck.get("std", (1, 1, 1)))
    runs = {}
    for line in sys.stdin:
        number, steps = map(int, line.split())
        if number not in runs:
            runs[number] = Run(variants[number], deck, data)
        seconds, losses = zip(*(runs[number].step() for _ in range(steps)))
        if os.environ["RANK"] == "0":
            print(json.dumps({"variant": variants[number], "seconds": seconds, "losses": losses}), flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
