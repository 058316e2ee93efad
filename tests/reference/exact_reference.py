# SPDX-License-Identifier: Apache-2.0
"""References in fp64. Transformers computes norms, softmax and the gated delta rule in fp32 whatever the type of a
model, and norms of small outputs enlarge its rounding: in fp64 zea gives the same, and in fp32 it is as close to that
as transformers is."""

import contextlib
import copy
from unittest import mock

import numpy as np
import torch

# Bounds of errors, as errors_of() has them. Gradients of decays are small differences of larger numbers.
EXACT = 1e-10
ROUNDED = {"logits": 1e-5, "gradients": 2e-5, "loss": 2e-6}


@contextlib.contextmanager
def wide_casts():
    """Lets models of transformers compute in fp64 what they compute in fp32 whatever their type."""
    with contextlib.ExitStack() as patches:
        for owner, name, value in (
            (torch, "float32", torch.float64),
            (torch, "float", torch.float64),
            (torch.Tensor, "float", torch.Tensor.double),
        ):
            patches.enter_context(mock.patch.object(owner, name, value))
        yield


def in_double(model):
    """A copy in fp64, whose rotary frequencies and scales are not rounded to fp32 before; for wide_casts()."""
    wide = copy.deepcopy(model).double()
    wide.set_experts_implementation("eager")  # grouped GEMMs have no fp64
    with wide_casts():
        for module in wide.modules():
            frequencies = [name for name, _ in module.named_buffers(recurse=False) if name.endswith("inv_freq")]
            if frequencies and hasattr(module, "config"):
                exact = type(module)(module.config)
                for name in frequencies:
                    setattr(module, name, getattr(exact, name))
            if hasattr(module, "inv_timescales"):  # of relative positions
                pairs = torch.arange(module.hidden_size // 2, dtype=torch.float64)
                step = torch.tensor(10000.0, dtype=torch.float64).log() / max(len(pairs) - 1, 1)
                module.inv_timescales = torch.exp(pairs * -step)[None, None]
            if hasattr(module, "scalar_embed_scale"):  # of Gemma's embeddings
                module.embed_scale = torch.tensor(module.scalar_embed_scale, dtype=torch.float64)
    return wide


def errors_of(test, exact, found):
    """The largest error of logits, as a share of the largest where that is above 1, of gradients, as a share of the
    norm of each and a tenth of that of all, and of the loss, as a share of it."""
    for part in (1, 2):
        test.assertEqual(sorted(exact[part]), sorted(found[part]))
    most = max(1, *(np.abs(values).max() for values in exact[1].values()))
    all_norm = np.sqrt(sum(np.square(g).sum() for g in exact[2].values()))
    test.assertGreater(all_norm, 0.01)
    return {
        "logits": max(np.abs(found[1][row] - values).max() for row, values in exact[1].items()) / most,
        "gradients": max(
            np.linalg.norm(found[2][name] - g) / (np.linalg.norm(g) + 0.1 * all_norm)
            for name, g in exact[2].items()
        ),
        "loss": abs(found[0] - exact[0]) / exact[0],
    }


def check_exact(test, exact, found):
    for name, error in errors_of(test, exact, found).items():
        test.assertLessEqual(error, EXACT, name)


def check_rounded(test, exact, expected, found):
    """Errors of `found` are small, or at most eight times those of `expected`."""
    others = errors_of(test, exact, expected)
    for name, error in errors_of(test, exact, found).items():
        test.assertLessEqual(error, max(ROUNDED[name], 8 * others[name]), name)
