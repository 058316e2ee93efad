# SPDX-License-Identifier: Apache-2.0
"""Images and videos must be prepared as transformers' processors do it that resize with torchvision: images of a
directory that names one, and every video.

usage: compare_torchvision.py PREPROCESS_IMAGE
Exit code 77 (skipped) where torchvision is missing.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import numpy as np
    import torch
    import torchvision
    from PIL import Image
    from transformers import Qwen2VLVideoProcessor, Qwen3VLVideoProcessor

    from image_directories import COLOURS, directories, of_qwen, with_processor
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

SIZES = [(97, 131), (131, 97), (61, 300), (300, 61), (64, 64), (32, 32), (20, 27),
         (1, 1), (2, 3), (4300, 45), (700, 640), (480, 641), (401, 223), (45, 33)]
CLIPS = [(4, 97, 131), (2, 131, 97), (3, 300, 61), (6, 40, 200), (4, 64, 64), (5, 333, 401)]


def pictures(*shape):
    """Noise on flat areas with edges that overshoot under a cubic kernel."""
    rng = np.random.default_rng(sum(shape))
    flat = np.kron(rng.integers(0, 2, (*shape[:-2], 9, 7, 3)), np.ones((shape[-2] // 9 + 1, shape[-1] // 7 + 1, 1)))
    noise = rng.integers(0, 60, (*shape, 3))
    return (flat[..., : shape[-2], : shape[-1], :] * 195 + noise).astype(np.uint8)


class Directory:
    """A model's config.json and what its processors say, in a folder."""

    def __init__(self, folder, config, processors):
        folder.mkdir()
        self.folder = folder
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "processor_config.json").write_text(json.dumps(processors))

    def prepared(self, program, frames):
        """What zea makes of one image, or of all frames of a video."""
        paths = [self.folder / f"{number}.png" for number in range(len(frames))]
        for frame, path in zip(frames, paths):
            Image.fromarray(frame).save(path)
        run = subprocess.run([program, paths[0], "of", self.folder / "config.json", *paths[1:]], capture_output=True)
        assert run.returncode == 0, run.stderr.decode()
        return np.frombuffer(run.stdout, np.float32)


def away(ours, reference):
    if ours.size != reference.size:
        return f"{ours.size} values in place of {reference.shape}"
    difference = np.abs(ours.reshape(reference.shape) - reference).max() / max(1, np.abs(reference).max())
    return f"differs by {difference}" if difference > 1e-5 else None


def image_faults(program, folder):
    for number, (config, processor, taken) in enumerate(directories("")):
        said = json.loads(processor.to_json_string())
        said["image_processor_type"] += "Fast"  # as transformers 4 called it
        directory = Directory(folder / f"images_{number}", *with_processor(config, said))
        for height, width in SIZES:
            image = pictures(height, width)
            reference = processor(Image.fromarray(image), return_tensors="pt")["pixel_values"].numpy()
            ours = directory.prepared(program, [image])
            if ours.size == reference.size // getattr(processor, "temporal_patch_size", 1):
                ours = taken(processor, ours, reference.shape, height, width)
            fault = away(ours, reference)
            yield fault and f"{type(processor).__name__} {number}, {height} x {width}: {fault}"


def video_cases():
    small, large = {"shortest_edge": 400, "longest_edge": 9000}, {"shortest_edge": 30000, "longest_edge": 90000}
    qwen3 = of_qwen("qwen3_vl", patch_size=8, out_hidden_size=32, deepstack_visual_indexes=[1])
    qwen3["text_config"]["head_dim"] = 8
    del qwen3["vision_config"]["embed_dim"]
    for kind, config in [(Qwen2VLVideoProcessor, of_qwen("qwen2_vl", patch_size=8)), (Qwen3VLVideoProcessor, qwen3)]:
        for size in (small, large):
            yield config, kind(size=size, patch_size=8, do_sample_frames=False, cap_pixels_per_frame=False, **COLOURS)


def video_faults(program, folder):
    for number, (config, processor) in enumerate(video_cases()):
        said = json.loads(processor.to_json_string())
        images = {"patch_size": 8, **COLOURS, "size": {"shortest_edge": 64, "longest_edge": 10**6}}
        processors = {"image_processor": images, "video_processor": said}
        directory = Directory(folder / f"videos_{number}", config, processors)
        for frames, height, width in CLIPS:
            clip = pictures(frames, height, width)
            made = processor([torch.from_numpy(clip).permute(0, 3, 1, 2)], return_tensors="pt")
            grid = made["video_grid_thw"][0].tolist()
            ours = directory.prepared(program, clip)
            if ours.size == made["pixel_values_videos"].numel():
                pixels = torch.from_numpy(ours.reshape(1, 2 * grid[0], 3, grid[1] * 8, grid[2] * 8).copy())
                ours = processor.patchify(pixels, patch_size=8, temporal_patch_size=2, merge_size=2)[0].numpy()
            fault = away(ours, made["pixel_values_videos"].numpy())
            yield fault and f"{type(processor).__name__} {number}, {frames} x {height} x {width}: {fault}"


def main():
    # Without AVX2 it would resize some images as floats, which round otherwise.
    torchvision.transforms.v2.functional._geometry._do_native_uint8_resize_on_cpu = lambda _: True
    with tempfile.TemporaryDirectory() as folder:
        program, folder = sys.argv[1], Path(folder)
        images, videos = list(image_faults(program, folder)), list(video_faults(program, folder))
    found = [fault for fault in images + videos if fault]
    for fault in found:
        print(fault)
    print(f"{len(images) + len(videos) - len(found)} equal, of {len(images)} images and {len(videos)} videos")
    return 1 if found or len(images) < 120 else 0


if __name__ == "__main__":
    sys.exit(main())
