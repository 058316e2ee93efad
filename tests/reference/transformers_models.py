# SPDX-License-Identifier: Apache-2.0
"""The common part of comparisons with transformers: names and values of parameters, a run of a program, and the
comparison of its outputs."""

import os
import subprocess
import tempfile
import unittest

# Sizes of the language models in tiny composites.
VOCABULARY = 96
TEXT = {
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 128,
    "bos_token_id": 0,
    "eos_token_id": 0,
}

PREFIXES = [
    ("model.language_model.", "language_model.model."),
    ("model.vision_tower.", "vision_tower."),
    ("model.audio_tower.", "audio_tower."),
    ("model.multi_modal_projector.", "multi_modal_projector."),
    ("lm_head.", "language_model.lm_head."),
]


# Files have ViT's parameters as they were called before version 5.
VIT_PARTS = [
    ("vision_tower.layers.", "vision_tower.encoder.layer."),
    (".attention.q_proj.", ".attention.attention.query."),
    (".attention.k_proj.", ".attention.attention.key."),
    (".attention.v_proj.", ".attention.attention.value."),
    (".attention.o_proj.", ".attention.output.dense."),
    (".mlp.fc1.", ".intermediate.dense."),
    (".mlp.fc2.", ".output.dense."),
]


def file_name(name, multimodal=True):
    """The name in weights files of a running model's parameter."""
    for running, saved in PREFIXES if multimodal else []:
        if name.startswith(running):
            name = saved + name[len(running) :]
            break
    if name.startswith("vision_tower.layers."):
        for running, saved in VIT_PARTS:
            name = name.replace(running, saved)
    return name


def split_experts(tensors, family):
    """Tensors by file_name(), those of all experts as files hold them: each linear of each expert alone."""
    if family in ("gemma4_text", "gpt_oss", "qwen3_vl_moe_text"):  # whose files hold them together, as the model does
        return tensors
    is_mixtral = family == "mixtral"
    gate, up, down = ("w1", "w3", "w2") if is_mixtral else ("gate_proj", "up_proj", "down_proj")
    found = {}
    for name, tensor in tensors.items():
        if is_mixtral:
            name = name.replace(".mlp.gate.", ".block_sparse_moe.gate.")
            name = name.replace(".mlp.experts.", ".block_sparse_moe.experts.")
        block, is_of_experts, part = name.partition(".experts.")
        if not is_of_experts:
            found[name] = tensor
            continue
        for expert, matrix in enumerate(tensor):
            half = len(matrix) // 2
            linears = {down: matrix} if part == "down_proj" else {gate: matrix[:half], up: matrix[half:]}
            found |= {f"{block}.experts.{expert}.{linear}.weight": value for linear, value in linears.items()}
    return found


def resized(image, height, width, resample=None):
    from PIL import Image

    return Image.fromarray(image).resize((width, height), resample or Image.Resampling.BICUBIC)


def resized_frames(frames, height, width):
    """uint8 (frames, height, width, 3), as torchvision and zea resize those of a video."""
    import torch

    bytes_first = torch.as_tensor(frames).permute(0, 3, 1, 2)
    resized = torch.nn.functional.interpolate(bytes_first, (height, width), mode="bicubic", antialias=True)
    return resized.permute(0, 2, 3, 1)


ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}


def run(*command):
    """Runs a program, which must succeed; returns what it printed."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == 0, f"{command}: {done.returncode}: {done.stderr}{done.stdout}"
    return done.stdout


class ModelRuns:
    """Runs of run_model, by one process that the first of them starts: `command`, with mpirun where it has ranks."""

    def __init__(self, *command):
        self.command, self.process = [*map(str, command)], None
        unittest.addModuleCleanup(self.end)

    def start(self):
        self.errors = tempfile.TemporaryFile("w+")
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self.errors}
        self.process = subprocess.Popen(self.command, text=True, env=ENVIRONMENT, **pipes)

    def end(self):
        """Throws what the process said where it failed."""
        if not self.process:
            return
        with self.errors, self.process as process:
            self.process = None
            process.communicate()
            self.errors.seek(0)
            said = self.errors.read()
        assert process.returncode == 0, f"{process.returncode}: {said}"

    def run(self, ranks, deck, out, *keys):
        """On so many ranks. One that fails ends the process; the next has another."""
        if not self.process:
            self.start()
        print(ranks, deck, out, *keys, sep="\t", file=self.process.stdin, flush=True)
        if self.process.stdout.readline() != "done\n":
            self.end()
            raise AssertionError(f"{self.command} ends before it has run {deck} {keys} on {ranks} ranks")


def normalised(pixels, mean, std):
    """uint8 (images, height, width, 3 or none) -> float32 (images, 3, height, width)."""
    import torch

    pixels = torch.as_tensor(pixels)
    if pixels.dim() == 3:
        pixels = pixels.unsqueeze(-1).expand(-1, -1, -1, 3)
    scaled = pixels.permute(0, 3, 1, 2).double() / 255
    shape = (1, 3, 1, 1)
    return ((scaled - torch.tensor(mean).view(shape)) / torch.tensor(std).view(shape)).float()


def perturbed(model, buffers=True):
    """Every trained parameter, and with `buffers` what scales layers, of a size at which it matters: initial zeros and
    ones hide faults."""
    import torch

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad:
                continue
            if ".experts." in name:
                parameter.normal_(std=parameter.shape[-1] ** -0.5)
            elif parameter.dim() > 1:
                parameter.normal_(std=parameter.shape[1:].numel() ** -0.5)
            else:
                parameter.add_(0.2 * torch.randn_like(parameter))
        for name, buffer in model.named_buffers() if buffers else ():
            if name.endswith("e_score_correction_bias"):
                buffer.normal_(std=0.2)
            if name.endswith("layer_scalar"):
                buffer.add_(0.2 * torch.randn_like(buffer))
    return model


def saved_tensors(model):
    """The parameters and the buffers of the model's files, by the names of the running model."""
    tied = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    buffers = {name: value for name, value in model.state_dict().items() if name not in tied}
    return {**dict(model.named_parameters()), **buffers}


