# SPDX-License-Identifier: Apache-2.0
"""A deck composes encoders and a language model from separate directories. They train as transformers' parts do with
the same projector, and are exported as models of transformers.

check_composed.py ZEA CONSOLIDATE JOBS MPIRUN_IN_ONE_ARGUMENT [unittest arguments]
"""

import json
import shlex
import shutil
import sys
import unittest

try:
    import numpy as np
    import torch
    from PIL import Image
    from safetensors.torch import load_file, save_file
    from transformers import (
        AutoImageProcessor,
        AutoModelForCausalLM,
        CLIPVisionConfig,
        CLIPVisionModel,
        Dinov2WithRegistersConfig,
        Dinov2WithRegistersModel,
        Gemma4TextConfig,
        LlamaConfig,
        LlavaForConditionalGeneration,
        Qwen2Config,
        SiglipVisionConfig,
        SiglipVisionModel,
        ViTConfig,
        ViTForImageClassification,
        ViTModel,
        WhisperConfig,
        WhisperFeatureExtractor,
        WhisperForConditionalGeneration,
        WhisperModel,
    )
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
    from transformers.models.whisper.modeling_whisper import WhisperEncoder
    from transformers.utils.logging import disable_progress_bar
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

from folder_case import FolderCase
from transformers_models import normalised, perturbed, reference, run

ZEA, CONSOLIDATE, JOBS, MPIRUN = sys.argv[1:5]
sys.path.insert(0, JOBS)
from dataset_writer import Clip, DatasetWriter  # noqa: E402

VOCABULARY, IMAGE_SIZE, PATCH = 96, 32, 8
SIDE = IMAGE_SIZE // PATCH
POSITIONS = 6
MEAN, STD = [0.48, 0.45, 0.4], [0.27, 0.26, 0.28]
SIZES = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 3}
SQUARES = {**SIZES, "image_size": IMAGE_SIZE, "patch_size": PATCH}
TEXT = {
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
}
PIPELINED = ["data.row_tokens=72", "mesh.llm.pp=2"]
# No weight changes.
STILL = ["optim.lr=0.0", "optim.min_lr=0.0"]


def make_clip():
    return perturbed(CLIPVisionModel(CLIPVisionConfig(**SQUARES)))


def make_siglip():
    return perturbed(SiglipVisionModel(SiglipVisionConfig(**SQUARES)))


def make_text(family=LlamaConfig):
    return perturbed(AutoModelForCausalLM.from_config(family(**TEXT)))


def make_whisper(kind=WhisperModel):
    sizes = {"d_model": 16, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 24}
    rest = {"decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 24, "vocab_size": 20}
    tokens = {f"{name}_token_id": 1 for name in ("pad", "bos", "eos", "decoder_start")}
    config = WhisperConfig(
        num_mel_bins=8, max_source_positions=POSITIONS, begin_suppress_tokens=None, **sizes, **rest, **tokens
    )
    return kind(config)


def make_samples(features, image_token, clips=0, audio_token=-1):
    random = np.random.default_rng(5)
    text = lambda: random.integers(8, VOCABULARY, size=random.integers(1, 6)).tolist()  # noqa: E731
    samples = []
    for number in range(5):
        tokens, items = text(), []
        for _ in range([1, 0, 2, 1, 1][number]):
            items.append(random.integers(0, 256, (IMAGE_SIZE, IMAGE_SIZE, 3), dtype=np.uint8))
            tokens += [image_token] * features + text()
        for _ in range(clips if number != 3 else 0):
            items.append(Clip(random.integers(-9000, 9000, 1600).astype(np.int16), 16000))
            tokens += [audio_token] * POSITIONS
        answer = text() + text()
        samples.append((tokens + answer, [0] * len(tokens) + [1] * len(answer), items))
    return samples


def add_tokenizer(directory):
    """Writes a tokenizer of five tokens, followed by the placeholder "<picture>"."""
    known = {f"t{number}": number for number in range(5)}
    tokenizer = {"added_tokens": [{"id": 5, "content": "<picture>"}], "model": {"vocab": known}}
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))


def squares_of(states):
    """(sides, sides, width) -> (features, 4, width): 2 x 2 neighbours, squares in rows."""
    half = SIDE // 2
    squares = states.view(half, 2, half, 2, -1).permute(0, 2, 1, 3, 4)
    return squares.reshape(half * half, 4, -1)


