# SPDX-License-Identifier: Apache-2.0
"""A tiny model with images and audio gives the logits, the loss and the gradients of transformers' CLIP, WhisperEncoder
and Llama, composed by inputs_embeds, on one rank and on grids of several; and its parts are exported as models of
transformers. Qwen2-Audio and Voxtral are transformers' own, and load whole.

test_spoken_parity.py RUN_MODEL IMPORT CONSOLIDATE EXTRACT_LOG_MEL JOBS MPIRUN_IN_ONE_ARGUMENT [unittest args]
"""

import io
import json
import shlex
import sys
import unittest
import wave

try:
    import h5py  # noqa: F401
    import numpy as np
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import (
        CLIPVisionConfig,
        LlamaConfig,
        LlamaForCausalLM,
        LlavaConfig,
        LlavaForConditionalGeneration,
        Qwen2AudioConfig,
        Qwen2AudioForConditionalGeneration,
        VoxtralConfig,
        VoxtralForConditionalGeneration,
        WhisperConfig,
    )
    from transformers.models.whisper.modeling_whisper import WhisperEncoder
    from transformers.utils.logging import disable_progress_bar, set_verbosity_error
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

import subprocess

from parity_case import ParityCase, trained_of
from spoken_cases import CASES
from transformers_models import (
    PROMPTS,
    ModelRuns,
    check_next_tokens,
    check_outputs,
    file_name,
    normalised,
    perturbed,
    reference,
    run,
)

RUN_MODEL, IMPORT, CONSOLIDATE, EXTRACT, JOBS, MPIRUN = sys.argv[1:7]
PUBLISHED = ("qwen2_audio", "voxtral")  # of which whole models come back
sys.path.insert(0, JOBS)
from dataset_writer import Clip, DatasetWriter  # noqa: E402

IMAGE_TOKEN, AUDIO_TOKEN, VOCABULARY, IMAGE_SIZE, PATCHES, POSITIONS = 5, 4, 96, 24, 9, 13
MEAN, STD = [0.48, 0.45, 0.4], [0.27, 0.26, 0.28]
RATE = 16000

WHISPER = {
    "d_model": 24,
    "encoder_ffn_dim": 40,
    "encoder_layers": 2,
    "encoder_attention_heads": 4,
    "num_mel_bins": 16,
    "max_source_positions": POSITIONS,
}
TEXT = {
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 256,
}
# Positions of two lengths of a clip, of which an odd number leaves one over.
QWEN2_AUDIO = {**WHISPER, "max_source_positions": 20, "num_mel_bins": 24}
VOXTRAL = {
    "hidden_size": 24,
    "intermediate_size": 72,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_mel_bins": 16,
    "max_source_positions": 18,
}


