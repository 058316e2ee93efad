# SPDX-License-Identifier: Apache-2.0
"""Tiles of Idefics 3 and SmolVLM, as zea and as their processor makes them."""

import subprocess

import numpy as np
from PIL import Image
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil


def compare_stretched(program, path, png, size, along):
    """Of the resized image the tiles are cut, and the last one made. Returns a fault, or none."""
    path.write_bytes(png)
    run = subprocess.run([program, path, str(size), "stretched", "1", str(along * along)], capture_output=True)
    if run.returncode != 0:
        return f"{path.name}: {run.stderr.decode().strip() or run.returncode}"
    image, sizes = Image.open(path), {"size": {"longest_edge": along * size}, "max_image_size": {"longest_edge": size}}
    reference = SmolVLMImageProcessorPil(**sizes)(image, return_tensors="np")["pixel_values"][0]
    ours = np.frombuffer(run.stdout, np.float32)
    if ours.size != reference.size:
        return f"{path.name} at {size}: {ours.size} values in place of {reference.size}"
    difference = np.abs(ours.reshape(reference.shape) - reference).max()
    return f"{path.name} at {size}: differs by {difference}" if difference > 1e-6 else None
