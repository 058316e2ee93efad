# SPDX-License-Identifier: Apache-2.0
"""Models that a deck puts together of an encoder of images and a language model give the logits, the
loss and the gradients that transformers' parts give with the same projector: encoders of images of
any size, and projectors that merge patches beside class tokens.

check_composed_sizes.py ZEA CONSOLIDATE RUN_MODEL JOBS MPIRUN_IN_ONE_ARGUMENT [unittest arguments]
"""

import io
import shlex
import sys
import unittest

try:
    import h5py  # noqa: F401
    import numpy as np
    import torch
    from safetensors.torch import load_file
    from transformers import (
        AutoModelForCausalLM,
        CLIPVisionConfig,
        CLIPVisionModel,
        Dinov2WithRegistersConfig,
        Dinov2WithRegistersModel,
        LlavaForConditionalGeneration,
        MixtralConfig,
        PixtralVisionConfig,
        PixtralVisionModel,
        Qwen2Config,
        Qwen3MoeConfig,
        Siglip2Config,
        Siglip2Model,
        Siglip2VisionModel,
    )
    from transformers.models.pixtral.image_processing_pil_pixtral import get_resize_output_image_size
    from transformers.models.siglip2.image_processing_pil_siglip2 import get_image_size_for_max_num_patches
    from transformers.utils.logging import disable_progress_bar
    from PIL import Image
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

from folder_case import FolderCase
from parity_cases import MIXTRAL, QWEN3_MOE
from transformers_models import (
    ModelRuns,
    TEXT,
    VOCABULARY,
    check_gradients,
    check_outputs,
    normalised,
    perturbed,
    read_outputs,
    reference,
    resized,
    run,
)

ZEA, CONSOLIDATE, RUN_MODEL, JOBS, MPIRUN = sys.argv[1:6]
MODEL_RUNS = ModelRuns(*shlex.split(MPIRUN), "-n", 4, RUN_MODEL)
sys.path.insert(0, JOBS)
from dataset_writer import DatasetWriter  # noqa: E402
from packing.composed_model import Encoder  # noqa: E402

PATCH, PLACEHOLDER = 4, 7
# Sizes of images: wide, high, a strip, one of few pixels.
SIZES = [(17, 40), (31, 23), (9, 60), (24, 24), (3, 2)]
# No weight changes.
STILL = ["optim.lr=0.0", "optim.min_lr=0.0"]
SIZES_OF_TOWERS = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2, "patch_size": PATCH}


class Siglip2:
    """Its processor fills 20 patches in any shape; its table has 5 x 5 positions."""

    most, keys = 20, [f"data.resized_max_pixels={20 * PATCH * PATCH}"]
    mean = std = [0.5, 0.5, 0.5]
    kind = Siglip2VisionModel

    @staticmethod
    def save(folder):
        """A whole model's directory, as those that are published, and its tower."""
        sizes = {"hidden_size": 24, "intermediate_size": 40, "num_attention_heads": 2}
        config = Siglip2Config(
            vision_config={**SIZES_OF_TOWERS, "intermediate_size": 40, "num_patches": 25, "layer_norm_eps": 1e-2},
            text_config={**sizes, "num_hidden_layers": 1, "vocab_size": 20, "bos_token_id": 1, "eos_token_id": 2},
        )
        whole = perturbed(Siglip2Model(config)).eval()
        whole.save_pretrained(folder)
        return whole.vision_model

    @classmethod
    def prepared(cls, picture, step):
        most = cls.most * PATCH * PATCH // (step * step)
        to = get_image_size_for_max_num_patches(*picture.shape[:2], step, most)
        return normalised(np.array(resized(picture, *to, Image.Resampling.BILINEAR))[None], cls.mean, cls.std)

    @staticmethod
    def states(tower, pixels):
        """Hidden states of an image's patches, after embedding and each block, and normed."""
        high, wide = pixels.shape[2] // PATCH, pixels.shape[3] // PATCH
        patches = pixels.view(3, high, PATCH, wide, PATCH).permute(1, 3, 2, 4, 0).reshape(1, high * wide, -1)
        # Padding must change nothing.
        patches = torch.nn.functional.pad(patches, (0, 0, 0, 3), value=0.7)
        mask = torch.tensor([[1] * (high * wide) + [0] * 3])
        given = {"pixel_attention_mask": mask, "spatial_shapes": torch.tensor([[high, wide]])}
        out = tower(patches, **given, output_hidden_states=True)
        return [state[0, : high * wide] for state in (*out.hidden_states, out.last_hidden_state)]