class Composition(torch.nn.Module):
    """LLaVA with a Whisper encoder and a projector of its own."""

    def __init__(self, case):
        super().__init__()
        torch.manual_seed(1)
        text = LlamaConfig(**TEXT)
        vision = CLIPVisionConfig(
            hidden_size=24,
            intermediate_size=40,
            num_hidden_layers=3,
            num_attention_heads=3,
            image_size=IMAGE_SIZE,
            patch_size=8,
        )
        self.audio = WhisperConfig(**{**WHISPER, **case.get("audio", {})})
        self.config = LlavaConfig(
            vision_config=vision,
            text_config=text,
            image_token_index=IMAGE_TOKEN,
            **case.get("llava", {}),
        )
        self.llava = perturbed(LlavaForConditionalGeneration(self.config))
        self.audio_tower = perturbed(WhisperEncoder(self.audio)).eval()
        bias = self.config.multimodal_projector_bias
        first = torch.nn.Linear(self.audio.d_model, text.hidden_size, bias)
        second = torch.nn.Linear(text.hidden_size, text.hidden_size, bias)
        self.audio_projector = perturbed(
            torch.nn.ModuleDict({"linear_1": first, "linear_2": second})
        )
        self.act = self.llava.model.multi_modal_projector.act

    def audio_features(self, mels):
        hidden = self.audio_tower(mels).last_hidden_state
        inner = self.act(self.audio_projector["linear_1"](hidden))
        return self.audio_projector["linear_2"](inner).flatten(0, 1)

    def image_features(self, pixels):
        model = self.llava.model
        states = model.vision_tower(pixels, output_hidden_states=True).hidden_states
        return model.multi_modal_projector(states[-2][:, 1:]).flatten(0, 1)

    def features_of(self, samples):
        return self.audio.max_source_positions

    def forward(self, tokens, pixels, mels, sounds):
        ids = torch.tensor(tokens)
        embeds = self.llava.get_input_embeddings()(ids)
        if len(pixels):
            features = self.image_features(normalised(pixels, MEAN, STD))
            embeds = embeds.index_copy(0, (ids == IMAGE_TOKEN).nonzero()[:, 0], features)
        if len(mels):
            features = self.audio_features(torch.stack(mels))
            embeds = embeds.index_copy(0, (ids == AUDIO_TOKEN).nonzero()[:, 0], features)
        out = self.llava.model.language_model(inputs_embeds=embeds[None], use_cache=False)
        return self.llava.lm_head(out.last_hidden_state)[0]

    def named_tensors(self):
        """Parameters by the names of weights files."""
        for name, parameter in self.named_parameters():
            if name.startswith("llava."):
                name = file_name(name[len("llava.") :])
            yield name, parameter

    def save(self, folder):
        self.llava.save_pretrained(folder)
        tensors = load_file(folder / "model.safetensors")
        audio = {n: p for n, p in self.named_tensors() if n.startswith("audio_")}
        save_file({**tensors, **{n: p.detach() for n, p in audio.items()}}, folder / "model.safetensors",
                  metadata={"format": "pt"})
        config = json.loads((folder / "config.json").read_text())
        config["audio_config"] = self.audio.to_dict()
        config["audio_token_index"] = AUDIO_TOKEN
        (folder / "config.json").write_text(json.dumps(config))


