# SPDX-License-Identifier: Apache-2.0
"""Outputs of jobs/finetune.sh other than weights: processors, chat templates, and tokenizers, which know the
placeholders of composed encoders; and buffers of Gemma 4.

check_finetune_parts.py SOURCE_FOLDER BUILD_FOLDER MPIRUN_IN_ONE_ARGUMENT
"""

import json
import os
import shutil
import subprocess
import sys
import tomllib
import wave

try:
    import h5py
    import numpy as np
    import torch
    from PIL import Image
    from tokenizers import Tokenizer
    from transformers import (
        AutoConfig,
        AutoModelForCausalLM,
        AutoProcessor,
        AutoTokenizer,
        CLIPVisionConfig,
        CLIPVisionModel,
        Gemma4AudioFeatureExtractor,
        Gemma4Config,
        Gemma4ForConditionalGeneration,
        Glm4vMoeConfig,
        Glm4vMoeForConditionalGeneration,
        Glm46VConfig,
        Glm46VForConditionalGeneration,
        Kimi_K25Config,
        Kimi_K25ForConditionalGeneration,
        LlavaForConditionalGeneration,
        LlavaProcessor,
        PreTrainedTokenizerFast,
        Qwen2_5OmniProcessor,
        Qwen2_5OmniThinkerConfig,
        Qwen2_5OmniThinkerForConditionalGeneration,
        Qwen2VLImageProcessor,
        Qwen2VLVideoProcessor,
        Qwen3OmniMoeProcessor,
        Qwen3OmniMoeThinkerConfig,
        Qwen3OmniMoeThinkerForConditionalGeneration,
        WhisperConfig,
        WhisperFeatureExtractor,
        WhisperModel,
    )
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

import finetune_case
from finetune_case import SOURCE, SPECIAL, TEXT, FinetuneCase, tiny_llava, write_wav
from qwen3_omni_cases import Qwen3OmniWhole
from transformers_models import perturbed

GEMMA4 = ["<bos>", "<|turn>", "<turn|>", "<|image>", "<image|>", "<|image|>", "<|video|>"]
GEMMA4 += ["<|audio>", "<audio|>", "<|audio|>"]
GLM = ["<|im_start|>", "<|im_end|>", "<|begin_of_image|>", "<|end_of_image|>", "<|image|>"]
GLM += ["<|begin_of_video|>", "<|end_of_video|>"]
KIMI = ["<|im_user|>", "<|im_assistant|>", "<|im_middle|>", "<|im_end|>", "<|media_begin|>", "<|media_content|>"]
KIMI += ["<|media_end|>", "<|media_pad|>", "<|kimi_k25_video_placeholder|>"]
OMNI3 = ["<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>",
         "<|audio_start|>", "<|audio_end|>", "<|audio_pad|>"]
OMNI = ["<|im_start|>", "<|im_end|>", "<|vision_bos|>", "<|vision_eos|>", "<|IMAGE|>", "<|VIDEO|>", "<|audio_bos|>",
        "<|audio_eos|>", "<|AUDIO|>"]
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {% for p in m.content %}"
    "{{ '<image>' if p.type == 'image' else p.text }}{% endfor %}{{ eos_token if m.role == 'assistant' }}{% endfor %}"
    "{{ 'assistant: ' if add_generation_prompt }}"
)


