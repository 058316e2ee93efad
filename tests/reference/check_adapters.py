# SPDX-License-Identifier: Apache-2.0
"""LoRA as PEFT has it: its adapters come in, loss, logits and gradients are PEFT's, and what goes out, adapters
and the merged model, computes the same there.

check_adapters.py RUN_MODEL ZEA CONSOLIDATE EXTRACT_LOG_MEL JOBS [unittest arguments]
"""

import json
import subprocess
import sys
import unittest
import wave

try:
    import numpy as np
    import torch
    from peft import LoraConfig, PeftModel, get_peft_model
    from safetensors.torch import load_file, save_file
    from transformers import (
        AutoModel,
        AutoModelForCausalLM,
        LlavaForConditionalGeneration,
        WhisperConfig,
        WhisperForConditionalGeneration,
    )
    from transformers.utils.logging import disable_progress_bar

    from adapter_case import (
        AUDIO_TOKEN,
        CONSOLIDATE,
        EXTRACT,
        IMAGE_SIZE,
        IMAGE_TOKEN,
        MEAN,
        MELS,
        MODEL_RUNS,
        PATCHES,
        POSITIONS,
        STD,
        ZEA,
        AdapterCase,
        Clip,
        DatasetWriter,
        ExactText,
        make_decoder,
        make_gpt2,
        make_llava,
        make_samples,
        project,
        tower_config,
    )
    from family_cases import Gemma3, Qwen25VL
    from gemma4_audio import Gemma4Audio, Gemma4AudioAlone
    from gemma4_cases import E4B
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

from transformers_models import VOCABULARY, check_gradients, normalised, perturbed, read_outputs, reference, run


