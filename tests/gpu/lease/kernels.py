# SPDX-License-Identifier: Apache-2.0
"""Times libtorch's kernels for one measurement of a lease.

usage: kernels.py beside|slices|fp8|experts cuda|cpu whole|quick
The last line of the output is JSON: seconds by variant, null for a variant that libtorch refuses (stderr says why), and
FLOPs of a call by variant.
"""

import json
import subprocess
import sys
import time
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

WHAT, DEVICE, IS_QUICK = sys.argv[1], sys.argv[2], sys.argv[3] == "quick"
ON_GPU, FP8, BLOCK = DEVICE == "cuda", torch.float8_e4m3fn, 128
FP8_MOST = torch.finfo(FP8).max

# Holds an SM per block, as a kernel of NCCL that waits for a peer does, for so many seconds or until told to stop.
SPINNER = """
extern "C" __global__ void spin(int longest, volatile int* stop) {
  unsigned long long begin, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (now - begin < longest * 1000000000ull && *stop == 0);
}
"""
SPINNER_THREADS, SPINNER_SECONDS = 640, 20
SPINNER_BYTES = 200 << 10  # of shared memory: GEMMs find no room on its SM, which NCCL's registers nearly fill


def wait():
    if ON_GPU:
        torch.cuda.current_stream().synchronize()


