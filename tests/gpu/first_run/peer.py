# SPDX-License-Identifier: Apache-2.0
"""A few timed steps as a user's own script makes them: transformers' model, or a plain PyTorch decoder, one process;
on a GPU one more, which the profiler watches.

usage: peer.py FOLDER eager|compile|plain fp32|bf16 cuda|cpu WARM TIMED
FOLDER holds data.h5 and peer.json (config, batch, longest sample). bf16: autocast over fp32 weights. The last line of
the output is JSON: seconds of the timed steps, tokens of a step, bytes that the GPU's memory held at most, and the
Activity of a step (null on the host).
"""

import dataclasses
import json
import sys
import tempfile
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
from activity import of_trace  # noqa: E402
from peer_data import Data, decayed  # noqa: E402

FOLDER, WAY, PRECISION, DEVICE = Path(sys.argv[1]), *sys.argv[2:5]
WARM, TIMED = map(int, sys.argv[5:7])


def model_of(config, longest):
    if WAY == "plain":
        from peer_decoder import Decoder

        return Decoder(config, longest)
    import transformers

    made = transformers.AutoConfig.for_model(**config)
    if config["model_type"] == "llava":
        return transformers.LlavaForConditionalGeneration(made)
    return transformers.AutoModelForCausalLM.from_config(made)


def loss_of(model, batch):
    if WAY != "plain":
        return model(**batch, use_cache=False).loss
    logits = model(batch["input_ids"])
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), batch["labels"][:, 1:].flatten())


def watched(step):
    """Returns the GPU's activity in a step, for JSON."""
    if DEVICE != "cuda":
        return None
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        return dataclasses.asdict(of_trace(path))


def main():
    asked = json.loads((FOLDER / "peer.json").read_text())
    torch.manual_seed(1)
    with torch.device(DEVICE):
        model = model_of(asked["config"], asked["longest"]).train()
    groups = decayed(model, 0.01)
    optimizer = torch.optim.AdamW(groups, lr=1e-4, fused=True)
    parameters = [p for group in groups for p in group["params"]]
    stepped = torch.compile(model) if WAY == "compile" else model
    data, size, seconds = Data(FOLDER / "data.h5", [0.5] * 3, [0.5] * 3), asked["batch"], []
    wait = torch.cuda.synchronize if DEVICE == "cuda" else lambda: None

    def train(step):
        """Gives the step's tokens."""
        batch, _ = data.batch([(step * size + i) % len(data) for i in range(size)])
        tokens = int(batch["attention_mask"].sum())
        batch = {name: value.to(DEVICE, non_blocking=True) for name, value in batch.items()}
        with torch.autocast(DEVICE, torch.bfloat16, enabled=PRECISION == "bf16"):
            loss = loss_of(stepped, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()
        wait()
        return tokens

    for step in range(WARM + TIMED):
        start = time.perf_counter()
        tokens = train(step)
        seconds.append(time.perf_counter() - start)
    held = torch.cuda.max_memory_reserved() if DEVICE == "cuda" else 0
    of_device = watched(lambda: train(WARM + TIMED))
    print(json.dumps({"seconds": seconds[WARM:], "tokens": tokens, "bytes": held, "activity": of_device}))


main()
