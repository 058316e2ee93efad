# SPDX-License-Identifier: Apache-2.0
"""Times training steps under PyTorch's context parallelism over gloo, where it runs, and on one rank without it.

context_parallel cuts the sequence in two for each rank (one part from the front, one from the back) and makes
scaled_dot_product_attention pass keys around. It knows no packed rows, so the samples of a row go through the model one
after the other, as on one rank, and their gradients add up. "plain" is that without context_parallel.

PyTorch 2.11 has no such attention for the CPU: the operator that scaled_dot_product_attention calls there has no
sharding strategy. The answer then has the error in place of times.

usage: RANK=r WORLD_SIZE=n MASTER_ADDR=127.0.0.1 MASTER_PORT=p peer_context_parallel.py DECK.json STEPS VARIANT...
"""

import contextlib
import json
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel

from peer_decoder import Data, Timer, make_optimizer, read_decoder
from variant_turns import take_turns


class Run:
    """Variant "plain/fp32" or "cp/fp32"; "bf16" is autocast."""

    def __init__(self, variant, deck, mesh):
        kind, precision = variant.split("/")
        self.deck, self.mesh = deck, mesh if kind == "cp" else None
        self.autocast = precision == "bf16"
        self.model = read_decoder(deck["model"], deck["tokens"])
        self.optimizer = make_optimizer(self.model, deck)
        self.timer = Timer(variant)

    def cut(self, ids, labels, tables):
        if self.mesh is None:
            return contextlib.nullcontext()
        buffers = [ids, labels, *tables]
        dims = [1, 1, 0, 0]
        return context_parallel(self.mesh, buffers=buffers, buffer_seq_dims=dims, no_restore_buffers=set(buffers))

    def loss_of(self, ids, labels, targets):
        tables = [table[: ids.shape[1]].clone() for table in (self.model.cosines, self.model.sines)]
        with self.cut(ids, labels, tables), torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            logits = self.model(ids, tables)
            loss = F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction="sum") / targets
            loss.backward()
        return loss.detach()

    def timed_step(self, data, number, is_timed):
        samples = data.samples_of(number, self.deck["batch"])
        self.timer.run(lambda: self.step(samples), is_timed)

    def step(self, samples):
        targets = sum(int((labels >= 0).sum()) for _, labels in samples)
        loss = sum(self.loss_of(ids.clone(), labels.clone(), targets) for ids, labels in samples)
        if self.mesh is not None:
            dist.all_reduce(loss)
            for parameter in self.model.parameters():
                dist.all_reduce(parameter.grad)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.deck["clip_norm"])
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.item()


def main():
    deck = json.loads(open(sys.argv[1]).read())
    steps, variants = int(sys.argv[2]), sys.argv[3:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("cp",))
    data = Data(deck["data"])
    runs = [Run(variant, deck, mesh) for variant in variants]
    try:
        take_turns(runs, steps, lambda run, *step: run.timed_step(data, *step))
        answer = [run.timer.report() for run in runs]
    except NotImplementedError as error:
        answer = {"error": str(error)}
    if dist.get_rank() == 0:
        print(json.dumps(answer))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