class FinetuneParts(FinetuneCase):
    def test_processor_and_chat_template_come_out(self):
        """With them transformers makes of a conversation the tokens that were trained on."""
        directory = self.save(tiny_llava(), SPECIAL)
        LlavaProcessor(
            CLIPImageProcessorPil(size={"shortest_edge": 24}, crop_size={"height": 24, "width": 24}),
            PreTrainedTokenizerFast(tokenizer_file=str(directory / "tokenizer.json"), eos_token="</s>"),
            patch_size=8,
            vision_feature_select_strategy="default",
            num_additional_image_tokens=1,
            chat_template=TEMPLATE,
        ).save_pretrained(directory)
        self.finetune(directory)
        directory.rename(self.folder / "gone")
        processor = AutoProcessor.from_pretrained(self.folder / "out/model")
        self.assertEqual(processor.chat_template, TEMPLATE)
        turns = [{"type": "image"}, {"type": "text", "text": "\nWhat is it?"}], "It is noise.", "Is it?", "Yes."
        roles = ("user", "assistant") * 2
        parts = [[{"type": "text", "text": turn}] if isinstance(turn, str) else turn for turn in turns]
        written = processor.apply_chat_template([{"role": r, "content": p} for r, p in zip(roles, parts)])
        self.assert_packed_as_by(processor, written)
        self.assertEqual(AutoTokenizer.from_pretrained(self.folder / "out/model").eos_token, "</s>")

    def assert_packed_as_by(self, processor, written):
        """The first entry."""
        image = Image.open(self.folder / "pictures/0.png")
        made = processor(images=[image], text=[written], add_special_tokens=False)
        with h5py.File(self.folder / "out/train.h5") as data:
            self.assertEqual(made["input_ids"][0], data["tokens"][: data["token_offsets"][1]].tolist())

    def save_parts(self, vocabulary=TEXT["vocab_size"]):
        """A Llama that does not know <image>, and a CLIP with what makes its images ready."""
        config = AutoConfig.for_model("llama", **{**TEXT, "vocab_size": vocabulary})
        llama = self.save(AutoModelForCausalLM.from_config(config), ["<s>", "</s>"], "llama")
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(llama / "tokenizer.json"), eos_token="</s>")
        tokenizer.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}"
        tokenizer.save_pretrained(llama)
        said = json.loads((llama / "tokenizer_config.json").read_text())
        said["added_tokens_decoder"] = {"0": {"content": "<s>", "special": True}}  # as transformers 4 wrote it
        (llama / "tokenizer_config.json").write_text(json.dumps(said))
        vision = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 3}
        clip = self.folder / "clip"
        CLIPVisionModel(CLIPVisionConfig(image_size=32, patch_size=8, **vision)).save_pretrained(clip)
        sizes = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
        CLIPImageProcessorPil(**sizes).save_pretrained(clip)
        return llama, clip

    @staticmethod
    def bounds_of(model):
        """The bounds of clipped linears, by name."""
        return [(name, buffer) for name, buffer in model.named_buffers() if name.endswith(("_min", "_max"))]

    def check_gemma4(self, text, vision, audio=None):
        """Trains on images and a video."""
        of_tower = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 2}
        sizes = {"patch_size": 4, "pooling_kernel_size": 2}
        config = Gemma4Config(
            text_config={**TEXT, "sliding_window": 7, "head_dim": 8, "global_head_dim": 16, **text},
            vision_config={**of_tower, **sizes, "num_key_value_heads": 2, "head_dim": 8, **vision},
            audio_config=audio,
            image_token_id=5,
            video_token_id=6,
            boi_token_id=3,
            eoi_token_id=4,
            boa_token_id=7,
            eoa_token_index=8,
            audio_token_id=9,
        )
        self.add_video()
        model = Gemma4ForConditionalGeneration(config)
        with torch.no_grad():
            for name, bound in self.bounds_of(model):
                bound.fill_(-3 if name.endswith("_min") else 3)
        self.check(Gemma4ForConditionalGeneration, model, GEMMA4, {**sizes, "max_soft_tokens": 70})
        ids, _, frames = self.packed(3)
        self.assertEqual(frames, [0, 0, 0, 3, -1, -1, 0])
        # Frames of 60 x 40 pixels become 10 x 6 squares of 8 x 8; the third begins after 1.33 seconds.
        tokenizer = Tokenizer.from_file(str(self.folder / "model/tokenizer.json"))
        spelled = " ".join(f"{time} <|image>{'<|video|>' * 60}<image|>" for time in ("00:00", "00:00", "00:01"))
        self.assertIn(f"{tokenizer.encode(spelled).ids}"[1:-1], f"{ids}")
        return model

    def test_qwen2_5_omni(self):
        tower = {"depth": 2, "hidden_size": 32, "intermediate_size": 40, "num_heads": 2, "out_hidden_size": 32}
        ear = {"d_model": 24, "encoder_ffn_dim": 40, "encoder_layers": 2, "encoder_attention_heads": 4}
        config = Qwen2_5OmniThinkerConfig(
            text_config={**TEXT, "rope_parameters": {"rope_type": "default", "mrope_section": [2, 1, 1]}},
            vision_config={**tower, "fullatt_block_indexes": [1]},
            audio_config={**ear, "num_mel_bins": 24, "n_window": 10, "output_dim": 32},
            image_token_index=4,
            video_token_index=5,
            audio_token_index=8,
            vision_start_token_id=2,
            audio_start_token_id=6,
        )
        self.check_omni(Qwen2_5OmniThinkerForConditionalGeneration(config), OMNI, {"chunk_length": 2}, last=8)
        ids = self.packed(3)[0]
        # Features of one second of video (frames of at least 224 x 448 pixels) come before those of its audio.
        self.assertEqual(ids.index(5) + ids.count(5), ids.index(8))

    def test_qwen3_omni(self):
        tower = {"depth": 2, "hidden_size": 32, "intermediate_size": 40, "num_heads": 2, "out_hidden_size": 32}
        ear = {"d_model": 24, "encoder_ffn_dim": 40, "encoder_layers": 2, "encoder_attention_heads": 4}
        experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "head_dim": 8}
        rope = {"rope_type": "default", "mrope_section": [2, 1, 1], "mrope_interleaved": True}
        config = Qwen3OmniMoeThinkerConfig(
            text_config={**TEXT, **experts, "rope_parameters": rope},
            vision_config={**tower, "deepstack_visual_indexes": [0]},
            audio_config={**ear, "num_mel_bins": 24, "downsample_hidden_size": 6, "output_dim": 32},
            image_token_id=4,
            video_token_id=5,
            audio_token_id=8,
            vision_start_token_id=2,
            audio_start_token_id=6,
            position_id_per_seconds=13,
        )
        model = Qwen3OmniMoeThinkerForConditionalGeneration(config)
        self.check_omni(model, OMNI3, {"n_samples": 4800000}, last=5, published=Qwen3OmniWhole)
        ids = self.packed(3)[0]
        # Features of frames at 0 s come before those of the audio, and those at 1.33 s after them.
        self.assertEqual(ids.index(5) + ids.count(5) // 2, ids.index(8))

    def check_omni(self, model, special, sound, last, published=None):
        """Trains on an image, a video with its audio track and other audio, also in one sample, and answers questions.
        `last`: the last placeholder of the video with its audio track."""
        self.add_video()
        self.hear(2)
        entries = json.loads(self.data.read_text())
        os.environ["FPS"] = str(entries[3].pop("fps"))
        self.addCleanup(os.environ.pop, "FPS")
        entries[3] |= {"image": "pictures/0.png", "audio": ["sounds/0.wav", "sounds/2.wav"]}
        entries[3]["conversations"][0]["value"] = "<image><video><audio>What moves?<audio>"
        self.data.write_text(json.dumps(entries))
        sound = {"feature_size": 24, "sampling_rate": 16000, **sound}
        both = {"image_processor_type": "Qwen2VLImageProcessor", "min_pixels": 9000, "max_pixels": 12000, **sound}
        os.environ["AUDIO_IN_VIDEO"] = "1"
        self.addCleanup(os.environ.pop, "AUDIO_IN_VIDEO")
        self.let_only_letters_be_said(perturbed(model), special)
        self.check(type(model), model, special, both, published=published)
        ids, attributes, frames = self.packed(3)
        self.assertEqual((attributes["video_token"], attributes["audio_token"]), (b"5", b"8"))
        self.assertEqual(frames, [0, 0, 0, 0, 3, -1, -1, 0, 0, 0])
        with h5py.File(self.folder / "out/train.h5") as data:
            self.assertEqual(data["item_rate"][4], 1500)
        before = ids[: ids.index(8)]
        self.assertEqual(before[before.index(5) - 2 :], [2, 6, *[5] * before.count(5)])
        self.assertIn(f"{[last, 7, 3]}"[1:-1], f"{ids}")
        self.ask("What is it?", "--audio", self.folder / "sounds/0.wav", "--image", self.folder / "pictures/0.png")
        talking = ["--video", self.folder / "pictures/moving", "--audio", self.folder / "sounds/0.wav", "--fps", "1.5"]
        for question in ("What moves?", "<video>What moves?"):
            self.ask(question, *talking, "--audio-in-video")
            with h5py.File(self.folder / "asked/question.h5") as asked:
                self.assertIn(f"{before[before.index(5) - 2 :]}"[1:-1], f"{asked['tokens'][...].tolist()}")
        trained = type(model).from_pretrained(self.folder / "out/model")
        self.check_answers_about_talking(trained, special, sound)
        self.assertNotIn("feature_extractor", json.loads((self.folder / "out/model/config.json").read_text()))

    def let_only_letters_be_said(self, model, special):
        """Sets the logits of other tokens to 0, below those of some letters."""
        tokenizer = Tokenizer.from_file(str(self.save(model, special) / "tokenizer.json"))
        letters = [number for token, number in tokenizer.get_vocab().items() if len(token) == 1 and "A" <= token <= "z"]
        with torch.no_grad():
            rows = torch.zeros_like(model.lm_head.weight)
            rows[letters] = model.lm_head.weight[letters]
            model.lm_head.weight.copy_(rows)
            for layer in model.model.layers:
                layer.self_attn.o_proj.weight.mul_(9)

    def check_answers_about_talking(self, model, special, sound):
        """Asks about a video with a temporal patch before its audio track and one after it."""
        names = ("vision_bos", "vision_eos", "image", "video", "audio_bos", "audio_eos", "audio")
        named = {f"{name}_token": token for name, token in zip(names, special[2:])}
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_file=str(self.folder / "out/model/tokenizer.json"), extra_special_tokens=named
        )
        patches = {"patch_size": model.config.vision_config.patch_size, "temporal_patch_size": 2, "merge_size": 2}
        of_family = Qwen3OmniMoeProcessor if "moe" in model.config.model_type else Qwen2_5OmniProcessor
        processor = of_family(Qwen2VLImageProcessor(**patches), Qwen2VLVideoProcessor(**patches),
                              WhisperFeatureExtractor(**sound), tokenizer)
        files = sorted((self.folder / "pictures/moving").iterdir())
        clip = np.stack([np.asarray(Image.open(file)) for file in files]).transpose(0, 3, 1, 2)
        mark = named["vision_bos_token"] + named["video_token"] + named["vision_eos_token"]
        text = f"<|im_start|>user\n{mark}What moves?<|im_end|>\n<|im_start|>assistant\n"
        video = ("--video", self.folder / "pictures/moving", "--fps", "0.5", "--audio-in-video", "--audio")
        tone = self.folder / "sounds/tone.wav"
        write_wav(tone, 9000 * np.sin(np.arange(24000) / 9))
        for track in (self.folder / "sounds/0.wav", tone):
            with wave.open(str(track)) as file:
                samples = np.frombuffer(file.readframes(file.getnframes()), "<i2") / 2.0**15
            inputs = processor(text=[text], videos=[clip], fps=0.5, do_sample_frames=False, audio=[samples],
                               use_audio_in_video=True, return_tensors="pt")
            self.assert_answers(model, "<video>What moves?", *video, track, **inputs, use_audio_in_video=True)

    def test_gemma4(self):
        types = {"layer_types": ["sliding_attention", "full_attention"], "hidden_size_per_layer_input": 0}
        self.check_gemma4({**types, "use_bidirectional_attention": "vision"}, {"standardize": True})

    def test_gemma4_26b_a4b(self):
        """Experts beside MLPs, and keys that are values, too."""
        text = {"layer_types": ["sliding_attention", "full_attention"], "hidden_size_per_layer_input": 0,
                "attention_k_eq_v": True, "num_global_key_value_heads": 1, "enable_moe_block": True,
                "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 12}
        self.check_gemma4({**text, "use_bidirectional_attention": "vision"}, {"standardize": True})

    def test_gemma4_e4b(self):
        """Keeps the bounds of clipped linears, and the per-layer input of padding, which placeholders read. The audio
        encoder trains on a clip of 125 ms."""
        text = {"num_hidden_layers": 3, "layer_types": ["full_attention", "sliding_attention", "full_attention"],
                "num_kv_shared_layers": 1, "hidden_size_per_layer_input": 6, "vocab_size_per_layer_input": 320}
        audio = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "output_proj_dims": 12}
        self.hear(4)
        model = self.check_gemma4(text, {"use_clipped_linears": True}, audio)
        self.assertIn("[7, 9, 9, 9, 8]"[1:-1], f"{self.packed(4)[0]}")
        returned = Gemma4ForConditionalGeneration.from_pretrained(self.folder / "out/model")
        for name, bound in self.bounds_of(returned):
            self.assertEqual(bound.item(), -3 if name.endswith("_min") else 3, name)
        towers = [each.model.audio_tower.subsample_conv_projection.layer0.conv.weight for each in (model, returned)]
        self.assertFalse(torch.equal(*towers))
        before, after = (each.model.language_model.embed_tokens_per_layer.weight for each in (model, returned))
        self.assertTrue(torch.equal(before[0], after[0]))
        self.assertFalse(torch.equal(before, after))
        sound = self.folder / "sounds/0.wav"
        with wave.open(str(sound)) as clip:
            samples = np.frombuffer(clip.readframes(clip.getnframes()), np.int16) / np.float32(32768)
        heard = Gemma4AudioFeatureExtractor()([samples], return_tensors="pt")
        self.assert_answers(returned, "What is it?", "--audio", sound, **heard)

    def glm(self, config, kind, text, sections, share):
        """Returns a model of transformers' classes `config` and `kind`."""
        rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": sections}
        tower = {"depth": 2, "hidden_size": 32, "intermediate_size": 40, "num_heads": 2, "out_hidden_size": 32}
        config = config(
            text_config={**TEXT, "rope_parameters": {**rope, "partial_rotary_factor": share}, **text},
            vision_config={**tower, "image_size": 56},
            image_token_id=4,
        )
        return kind(config)

    def check_glm(self, model, *times):
        """Trains on images and a video."""
        size = {"shortest_edge": 9000, "longest_edge": 24000}
        self.add_video()
        self.check(type(model), model, GLM, {"size": size})
        ids, attributes, _ = self.packed(3)
        self.assertEqual(attributes["video_token"], attributes["image_token"])
        tokenizer = Tokenizer.from_file(str(self.folder / "model/tokenizer.json"))
        moment = [2, *[4] * 6, 3]  # of 84 x 56 pixels
        spelled = sum(([*moment, *tokenizer.encode(time).ids] for time in times), [])
        self.assertIn(f"{[5, *spelled, 6]}"[1:-1], f"{ids}")

    EXPERTS = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "head_dim": 16}

    def test_glm4v_moe(self):
        kinds = Glm4vMoeConfig, Glm4vMoeForConditionalGeneration
        self.check_glm(self.glm(*kinds, self.EXPERTS, [2, 1, 1], 0.5), "0", "1")

    def test_glm46v(self):
        """With experts, and up to the plan with GLM-4.1V's text."""
        kinds = Glm46VConfig, Glm46VForConditionalGeneration
        text = {**self.EXPERTS, "model_type": "glm4v_moe_text"}
        self.check_glm(self.glm(*kinds, text, [2, 1, 1], 0.5), "0.0 seconds", "1.3 seconds")
        dense = self.save(self.glm(*kinds, {}, [1, 1, 1], 0.75), GLM, "dense")
        said = self.finetune(dense, OUT=self.folder / "dense_out", PLAN_ONLY=1)
        self.assertIn("5 samples, 0 entries skipped", said)

    def test_kimi_k25(self):
        """Trains on images and a video from files that transformers saves. With a tokenizer without the video token,
        only images are packed."""
        experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "n_group": 2}
        heads = {"q_lora_rank": 12, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8}
        text = {**TEXT, **experts, **heads, "topk_group": 1, "first_k_dense_replace": 1, "num_key_value_heads": 4}
        tower = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 2}
        config = Kimi_K25Config(
            text_config=text, vision_config={**tower, "pos_emb_height": 8, "pos_emb_width": 8}, image_token_id=7,
            video_token_id=8, projection_hidden_size=32, tie_word_embeddings=False,
        )
        model = Kimi_K25ForConditionalGeneration(config)
        self.add_video()
        said = {"image_processor_type": "Kimi_K25ImageProcessor", "max_patches": 20}
        os.environ["MAX_FRAMES"] = "5"
        self.addCleanup(os.environ.pop, "MAX_FRAMES")
        self.check(Kimi_K25ForConditionalGeneration, model, KIMI, said)
        ids, _, _ = self.packed(0)
        tokenizer = Tokenizer.from_file(str(self.folder / "model/tokenizer.json"))
        word, moving, time = (tokenizer.encode(word).ids for word in ("image", "video", "00:00:00.000"))
        self.assertIn(f"{[4, *word, 5, *[7] * 6, 6]}"[1:-1], f"{ids}")  # of 40 x 60 pixels, squares of 28 x 28
        ids, _, frames = self.packed(3)
        self.assertEqual(frames, [0, 0, 0, 3, -1, -1, 0])
        self.assertIn(f"{[*time, 4, *moving, 5, *[8] * 6, 6]}"[1:-1], f"{ids}")
        self.ask("What moves?", "--video", self.folder / "pictures/moving")
        self.save(model, KIMI[:-1])
        said = self.finetune(self.folder / "model", OUT=self.folder / "still", PLAN_ONLY=1)
        self.assertIn("4 samples, 1 entries skipped", said)
        report = (self.folder / "still/train.h5.report.json").read_text()
        self.assertIn("has <video>, but tokenizer.json has no special token 8, video_token_id of config.json", report)

    def test_composed_becomes_a_llava(self):
        """Its new token has one of the rows that the vocabulary has to spare."""
        llama, clip = self.save_parts()
        alone = ("model.vision.train=false", "model.llm.train=false")  # but for the projector
        self.finetune(llama, *finetune_case.KEYS, *alone, VISION=clip)
        self.assertIn("places of token 258 (<image>)", (self.folder / "out/run/log.txt").read_text())
        llama.rename(self.folder / "gone")
        out = self.folder / "out/model"
        loaded, info = LlavaForConditionalGeneration.from_pretrained(out, output_loading_info=True)
        self.assertFalse(any(info.values()), info)
        self.assertEqual((loaded.config.image_token_id, loaded.config.text_config.vocab_size), (258, 320))
        tokenizer = AutoTokenizer.from_pretrained(out)
        self.assertEqual(tokenizer.convert_tokens_to_ids("<image>"), 258)
        self.assertIn("258", json.loads((out / "tokenizer_config.json").read_text())["added_tokens_decoder"])
        processor = AutoProcessor.from_pretrained(out)
        turns = "user: <image>\nWhat is it?", "assistant: It is noise.", "user: Is it?", "assistant: Yes."
        self.assert_packed_as_by(processor, "".join(f"{turn}</s>" for turn in turns))
        self.ask("What is it?", "--image", self.folder / "pictures/0.png")
        checkpoint = max((self.folder / "out/run/checkpoints").glob("step-*"))
        shutil.copytree(checkpoint, self.folder / "copied")
        command = [f"{finetune_case.BUILD}/postprocess/zea-consolidate", self.folder / "copied"]
        command += [f"{self.folder}/again/", "--companions", self.folder / "out/run"]
        subprocess.run(command, check=True, capture_output=True)
        texts = [{f.name: f.read_text() for f in folder.glob("*.json")} for folder in (out, self.folder / "again")]
        self.assertEqual(*texts)
        before = LlavaForConditionalGeneration.from_pretrained(out).state_dict()
        self.finetune(out, OUT=self.folder / "tuned")
        after = LlavaForConditionalGeneration.from_pretrained(self.folder / "tuned/model").state_dict()
        differ = [name for name in before if not torch.equal(before[name], after[name])]
        changed = {name.removeprefix("model.").split(".")[0] for name in differ}
        self.assertEqual(changed, {"vision_tower", "multi_modal_projector", "language_model", "lm_head"})

    def test_threads_of_a_rank(self):
        """They follow from the cores and RANKS, whatever the caller's OMP_NUM_THREADS says."""
        llama, clip = self.save_parts()
        self.finetune(llama, VISION=clip, PLAN_ONLY=1, RANKS=1, OMP_NUM_THREADS=1)
        cores = len(os.sched_getaffinity(0))
        self.assertIn(f"\nthreads = {cores}\n", (self.folder / "out/plan.txt").read_text())
        self.assertFalse((self.folder / "out/run").exists())

    def test_a_corrected_command(self):
        """A faulty first try does not block the second, nor do odd characters in paths."""
        llama, clip = self.save_parts()
        odd = self.folder / 'it\'s "odd" \\ here'
        odd.mkdir()
        for part in (llama, clip, self.data, self.folder / "pictures"):
            part.rename(odd / part.name)
        llama, clip, self.data = odd / llama.name, odd / clip.name, odd / self.data.name
        where = {"OUT": odd / "out", "PLAN_ONLY": 1, "RANKS": 1}
        said = self.finetune(llama, fails=2, **where)
        self.assertIn("VISION= names an encoder to compose with it", said)
        (odd / "other").mkdir()
        said = self.finetune(llama, fails=2, VISION=clip, IMAGES=odd / "other", HELD_OUT=0, **where)
        self.assertIn(f"paths of the data start from {odd / 'other'}", said)
        said = self.finetune(llama, "schedule.global_batch=3", VISION=clip, HELD_OUT=0.4, EPOCHS=2.5, **where)
        deck = tomllib.loads((odd / "out/deck.toml").read_text())
        self.assertEqual(deck["model"]["llm"]["weights"], str(llama))
        self.assertEqual(deck["schedule"]["steps"], 3)  # ceil(2.5 * 3 / 3)
        self.assertEqual(deck["data"]["eval"], f"{odd}/out/eval.h5")
        with h5py.File(odd / "out/train.h5") as train, h5py.File(odd / "out/eval.h5") as held_out:
            self.assertEqual([len(file["token_offsets"]) - 1 for file in (train, held_out)], [3, 2])
        said = self.finetune(llama, fails=2, VISION=clip, HELD_OUT=0.2, **where)
        self.assertIn("remove", said)
        with open(odd / "out/deck.toml", "a") as file:
            file.write("# mine\n")
        said = self.finetune(llama, fails=2, VISION=clip, PROJECTOR="pool", HELD_OUT=0.4, **where)
        self.assertIn("deck.toml was written for MODEL=", said)
        said = self.finetune("llava-hf/llava-1.5-7b-hf", fails=2, **where)
        self.assertIn("huggingface-cli download llava-hf/llava-1.5-7b-hf --local-dir llava-1.5-7b-hf", said)

    def test_composed_is_exported_in_parts(self):
        """The vocabulary has no row to spare, and no model of transformers has such a projector."""
        llama, clip = self.save_parts(258)
        self.assertIn("5 samples, 0 entries skipped", self.finetune(llama, VISION=clip, PROJECTOR="pool"))
        with h5py.File(self.folder / "out/train.h5") as data:
            ids = data["tokens"][: data["token_offsets"][1]].tolist()
        self.assertEqual(ids.count(258), 2 * 2)
        out = self.folder / "out/model"
        self.assertEqual(AutoTokenizer.from_pretrained(out / "llm").convert_tokens_to_ids("<image>"), 258)
        self.assertEqual(AutoModelForCausalLM.from_pretrained(out / "llm").config.vocab_size, 259)
        self.assertEqual(CLIPImageProcessorPil.from_pretrained(out / "vision").crop_size["height"], 32)
        CLIPVisionModel.from_pretrained(out / "vision")

    def test_decks_that_nothing_is_packed_for(self):
        llama, clip = self.save_parts()
        llm, deck = f'[model.llm]\nweights = "{llama}"\n', self.folder / "deck.toml"
        for text, sentence in (
            ("[model", "deck.toml: "),
            (f'[model]\nweights = "{llama}"\n', "has no model.llm.weights; with --deck a language model"),
            (f'{llm}[model.vision]\nweights = "no"\n', "model.vision.weights = no is no Hugging Face directory"),
            (
                f'{llm}[model.left]\nweights = "{clip}"\n[model.right]\nweights = "{clip}"\n',
                "model.right: another encoder of image; pack.py packs for one of each kind",
            ),
        ):
            deck.write_text(text)
            command = [f"{SOURCE}/jobs/pack.py", self.data, "--deck", deck, "--out", self.folder / "out.h5"]
            done = subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True)
            self.assertEqual(done.returncode, 1, text)
            self.assertIn(sentence, done.stderr)

    def test_composed_has_images_and_audio(self):
        """Both placeholders are new, and the vocabulary has room for one."""
        llama, clip = self.save_parts(259)
        sizes = {"d_model": 16, "encoder_ffn_dim": 24, "encoder_layers": 1, "encoder_attention_heads": 2}
        sizes |= {"decoder_ffn_dim": 24, "decoder_layers": 1, "decoder_attention_heads": 2, "vocab_size": 20}
        ends = {f"{name}_token_id": 1 for name in ("pad", "bos", "eos", "decoder_start")}
        config = WhisperConfig(num_mel_bins=8, max_source_positions=6, begin_suppress_tokens=None, **sizes, **ends)
        whisper = self.save(WhisperModel(config), ["<s>"], "whisper")
        WhisperFeatureExtractor(feature_size=8).save_pretrained(whisper)
        self.hear(1)
        self.assertIn("5 samples, 0 entries skipped", self.finetune(llama, VISION=clip, AUDIO=whisper))
        out = self.folder / "out/model"
        tokenizer = AutoTokenizer.from_pretrained(out / "llm")
        self.assertEqual(tokenizer.convert_tokens_to_ids(["<image>", "<audio>"]), [258, 259])
        self.assertEqual(AutoModelForCausalLM.from_pretrained(out / "llm").config.vocab_size, 260)
        self.assertEqual(CLIPImageProcessorPil.from_pretrained(out / "vision").crop_size["height"], 32)
        self.assertEqual(WhisperFeatureExtractor.from_pretrained(out / "audio").feature_size, 8)


if __name__ == "__main__":
    finetune_case.main()