class Adapters(AdapterCase):
    def test_every_linear_of_a_decoder_with_rslora(self):
        every = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        self.check(make_decoder("llama"), ["llm"], r=3, lora_alpha=1, use_rslora=True, target_modules=every)

    def test_phi3_whose_parts_are_one_tensor(self):
        model = make_decoder("phi3", pad_token_id=0)
        self.check(model, ["llm"], r=4, lora_alpha=8, target_modules=["qkv_proj", "gate_up_proj", "o_proj"])

    def test_gpt2_whose_weights_lie_the_other_way(self):
        names = ["c_attn", "c_fc", "attn.c_proj"]
        self.check(make_gpt2(), ["llm"], r=4, lora_alpha=8, target_modules=names, fan_in_fan_out=True)

    def test_all_modules_of_llava_with_ranks_of_their_own(self):
        names = ["q_proj", "out_proj", "o_proj", "linear_1", "linear_2"]
        of_text = [f"language_model.layers.{layer}.self_attn.{name}_proj" for layer in (0, 1) for name in "qo"]
        own = {"rank_pattern": dict.fromkeys(of_text, 2), "alpha_pattern": dict.fromkeys(of_text, 3)}
        self.check(make_llava(), ["vision", "llm"], r=4, lora_alpha=8, target_modules=names, **own)
        self.assertIn("holds adapters of vision, too", self.refusal("llm"))

    def test_vit_whose_linears_have_other_names_in_files(self):
        names = r".*vision_tower\.layers\.[01]\.(attention\.[qvo]_proj|mlp\.fc[12])"
        self.check(make_llava("vit"), ["vision"], r=4, lora_alpha=2, target_modules=names)

    def test_images_of_any_size_in_windows(self):
        names = ["q_proj", "v_proj", "down_proj", "qkv", "attn.proj"]
        frozen = ["model.vision.train_projector=false"]
        self.check(Qwen25VL.model(), ["vision", "llm"], Qwen25VL, frozen, r=4, lora_alpha=6, target_modules=names)

    def test_gemma3_with_images(self):
        names = ["q_proj", "k_proj", "o_proj", "gate_proj", "fc2"]
        frozen = ["model.vision.train_projector=false"]
        self.check(Gemma3.model(), ["vision", "llm"], Gemma3, frozen, r=4, lora_alpha=6, target_modules=names)

    def test_every_linear_of_gemma4_e4b(self):
        """Layers with shared keys have no k_proj; one linear of per-layer inputs serves all blocks."""
        model = make_decoder("gemma4_text", **E4B)
        self.check(model, ["llm"], ExactText, r=3, lora_alpha=5, target_modules="all-linear")

    def test_keys_of_gemma4_that_are_values_and_shared(self):
        model = make_decoder("gemma4_text", **{**E4B, "attention_k_eq_v": True})
        self.check(model, ["llm"], ExactText, r=3, lora_alpha=5, target_modules=["k_proj", "v_proj", "up_proj"])

        # Adapters of keys that a layer does not compute have no effect, as in transformers.
        path = self.folder / "adapter/adapter_model.safetensors"
        tensors = load_file(path)
        for layer, is_refused in ((3, False), (9, True)):
            for matrix in ("lora_A.weight", "lora_B.weight"):
                of = "base_model.model.model.layers.{}.self_attn.k_proj." + matrix
                tensors[of.format(layer)] = tensors[of.format(0)].clone()
            save_file(tensors, path)
            done = self.plan("llm")
            self.assertEqual(done.returncode != 0, is_refused, done.stderr)
        self.assertIn("model.layers.9.self_attn.k_proj, which this gemma4_text model does not have", done.stderr)

    def test_every_linear_of_gemma4_with_images_and_audio(self):
        """PEFT adapts the nn.Linear inside clipped linears."""
        self.check(Gemma4Audio.model(), ["vision", "audio", "llm"], Gemma4Audio, r=3, lora_alpha=5,
                   target_modules="all-linear")
        exported = json.loads((self.folder / "exported/adapter_config.json").read_text())["target_modules"]
        for name in ("layers.1.self_attn.q_proj.linear", "layers.0.self_attn.relative_k_proj", "output_proj",
                     "subsample_conv_projection.input_proj_linear"):
            self.assertIn(f"model.audio_tower.{name}", exported)
        self.assertIn("reads relative positions, which have no dropout",
                      self.refusal("vision", "audio", "llm", lora_dropout=0.1))

    def test_audio_of_gemma4_without_clipped_linears(self):
        frozen = ["model.llm.train=false", "model.audio.train_projector=false"]
        names = r".*audio_tower.*(q_proj|k_proj|v_proj|post|linear_start|linear_end|ffw_layer_[12])\.linear"
        self.check(Gemma4AudioAlone.model(), ["audio"], Gemma4AudioAlone, frozen, r=3, lora_alpha=5,
                   target_modules=names)

    def test_ranks_and_alphas_by_pattern(self):
        own = {
            "rank_pattern": {"down_proj": 2, r"layers\.0\.self_attn\.[qv]_proj": 5},
            "alpha_pattern": {"^model.layers.1.mlp.down_proj": 3, "down_proj": 7, "k_proj": 0.5},
        }
        every = ["q_proj", "k_proj", "v_proj", "down_proj"]
        self.check(make_decoder("llama"), ["llm"], r=4, lora_alpha=8, target_modules=every, **own)
        exported = json.loads((self.folder / "exported/adapter_config.json").read_text())
        self.assertEqual(exported["rank_pattern"]["model.layers.1.mlp.down_proj"], 2)
        self.assertEqual(exported["alpha_pattern"]["model.layers.1.mlp.down_proj"], 3)
        self.assertEqual(exported["alpha_pattern"]["model.layers.0.mlp.down_proj"], 7)
        self.assertNotIn("model.layers.1.self_attn.q_proj", exported["rank_pattern"])

    def adapt(self, name, model, targets):
        """A model of its own with adapters, both in directories."""
        perturbed(model).save_pretrained(self.folder / name)
        return self.adapt_saved(name, model, targets)

    def adapt_saved(self, name, model, targets):
        adapted = get_peft_model(model, LoraConfig(r=4, lora_alpha=6, target_modules=targets)).eval()
        perturbed(adapted)
        adapted.save_pretrained(self.folder / f"{name}-adapter")
        return adapted

    def compose(self, tower, targets, *keys):
        """A run that puts a tower and a language model together, with adapters of both."""
        adapted = {
            "vision": self.adapt("vision", AutoModel.from_config(tower_config(tower)), targets),
            "llm": self.adapt("llm", make_decoder("llama"), ["q_proj", "down_proj"]),
        }
        with DatasetWriter(self.folder / "data.h5", IMAGE_TOKEN) as writer:
            for tokens, mask, pixels in make_samples(True):
                writer.add(tokens, mask, pixels)
        deck = "".join(
            f'[model.{name}]\nweights = "{self.folder}/{name}"\n' + ('placeholder = "5"\n' if name == "vision" else "")
            for name in adapted
        )
        (self.folder / "deck.toml").write_text(
            f'{deck}[data]\ntrain = "{self.folder}/data.h5"\nrow_tokens = 64\nimage_mean = {MEAN}\nimage_std = {STD}\n'
        )
        keys = keys or [f"model.{name}.lora.weights={self.folder}/{name}-adapter" for name in adapted]
        run(ZEA, "-i", self.folder / "deck.toml", "-d", self.folder / "run", "schedule.steps=0", *keys)
        return adapted

    def check_parts(self, tower, targets):
        """Each part's adapters go out as they came in, beside a model of its own."""
        adapted = self.compose(tower, targets)
        run(CONSOLIDATE, "--adapter", self.folder / "run", f"{self.folder}/exported/")
        tokens, pixels = torch.arange(20)[None], torch.rand(2, 3, IMAGE_SIZE, IMAGE_SIZE)
        for name, given in (("vision", {"pixel_values": pixels}), ("llm", {"input_ids": tokens})):
            kind = AutoModel if name == "vision" else AutoModelForCausalLM
            again = PeftModel.from_pretrained(kind.from_pretrained(self.folder / name), self.folder / "exported" / name)
            with torch.no_grad():
                outputs = [each(**given, output_hidden_states=True) for each in (again.eval(), adapted[name])]
            # zea has no adapters after the layer whose features are read.
            found, expected = [each.hidden_states[-2] if name == "vision" else each.logits for each in outputs]
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)

        # The merged model has PEFT's merged weights.
        run(CONSOLIDATE, self.folder / "run", f"{self.folder}/merged/")
        merged = LlavaForConditionalGeneration.from_pretrained(self.folder / "merged").model
        for part, name in ((merged.vision_tower, "vision"), (merged.language_model, "llm")):
            weights = dict(adapted[name].merge_and_unload().named_parameters())
            found = {key: value for key, value in part.named_parameters() if "proj" in key or "fc" in key}
            self.assertGreater(len(found), 10)
            for key, value in found.items():
                expected = weights[key] if name == "vision" else weights["model." + key]
                if name == "vision" and ".2." in key:
                    continue  # after the layer whose features are read
                np.testing.assert_allclose(value.detach(), expected.detach(), rtol=1e-5, atol=1e-6, err_msg=key)

    def test_models_composed_with_whisper(self):
        """A tower, an encoder of sound and a language model, each with PEFT's adapters of its own."""
        sizes = {"d_model": 16, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 24}
        rest = {"decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 24, "vocab_size": 20}
        ids = {f"{name}_token_id": 1 for name in ("pad", "bos", "eos", "decoder_start")}
        config = WhisperConfig(num_mel_bins=MELS, max_source_positions=POSITIONS, **sizes, **rest, **ids)
        whisper = perturbed(WhisperForConditionalGeneration(config))
        whisper.save_pretrained(self.folder / "whisper")
        adapted = {
            "vision": self.adapt("clip", AutoModel.from_config(tower_config("clip_vision_model")), ["q_proj", "fc1"]),
            "audio": self.adapt_saved("whisper", whisper.model.encoder, ["v_proj", "fc2"]),
            "llm": self.adapt("llama", make_decoder("llama"), ["q_proj", "down_proj"]),
        }
        directories = {"vision": "clip", "audio": "whisper", "llm": "llama"}
        samples = self.make_spoken_samples()
        with DatasetWriter(self.folder / "data.h5", IMAGE_TOKEN, audio_token=AUDIO_TOKEN) as writer:
            for sample in samples:
                writer.add(*sample)
        data = (
            f'[data]\ntrain = "{self.folder}/data.h5"\nrow_tokens = 96\nrows_per_microbatch = 2\n'
            f"image_mean = {MEAN}\nimage_std = {STD}\n"
        )
        parts = {name: f'weights = "{self.folder}/{directory}"\n' for name, directory in directories.items()}
        parts["vision"] += f'placeholder = "{IMAGE_TOKEN}"\ntrain_projector = false\n'
        parts["audio"] += f'placeholder = "{AUDIO_TOKEN}"\ntrain_projector = false\n'
        deck, state = self.folder / "deck.toml", self.folder / "state.h5"
        deck.write_text("".join(f"[model.{name}]\n{lines}" for name, lines in parts.items()) + data)
        keys = [f"model.{name}.lora.weights={self.folder}/{directories[name]}-adapter" for name in adapted]
        run(ZEA, "-i", deck, "-d", self.folder / "run", "schedule.steps=0", *keys)
        run(CONSOLIDATE, "--optimizer", self.folder / "run", state)
        run(CONSOLIDATE, self.folder / "run", f"{self.folder}/merged/")
        projectors = {
            name: load_file(self.folder / "merged" / f"{name}.projector" / "model.safetensors")
            for name in ("vision", "audio")
        }

        def logits_of(tokens, mask, items):
            ids = torch.tensor(tokens)
            embeds = adapted["llm"].get_input_embeddings()(ids)
            pixels = [item for item in items if not isinstance(item, Clip)]
            if pixels:
                pixels = normalised(np.stack(pixels), MEAN, STD)
                states = adapted["vision"](pixel_values=pixels, output_hidden_states=True).hidden_states[-2][:, 1:]
                found = project(states, projectors["vision"]).flatten(0, 1)
                embeds = embeds.index_copy(0, (ids == IMAGE_TOKEN).nonzero()[:, 0], found)
            mels = [self.mel_of(item) for item in items if isinstance(item, Clip)]
            if mels:
                states = adapted["audio"](torch.stack(mels)).last_hidden_state
                found = project(states, projectors["audio"]).flatten(0, 1)
                embeds = embeds.index_copy(0, (ids == AUDIO_TOKEN).nonzero()[:, 0], found)
            return adapted["llm"](inputs_embeds=embeds[None], use_cache=False).logits[0]

        prefixes = {"vision": "vision.encoder.", "audio": "audio.encoder.", "llm": "llm."}
        named = [
            (prefixes[part] + name.removeprefix("base_model.model.").replace(".default", ""), parameter)
            for part, model in adapted.items()
            for name, parameter in model.named_parameters()
        ]
        loss, logits, gradients = reference(samples, logits_of, named)
        deck.write_text(f'[model]\nweights = "{state}"\n{data}')
        still = [f"model.{name}.train_projector=false" for name in projectors]
        MODEL_RUNS.run(1, deck, self.folder / "out.h5", *still)
        found_loss, found_logits, found_gradients = read_outputs(self.folder / "out.h5")
        self.check_logits(logits, found_logits, atol=2e-5)
        self.assertAlmostEqual(found_loss, loss, delta=2e-6 * loss)
        check_gradients(self, gradients, found_gradients)

    def make_spoken_samples(self):
        random = np.random.default_rng(3)
        samples = []
        for images, clips in ((1, 1), (0, 2), (1, 0), (2, 1)):
            items = [random.integers(0, 256, (IMAGE_SIZE, IMAGE_SIZE, 3), np.uint8) for _ in range(images)]
            items += [Clip(random.integers(-9000, 9000, 1600).astype(np.int16), 16000) for _ in range(clips)]
            prompt = [IMAGE_TOKEN] * PATCHES * images + [AUDIO_TOKEN] * POSITIONS * clips + [9, 10]
            answer = random.integers(6, VOCABULARY, size=7).tolist()
            samples.append((prompt + answer, [0] * len(prompt) + [1] * len(answer), items))
        return samples

    def mel_of(self, clip):
        with wave.open(str(self.folder / "clip.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(clip.rate)
            file.writeframes(clip.bytes)
        command = [EXTRACT, self.folder / "clip.wav", str(MELS), str(POSITIONS)]
        values = subprocess.run(command, capture_output=True, check=True).stdout
        return torch.tensor(np.frombuffer(values, np.float32).reshape(MELS, -1))

    def test_models_composed_with_vit(self):
        self.check_parts("vit", ["q_proj", "fc2"])

    def test_adapters_of_a_projector_between_models_cannot_be_written_alone(self):
        self.compose("clip_vision_model", ["q_proj"], 'model.vision.lora.targets=["linear_1"]')
        done = subprocess.run(
            [CONSOLIDATE, "--adapter", self.folder / "run", f"{self.folder}/exported/"], capture_output=True, text=True
        )
        self.assertIn("adapters of the projector of vision cannot be written alone", done.stderr)

    def test_dropout_is_that_of_the_directory_unless_the_deck_says_another(self):
        lora = LoraConfig(r=4, target_modules=["q_proj"], lora_dropout=0.25)
        self.save(make_decoder("llama"), lora, make_samples(False))
        adapter = f"model.llm.lora.weights={self.folder}/adapter"
        for said, expected in (("auto", 0.25), (0.5, 0.5)):
            key = f"model.llm.lora.dropout={json.dumps(said)}"
            directory, exported = self.folder / f"run{said}", self.folder / f"exported{said}"
            run(ZEA, "-i", self.folder / "deck.toml", "-d", directory, "schedule.steps=2", adapter, key)
            run(CONSOLIDATE, "--adapter", directory, f"{exported}/")
            config = json.loads((exported / "adapter_config.json").read_text())
            self.assertEqual(config["lora_dropout"], expected)
        self.assertIn("lora_dropout = 1.0; allowed: 0 and more, below 1", self.refusal("llm", lora_dropout=1.0))

    def test_vocabularies_have_no_adapters(self):
        for tied, name, linear in ((False, "lm_head", "lm_head"), (True, "embed_tokens", "model.embed_tokens")):
            model = make_decoder("llama", tie_word_embeddings=tied)
            adapted = self.save(model, LoraConfig(r=4, target_modules=["q_proj", name]), make_samples(False))
            refusal = self.refusal("llm")
            self.assertIn(f"is an adapter of {linear}, which zea does not build", refusal)
            self.assertIn(f"train it without {name} in target_modules", refusal)
            adapted.save_pretrained(self.folder / "adapter", save_embedding_layers=False)
            self.assertIn(f"is an adapter of {linear}, which zea does not build", self.refusal("llm"))

    def test_kinds_that_are_not_built_are_refused(self):
        self.save(make_decoder("llama"), LoraConfig(r=4, target_modules=["q_proj", "k_proj"]), make_samples(False))
        self.assertIn("no regular expression", self.refusal("llm", alpha_pattern={"(k_proj": 3}))
        self.assertIn("use_dora = true is not built; allowed: false", self.refusal("llm", use_dora=True))
        self.assertIn('peft_type = "IA3" is not built', self.refusal("llm", peft_type="IA3"))
        plain = {"peft_type": "LORA", "use_dora": False, "alpha_pattern": {}}
        for init in ("pissa_niter_4", "olora"):
            said = self.refusal("llm", **plain, init_lora_weights=init)
            self.assertIn(f'init_lora_weights = "{init}" is not built; allowed: true, false, "gaussian"', said)
        for init in (None, "gaussian"):
            done = self.plan("llm", init_lora_weights=init)
            self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    disable_progress_bar()
    torch.set_num_threads(1)
    unittest.main(argv=[sys.argv[0], *sys.argv[6:]])