def seconds_of(call, calls=5):
    """Median seconds of a call after a first one. Raises RuntimeError where libtorch refuses it."""
    call()
    wait()
    found = []
    for _ in range(2 if IS_QUICK else calls):
        start = time.perf_counter()
        call()
        wait()
        found.append(time.perf_counter() - start)
    return sorted(found)[len(found) // 2]


def attempted(name, call):
    """Returns null where libtorch refuses the call."""
    try:
        return seconds_of(call)
    except (RuntimeError, NotImplementedError, ValueError) as refusal:
        print(f"{name}: {str(refusal).splitlines()[0]}", file=sys.stderr)
        return None


def random(*shape):
    return torch.randn(*shape, device=DEVICE, dtype=torch.bfloat16)


@contextmanager
def spinning(blocks):
    """Keeps so many SMs busy; on the host, one process for all."""
    if not ON_GPU:
        spinner = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        try:
            yield
        finally:
            spinner.kill()
            spinner.wait()
        return
    stop, around = torch.empty(1, dtype=torch.int32, device=DEVICE), torch.cuda.Stream()
    spin = torch.cuda._compile_kernel(SPINNER, "spin")
    spin.set_shared_memory_config(SPINNER_BYTES)
    for value in (1, 0):  # loads the kernel, which waits for all others
        stop.fill_(value)
    torch.cuda.synchronize()
    spin((blocks, 1, 1), (SPINNER_THREADS, 1, 1), [SPINNER_SECONDS, stop], SPINNER_BYTES, around)
    try:
        yield
        if around.query():
            raise RuntimeError(f"the spinner ended before the steps that it should disturb, within {SPINNER_SECONDS} s")
    finally:
        with torch.cuda.stream(torch.cuda.Stream()):
            stop.fill_(1)
        torch.cuda.synchronize()


@contextmanager
def carved_out(blocks):
    torch._C._set_sm_carveout_experimental(blocks)
    try:
        yield
    finally:
        torch._C._set_sm_carveout_experimental(None)


def beside():
    """Forward and backward of 8 layers of an 8B with a sample of 8k tokens, while other kernels hold SMs."""
    from peer_decoder import Decoder

    config = {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8}
    layers, tokens, all_blocks = 8, 8192, (8, 16, 24, 32)
    if IS_QUICK:
        config = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
        layers, tokens, all_blocks = 1, 64, (8,)
    config |= {"vocab_size": 1024, "num_hidden_layers": layers, "rms_norm_eps": 1e-5}
    with torch.device(DEVICE):
        model = Decoder(config | {"rope_parameters": {"rope_theta": 5e5}}, tokens).to(torch.bfloat16)
        ids = torch.randint(1024, (1, tokens))
    first = torch.cuda.stream(torch.cuda.Stream(priority=-1)) if ON_GPU else nullcontext()  # gets free SMs first
    ways = {"spinner": lambda _: nullcontext(), "priority": lambda _: first, "carve-out": carved_out}

    def step():
        model(ids).sum().backward()
        model.zero_grad()

    seconds = {"alone": seconds_of(step, 3)}
    for way, around in ways.items():
        for blocks in all_blocks:
            with around(blocks):
                seconds_of(step, 1)
                with spinning(blocks):
                    seconds[f"{way} {blocks}"] = seconds_of(step, 3)
    return seconds, {}


KERNELS = {
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "FA2": SDPBackend.FLASH_ATTENTION,
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
}


def slices():
    """Attention of a rank's 4k queries to slices of keys, and of blocks of 128 tokens, forward and backward."""
    heads, kv_heads, dim, queries = 32, 8, 128, 4096
    shapes = {"4k causal": (1, queries, queries, True)}
    shapes |= {f"4k x {k // 1024}k": (1, queries, k, False) for k in (8192, 16384, 32768, 61440)}
    shapes["blocks of 128"] = (queries // 128, 128, 128, True)
    if IS_QUICK:
        heads, kv_heads, dim = 4, 2, 32
        shapes = {"causal": (1, 64, 64, True), "slice": (1, 64, 128, False), "blocks": (2, 32, 32, True)}
    seconds, flops = {}, {}
    for shape, (rows, length, keys, is_causal) in shapes.items():
        q = random(rows, heads, length, dim).requires_grad_()
        k, v = (random(rows, kv_heads, keys, dim).requires_grad_() for _ in range(2))
        for kernel, backend in KERNELS.items():
            # The memory-efficient kernel has no groups of query heads: keys are repeated.
            repeats = heads // kv_heads if kernel == "efficient" else 1

            def forward():
                wide = [x.repeat_interleave(repeats, 1) if repeats > 1 else x for x in (k, v)]
                with sdpa_kernel(backend):
                    return F.scaled_dot_product_attention(q, *wide, is_causal=is_causal, enable_gqa=repeats == 1)

            def both():
                forward().sum().backward()

            pairs = rows * (length * (length + 1) / 2 if is_causal else length * keys)
            for way, call, times in (("forward", forward, 1), ("both", both, 3)):
                name = f"{kernel}, {shape}, {way}"
                flops[name] = times * 4 * pairs * heads * dim
                seconds[name] = attempted(name, call)
    return seconds, flops


def scale_of(x, dims):
    """The factor by which the largest element of each group, over `dims`, becomes FP8's largest."""
    return (x.abs().amax(dims, keepdim=True).float() / FP8_MOST).clamp(min=1e-12)


def cast(x, recipe, is_weight):
    """Returns x of shape (rows, columns) in FP8 with its scales, of which blocks have (rows / 128, columns / 128)."""
    if recipe == "block":
        high, rows = BLOCK if is_weight else 1, x.shape[0]
        parts = x.view(rows // high, high, -1, BLOCK)
        scale = scale_of(parts, (1, 3))
        return (parts.float() / scale).to(FP8).view(x.shape), scale[:, 0, :, 0]
    scale = scale_of(x, (0, 1) if recipe == "tensor" else 1)
    return (x.float() / scale).to(FP8), scale.squeeze() if recipe == "tensor" else scale


def scaled_product(x, w, recipe, dtype):
    """x (rows, in) times w (out, in) transposed; each is (values, scales)."""
    (a, a_scale), (b, b_scale) = x, w
    if recipe != "block":
        b_scale = b_scale if recipe == "tensor" else b_scale.t()
        return torch._scaled_mm(a, b.t(), a_scale, b_scale, out_dtype=dtype)
    kinds = F.ScalingType.BlockWise1x128, F.ScalingType.BlockWise128x128
    a_scale = a_scale.t().contiguous().t()
    return F.scaled_mm(a, b.t(), a_scale, kinds[0], b_scale.t(), kinds[1], output_dtype=dtype)


def fp8():
    """Forward products of an 8B's linears with 8k tokens."""
    tokens, shapes = 8192, {"qkv": (4096, 6144), "o": (4096, 4096), "gate_up": (4096, 28672), "down": (14336, 4096)}
    if IS_QUICK:
        tokens, shapes = 128, {"o": (128, 256)}
    seconds, flops = {}, {}
    for shape, (wide, out) in shapes.items():
        x, w = random(tokens, wide), random(out, wide)
        todo = {"bf16": lambda: x @ w.t()}
        for recipe in ("tensor", "row", "block"):
            operands = cast(x, recipe, False), cast(w, recipe, True)
            for dtype in (torch.bfloat16, torch.float32):
                name = recipe if dtype == torch.bfloat16 else f"{recipe} to fp32"
                todo[name] = lambda o=operands, r=recipe, d=dtype: scaled_product(*o, r, d)
            todo[f"{recipe} cast"] = lambda r=recipe: cast(x, r, False)
        for name, call in todo.items():
            seconds[f"{name}, {shape}"] = attempted(name, call)
            flops[f"{name}, {shape}"] = 2 * tokens * wide * out if "cast" not in name else 0
    return seconds, flops


def experts():
    """Grouped products of Qwen3-30B-A3B's experts, whose routers choose alike or one expert far more often."""
    rows, hidden, inner, count = 8 * 4096, 2048, 768, 128
    if IS_QUICK:
        rows, hidden, inner, count = 64, 32, 48, 4
    x, w, dy = random(rows, hidden), random(count, 2 * inner, hidden), random(rows, 2 * inner)
    shares = {"even": torch.ones(count), "skewed": 1 / torch.arange(1, count + 1)}
    seconds, flops = {}, {}
    for routing, share in shares.items():
        ends = (rows * share.double().cumsum(0) / share.double().sum()).round().int()
        offsets, places = ends.to(DEVICE), [0, *ends.tolist()]
        spans = list(zip(places, places[1:]))
        calls = {
            "forward": lambda: torch._grouped_mm(x, w.transpose(1, 2), offs=offsets),
            "inputs": lambda: torch._grouped_mm(dy, w, offs=offsets),
            "weights": lambda: torch._grouped_mm(dy.t(), x, offs=offsets),
            "loop": lambda: [x[begin:end] @ w[i].t() for i, (begin, end) in enumerate(spans)],
        }
        for name, call in calls.items():
            seconds[f"{name}, {routing}"] = attempted(name, call)
            flops[f"{name}, {routing}"] = 4 * rows * hidden * inner
    return seconds, flops


def main():
    torch.manual_seed(1)
    seconds, flops = {"beside": beside, "slices": slices, "fp8": fp8, "experts": experts}[WHAT]()
    print(json.dumps({"seconds": seconds, "flops": flops}))


main()