def project(kind, states, weights):
    linear = lambda x, name: x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]  # noqa: E731
    if kind == "linear":
        return linear(states, "linear")
    if kind == "pool":
        return linear(squares_of(states).mean(1), "linear")
    return linear(torch.nn.functional.gelu(linear(states, "linear_1")), "linear_2")


class Composed(FolderCase):
    def save(self, name, model):
        model.save_pretrained(self.folder / name)
        return self.folder / name

    def train(self, sections, samples, image_token, audio_token=-1, name="run", ranks=1, keys=()):
        """One step on all samples that changes nothing; returns its loss."""
        with DatasetWriter(self.folder / "data.h5", image_token, audio_token=audio_token) as writer:
            for sample in samples:
                writer.add(*sample)
        text = "".join(f"[model.{part}]\n{lines}\n" for part, lines in sections.items())
        (self.folder / "deck.toml").write_text(
            f'{text}[data]\ntrain = "{self.folder}/data.h5"\nrow_tokens = 128\n'
            f"image_mean = {MEAN}\nimage_std = {STD}\n"
            f"[schedule]\nsteps = 1\nglobal_batch = {len(samples)}\n"
            f"[checkpoint]\nevery = 1\n"
        )
        launcher = [*shlex.split(MPIRUN), "-n", ranks] if ranks > 1 else []
        run(*launcher, ZEA, "-i", self.folder / "deck.toml", "-d", self.folder / name, *STILL, *keys)
        lines = (self.folder / name / "metrics.jsonl").read_text().splitlines()
        losses = [line["loss"] for line in map(json.loads, lines) if line.get("step") == 1 and "loss" in line]
        return losses[0]

    def export(self, name="run"):
        """Made whole, or not at all: a part that cannot be written leaves none."""
        out = self.folder / f"{name}-out"
        (self.folder / f"{name}-out.tmp").mkdir()
        (self.folder / f"{name}-out.tmp/mine").touch()
        with self.assertRaises(AssertionError):
            run(CONSOLIDATE, self.folder / name, f"{out}/")
        self.assertFalse(out.exists())
        shutil.rmtree(self.folder / f"{name}-out.tmp")
        run(CONSOLIDATE, self.folder / name, f"{out}/")
        return out

    def assert_loads(self, kind, directory, model=None):
        loaded, info = kind.from_pretrained(directory, output_loading_info=True)
        for fault in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            self.assertFalse(info[fault], (directory, fault, info[fault]))
        for name, tensor in (model.state_dict() if model else {}).items():
            found = loaded.state_dict()[name][: len(tensor)] if tensor.dim() else tensor
            self.assertTrue(torch.equal(tensor, found), name)
        return loaded

    def loss_of(self, samples, logits_of):
        with torch.no_grad():
            return reference(samples, logits_of)[0]

    def test_llava_of_two_directories(self):
        clip, text = make_clip(), make_text()
        sections = {
            "vision": f'weights = "{self.save("clip", clip)}"\nplaceholder = "7"',
            "llm": f'weights = "{self.save("llama", text)}"',
        }
        samples = make_samples(SIDE * SIDE, 7)
        loss = self.train(sections, samples, 7)
        llava = self.assert_loads(LlavaForConditionalGeneration, self.export())
        for part, model in (("vision_tower", clip), ("language_model", text.model)):
            found = getattr(llava.model, part).state_dict()
            for name, tensor in model.state_dict().items():
                self.assertTrue(torch.equal(tensor, found[name]), name)

        def logits_of(tokens, mask, items):
            ids = torch.tensor(tokens)
            pixels = {"pixel_values": normalised(np.stack(items), MEAN, STD)} if items else {}
            return llava(input_ids=ids[None], use_cache=False, **pixels).logits[0]

        self.assertAlmostEqual(loss, self.loss_of(samples, logits_of), delta=1e-5)

    def save_smaller_squares(self):
        """Sections of a model whose encoder's processor makes smaller squares than the table of positions is for."""
        clip, llama = self.save("clip", make_clip()), self.save("llama", make_text())
        sizes = {"size": {"shortest_edge": 20}, "crop_size": {"height": 16, "width": 16}}
        CLIPImageProcessorPil(**sizes, image_mean=MEAN, image_std=STD).save_pretrained(clip)
        add_tokenizer(llama)
        return {"vision": f'weights = "{clip}"\nplaceholder = "<picture>"', "llm": f'weights = "{llama}"'}

    def assert_makes_squares_of_the_table(self, directory):
        processor = AutoImageProcessor.from_pretrained(directory, backend="pil")
        self.assertEqual((processor.size["shortest_edge"], processor.crop_size["height"]), (40, IMAGE_SIZE))
        return processor

    def test_llava_gets_the_images_that_it_was_trained_with(self):
        sections = self.save_smaller_squares()
        random = np.random.default_rng(7)
        samples = [
            (tokens, mask, [random.integers(0, 256, (50, 70, 3), dtype=np.uint8) for _ in items])
            for tokens, mask, items in make_samples(SIDE * SIDE, 5)
        ]
        loss = self.train(sections, samples, 5)
        said = "become 32 x 32, the encoder's image_size, of a shorter side of 40 in place of 20"
        self.assertIn(said, (self.folder / "run/log.txt").read_text())
        out = self.export()
        llava = self.assert_loads(LlavaForConditionalGeneration, out)
        processor = self.assert_makes_squares_of_the_table(out)

        def logits_of(tokens, mask, items):
            pixels = processor([Image.fromarray(item) for item in items], return_tensors="pt") if items else {}
            return llava(input_ids=torch.tensor(tokens)[None], use_cache=False, **pixels).logits[0]

        self.assertAlmostEqual(loss, self.loss_of(samples, logits_of), delta=1e-5)

    def test_an_encoder_for_itself_gets_these_images_too(self):
        """Whichever file says how they are made."""
        sections = self.save_smaller_squares()
        sections["vision"] += '\nprojector = "linear"'
        alone, whole = (self.folder / "clip" / name for name in ("preprocessor_config.json", "processor_config.json"))
        for file in (alone, whole):
            if file == whole:
                whole.write_text(json.dumps({"image_processor": json.loads(alone.read_text())}))
                alone.unlink()
            self.train(sections, make_samples(SIDE * SIDE, 5), 5, name=file.stem)
            vision = self.export(file.stem) / "vision"
            self.assertEqual([path.name for path in vision.glob("*processor_config.json")], [file.name])
            self.assert_makes_squares_of_the_table(vision)

    def check_projector(self, kind, features):
        """SigLIP and Qwen2; the placeholder is a token that the tokenizer does not know."""
        siglip, text = make_siglip(), make_text(Qwen2Config)
        sections = {
            "vision": f'weights = "{self.save("siglip", siglip)}"\nplaceholder = "<image>"\n'
            f'projector = "{kind}"\nfeature_layer = -1',
            "llm": f'weights = "{self.save("qwen2", text)}"',
        }
        samples = make_samples(features, VOCABULARY)
        loss = self.train(sections, samples, VOCABULARY)
        out = self.export()
        if kind == "mlp":
            self.assert_loads(LlavaForConditionalGeneration, out)
            return
        self.assert_loads(SiglipVisionModel, out / "vision", siglip)
        llm = self.assert_loads(AutoModelForCausalLM, out / "llm", text)
        self.assertEqual(llm.config.vocab_size, VOCABULARY + 1)
        weights = load_file(out / "vision.projector" / "model.safetensors")

        def logits_of(tokens, mask, items):
            ids = torch.tensor(tokens)
            embeds = llm.get_input_embeddings()(ids)
            if items:
                pixels = normalised(np.stack(items), MEAN, STD)
                states = siglip(pixels, output_hidden_states=True).hidden_states[-1]
                found = torch.cat([project(kind, image, weights) for image in states])
                embeds = embeds.index_copy(0, (ids == VOCABULARY).nonzero()[:, 0], found)
            return llm(inputs_embeds=embeds[None], use_cache=False).logits[0]

        self.assertAlmostEqual(loss, self.loss_of(samples, logits_of), delta=1e-5)
        sharded = self.train(sections, samples, VOCABULARY, name="sharded", ranks=2, keys=["mesh.llm.tp=2"])
        self.assertAlmostEqual(sharded, loss, delta=2e-6 * loss)

    def test_mlp(self):
        self.check_projector("mlp", SIDE * SIDE)

    def test_pool(self):
        self.check_projector("pool", SIDE * SIDE // 4)

    def check_tower(self, tower, kind, states_of, keys="", last=None, family=Qwen2Config):
        """The patches among the outputs of `states_of` are features. Where the text has per-layer inputs, placeholders
        have that of padding."""
        text = make_text(family)
        sections = {
            "vision": f'weights = "{self.save("tower", tower)}"\nplaceholder = "7"\nprojector = "linear"\n{keys}',
            "llm": f'weights = "{self.save("text", text)}"',
        }
        samples = make_samples(SIDE * SIDE, 7)
        loss = self.train(sections, samples, 7)
        out = self.export()
        self.assert_loads(kind, out / "vision", last)
        weights = load_file(out / "vision.projector" / "model.safetensors")

        def logits_of(tokens, mask, items):
            ids = torch.tensor(tokens)
            embeds = text.get_input_embeddings()(ids)
            if items:
                pixels = normalised(np.stack(items), MEAN, STD)
                states = states_of(pixels)[:, -SIDE * SIDE :]
                found = torch.cat([project("linear", image, weights) for image in states])
                embeds = embeds.index_copy(0, (ids == 7).nonzero()[:, 0], found)
            more = {}
            if hasattr(text.model, "get_per_layer_inputs"):
                padded = ids.where(ids != 7, text.config.pad_token_id)
                more = {"per_layer_inputs": text.model.get_per_layer_inputs(padded[None], None)}
            return text(inputs_embeds=embeds[None], use_cache=False, **more).logits[0]

        self.assertAlmostEqual(loss, self.loss_of(samples, logits_of), delta=1e-5)
        sharded = self.train(sections, samples, 7, name="sharded", ranks=2, keys=["mesh.vision.tp=1", "mesh.llm.tp=2"])
        self.assertAlmostEqual(sharded, loss, delta=2e-6 * loss)

    def test_registers_and_the_last_norm(self):
        sizes = {name: value for name, value in SQUARES.items() if name != "intermediate_size"}
        dino = perturbed(
            Dinov2WithRegistersModel(Dinov2WithRegistersConfig(**sizes, num_register_tokens=3, mlp_ratio=2))
        ).eval()
        states = lambda pixels: dino(pixels).last_hidden_state  # noqa: E731
        keys = "feature_layer = -1\nfeature_norm = true"
        self.check_tower(dino, Dinov2WithRegistersModel, states, keys, dino)

    def test_per_layer_inputs(self):
        clip = make_clip()
        states = lambda pixels: clip(pixels, output_hidden_states=True).hidden_states[-2]  # noqa: E731
        like_e4b = {"hidden_size_per_layer_input": 6, "vocab_size_per_layer_input": VOCABULARY, "pad_token_id": 3,
                    "num_hidden_layers": 3, "num_kv_shared_layers": 1, "head_dim": 8, "global_head_dim": 12,
                    "layer_types": ["full_attention", "sliding_attention", "full_attention"], "sliding_window": 4}
        family = lambda **sizes: Gemma4TextConfig(**{**sizes, **like_e4b})  # noqa: E731
        self.check_tower(clip, CLIPVisionModel, states, last=clip, family=family)

    def test_vit_of_a_classifier(self):
        """This encoder has no pooler, and its class token is dropped."""
        vit = perturbed(ViTForImageClassification(ViTConfig(**SQUARES))).eval()
        states = lambda pixels: vit.vit(pixels, output_hidden_states=True).hidden_states[-2]  # noqa: E731

        class WithoutPooler:
            def from_pretrained(directory, **options):
                return ViTModel.from_pretrained(directory, add_pooling_layer=False, **options)

        self.check_tower(vit, WithoutPooler, states, last=vit.vit)

    def test_vit_becomes_a_llava(self):
        vit, text = perturbed(ViTModel(ViTConfig(**SQUARES))), make_text()
        sections = {
            "vision": f'weights = "{self.save("vit", vit)}"\nplaceholder = "7"',
            "llm": f'weights = "{self.save("llama", text)}"',
        }
        self.train(sections, make_samples(SIDE * SIDE, 7), 7)
        self.assert_loads(LlavaForConditionalGeneration, self.export())

    def refusal(self, sections):
        with self.assertRaises(AssertionError) as refused:
            self.train(sections, make_samples(4, 7), 7)
        return str(refused.exception)

    def test_what_does_not_fit_is_refused(self):
        clip, llama = self.save("clip", make_clip()), self.save("llama", make_text())
        odd = self.save("odd", CLIPVisionModel(CLIPVisionConfig(**{**SQUARES, "image_size": 3 * PATCH})))
        llm = f'weights = "{llama}"'
        for lines, sentence in (
            (f'weights = "{llama}"', "model_type = llama; allowed: clip_vision_model, dinov2, .*pixtral, .*, vit"),
            (f'weights = "{clip}"\nfeature_norm = true', "vision_feature_norm = true; allowed: false: .* no"),
            (f'weights = "{clip}"\nplaceholder = "96"', "placeholder = 96; the vocabulary of .* has the ids 0 to 95"),
            (f'weights = "{odd}"\nprojector = "pool"', "projector = pool; allowed: linear, mlp .*3 patches a side"),
            (f'weights = "{clip}"\nfeature_layer = 4', "vision_feature_layer = 4; allowed: -4 to 3"),
        ):
            self.assertRegex(self.refusal({"vision": lines, "llm": llm}), sentence)
        trained = self.save("trained", make_text())
        config = json.loads((trained / "config.json").read_text())
        (trained / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
        said = self.refusal({"vision": f'weights = "{clip}"', "llm": f'weights = "{trained}"'})
        self.assertIn("lm_head.weight differs from model.embed_tokens.weight", said)
        two = {name: f'weights = "{clip}"\nplaceholder = "7"' for name in ("left", "right")}
        self.assertIn("another id than that of left", self.refusal({**two, "llm": llm}))
        self.assertIn("model_type = \"clip_vision_model\"; allowed", self.refusal({"llm": f'weights = "{clip}"'}))
        (clip / "model.safetensors").rename(clip / "whole.safetensors")
        tensors = load_file(clip / "whole.safetensors")
        (clip / "whole.safetensors").unlink()
        del tensors["pre_layrnorm.weight"]
        tensors["pre_layrnorm.bias"] = torch.zeros(5)
        save_file(tensors, clip / "model.safetensors", metadata={"format": "pt"})
        said = self.refusal({"vision": f'weights = "{clip}"', "llm": llm})
        self.assertRegex(said, r"missing: pre_layrnorm.weight")
        self.assertRegex(said, r"wrong shape: pre_layrnorm.bias is \(5\); the model wants \(24\)")

    def test_two_of_a_kind_have_placeholders_of_their_own(self):
        clip, llama = self.save("clip", make_clip()), self.save("llama", make_text())
        two = {name: f'weights = "{clip}"' for name in ("left", "right")}
        sections = {**two, "llm": f'weights = "{llama}"'}
        new = VOCABULARY  # the first row after the existing ones
        self.assertTrue(0 < self.train(sections, make_samples(SIDE * SIDE, new), new))

    def test_three_encoders(self):
        """Two of images and one of sound, each with a projector that begins as is stated."""
        clip, siglip, text = make_clip(), make_siglip(), make_text()
        whisper = perturbed(make_whisper()).eval()
        tokens_of = {"left": 7, "right": 6, "ears": 5}
        kinds = {"left": "linear", "right": "pool", "ears": "mlp"}
        of_images = {"left": "", "right": "feature_layer = -1", "ears": ""}
        sections = {
            name: f'weights = "{self.save(name, model)}"\nplaceholder = "{tokens_of[name]}"\n'
            f'projector = "{kinds[name]}"\n{of_images[name]}'
            for name, model in (("left", clip), ("right", siglip), ("ears", whisper))
        }
        sections["llm"] = f'weights = "{self.save("llama", text)}"'
        features = {"left": SIDE * SIDE, "right": SIDE * SIDE // 4, "ears": POSITIONS}
        random = np.random.default_rng(6)
        samples, seen = [], {}
        for order in (["left", "ears", "right"], [], ["right", "right"], ["ears", "left"]):
            tokens, items = [1, 2], []
            for name in order:
                picture = random.integers(0, 256, (IMAGE_SIZE, IMAGE_SIZE, 3), dtype=np.uint8)
                clip_of_it = Clip(random.integers(-9000, 9000, 1600).astype(np.int16), 16000)
                items.append(clip_of_it if name == "ears" else picture)
                tokens += [tokens_of[name]] * features[name] + [8 + len(items)]
            answer = random.integers(8, VOCABULARY, size=5).tolist()
            seen[tuple(tokens + answer)] = order
            samples.append((tokens + answer, [0] * len(tokens) + [1] * len(answer), items))
        loss = self.train(sections, samples, 7, 5)
        out = self.export()
        projectors = {name: load_file(out / f"{name}.projector" / "model.safetensors") for name in kinds}
        for name, weights in projectors.items():
            for key, values in weights.items():
                deviation = values.std().item() if key.endswith("weight") else values.abs().max().item()
                self.assertAlmostEqual(deviation, 0.02 if key.endswith("weight") else 0, delta=0.002, msg=(name, key))
        self.assert_loads(CLIPVisionModel, out / "left", clip)
        self.assert_loads(SiglipVisionModel, out / "right", siglip)
        self.assert_loads(WhisperEncoder, out / "ears", whisper.encoder)
        extractor = WhisperFeatureExtractor(feature_size=8, chunk_length=1)

        def states_of(name, item):
            if name == "ears":
                sound = np.frombuffer(item.bytes, np.int16).astype(np.float32) / 32768
                mel = extractor(sound, sampling_rate=16000, return_tensors="pt")["input_features"]
                return whisper.encoder(mel[..., : 2 * POSITIONS]).last_hidden_state[0]
            pixels = normalised(item[None], MEAN, STD)
            if name == "right":
                return siglip(pixels, output_hidden_states=True).hidden_states[-1][0]
            return clip(pixels, output_hidden_states=True).hidden_states[-2][0, 1:]

        def logits_of(tokens, mask, items):
            ids = torch.tensor(tokens)
            embeds = text.get_input_embeddings()(ids)
            for name in kinds:
                found = [project(kinds[name], states_of(name, item), projectors[name])
                         for of, item in zip(seen[tuple(tokens)], items) if of == name]
                if found:
                    embeds = embeds.index_copy(0, (ids == tokens_of[name]).nonzero()[:, 0], torch.cat(found))
            return text(inputs_embeds=embeds[None], use_cache=False).logits[0]

        self.assertAlmostEqual(loss, self.loss_of(samples, logits_of), delta=2e-5)
        keys = ["mesh.llm.tp=2", "mesh.left.encoder_dp=2", "mesh.ears.cp=2"]
        sharded = self.train(sections, samples, 7, 5, name="sharded", ranks=2, keys=keys)
        self.assertAlmostEqual(sharded, loss, delta=2e-6 * loss)

    def test_any_names_and_a_tokenizer(self):
        """Three directories; one placeholder is in the tokenizer, the other becomes its next."""
        clip, whisper, text = make_clip(), make_whisper(WhisperForConditionalGeneration), make_text()
        llama = self.save("llama", text)
        add_tokenizer(llama)
        sections = {
            "eyes": f'weights = "{self.save("clip", clip)}"\nplaceholder = "<picture>"',
            "ears": f'weights = "{self.save("whisper", whisper)}"\nplaceholder = "<sound>"',
            "llm": f'weights = "{llama}"',
        }
        samples = make_samples(SIDE * SIDE, 5, clips=1, audio_token=6)
        loss = self.train(sections, samples, 5, 6)
        out = self.export()
        self.assert_loads(CLIPVisionModel, out / "eyes", clip)
        self.assert_loads(WhisperEncoder, out / "ears", whisper.model.encoder)
        self.assert_loads(AutoModelForCausalLM, out / "llm", text)
        self.assertEqual(
            sorted(path.name for path in out.iterdir()),
            ["ears", "ears.projector", "eyes", "eyes.projector", "llm"],
        )
        keys = ["mesh.llm.tp=2", "mesh.eyes.encoder_dp=2", "mesh.ears.cp=2"]
        sharded = self.train(sections, samples, 5, 6, name="sharded", ranks=2, keys=keys)
        self.assertAlmostEqual(sharded, loss, delta=2e-6 * loss)
        piped = self.train(sections, samples, 5, 6, name="piped", ranks=2, keys=PIPELINED)
        self.assertAlmostEqual(piped, loss, delta=2e-6 * loss)


if __name__ == "__main__":
    disable_progress_bar()
    torch.set_num_threads(1)
    unittest.main(argv=[sys.argv[0], *sys.argv[5:]])