class Pixtral:
    longest, keys = 28, []
    mean, std = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
    kind = PixtralVisionModel

    @classmethod
    def save(cls, folder):
        sizes = {"intermediate_size": 40, "image_size": cls.longest, "hidden_act": "silu"}
        tower = perturbed(PixtralVisionModel(PixtralVisionConfig(**SIZES_OF_TOWERS, **sizes))).eval()
        tower.save_pretrained(folder)
        return tower

    @classmethod
    def prepared(cls, picture, step):
        to = get_resize_output_image_size(picture, cls.longest, step, "channels_last")
        return normalised(np.array(resized(picture, *to))[None], cls.mean, cls.std)

    @staticmethod
    def states(tower, pixels):
        return [state[0] for state in tower(pixels, output_hidden_states=True).hidden_states]


class Clip:
    """All images become one size, and a class token stands before the patches."""

    keys, size = ["data.image_mean=[0.5,0.5,0.5]", "data.image_std=[0.5,0.5,0.5]"], 24
    kind = CLIPVisionModel

    @classmethod
    def save(cls, folder):
        sizes = {"intermediate_size": 40, "image_size": cls.size}
        tower = perturbed(CLIPVisionModel(CLIPVisionConfig(**SIZES_OF_TOWERS, **sizes))).eval()
        tower.save_pretrained(folder)
        return tower

    @classmethod
    def prepared(cls, picture, step):
        shorter = min(picture.shape[:2])
        high, wide = (int(cls.size * side / shorter) for side in picture.shape[:2])
        top, left = (high - cls.size) // 2, (wide - cls.size) // 2
        whole = np.array(resized(picture, high, wide))[top : top + cls.size, left : left + cls.size]
        return normalised(whole[None], [0.5] * 3, [0.5] * 3)

    @classmethod
    def states(cls, tower, pixels):
        count = (cls.size // PATCH) ** 2
        return [state[0, -count:] for state in tower(pixels, output_hidden_states=True).hidden_states]


class Registers(Clip):
    kind = Dinov2WithRegistersModel

    @classmethod
    def save(cls, folder):
        sizes = {"mlp_ratio": 2, "image_size": cls.size, "num_register_tokens": 3}
        tower = perturbed(Dinov2WithRegistersModel(Dinov2WithRegistersConfig(**SIZES_OF_TOWERS, **sizes))).eval()
        tower.save_pretrained(folder)
        return tower


def project(kind, states, pixels, weights):
    linear = lambda x, name: x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]  # noqa: E731
    if kind in ("pixel_shuffle_mlp", "pool"):
        high, wide = pixels.shape[2] // PATCH // 2, pixels.shape[3] // PATCH // 2
        squares = states.view(high, 2, wide, 2, -1).permute(0, 2, 1, 3, 4).reshape(high * wide, 4, -1)
        states = squares.mean(1) if kind == "pool" else squares.flatten(1)
    if kind in ("linear", "pool"):
        return linear(states, "linear")
    return linear(torch.nn.functional.gelu(linear(states, "linear_1")), "linear_2")


def make_samples(family, step):
    random = np.random.default_rng(5)
    text = lambda: random.integers(8, VOCABULARY, size=random.integers(1, 6)).tolist()  # noqa: E731
    samples, next_size = [], 0
    for count in [1, 0, 2, 1, 1]:
        tokens, pictures = text(), []
        for _ in range(count):
            pictures.append(random.integers(0, 256, (*SIZES[next_size % len(SIZES)], 3), dtype=np.uint8))
            next_size += 1
            pixels = family.prepared(pictures[-1], step)
            features = pixels.shape[2] // step * (pixels.shape[3] // step)
            tokens += [PLACEHOLDER] * features + text()
        answer = text() + text()
        samples.append((tokens + answer, [0] * len(tokens) + [1] * len(answer), pictures))
    return samples


