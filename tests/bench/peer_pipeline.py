# SPDX-License-Identifier: Apache-2.0
"""Times training steps under torch.distributed.pipelining over gloo: one stage of a decoder on each rank.

A variant is a schedule: gpipe, 1f1b. A batch is cut into one microbatch per sample. The gradient is that of the mean
over all targets: the loss of a microbatch is its sum over the number of targets of the batch. Every process is one rank
with one thread; clipping sums the norm over ranks, as each holds its own layers.

usage: RANK=r WORLD_SIZE=n MASTER_ADDR=127.0.0.1 MASTER_PORT=p peer_pipeline.py DECK.json STEPS VARIANT...
"""

import json
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from peer_decoder import Data, Timer, make_optimizer, read_decoder
from variant_turns import take_turns

SCHEDULES = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}


class Stage(nn.Module):
    """The layers `first` to `last` of a decoder; the embedding with the first, the head with the last."""

    def __init__(self, decoder, first, last):
        super().__init__()
        self.embed_tokens = decoder.embed_tokens if first == 0 else None
        self.layers = decoder.layers[first:last]
        is_last = last == len(decoder.layers)
        self.norm, self.lm_head = (decoder.norm, decoder.lm_head) if is_last else (None, None)
        self.register_buffer("cosines", decoder.cosines, persistent=False)
        self.register_buffer("sines", decoder.sines, persistent=False)

    def forward(self, x):
        if self.embed_tokens is not None:
            x = self.embed_tokens(x)
        cosines, sines = (table[: x.shape[1]].to(x.dtype) for table in (self.cosines, self.sines))
        for layer in self.layers:
            x = layer(x, cosines, sines)
        return x if self.lm_head is None else self.lm_head(self.norm(x))


class Run:
    def __init__(self, variant, deck, splits):
        rank, ranks = dist.get_rank(), dist.get_world_size()
        self.deck, self.targets = deck, 1
        self.module = Stage(read_decoder(deck["model"], deck["tokens"]), splits[rank], splits[rank + 1])
        stage = PipelineStage(self.module, rank, ranks, torch.device("cpu"))
        self.schedule = SCHEDULES[variant](
            stage, n_microbatches=deck["batch"], loss_fn=self.loss_of, scale_grads=False
        )
        self.optimizer = make_optimizer(self.module, deck)
        self.timer = Timer(variant)

    def loss_of(self, logits, labels):
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") / self.targets

    def clip(self):
        gradients = [p.grad for p in self.module.parameters() if p.grad is not None]
        square = torch.stack([g.square().sum() for g in gradients]).sum()
        dist.all_reduce(square)
        scale = min(1.0, self.deck["clip_norm"] / (square.sqrt().item() + 1e-6))
        torch._foreach_mul_(gradients, scale)

    def timed_step(self, data, number, is_timed):
        ids, labels = data.batch(number, self.deck["batch"])
        self.timer.run(lambda: self.step(ids, labels), is_timed)

    def step(self, ids, labels):
        rank, last = dist.get_rank(), dist.get_world_size() - 1
        self.targets, losses = int((labels >= 0).sum()), []
        if rank == 0:
            self.schedule.step(ids)
        elif rank == last:
            self.schedule.step(target=labels, losses=losses, return_outputs=False)
        else:
            self.schedule.step()
        self.clip()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        loss = torch.tensor(float(sum(losses)))
        dist.broadcast(loss, last)
        return loss.item()


def main():
    deck = json.loads(open(sys.argv[1]).read())
    steps, variants = int(sys.argv[2]), sys.argv[3:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    data = Data(deck["data"])
    runs = [Run(variant, deck, deck["splits"]) for variant in variants]
    take_turns(runs, steps, lambda run, *step: run.timed_step(data, *step))
    answer = [run.timer.report() for run in runs]
    if dist.get_rank() == 0:
        print(json.dumps(answer))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
