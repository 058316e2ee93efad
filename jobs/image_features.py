# SPDX-License-Identifier: Apache-2.0
"""The number of features of an image, by its size, in the families that do not make squares of one size."""

import math

from dataset_writer import encoded_size

# The side of a tower's patch, where nobody says; 16 of others.
USUAL_PATCHES = {"clip_vision_model": 32, "dinov2": 14}


def one_of(sides):
    """Returns the side of a square, which a config may give twice."""
    return sides[0] if isinstance(sides, list) else sides


def patches_a_side(vision):
    usual = USUAL_PATCHES.get(vision.get("model_type", "clip_vision_model"), 16)
    return one_of(vision.get("image_size", 224)) // one_of(vision.get("patch_size", usual))


def size_of(item):
    height, width = encoded_size(item)
    if height == 0:
        raise ValueError("its header does not tell its size")
    return height, width


def pixtral_rows(config, processor, item):
    """An image whose longer side is too long shrinks to what it may be; begun squares count."""
    vision = config["vision_config"]
    size = processor.get("size", {})
    sides, most = size_of(item), size.get("longest_edge", size.get("height", vision.get("image_size", 1024)))
    shrink = max(1, max(side / most for side in sides))
    merge = config.get("spatial_merge_size", 2) if config["model_type"] == "mistral3" else 1
    step = vision.get("patch_size", 16) * merge
    rows, columns = (math.ceil(max(1, math.floor(side / shrink)) / step) for side in sides)
    return [columns] * rows