class ComposedSizes(FolderCase):
    def setUp(self):
        super().setUp()
        torch.manual_seed(1)

    def write_inputs(self, kind, samples, options):
        with DatasetWriter(self.folder / "data.h5", PLACEHOLDER) as writer:
            for sample in samples:
                writer.add(*sample)
        (self.folder / "deck.toml").write_text(
            f'[model.vision]\nweights = "{self.folder}/tower"\nplaceholder = "{PLACEHOLDER}"\n'
            f'projector = "{kind}"\n{options}\n[model.llm]\nweights = "{self.folder}/llm"\n'
            f'[data]\ntrain = "{self.folder}/data.h5"\nrow_tokens = 96\nrows_per_microbatch = 2\n'
            f"[schedule]\nsteps = 1\nglobal_batch = {len(samples)}\n[checkpoint]\nevery = 1\n"
        )
        (self.folder / "whole.toml").write_text(
            f'[model]\nweights = "{self.folder}/whole.h5"\n[data]\ntrain = "{self.folder}/data.h5"\n'
            "row_tokens = 96\nrows_per_microbatch = 2\n"
        )

    def run_step(self, family, ranks=1, keys=()):
        (self.folder / "out.h5").unlink(missing_ok=True)
        MODEL_RUNS.run(ranks, self.folder / "whole.toml", self.folder / "out.h5", *family.keys, *keys)
        return read_outputs(self.folder / "out.h5")

    def compose(self, family, kind, options="", step=PATCH, decoder=None):
        """The parts of transformers, the projector that zea drew, and samples."""
        tower = family.save(self.folder / "tower")
        text = perturbed(AutoModelForCausalLM.from_config(decoder or Qwen2Config(**TEXT))).eval()
        text.save_pretrained(self.folder / "llm", save_original_format=not decoder)
        samples = make_samples(family, step)
        self.write_inputs(kind, samples, options)
        run(ZEA, "-i", self.folder / "deck.toml", "-d", self.folder / "run", *STILL, *family.keys)
        run(CONSOLIDATE, self.folder / "run", self.folder / "whole.h5")
        run(CONSOLIDATE, self.folder / "run", f"{self.folder}/out/")
        return tower, text, samples

    def assert_loads(self, kind, directory, model):
        loaded, info = kind.from_pretrained(directory, output_loading_info=True)
        for fault in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            self.assertFalse(info[fault], (directory, fault, info[fault]))
        for name, tensor in model.state_dict().items():
            self.assertTrue(torch.equal(tensor, loaded.state_dict()[name]), name)

    def check(self, family, kind, layer, options="", layouts=(), decoder=None):
        step = 2 * PATCH if kind in ("pixel_shuffle_mlp", "pool") else PATCH
        tower, text, samples = self.compose(family, kind, options, step, decoder)
        self.assert_loads(family.kind, self.folder / "out" / "vision", tower)
        self.assert_loads(type(text), self.folder / "out" / "llm", text)
        names = (load_file(self.folder / name / "model.safetensors").keys() for name in ("llm", "out/llm"))
        self.assertEqual(*names)
        weights = load_file(self.folder / "out" / "vision.projector" / "model.safetensors")
        weights = {name: torch.nn.Parameter(tensor) for name, tensor in weights.items()}

        def logits_of(tokens, mask, pictures):
            ids = torch.tensor(tokens)
            embeds = text.get_input_embeddings()(ids)
            if pictures:
                prepared = [family.prepared(picture, step) for picture in pictures]
                found = [project(kind, family.states(tower, pixels)[layer], pixels, weights) for pixels in prepared]
                embeds = embeds.index_copy(0, (ids == PLACEHOLDER).nonzero()[:, 0], torch.cat(found))
            return text(inputs_embeds=embeds[None], use_cache=False).logits[0]

        parts = {"vision.encoder": tower, "llm": text}
        named = [(f"{part}.{n}", p) for part, model in parts.items() for n, p in model.named_parameters()]
        named += [(f"vision.projector.{name}", parameter) for name, parameter in weights.items()]
        expected = reference(samples, logits_of, named)
        for ranks, keys in [(1, []), *layouts]:
            found = self.run_step(family, ranks, keys)
            check_outputs(self, expected, found, name=keys)
            check_gradients(self, expected[2], found[2])

    GRIDS = [
        (4, ["mesh.llm.tp=2", "mesh.llm.cp=2", "mesh.vision.tp=2", "mesh.vision.cp=2"]),
        (2, ["mesh.llm.cp=2", 'mesh.llm.cp_mode="ring"', "mesh.vision.encoder_dp=2"]),
        (4, ['mesh.placement="disjoint"', "data.rows_per_microbatch=1", "mesh.llm.pp=2", "mesh.vision.encoder_dp=2"]),
    ]
    LAST = "feature_layer = -1"

    def test_what_is_packed_has_as_many_placeholders(self):
        for family in (Siglip2, Pixtral, Clip, Registers):
            folder = self.folder / family.__name__
            family.save(folder)
            for kind in ("mlp", "linear", "pixel_shuffle_mlp", "pool"):
                step = 2 * PATCH if kind in ("pixel_shuffle_mlp", "pool") else PATCH
                encoder = Encoder({"weights": folder, "projector": kind}, getattr(family, "most", 0) * PATCH**2)
                for size in SIZES:
                    picture, file = np.zeros((*size, 3), np.uint8), io.BytesIO()
                    Image.fromarray(picture).save(file, "PNG")
                    pixels = family.prepared(picture, step)
                    features = pixels.shape[2] // step * (pixels.shape[3] // step)
                    self.assertEqual(encoder.features(file.getvalue()), features, (family, kind, size))

    def test_siglip2(self):
        self.check(Siglip2, "mlp", -3, layouts=self.GRIDS)

    def test_siglip2_behind_its_last_norm(self):
        self.check(Siglip2, "linear", -1, self.LAST + "\nfeature_norm = true")

    def test_siglip2_of_squares(self):
        self.check(Siglip2, "pixel_shuffle_mlp", -2, self.LAST, layouts=self.GRIDS)

    def test_pixtral_of_squares(self):
        self.check(Pixtral, "pixel_shuffle_mlp", -1, self.LAST, layouts=self.GRIDS)

    def test_pixtral_averaged_beside_stacked_experts(self):
        self.check(Pixtral, "pool", -2, decoder=Qwen3MoeConfig(**{**TEXT, **QWEN3_MOE}))

    def test_pixtral_and_a_stacked_mixtral_become_a_llava(self):
        tower, text, samples = self.compose(Pixtral, "mlp", decoder=MixtralConfig(**{**TEXT, **MIXTRAL}))
        llava = LlavaForConditionalGeneration.from_pretrained(self.folder / "out").eval()
        for name, tensor in tower.state_dict().items():
            self.assertTrue(torch.equal(tensor, llava.model.vision_tower.state_dict()[name]), name)
        for name, tensor in text.model.state_dict().items():
            self.assertTrue(torch.equal(tensor, llava.model.language_model.state_dict()[name]), name)

        def logits_of(tokens, mask, pictures):
            found = []
            for picture in pictures:
                pixels = Pixtral.prepared(picture, PATCH)
                sizes = torch.tensor([pixels.shape[2:]])
                found += llava.get_image_features(pixels, image_sizes=sizes).pooler_output
            ids = torch.tensor(tokens)
            embeds = llava.get_input_embeddings()(ids)
            if found:
                embeds = embeds.index_copy(0, (ids == PLACEHOLDER).nonzero()[:, 0], torch.cat(found))
            return llava(inputs_embeds=embeds[None], use_cache=False).logits[0]

        with torch.no_grad():
            expected = reference(samples, logits_of)
        check_outputs(self, expected, self.run_step(Pixtral))

    def test_squares_beside_a_class_token(self):
        self.check(Clip, "pixel_shuffle_mlp", -2, layouts=self.GRIDS)

    def test_squares_beside_registers(self):
        self.check(Registers, "pool", -1, self.LAST, layouts=self.GRIDS[:1])


if __name__ == "__main__":
    disable_progress_bar()
    torch.set_num_threads(1)
    unittest.main(argv=[sys.argv[0], *sys.argv[6:]])