def as_numpy(tensor):
    """NumPy has no bf16."""
    return (tensor.float() if tensor.element_size() == 2 else tensor).numpy()


def reference(samples, logits_of, named_parameters=(), added=None):
    """Loss, logits by (sample, position of the predicted token), gradients by name; of samples
    (tokens, loss mask, ...), of which `logits_of` gives (tokens, vocabulary) each. `added`(tokens, mask): a term of the
    loss, summed over the sample of the latest logits."""
    import torch

    targets = sum(sum(mask[1:]) for _, mask, *_ in samples)
    total, logits = 0.0, {}
    for number, sample in enumerate(samples):
        tokens, mask = sample[:2]
        positions = [i for i in range(1, len(tokens)) if mask[i]]
        rows = logits_of(*sample)[[i - 1 for i in positions]]
        wanted = torch.tensor(tokens)[positions]
        loss = torch.nn.functional.cross_entropy(rows, wanted, reduction="sum")
        if added:
            loss = loss + added(tokens, mask)
        if loss.requires_grad:
            (loss / targets).backward()
        total += loss.item() / targets
        logits.update({(number, i): row for i, row in zip(positions, as_numpy(rows.detach()))})
    gradients = {n: as_numpy(p.grad) for n, p in named_parameters if p.grad is not None}
    return total, logits, gradients


def datasets(group, prefix=""):
    """All of an HDF5 group, by their paths in it."""
    for name, item in group.items():
        if hasattr(item, "shape"):
            yield prefix + name, item[...]
        else:
            yield from datasets(item, f"{prefix}{name}/")


def read_outputs(path):
    """Returns the outputs of run_model: the loss, logits by (sample, position), gradients by parameter."""
    import h5py

    with h5py.File(path) as file:
        rows = zip(file["sample"][...].tolist(), file["position"][...].tolist())
        return file["loss"][0], dict(zip(rows, file["logits"][...])), dict(datasets(file["gradients"]))


def check_outputs(test, expected, found, atol=1e-5, name=""):
    """Both as read_outputs() gives them, but for the gradients, which have a check of their own."""
    import numpy as np

    (expected_loss, expected_logits, _), (loss, logits, _) = expected, found
    test.assertEqual(sorted(expected_logits), sorted(logits))
    for row, values in expected_logits.items():
        np.testing.assert_allclose(logits[row], values, rtol=1e-5, atol=atol, err_msg=f"{row} {name}")
    test.assertAlmostEqual(loss, expected_loss, delta=2e-6 * expected_loss)


def check_gradients(test, expected, found, share=1e-5):
    """Each, by name, to a share of its own norm and a tenth of it of that of all."""
    import numpy as np

    test.assertEqual(sorted(expected), sorted(found))
    all_norm = np.sqrt(sum(np.square(g, dtype=np.float64).sum() for g in expected.values()))
    test.assertGreater(all_norm, 0.01)
    for name, gradient in expected.items():
        difference = np.linalg.norm(found[name] - gradient)
        test.assertLessEqual(difference, share * (np.linalg.norm(gradient) + 0.1 * all_norm), name)


def check_logits_of_experts(test, model, loaded):
    """If the model has mixtures of experts, logits of text are equal, bit for bit."""
    import torch

    if any(".experts." in name for name in model.state_dict()):
        ids = torch.arange(6, 40)[None]
        before, after = (one.eval()(input_ids=ids, use_cache=False).logits for one in (model, loaded))
        test.assertTrue(torch.equal(before, after))


# Prompts of each comparison of next tokens; tests under the label `long` set more.
PROMPTS = int(os.environ.get("ZEA_PROMPTS", 20))


def check_next_tokens(test, expected, found):
    """The token after each prompt, as logits by prompt predict it: divergence, and the likeliest five."""
    import numpy as np

    test.assertEqual(len(expected), PROMPTS)
    for row, values in expected.items():
        test.assertLess(divergence(values, found[row]), 3e-7, row)
        # Among equal values any may be the fifth.
        fifth = np.sort(values)[-5]
        for token in np.argsort(found[row])[-5:]:
            test.assertGreaterEqual(values[token], fifth - 1e-5, row)


def divergence(expected, found):
    """Kullback-Leibler, of the next token, as logits predict it."""
    import torch

    expected, found = (torch.tensor(row).double().log_softmax(-1) for row in (expected, found))
    return (expected.exp() * (expected - found)).sum().item()