class Published(torch.nn.Module):
    """A family of transformers that hears."""

    def __init__(self, case):
        super().__init__()
        torch.manual_seed(1)
        self.own_length = case["family"] == "qwen2_audio"
        if self.own_length:
            audio = {"model_type": "qwen2_audio_encoder", **QWEN2_AUDIO, **case.get("audio", {})}
            config = Qwen2AudioConfig(
                audio_config=audio,
                text_config={"model_type": "qwen2", **TEXT, **case.get("text", {})},
                audio_token_index=AUDIO_TOKEN,
            )
            self.model = perturbed(Qwen2AudioForConditionalGeneration(config))
        else:
            audio = {"model_type": "voxtral_encoder", **VOXTRAL, **case.get("audio", {})}
            config = VoxtralConfig(
                audio_config=audio,
                text_config={"model_type": "llama", "head_dim": 16, **TEXT, **case.get("text", {})},
                audio_token_id=AUDIO_TOKEN,
                **case.get("config", {}),
            )
            self.model = perturbed(VoxtralForConditionalGeneration(config))
        self.audio = config.audio_config

    def columns_of(self, samples):
        """As the processor's feature_attention_mask counts them."""
        return min(-(-samples // 160), 2 * self.audio.max_source_positions)

    def features_of(self, samples):
        if self.own_length:
            return ((self.columns_of(samples) - 1) // 2 + 1 - 2) // 2 + 1
        return self.audio.max_source_positions * self.audio.hidden_size // self.audio.intermediate_size

    def forward(self, tokens, pixels, mels, sounds):
        heard = {"input_features": torch.stack(mels)} if mels else {}
        if mels and self.own_length:
            columns = torch.tensor([self.columns_of(len(sound)) for sound in sounds])
            mask = torch.arange(2 * self.audio.max_source_positions)[None] < columns[:, None]
            heard["feature_attention_mask"] = mask.long()
        ids = torch.tensor([tokens])
        return self.model(
            input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False, **heard
        ).logits[0]

    def named_tensors(self):
        for name, parameter in self.model.named_parameters():
            yield file_name(name), parameter

    def save(self, folder):
        self.model.save_pretrained(folder)


def wav(samples):
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(RATE)
        out.writeframes(samples.astype("<i2").tobytes())
    return file.getvalue()


def make_samples(case, model, count=7, longest_answer=12):
    """Token ids, loss mask, pictures, sounds (int16): items in any order among text."""
    random = np.random.default_rng(3)
    patterns = case.get("items", ["ia", "a", "", "i", "aia", "a", "i"])
    if isinstance(model, Published):
        patterns = [pattern.replace("i", "") for pattern in patterns]
    positions = model.audio.max_source_positions

    def text(least, most):
        return random.integers(6, VOCABULARY, size=random.integers(least, most + 1)).tolist()

    samples = []
    for number in range(count):
        tokens, pixels, sounds = text(1, 4), [], []
        for kind in patterns[number % len(patterns)]:
            if kind == "i":
                pixels.append(random.integers(0, 256, (IMAGE_SIZE, IMAGE_SIZE, 3), np.uint8))
                tokens += [IMAGE_TOKEN] * PATCHES
            else:
                length = random.integers(800, positions * 400)  # shorter, or longer, than the encoder's
                loudness = random.uniform(500, 30000)
                sounds.append((random.standard_normal(length) * loudness).clip(-32768, 32767).astype(np.int16))
                tokens += [AUDIO_TOKEN] * model.features_of(length)
            tokens += text(0, 2)
        prompt, answer = tokens + text(1, 5), text(1, longest_answer)
        mask = [0] * len(prompt) + [1] * len(answer)
        order = patterns[number % len(patterns)]
        samples.append((prompt + answer, mask, pixels, sounds, order))
    return samples


class SpokenParity(ParityCase):
    model_runs = ModelRuns(*shlex.split(MPIRUN), "-n", 2, RUN_MODEL)

    def mels_of(self, sounds, audio):
        """As zea makes them, which another test compares with WhisperFeatureExtractor."""
        mels = []
        for sound in sounds:
            (self.folder / "clip.wav").write_bytes(wav(sound))
            sizes = [str(audio.num_mel_bins), str(audio.max_source_positions)]
            done = subprocess.run([EXTRACT, self.folder / "clip.wav", *sizes], capture_output=True)
            values = np.frombuffer(done.stdout, np.float32).reshape(audio.num_mel_bins, -1)
            mels.append(torch.tensor(values))
        return mels

    def reference_of(self, model, samples):
        def logits_of(tokens, mask, pixels, sounds, order):
            mels = self.mels_of(sounds, model.audio)
            return model(tokens, np.stack(pixels) if pixels else [], mels, sounds)

        return reference(samples, logits_of, model.named_tensors())

    def write_inputs(self, folder, model, samples):
        model.save(folder / "model")
        run(IMPORT, folder / "model", folder / "weights.h5")
        writer = DatasetWriter(folder / "data.h5", IMAGE_TOKEN, audio_token=AUDIO_TOKEN)
        with writer:
            for tokens, mask, pixels, sounds, order in samples:
                images = iter(pixels)
                clips = iter(
                    [Clip(s, RATE) if n % 2 else Clip(wav(s)) for n, s in enumerate(sounds)]
                )
                items = [next(images if kind == "i" else clips) for kind in order]
                writer.add(tokens, mask, items)
        (folder / "deck.toml").write_text(
            f'[model]\nweights = "{folder}/weights.h5"\n'
            f'[data]\ntrain = "{folder}/data.h5"\nrow_tokens = 240\n'
            f"rows_per_microbatch = 1\nimage_mean = {MEAN}\nimage_std = {STD}\n"
        )

    def make(self, folder, case):
        model = Published(case) if "family" in case else Composition(case)
        samples = make_samples(case, model)
        expected = self.reference_of(model, samples)
        self.write_inputs(folder, model, samples)
        return expected

    def check_case(self, case):
        folder, expected = self.shared(case, lambda folder: self.make(folder, case))
        expected = trained_of(expected, case.get("frozen", []))
        found_outputs = self.run_model(case, folder / "deck.toml")
        check_outputs(self, expected, found_outputs, atol=2e-5)
        expected, found = expected[2], found_outputs[2]
        self.assertEqual(sorted(expected), sorted(found))
        projector = case.get("trained", "audio_projector.linear_1.weight")
        trained = projector if case.get("frozen") else "audio_tower.conv1.weight"
        self.assertIn(trained, expected)
        all_norm = np.sqrt(sum(np.square(g, dtype=np.float64).sum() for g in expected.values()))
        for name, gradient in expected.items():
            difference = np.linalg.norm(found[name] - gradient)
            limit = 1e-5 * np.linalg.norm(gradient) + 2e-6 * all_norm
            self.assertLessEqual(difference, limit, name)

    def check_prompts(self, case):
        model = Published(case) if "family" in case else Composition(case)
        samples = make_samples(case, model, PROMPTS, 1)
        with torch.no_grad():
            _, expected, _ = self.reference_of(model, samples)
        self.write_inputs(self.folder, model, samples)
        _, found, _ = self.run_model(case, self.folder / "deck.toml")
        check_next_tokens(self, expected, found)

    def test_prompts(self):
        self.check_prompts({})

    def test_prompts_of_qwen2_audio(self):
        self.check_prompts({"family": "qwen2_audio", "items": ["a"]})

    def test_prompts_of_voxtral(self):
        self.check_prompts({"family": "voxtral", "items": ["a"]})

    def assert_loads(self, kind, directory, parameters):
        """All of a directory, and nothing but the named parameters."""
        loaded, info = kind.from_pretrained(directory, output_loading_info=True)
        self.assertFalse(any(info.values()), (directory, info))
        for name, parameter in parameters:
            self.assertTrue(torch.equal(loaded.get_parameter(name), parameter), name)

    def check_parts(self, model):
        """Transformers has no such model: what hears is a model of its own."""
        run(IMPORT, self.folder / "model", self.folder / "weights.h5")
        said = run(CONSOLIDATE, self.folder / "weights.h5", f"{self.folder}/parts/")
        self.assertIn("transformers has no model of this shape", said)
        parts = self.folder / "parts"
        self.assert_loads(WhisperEncoder, parts / "audio", model.audio_tower.named_parameters())
        projector = load_file(parts / "audio.projector" / "model.safetensors")
        for name, parameter in model.audio_projector.named_parameters():
            self.assertTrue(torch.equal(projector.pop(name), parameter), name)
        self.assertEqual(projector, {})
        return parts

    def test_images_and_audio_are_exported_in_parts(self):
        model = Composition({})
        model.save(self.folder / "model")
        (self.folder / "model" / "tokenizer.json").write_text("{}")
        parts = self.check_parts(model)
        self.assert_loads(LlavaForConditionalGeneration, parts / "llava", model.llava.named_parameters())
        self.assertTrue((parts / "llava" / "tokenizer.json").exists())
        self.assertEqual(sorted(path.name for path in parts.iterdir()), ["audio", "audio.projector", "llava"])

    def test_audio_alone_is_exported_in_parts(self):
        model = Composition({})
        model.save(self.folder / "model")
        config = json.loads((self.folder / "model" / "config.json").read_text())
        del config["vision_config"]
        (self.folder / "model" / "config.json").write_text(json.dumps(config))
        tensors = load_file(self.folder / "model" / "model.safetensors")
        heard = {n: t for n, t in tensors.items() if not n.startswith(("vision_tower.", "multi_modal_"))}
        save_file(heard, self.folder / "model" / "model.safetensors", metadata={"format": "pt"})
        parts = self.check_parts(model)
        text = model.llava.model.language_model.named_parameters()
        named = [(f"model.{name}", parameter) for name, parameter in text]
        named.append(("lm_head.weight", model.llava.lm_head.weight))
        self.assert_loads(LlamaForCausalLM, parts / "llm", named)

    def test_published_models_come_back(self):
        for family in PUBLISHED:
            model = Published({"family": family})
            folder = self.folder / family
            model.save(folder)
            run(IMPORT, folder, self.folder / "weights.h5")
            run(CONSOLIDATE, self.folder / "weights.h5", f"{folder}_returned/")
            returned = load_file(f"{folder}_returned/model.safetensors")
            self.assertEqual(set(returned), {name for name, _ in model.named_tensors()})
            loaded, info = type(model.model).from_pretrained(
                f"{folder}_returned", output_loading_info=True
            )
            self.assertEqual([len(names) for names in info.values()], [0] * len(info), info)
            for name, parameter in model.model.named_parameters():
                self.assertTrue(torch.equal(loaded.get_parameter(name), parameter), name)


def add_case(name, case):
    setattr(SpokenParity, f"test_{name}", lambda self: self.check_case(case))


for case_name, one_case in CASES.items():
    add_case(case_name, one_case)

if __name__ == "__main__":
    disable_progress_bar()
    set_verbosity_error()
    torch.set_num_threads(1)
    unittest.main(argv=[sys.argv[0], *sys.argv[7:]])
