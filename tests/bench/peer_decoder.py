# SPDX-License-Identifier: Apache-2.0
"""A Llama-style decoder in plain PyTorch, and a timed step of it: what the parallel peers run.

Written as PyTorch's tutorials of tensor and context parallelism write it, so that their APIs apply as documented:
separate projections that DTensor cuts, heads counted from the width at hand, scaled_dot_product_attention with
is_causal. Weights are those of a Hugging Face directory. A batch is samples of one length, so nothing is padded.
"""

import json
import statistics
import time
from pathlib import Path

import h5py
import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn



def rotated(x, cosines, sines):
    first, second = x.chunk(2, -1)
    return x * cosines + torch.cat((-second, first), -1) * sines


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.repeats = heads // kv_heads
        self.q_proj = nn.Linear(config["hidden_size"], heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(config["hidden_size"], kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(config["hidden_size"], kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(heads * self.head_dim, config["hidden_size"], bias=False)

    def forward(self, x, cosines, sines):
        q, k, v = (
            p(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = (rotated(t, cosines, sines) for t in (q, k))
        out = F.scaled_dot_product_attention(q, k.to(v.dtype), v, is_causal=True, enable_gqa=self.repeats > 1)
        return self.o_proj(out.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self, config):
        super().__init__()
        hidden, inner = config["hidden_size"], config["intermediate_size"]
        self.gate_proj, self.up_proj = nn.Linear(hidden, inner, bias=False), nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config["hidden_size"], config["rms_norm_eps"])
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(config["hidden_size"], config["rms_norm_eps"])
        self.mlp = Mlp(config)

    def forward(self, x, cosines, sines):
        x = x + self.self_attn(self.input_layernorm(x), cosines, sines)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    def __init__(self, config, tokens):
        super().__init__()
        self.embed_tokens = nn.Embedding(config["vocab_size"], config["hidden_size"])
        self.layers = nn.ModuleList(Block(config) for _ in range(config["num_hidden_layers"]))
        self.norm = nn.RMSNorm(config["hidden_size"], config["rms_norm_eps"])
        self.lm_head = nn.Linear(config["hidden_size"], config["vocab_size"], bias=False)
        dim = self.layers[0].self_attn.head_dim
        theta = config["rope_parameters"]["rope_theta"]
        angles = torch.outer(torch.arange(tokens), theta ** (-torch.arange(0, dim, 2) / dim)).repeat(1, 2)
        self.register_buffer("cosines", angles.cos(), persistent=False)
        self.register_buffer("sines", angles.sin(), persistent=False)

    def forward(self, ids, tables=None):
        x = self.embed_tokens(ids)
        tables = tables or (self.cosines, self.sines)
        cosines, sines = (table[: ids.shape[1]].to(x.dtype) for table in tables)
        for layer in self.layers:
            x = layer(x, cosines, sines)
        return self.lm_head(self.norm(x))


def read_decoder(folder, tokens, dtype=torch.float32):
    folder = Path(folder)
    model = Decoder(json.loads((folder / "config.json").read_text()), tokens)
    weights = load_file(folder / "model.safetensors")
    model.load_state_dict({name.removeprefix("model."): tensor for name, tensor in weights.items()})
    return model.to(dtype).train()


class Data:
    """Token ids of samples, and their labels: each token's next one, nothing after the last."""

    def __init__(self, path):
        with h5py.File(path) as file:
            offsets, tokens = file["token_offsets"][...], file["tokens"][...]
        self.samples = [torch.from_numpy(part) for part in np.split(tokens.astype(np.int64), offsets[1:-1])]

    def samples_of(self, step, size):
        """(ids, labels) of each sample of a step, each of shape (1, tokens)."""
        samples = [self.samples[(step * size + i) % len(self.samples)] for i in range(size)]
        return [(ids[None], torch.cat((ids[1:], torch.tensor([-100])))[None]) for ids in samples]

    def batch(self, step, size):
        """The same as one batch, where all have one length."""
        return tuple(torch.cat(parts) for parts in zip(*self.samples_of(step, size)))


def make_optimizer(model, deck):
    groups = [[p for p in model.parameters() if (p.dim() > 1) == wide] for wide in (True, False)]
    return torch.optim.AdamW(
        [{"params": groups[0], "weight_decay": deck["weight_decay"]}, {"params": groups[1], "weight_decay": 0.0}],
        lr=deck["lr"],
        betas=deck["betas"],
        eps=deck["eps"],
        fused=True,
    )


class Timer:
    """Seconds of steps from barrier to barrier, and their losses."""

    def __init__(self, variant):
        self.variant, self.seconds, self.cpu_seconds, self.losses = variant, [], [], []

    def run(self, step, is_timed):
        dist.barrier()
        start, cpu_start = time.perf_counter(), time.process_time()
        self.losses.append(step())
        dist.barrier()
        if is_timed:
            self.seconds.append(time.perf_counter() - start)
            self.cpu_seconds.append(time.process_time() - cpu_start)

    def report(self):
        """On all ranks; the processor's time is the slowest rank's."""
        cpu = torch.tensor(min(self.cpu_seconds))
        dist.all_reduce(cpu, dist.ReduceOp.MAX)
        return {
            "variant": self.variant,
            "median_s": statistics.median(self.seconds),
            "min_s": min(self.seconds),
            "min_cpu_s": cpu.item(),
            "seconds": self.seconds,
            "losses": self.losses,
        }
