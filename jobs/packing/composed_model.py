# SPDX-License-Identifier: Apache-2.0
"""The facts of a deck's composed model that packing needs: the tokens that stand for items, new ones included, and the
number of features of an item after encoder and projector."""

import math
import sys
import tomllib
from pathlib import Path

from image_features import patches_a_side, pixtral_rows, size_of
from model_directory import ModelDirectory, read_object
from tokenizers import AddedToken

MERGING = ("pixel_shuffle_mlp", "pool")  # projectors that make one feature of 2 x 2 patches
MOST_PATCHES = 256  # of an image, where the deck does not say it: NaFlex


def read_parts(path):
    """The sections of a deck that name a language model and encoders, by name."""
    try:
        deck = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as fault:
        sys.exit(f"{path}: {fault}")
    sections = {name: part for name, part in deck.get("model", {}).items() if isinstance(part, dict)}
    parts = {name: part for name, part in sections.items() if part.get("weights")}
    if "llm" not in parts:
        sys.exit(f"{path}: has no model.llm.weights; with --deck a language model and encoders are combined")
    for name, part in parts.items():
        if not Path(part["weights"], "config.json").is_file():
            sys.exit(f"{path}: model.{name}.weights = {part['weights']} is no Hugging Face directory")
    return parts


def squares_filling(size, step, most):
    """Squares of `step` pixels a side, at most so many, that an image has at the largest scale."""
    squares = lambda scale: [max(1, math.ceil(side * scale / step)) for side in size]  # noqa: E731
    least, greatest = 1e-6, 100
    while greatest - least >= 1e-5:
        scale = (least + greatest) / 2
        if math.prod(squares(scale)) <= most:
            least = scale
        else:
            greatest = scale
    return math.prod(squares(least))


class Encoder:
    def __init__(self, section, max_pixels):
        config = read_object(Path(section["weights"], "config.json"))
        self.config, self.max_pixels = config.get("vision_config", config), max_pixels
        self.merge = 2 if section.get("projector", "mlp") in MERGING else 1
        self.family = self.config.get("model_type", "clip_vision_model")
        self.modality = "audio" if self.family == "whisper" else "image"
        self.placeholder = str(section.get("placeholder") or f"<{self.modality}>")

    def features(self, item):
        if self.modality == "audio":
            return self.config.get("max_source_positions", 1500)
        if self.family == "pixtral":
            config = {"model_type": "mistral3", "spatial_merge_size": self.merge, "vision_config": self.config}
            return sum(pixtral_rows(config, {}, item))
        if self.family == "siglip2_vision_model":
            patch = self.config.get("patch_size", 16)
            step = patch * self.merge
            return squares_filling(size_of(item), step, (self.max_pixels or MOST_PATCHES * patch**2) // step**2)
        return (patches_a_side(self.config) // self.merge) ** 2


class ComposedModel:
    """Adds placeholders that the tokenizer lacks to it, in the order in which zea does."""

    missing, frames_per_item = {}, 0

    def __init__(self, parts, tokenizer, max_pixels):
        self.llm = ModelDirectory(Path(parts["llm"]["weights"]))
        self.encoders, self.placeholders = {}, {}
        for name in sorted(parts, key=lambda name: (name != "vision", name != "audio", name)):
            if name == "llm":
                continue
            encoder = Encoder(parts[name], max_pixels)
            if encoder.modality in self.encoders:
                sys.exit(f"model.{name}: another encoder of {encoder.modality}; pack.py packs for one of each kind")
            self.encoders[encoder.modality] = encoder
            self.placeholders[encoder.modality] = self._id_of(encoder.placeholder, tokenizer)

    def _id_of(self, placeholder, tokenizer):
        if placeholder.isdecimal():
            return int(placeholder)
        if tokenizer.token_to_id(placeholder) is None:
            tokenizer.add_special_tokens([AddedToken(placeholder, special=True, normalized=False)])
        return tokenizer.token_to_id(placeholder)

    def turns(self, tokenizer):
        """The language model's, without what its own family puts around items."""
        turns = self.llm.turns(tokenizer)
        turns.around_image, turns.beside_image, turns.row_end = ("", ""), "", ""
        turns.around_audio = ("", "")
        return turns

    def rows(self, modality, item, is_alone=True):
        return [self.encoders[modality].features(item)]

    def crops(self, item):
        return 0

    def spelled(self, modality, item):
        return None
