# SPDX-License-Identifier: Apache-2.0
"""Prepared images must be those of transformers' CLIPImageProcessor, SiglipImageProcessor,
Gemma3ImageProcessor, PixtralImageProcessor, Qwen2VLImageProcessor, Siglip2ImageProcessor, SmolVLMImageProcessor and
GotOcr2ImageProcessor (PIL), value for value.

usage: compare_preprocess.py PREPROCESS_IMAGE
Exit code 77 (skipped) where transformers or Pillow is missing.
"""

import io
import json
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import numpy as np
    from PIL import Image
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
    from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
    from transformers.image_processing_utils import select_best_resolution
    from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
    from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil
    from transformers.models.pixtral.image_processing_pil_pixtral import (
        PixtralImageProcessorPil,
        get_resize_output_image_size,
    )
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil, smart_resize
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil
    from transformers.models.siglip2.image_processing_pil_siglip2 import (
        Siglip2ImageProcessorPil,
        convert_image_to_patches,
        get_image_size_for_max_num_patches,
    )
    from image_directories import directories, with_processor
    from stretched_tiles import compare_stretched
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)


def picture(height, width, channels, seed):
    """Smooth shapes with noise: both flat areas and edges that overshoot under a cubic kernel."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    waves = [np.sin(x / (3 + 5 * c)) * np.cos(y / (4 + 3 * c)) > 0.2 for c in range(channels)]
    noise = rng.integers(0, 120, (height, width, channels))
    return (np.stack(waves, -1) * 135 + noise).astype(np.uint8)


def encoded(image, **options):
    stream = io.BytesIO()
    image.save(stream, **options)
    return stream.getvalue()


def png(image, **options):
    return encoded(image, format="PNG", **options)


def jpeg(image, **options):
    return encoded(image, format="JPEG", quality=92, **options)


def sized_cases():
    for height, width in [
        (224, 224),
        (300, 400),
        (401, 223),
        (97, 61),
        (31, 500),
        (5, 3),
        (1, 1),
        (640, 481),
    ]:
        rgb = picture(height, width, 3, height)
        yield f"rgb_{height}x{width}.png", png(Image.fromarray(rgb))
        yield f"rgb_{height}x{width}.jpg", jpeg(Image.fromarray(rgb))


def mode_cases():
    grey = picture(120, 170, 1, 1)[..., 0]
    rgb = Image.fromarray(picture(120, 170, 3, 2))
    rgba = Image.fromarray(picture(120, 170, 4, 3), "RGBA")
    yield "grey.png", png(Image.fromarray(grey))
    yield "grey.jpg", jpeg(Image.fromarray(grey))
    yield "grey_alpha.png", png(rgba.convert("LA"))
    yield "rgba.png", png(rgba)
    yield "bilevel.png", png(rgb.convert("1"))
    yield "interlaced.png", interlaced_png(np.asarray(rgb))
    for colours in (2, 4, 16, 256):
        yield f"palette_{colours}.png", png(rgb.quantize(colours))
    yield "palette_alpha.png", png(rgb.quantize(16), transparency=b"\x00\x80\xff")
    yield "grey_transparent.png", png(Image.fromarray(grey), transparency=3)
    yield "rgb_transparent.png", png(rgb, transparency=(1, 2, 3))
    yield "grey_16.png", png(Image.fromarray(grey.astype(np.uint16) * 3))
    yield "cmyk.jpg", jpeg(rgb.convert("CMYK"))
    yield "progressive.jpg", jpeg(rgb, progressive=True)
    yield "subsampled_420.jpg", jpeg(rgb, subsampling="4:2:0")
    yield "subsampled_444.jpg", jpeg(rgb, subsampling="4:4:4")
    exif = Image.Exif()
    exif[0x0112] = 6
    yield "rotated_by_exif.jpg", jpeg(rgb, exif=exif)
    for depth, colour, channels in [(2, 0, 1), (4, 0, 1), (16, 2, 3), (16, 6, 4), (16, 4, 2)]:
        yield f"bits_{depth}_colour_{colour}.png", raw_png(70, 90, depth, colour, channels)


def chunk(name, body):
    import zlib

    return len(body).to_bytes(4, "big") + name + body + zlib.crc32(name + body).to_bytes(4, "big")


def assemble_png(width, height, depth, colour, interlace, rows):
    import zlib

    header = (
        width.to_bytes(4, "big")
        + height.to_bytes(4, "big")
        + bytes([depth, colour, 0, 0, interlace])
    )
    data = b"".join(b"\x00" + row for row in rows)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(data))
        + chunk(b"IEND", b"")
    )


def raw_png(height, width, depth, colour, channels):
    """Kinds of PNG that Pillow reads but does not write."""
    row_bytes = (width * channels * depth + 7) // 8
    rows = np.random.default_rng(depth + colour).integers(
        0, 256, (height, row_bytes), dtype=np.uint8
    )
    return assemble_png(width, height, depth, colour, 0, [row.tobytes() for row in rows])


def interlaced_png(rgb):
    passes = [
        (0, 8, 0, 8),
        (0, 8, 4, 8),
        (4, 8, 0, 4),
        (0, 4, 2, 4),
        (2, 4, 0, 2),
        (0, 2, 1, 2),
        (1, 2, 0, 1),
    ]
    rows = [row.tobytes() for y, dy, x, dx in passes for row in rgb[y::dy, x::dx]]
    return assemble_png(rgb.shape[1], rgb.shape[0], 8, 2, 1, rows)


def cropped(size):
    return CLIPImageProcessorPil(size={"shortest_edge": size}, crop_size={"height": size, "width": size})


def whole(size, kind):
    colours = CLIPImageProcessorPil()
    return kind(
        size={"height": size, "width": size}, image_mean=colours.image_mean, image_std=colours.image_std
    )


WHOLE = {"whole": SiglipImageProcessorPil, "bilinear": Gemma3ImageProcessorPil}


def compare(program, folder, name, data, size, way=None):
    path = folder / name
    path.write_bytes(data)
    run = subprocess.run([program, str(path), str(size), *[way] * bool(way)], capture_output=True)
    if run.returncode != 0:
        return f"{name} at {size}: {run.stderr.decode().strip() or run.returncode}"
    ours = np.frombuffer(run.stdout, np.float32).reshape(3, size, size)
    processor = whole(size, WHOLE[way]) if way else cropped(size)
    reference = np.asarray(
        processor(Image.open(io.BytesIO(data)), return_tensors="np")["pixel_values"][0]
    )
    difference = np.abs(ours - reference).max()
    if difference > 1e-6:
        return f"{name} at {size}: differs by {difference}"
    return None


class OfQwen2VL:
    """As zea is asked for it, the size that an image becomes, and its values there and here."""

    def __init__(self, least, most, patch, block):
        self.limits, self.step = (least, most, patch, block), patch * block
        self.processor = Qwen2VLImageProcessorPil(
            size={"shortest_edge": least, "longest_edge": most}, patch_size=patch, merge_size=block
        )

    def size(self, height, width):
        least, most = self.limits[:2]
        return smart_resize(height, width, self.step, least, most)

    def reference(self, image):
        return self.processor(image, return_tensors="np")["pixel_values"]

    def ours(self, pixels):
        return self.processor.patchify(pixels, *self.limits[2:], 2)[0]


class OfSiglip2:
    """Squares of `block` x `block` patches are its patches where zea merges these."""

    def __init__(self, most, patch, block):
        self.limits, self.step, self.most = (0, most * (patch * block) ** 2, patch, block, "fills"), patch * block, most
        colours = CLIPImageProcessorPil()
        self.processor = Siglip2ImageProcessorPil(
            patch_size=self.step, max_num_patches=most, image_mean=colours.image_mean, image_std=colours.image_std
        )

    def size(self, height, width):
        return get_image_size_for_max_num_patches(height, width, self.step, self.most)

    def reference(self, image):
        values = self.processor(image, return_tensors="np")
        return values["pixel_values"][0][: values["spatial_shapes"][0].prod()]

    def ours(self, pixels):
        return convert_image_to_patches(pixels, self.step)


class OfPixtral:
    def __init__(self, most, patch, block):
        self.limits = most, patch, block
        self.processor = PixtralImageProcessorPil(size={"longest_edge": most}, patch_size=patch * block)

    def size(self, height, width):
        most, patch, block = self.limits
        return get_resize_output_image_size(np.zeros((height, width, 3)), most, patch * block, "channels_last")

    def reference(self, image):
        return self.processor(image, return_tensors="np")["pixel_values"][0]

    def ours(self, pixels):
        return pixels


def compare_any_size(program, folder, height, width, family):
    name = f"any_size_{height}x{width}.png"
    image = Image.fromarray(picture(height, width, 3, height))
    image.save(folder / name)
    run = subprocess.run([program, str(folder / name), *map(str, family.limits)], capture_output=True)
    if run.returncode != 0:
        return f"{name}: {run.stderr.decode().strip() or run.returncode}"
    to_height, to_width = family.size(height, width)
    if len(run.stdout) != 4 * 3 * to_height * to_width:
        return f"{name}: {len(run.stdout)} bytes, not those of {to_height} x {to_width}"
    ours = family.ours(np.frombuffer(run.stdout, np.float32).reshape(3, to_height, to_width))
    difference = np.abs(ours - family.reference(image)).max()
    return f"{name}: differs by {difference}" if difference > 1e-6 else None


def any_size_cases():
    sizes = [(1, 1), (14, 14), (42, 70), (10, 600), (37, 500), (224, 224), (641, 480), (301, 999), (97, 61), (500, 31)]
    families = [OfQwen2VL(56 * 56, 28 * 28 * 1280, 14, 2), OfQwen2VL(64 * 64, 200 * 100, 16, 2)]
    families += [OfPixtral(1024, 16, 1), OfPixtral(300, 14, 2)]
    families += [OfSiglip2(256, 16, 1), OfSiglip2(57, 14, 1), OfSiglip2(64, 8, 2)]
    for height, width in sizes:
        for family in families:
            yield height, width, family


def compare_tiles(program, folder, height, width, size, least, most):
    name = f"tiles_{height}x{width}.png"
    image = Image.fromarray(picture(height, width, 3, height))
    image.save(folder / name)
    numbers = [str(size), "tiles", str(least), str(most)]
    run = subprocess.run([program, str(folder / name), *numbers], capture_output=True)
    if run.returncode != 0:
        return f"{name}: {run.stderr.decode().strip() or run.returncode}"
    half = [0.5, 0.5, 0.5]
    processor = GotOcr2ImageProcessorPil(
        size={"height": size, "width": size}, image_mean=half, image_std=half, crop_to_patches=True,
        min_patches=least, max_patches=most,
    )
    reference = processor(image, return_tensors="np")["pixel_values"]
    ours = np.frombuffer(run.stdout, np.float32)
    if ours.size != reference.size:
        return f"{name}: {ours.size} values in place of {reference.size}"
    difference = np.abs(ours.reshape(reference.shape) - reference).max()
    return f"{name}: differs by {difference}" if difference > 1e-6 else None


def compare_fitted(program, folder, height, width, size):
    """The resolution is transformers' choice here; zea's is compared by what features there are."""
    name = f"fitted_{height}x{width}.png"
    image = Image.fromarray(picture(height, width, 3, height))
    image.save(folder / name)
    pinpoints = [[size, 2 * size], [2 * size, size], [2 * size, 2 * size], [3 * size, size], [size, 3 * size]]
    to = select_best_resolution((height, width), pinpoints)
    numbers = [str(size), "fitted", str(to[1] // size), str(to[0] // size)]
    run = subprocess.run([program, str(folder / name), *numbers], capture_output=True)
    if run.returncode != 0:
        return f"{name}: {run.stderr.decode().strip() or run.returncode}"
    processor = LlavaNextImageProcessorPil(
        size={"shortest_edge": size}, crop_size={"height": size, "width": size}, image_grid_pinpoints=pinpoints
    )
    reference = processor(image, return_tensors="np")["pixel_values"][0]
    ours = np.frombuffer(run.stdout, np.float32)
    if ours.size != reference.size:
        return f"{name}: {ours.size} values in place of {reference.size}"
    difference = np.abs(ours.reshape(reference.shape) - reference).max()
    return f"{name} at {size}: differs by {difference}" if difference > 1e-6 else None


# Wide, tall and square: with crops above and beside each other, and without.
DIRECTORY_SIZES = [(97, 131), (131, 97), (61, 300), (300, 61), (64, 64), (700, 640)]


def compare_directory(program, folder, number, height, width, config, processor, taken):
    """As a file of its own and inside that of the whole processor, which goes before it."""
    where = folder / f"model_{number}_{height}x{width}"
    where.mkdir()
    image = Image.fromarray(picture(height, width, 3, number))
    image.save(where / "image.png")
    said = json.loads(processor.to_json_string())
    config, beside = with_processor(config, said)
    (where / "config.json").write_text(json.dumps(config))
    other = {**said, "image_mean": [0.3, 0.3, 0.3]}
    if beside:
        (where / "preprocessor_config.json").write_text(json.dumps(said if number % 2 else other))
    if beside and number % 2 == 0:
        (where / "processor_config.json").write_text(json.dumps(beside))
    run = subprocess.run([program, where / "image.png", "of", where / "config.json"], capture_output=True)
    name = f"directory {number} ({type(processor).__name__}), {height} x {width}"
    if run.returncode != 0:
        return f"{name}: {run.stderr.decode().strip() or run.returncode}"
    reference = np.asarray(processor(image, return_tensors="np")["pixel_values"])
    ours = np.frombuffer(run.stdout, np.float32)
    if ours.size != reference.size // (getattr(processor, "temporal_patch_size", 1)):
        return f"{name}: {ours.size} values, of {reference.shape}"
    ours = taken(processor, ours, reference.shape, height, width)
    difference = np.abs(ours - reference).max() / max(1, np.abs(reference).max())
    return f"{name}: differs by {difference}" if difference > 1e-6 else None


def tiled_cases():
    tall = [(200, 100), (301, 97), (640, 480), (700, 64)]
    for height, width in [(1, 1), (30, 30), (60, 61), (97, 301), (480, 640), (333, 500), (64, 1000), *tall]:
        for size, least, most in [(56, 1, 12), (32, 1, 6), (48, 2, 4), (64, 1, 1)]:
            yield height, width, size, least, most


def main():
    faults, pairs = [], set()  # of sizes of images and families with what these are limited to

    def judge(fault, *pair):
        faults.append(fault)
        pairs.update([pair] if pair else [])

    with tempfile.TemporaryDirectory() as folder:
        program, folder = sys.argv[1], Path(folder)
        for name, data in sized_cases():
            for size in (28, 224, 99):
                judge(compare(program, folder, name, data, size), Path(name).stem, "crop", size)
            for way in WHOLE:
                judge(compare(program, folder, name, data, 99, way), Path(name).stem, way)
        for name, data in mode_cases():
            for size in (28, 224, 99):
                judge(compare(program, folder, name, data, size))
        for height, width, family in any_size_cases():
            fault = compare_any_size(program, folder, height, width, family)
            judge(fault, height, width, type(family).__name__, *family.limits)
        for height, width, *_ in tiled_cases():
            for size, along in [(28, 1), (56, 4)]:
                judge(compare_fitted(program, folder, height, width, size), height, width, "fitted", size)
                path = folder / f"stretched_{height}x{width}.png"
                png_of_it = png(Image.fromarray(picture(height, width, 3, height)))
                fault = compare_stretched(program, path, png_of_it, size, along)
                judge(fault, height, width, "stretched", size)
        for height, width, *limits in tiled_cases():
            judge(compare_tiles(program, folder, height, width, *limits), height, width, "tiles", *limits)
        for number, case in enumerate(directories("Pil")):
            for height, width in DIRECTORY_SIZES:
                fault = compare_directory(program, folder, number, height, width, *case)
                judge(fault, height, width, "directory", number)
    found = [fault for fault in faults if fault]
    for fault in found:
        print(fault)
    print(f"{len(faults) - len(found)} of {len(faults)} equal, of {len(pairs)} pairs of a size and a family")
    return 1 if found or len(pairs) < 120 else 0


if __name__ == "__main__":
    sys.exit(main())