def internvl_features(config, item, least, most):
    """Returns the features of the tiles whose grid is nearest to the image's aspect ratio, and of the whole image if
    there are several tiles. Among equally near grids, it takes the largest that is at most twice as large as the
    image."""
    height, width = size_of(item)
    vision = config["vision_config"]
    size = one_of(vision.get("image_size", 448))
    nearest, tiles = math.inf, 1
    for count in range(least, most + 1):
        for wide in (n for n in range(1, count + 1) if count % n == 0):
            away = abs(width / height - wide / (count // wide))
            if away < nearest or (away == nearest and height * width > 0.5 * size * size * count):
                tiles = count
            nearest = min(nearest, away)
    return internvl_tile_features(config) * (tiles + 1 if tiles > 1 else 1)


def internvl_tile_features(config):
    vision = config["vision_config"]
    size = one_of(vision.get("image_size", 448))
    return int(size // one_of(vision.get("patch_size", 14)) * config.get("downsample_ratio", 0.5)) ** 2


def idefics3_grid(config, item, most, size):
    """Rows and columns of the tiles of an image. Its longer side is resized to sqrt(`most`) tiles (0: to the
    processor's or the config's `size`), rounded as in transformers."""
    height, width = size_of(item)
    vision = config["vision_config"]
    tile = one_of(vision.get("image_size", 224))
    size = size or vision.get("size", {})
    along = math.isqrt(most) if most else size.get("longest_edge", 4 * tile) // tile
    longest = max(1, min(along, 4096 // tile)) * tile
    shape = width / height
    other = int(longest / shape if width >= height else longest * shape)
    other = max(1, other + other % 2)
    height, width = (other, longest) if width >= height else (longest, other)
    shape, whole = width / height, lambda side: math.ceil(side / tile)
    if width >= height:
        return whole(int(longest / shape)), longest // tile
    return longest // tile, whole(int(longest * shape))


def idefics3_pieces(config, item, most, size=None):
    rows, columns = idefics3_grid(config, item, most, size)
    before_whole, features, around = idefics3_whole(config)
    pieces, before = [], ""
    for row in range(rows if rows * columns > 1 else 0):
        for column in range(columns):
            pieces += [f"{before}{around}<row_{row + 1}_col_{column + 1}>", features]
            before = ""
        before = "\n"
    return [*pieces, f"{before}{before}{before_whole}", features, around]


def idefics3_whole(config):
    """Returns the text before a whole image or frame, its features, and the text after it."""
    vision, around = config["vision_config"], "<fake_token_around_image>"
    side = one_of(vision.get("image_size", 224)) // one_of(vision.get("patch_size", 32))
    return f"{around}<global-img>", (side // config.get("scale_factor", 2)) ** 2, around


def in_words(number):
    """An English number below a million, as num2words spells it."""
    small = ("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
             "seventeen eighteen nineteen").split()
    tens = "twenty thirty forty fifty sixty seventy eighty ninety".split()
    if number < 20:
        return small[number]
    if number < 100:
        return tens[number // 10 - 2] + (f"-{small[number % 10]}" if number % 10 else "")
    unit, name = (100, "hundred") if number < 1000 else (1000, "thousand")
    rest = number % unit
    between = " and " if rest < 100 else ", "
    return f"{in_words(number // unit)} {name}" + (f"{between}{in_words(rest)}" if rest else "")


def shown_features(item, size, side, resolutions):
    """Rows and columns of features of what shows the image in the resolution that most of its pixels
    fit into; of equal ones the smallest."""
    height, width = size_of(item)

    def worth(resolution):
        scale = min(resolution[1] / width, resolution[0] / height)
        shown = min(int(width * scale) * int(height * scale), width * height)
        return shown, shown - math.prod(resolution)

    best = max(resolutions, key=worth)  # the first of equal ones
    high, wide = (edge // size * side for edge in best)
    if width / height > wide / high:
        high -= (high - int(round(height * (wide / width), 7))) // 2 * 2
    else:
        wide -= (wide - int(round(width * (high / height), 7))) // 2 * 2
    return high, wide


def llava_next_features(config, item):
    """Returns the features of the whole image and of its tiles, with one more at the end of each row."""
    vision = config["vision_config"]
    size = one_of(vision.get("image_size", 336))
    side = size // one_of(vision.get("patch_size", 14))
    usual = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
    high, wide = shown_features(item, size, side, config.get("image_grid_pinpoints") or usual)
    return side * side + high * (wide + 1)


def llava_onevision_features(config, item, is_alone):
    """As LLaVA-NeXT's, fewer where there are more than those of so many tiles; one of several images
    is a single tile, whose only row ends."""
    side, size = llava_onevision_side(config), one_of(config["vision_config"].get("image_size", 384))
    if not is_alone:
        return side * side + 1
    sides = [384 * count for count in range(1, 7)]
    resolutions = config.get("image_grid_pinpoints") or [[high, wide] for high in sides for wide in sides]
    high, wide = shown_features(item, size, side, resolutions)
    most = int(config.get("vision_aspect_ratio", "anyres_max_9").rpartition("_")[2])
    ratio = math.sqrt(high * wide / (most * side**2))
    if ratio > 1.1:
        high, wide = int(high // ratio), int(wide // ratio)
    return side * side + high * (wide + 1)


def llava_onevision_side(config):
    """Patches of a side of a tile."""
    vision = config["vision_config"]
    return one_of(vision.get("image_size", 384)) // one_of(vision.get("patch_size", 14))


def squares_within(size, step, limits, frames=1, made=1):
    """Squares of `step` pixels a side, as many as an image or a frame has of Qwen-VL: near its shape, and
    between the least and the most pixels in all of so many frames, which become `made`."""
    least, most = limits
    if max(size) > 200 * min(size):
        raise ValueError(f"{size[0]} x {size[1]} is longer than 200 times its other side")
    pixels = frames * math.prod(size)
    sides = [round(side / step) * step for side in size]
    if made * math.prod(sides) > most:
        scale = math.sqrt(pixels / most)
        sides = [max(step, math.floor(side / scale / step) * step) for side in size]
    elif made * math.prod(sides) < least:
        scale = math.sqrt(least / pixels)
        sides = [math.ceil(side * scale / step) * step for side in size]
    return math.prod(sides) // step**2


def squares_into(size, step, most):
    """Returns the number of squares, `step` pixels a side, of an image in Gemma 4. The image is scaled to the area of
    `most` squares, and its sides are rounded down to whole squares. A side below one square becomes one, and the other
    side the aspect ratio in squares, `most` at most."""
    scale = math.sqrt(most * step**2 / math.prod(size))
    high, wide = (math.floor(scale * side / step) for side in size)
    if high == 0:
        wide = min(size[1] // size[0], most)
    if wide == 0:
        high = min(size[0] // size[1], most)
    return max(1, high) * max(1, wide)


def squares_padded(size, patch, merged, most, side):
    """Returns the number of squares of `merged` x `merged` patches of an image in Kimi-K2.5. The image shrinks to about
    `most` patches, and to `side` patches a side; begun squares count."""
    count = math.prod(max(1, edge // patch) for edge in size)
    scale = min(1, math.sqrt(most / count), *(side * patch / edge for edge in size))
    shrunk = [min(max(1, int(edge * scale)), side * patch) for edge in size]
    return math.prod(math.ceil(edge / (merged * patch)) for edge in shrunk)
