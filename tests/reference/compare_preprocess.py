# SPDX-License-Identifier: Apache-2.0
"""Images in files of every kind that zea reads are, value for value, those that transformers' CLIPImageProcessor makes
of what Pillow reads. How other processors resize and cut is compared by compare_processors.py.

usage: compare_preprocess.py PREPARE_ITEMS
Exit code 77 (skipped) where transformers or Pillow is missing.
"""

import io
import json
import sys
import tempfile
from pathlib import Path

try:
    import numpy as np
    from PIL import Image
    from prepared_items import away, prepared
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
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


def clip(size):
    """A model whose encoder takes squares of that side, and its processor."""
    tower = {"model_type": "clip_vision_model", "image_size": size, "patch_size": size, "hidden_size": 32,
             "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    text = {"model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
            "num_attention_heads": 4, "vocab_size": 64}
    config = {"model_type": "llava", "vision_config": tower, "text_config": text}
    sides = {"size": {"shortest_edge": size}, "crop_size": {"height": size, "width": size}}
    return config, CLIPImageProcessorPil(**sides)


def main():
    program, faults, compared = sys.argv[1], [], 0
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        files = [*sized_cases(), *mode_cases()]
        for name, data in files:
            (folder / name).write_bytes(data)
        for size in (28, 224, 99):
            config, processor = clip(size)
            (folder / "config.json").write_text(json.dumps(config))
            found = prepared(program, folder / "config.json", [("image", [folder / name]) for name, _ in files])
            for (name, data), ours in zip(files, found, strict=True):
                image = Image.open(io.BytesIO(data))
                reference = np.asarray(processor(image, return_tensors="np")["pixel_values"]).reshape(-1)
                fault = ours if isinstance(ours, str) else away(ours[1], reference, 1e-6)
                faults += [f"{name} at {size}: {fault}"] if fault else []
                compared += 1
    print("\n".join([*faults, f"{compared - len(faults)} of {compared} equal"]))
    return 1 if faults or compared < 120 else 0


if __name__ == "__main__":
    sys.exit(main())
