# SPDX-License-Identifier: Apache-2.0
"""Tiles of Idefics 3 and SmolVLM, as zea and as their processor makes them."""

import subprocess

import numpy as np
from PIL import Image
from transformers.models.smolvlm.image_processing_pil_smolvlm import (
    SmolVLMImageProcessorPil,
    get_resize_output_image_size,
)

from transformers_models import resized


class ColumnsFirst(SmolVLMImageProcessorPil):
    """Pillow 13 may resize by rows first; what is rounded between the passes is other then."""

    def resize(self, image, size, resample=None, **options):
        to = (size.height, size.width)
        if size.longest_edge:
            to = get_resize_output_image_size(image, size.longest_edge)
        pixels = np.ascontiguousarray(image.transpose(1, 2, 0))
        return np.asarray(resized(pixels, *to, Image.Resampling.LANCZOS)).transpose(2, 0, 1)


def compare_stretched(program, path, png, size, along):
    """Of the resized image the tiles are cut, and the last one made. Returns a fault, or none."""
    path.write_bytes(png)
    run = subprocess.run([program, path, str(size), "stretched", "1", str(along * along)], capture_output=True)
    if run.returncode != 0:
        return f"{path.name}: {run.stderr.decode().strip() or run.returncode}"
    image, sizes = Image.open(path), {"size": {"longest_edge": along * size}, "max_image_size": {"longest_edge": size}}
    whole, reference = (
        kind(**sizes)(image, return_tensors="np")["pixel_values"][0]
        for kind in (SmolVLMImageProcessorPil, ColumnsFirst)
    )
    ours = np.frombuffer(run.stdout, np.float32)
    if ours.size != whole.size:
        return f"{path.name} at {size}: {ours.size} values in place of {whole.size}"
    difference = np.abs(ours.reshape(reference.shape) - reference).max()
    if difference > 1e-6:
        return f"{path.name} at {size}: differs by {difference}"
    away = np.abs(reference - whole).max()
    is_tall = image.height > 1.5 * image.width
    return f"{path.name}: the processor is {away} away" if not is_tall and away > 1e-6 else None
