# SPDX-License-Identifier: Apache-2.0
"""Times training steps under PyTorch's tensor parallelism: DTensor's parallelize_module, over gloo.

The plan is that of PyTorch's tutorial: column- and row-wise projections, norms and residuals on slices of the sequence
(SequenceParallel), a vocabulary cut for the embedding, the head and the loss (loss_parallel). Variants take turns of
a few steps: fp32; autocast (bf16 products, fp32 parameters); bf16 (all in bf16 with no fp32 copy: less work than zea's
bf16, whose masters and moments are fp32). Every process is one rank with one thread.

usage: RANK=r WORLD_SIZE=n MASTER_ADDR=127.0.0.1 MASTER_PORT=p peer_tensor_parallel.py DECK.json STEPS VARIANT...
"""

import json
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from peer_decoder import Data, Timer, make_optimizer, read_decoder
from variant_turns import take_turns


def block_plan():
    return {
        "input_layernorm": SequenceParallel(),
        "self_attn": PrepareModuleInput(
            input_layouts=(Shard(1), None, None), desired_input_layouts=(Replicate(), None, None)
        ),
        **{f"self_attn.{name}_proj": ColwiseParallel() for name in "qkv"},
        "self_attn.o_proj": RowwiseParallel(output_layouts=Shard(1)),
        "post_attention_layernorm": SequenceParallel(),
        "mlp": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
        "mlp.gate_proj": ColwiseParallel(),
        "mlp.up_proj": ColwiseParallel(),
        "mlp.down_proj": RowwiseParallel(output_layouts=Shard(1)),
    }


def parallelize(model, mesh):
    parallelize_module(
        model,
        mesh,
        {
            "embed_tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "norm": SequenceParallel(),
            "lm_head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
        },
    )
    for layer in model.layers:
        parallelize_module(layer, mesh, block_plan())
    return model


class Run:
    def __init__(self, variant, deck, mesh):
        dtype = torch.bfloat16 if variant == "bf16" else torch.float32
        self.autocast = variant == "autocast"
        self.deck = deck
        self.model = parallelize(read_decoder(deck["model"], deck["tokens"], dtype), mesh)
        self.optimizer = make_optimizer(self.model, deck)
        self.timer = Timer(variant)

    def timed_step(self, data, number, is_timed):
        ids, labels = data.batch(number, self.deck["batch"])
        self.timer.run(lambda: self.step(ids, labels), is_timed)

    def step(self, ids, labels):
        with loss_parallel():
            with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
                logits = self.model(ids)
            targets = int((labels >= 0).sum())
            loss = F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction="sum") / targets
            loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.deck["clip_norm"])
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return (loss.full_tensor() if isinstance(loss, DTensor) else loss).item()


def main():
    deck = json.loads(open(sys.argv[1]).read())
    steps, variants = int(sys.argv[2]), sys.argv[3:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    data = Data(deck["data"])
    runs = [Run(variant, deck, mesh) for variant in variants]
    take_turns(runs, steps, lambda run, *step: run.timed_step(data, *step))
    answer = [run.timer.report() for run in runs]
    if dist.get_rank() == 0:
        print(json.dumps(answer))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
