# SPDX-License-Identifier: Apache-2.0
"""jobs/finetune.sh takes a Hugging Face directory and conversations about images or sound, and gives back a
directory that transformers loads.

check_finetune.py SOURCE_FOLDER BUILD_FOLDER MPIRUN_IN_ONE_ARGUMENT
"""

import json
import shutil
import struct
import subprocess
import sys

try:
    import h5py
    import numpy as np
    import torch
    from PIL import Image
    from tokenizers import Tokenizer
    from transformers import (
        AutoConfig,
        AutoModelForCausalLM,
        Gemma3Config,
        Gemma3ForConditionalGeneration,
        InternVLConfig,
        InternVLForConditionalGeneration,
        LlavaConfig,
        LlavaForConditionalGeneration,
        LlavaNextConfig,
        LlavaNextForConditionalGeneration,
        LlavaOnevisionConfig,
        LlavaOnevisionForConditionalGeneration,
        Mistral3Config,
        Mistral3ForConditionalGeneration,
        Qwen2_5_VLConfig,
        Qwen2_5_VLForConditionalGeneration,
        Qwen2AudioConfig,
        Qwen2AudioForConditionalGeneration,
        Qwen2VLConfig,
        Qwen2VLForConditionalGeneration,
        Qwen3_5Config,
        Qwen3_5ForConditionalGeneration,
        Qwen3_5MoeConfig,
        Qwen3_5MoeForConditionalGeneration,
        Qwen3VLConfig,
        Qwen3VLForConditionalGeneration,
        Qwen3VLMoeConfig,
        Qwen3VLMoeForConditionalGeneration,
        SmolVLMConfig,
        SmolVLMForConditionalGeneration,
        VoxtralConfig,
        VoxtralForConditionalGeneration,
    )
    from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil
    from transformers.models.smolvlm.processing_smolvlm import get_image_prompt_string
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

import finetune_case
from finetune_case import BUILD, SOURCE, SPECIAL, TEXT, FinetuneCase, tiny_llava, write_wav

sys.path.insert(0, f"{SOURCE}/jobs")
from image_features import idefics3_pieces  # noqa: E402

MISTRAL = ["<s>", "</s>", "[INST]", "[/INST]", "[IMG]", "[IMG_BREAK]", "[IMG_END]"]
CHATML = ["<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>"]
VIDEO_CHATML = [*CHATML, "<|video_pad|>"]
DEEP = {"deepstack_visual_indexes": [0]}
HYBRID = {
    "head_dim": 16,
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
SHARED_MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12}
SHARED_MOE["shared_expert_intermediate_size"] = 20
GEMMA = ["<bos>", "<start_of_turn>", "<end_of_turn>", "<start_of_image>", "<end_of_image>", "<image_soft_token>"]


def tiny_qwen2_audio():
    audio = {"d_model": 24, "encoder_ffn_dim": 40, "encoder_layers": 2, "encoder_attention_heads": 4}
    config = Qwen2AudioConfig(
        audio_config={"model_type": "qwen2_audio_encoder", "num_mel_bins": 24, "max_source_positions": 20, **audio},
        text_config={"model_type": "qwen2", **TEXT},
        audio_token_index=2,
    )
    return Qwen2AudioForConditionalGeneration(config)


class Finetune(FinetuneCase):
    def items_asked_about(self):
        with h5py.File(self.folder / "asked/question.h5") as data:
            return len(data["item_offsets"]) - 1

    def ends_at(self, tokens):
        """A directory that names tokens to end at, as chat models do in generation_config.json."""
        said = {"eos_token_id": tokens}
        (self.folder / "out/model/generation_config.json").write_text(json.dumps(said))

    def test_questions(self):
        torch.manual_seed(3)
        model = tiny_llava()
        (self.folder / "out").mkdir()
        self.save(model, SPECIAL).rename(self.folder / "out/model")
        for question in ("Hi!", "Who are you?", "Why?"):
            self.assert_answers(model, question)
        picture = self.folder / "pictures/0.png"
        self.assertNotEqual(self.ask("Hi!"), self.ask("Hi!", "--image", picture))
        self.ask("Hi!", "--image", picture, "--image", self.folder / "pictures/1.png")
        self.assertEqual(self.items_asked_about(), 2)
        broken = self.folder / "broken.png"
        broken.write_bytes(picture.read_bytes()[:60])
        unsaid = self.refused(self.folder / "out/model", "Hi!", "--image", broken)
        self.assertIn("cannot be decoded: PNG: bytes end before the image does", unsaid)
        drawn = [self.ask("Hi!", "--temperature", "2", "--seed", seed) for seed in (1, 1, 2)]
        self.assertEqual(drawn[0], drawn[1])
        self.assertNotEqual(drawn[0], drawn[2])

    def test_questions_about_nothing_and_what_is_refused(self):
        torch.manual_seed(3)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **TEXT))
        (self.folder / "out").mkdir()
        directory = self.save(model, SPECIAL).rename(self.folder / "out/model")
        with_image = self.refused(directory, "What?", "--image", self.folder / "pictures/0.png")
        self.assertIn("the llama model of", with_image)
        self.assertIn("takes no image; leave it out", with_image)
        said = self.ask("Hi!")
        self.assertTrue(said.strip())
        with h5py.File(self.folder / "asked/question.h5") as data:
            asked = data["tokens"][: data["loss_mask"][...].tolist().index(1)].tolist()
        with torch.no_grad():
            first = model(input_ids=torch.tensor([asked])).logits[0, -1].argmax().item()
        self.ends_at([2, first])
        self.assertEqual(self.ask("Hi!").strip(), "")
        ends = f'generated texts end at "</s>", token 2 {first} '
        self.assertIn(ends, (self.folder / "asked/run/log.txt").read_text())
        self.assertIn("there is no such file", self.refused(directory, "What?", "--image", "nowhere.png"))
        self.assertIn("nowhere: there is no such directory or file", self.refused("nowhere", "What?"))
        self.assertIn("holds no tokenizer.json", self.refused(self.folder / "pictures", "What?"))
        config = directory / "config.json"
        config.rename(self.folder / "config.json")
        config.write_text("no JSON")
        self.assertIn("config.json cannot be read: Expecting value", self.refused(directory, "What?", "--image", "x"))
        config.unlink()
        config.symlink_to(config)
        self.assertIn("holds no config.json", self.refused(directory, "What?"))
        config.unlink()
        (self.folder / "config.json").rename(config)
        self.assertIn("eval.top_p = 0.5", self.refused(directory, "What?", "--top-p", "0.5"))

    def test_questions_about_audio(self):
        torch.manual_seed(3)
        (self.folder / "out").mkdir()
        model = tiny_qwen2_audio()
        with torch.no_grad():
            for name, value in model.named_parameters():  # so that what is said depends on what is heard
                value.mul_(20 if "v_proj" in name or "o_proj" in name or "projector.linear.weight" in name else 1)
        self.save(model, [*SPECIAL[:2], "<audio>"]).rename(self.folder / "out/model")
        random, clips = np.random.default_rng(4), []
        for number in range(2):
            clips.append(self.folder / f"{number}.wav")
            write_wav(clips[-1], random.integers(-9999, 9999, 5000))
        self.assertNotEqual(self.ask("What is it?", "--audio", clips[0]), self.ask("What is it?"))
        self.ask("What is it?", *(word for clip in clips for word in ("--audio", clip)))
        self.assertEqual(self.items_asked_about(), 2)
        refused = self.refused(self.folder / "out/model", "What?", "--image", self.folder / "pictures/0.png")
        self.assertIn("the qwen2_audio model of", refused)

    def test_llava(self):
        self.check(LlavaForConditionalGeneration, tiny_llava(), SPECIAL)
        self.assertIn("is there", self.finetune(self.folder / "model"))

        # A resumed run has the overrides that it began with; without them 98 steps would be left.
        shutil.rmtree(self.folder / "out/model")
        self.finetune(self.folder / "model", "schedule.global_batch=5")
        self.assertIn("steps = 2\n", (self.folder / "out/run/deck.used.toml").read_text())

        # Every format of the weights gives the same answer, with the directory of the tokenizer.
        run, file = self.folder / "out/run", self.folder / "weights.h5"
        subprocess.run([f"{BUILD}/postprocess/zea-consolidate", run, file], check=True, capture_output=True)
        question = ("What is it?", "--image", self.folder / "pictures/0.png", "--max-tokens", "6")
        expected = self.ask(*question[:3])
        self.assertTrue(expected.strip())
        for weights in (run, *(run / "checkpoints").glob("step-*"), file):
            said = self.generate(weights, *question, "--model", self.folder / "model")
            self.assertEqual((said.returncode, said.stdout), (0, expected), said.stderr)
        self.assertIn("holds no tokenizer.json", self.refused(run, *question))

    def check_sound(self, kind, model):
        self.hear()
        self.check(kind, model, [*SPECIAL[:2], "<audio>"])
        with h5py.File(self.folder / "out/train.h5") as data:
            self.assertEqual(len(data["item_offsets"]) - 1, 4)
            return data["tokens"][: data["token_offsets"][1]].tolist().count(2)

    def test_qwen2_audio(self):
        features = self.check_sound(Qwen2AudioForConditionalGeneration, tiny_qwen2_audio())
        self.assertEqual(features, 3)  # of 125 ms

    def test_voxtral(self):
        audio = {"hidden_size": 24, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
        config = VoxtralConfig(
            audio_config={"model_type": "voxtral_encoder", "num_mel_bins": 24, "max_source_positions": 20, **audio},
            text_config={"model_type": "llama", "head_dim": 8, **TEXT},
            audio_token_id=2,
        )
        features = self.check_sound(VoxtralForConditionalGeneration, VoxtralForConditionalGeneration(config))
        self.assertEqual(features, 5)  # four positions side by side

    def test_qwen2_vl(self):
        rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
        config = Qwen2VLConfig(
            text_config={**TEXT, "rope_parameters": rope},
            vision_config={"depth": 2, "embed_dim": 32, "num_heads": 2, "mlp_ratio": 2, "hidden_size": 32},
            image_token_id=4,
            vision_start_token_id=2,
            vision_end_token_id=3,
        )
        model = Qwen2VLForConditionalGeneration(config)
        self.check(Qwen2VLForConditionalGeneration, model, CHATML, {"min_pixels": 9000, "max_pixels": 12000})

    def test_qwen2_5_vl(self):
        rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
        tower = {"depth": 2, "hidden_size": 32, "intermediate_size": 40, "num_heads": 2, "out_hidden_size": 32}
        config = Qwen2_5_VLConfig(
            text_config={**TEXT, "rope_parameters": rope},
            vision_config={**tower, "fullatt_block_indexes": [1]},
            image_token_id=4,
            video_token_id=5,
            vision_start_token_id=2,
            vision_end_token_id=3,
        )
        self.add_video()
        model = Qwen2_5_VLForConditionalGeneration(config)
        processor = {"size": {"shortest_edge": 56 * 56, "longest_edge": 84 * 56}, "max_frames": 3}
        file = "video_preprocessor_config.json"
        self.check(Qwen2_5_VLForConditionalGeneration, model, VIDEO_CHATML, processor, file)
        self.ask("What moves?", "--video", self.folder / "pictures/moving")
        self.assertEqual(self.items_asked_about(), 3)  # frames
        self.assertIn("there is no such folder", self.refused(self.folder / "out/model", "What?", "--video", "nowhere"))
        ids, attributes, frames = self.packed(3)
        self.assertEqual((attributes["version"], attributes["video_token"]), (b"3", b"5"))
        self.assertEqual(frames, [0, 0, 0, 3, -1, -1, 0])
        # Two moments of 60 x 40 pixels, made 3 x 2 squares of 28 x 28, the fewest of so many.
        self.assertIn(f"{[2, *[5] * 12, 3]}"[1:-1], f"{ids}")

    def check_qwen3_vl(self, config, kind, text, vision):
        """Trains on a video and images; `config` and `kind` are transformers' classes."""
        rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1], "mrope_interleaved": True}
        tower = {"depth": 2, "hidden_size": 32, "intermediate_size": 40, "num_heads": 2, "out_hidden_size": 32}
        rope["partial_rotary_factor"] = 8 / text.get("head_dim", 8)
        model = kind(
            config(
                text_config={**TEXT, "head_dim": 8, "rope_parameters": rope, **text},
                vision_config={**tower, "num_position_embeddings": 16, **vision},
                image_token_id=4,
                video_token_id=5,
                vision_start_token_id=2,
                vision_end_token_id=3,
            )
        )
        self.add_video()
        self.check(kind, model, VIDEO_CHATML)

    def test_qwen3_vl_moe(self):
        experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12}
        self.check_qwen3_vl(Qwen3VLMoeConfig, Qwen3VLMoeForConditionalGeneration, experts, DEEP)

    def test_qwen3_5(self):
        self.check_qwen3_vl(Qwen3_5Config, Qwen3_5ForConditionalGeneration, HYBRID, {})

    def test_qwen3_5_moe(self):
        self.check_qwen3_vl(Qwen3_5MoeConfig, Qwen3_5MoeForConditionalGeneration, {**HYBRID, **SHARED_MOE}, {})

    def test_qwen3_vl(self):
        self.check_qwen3_vl(Qwen3VLConfig, Qwen3VLForConditionalGeneration, {}, DEEP)
        ids, _, _ = self.packed(3)
        tokenizer = Tokenizer.from_file(str(self.folder / "model/tokenizer.json"))
        first, second = (tokenizer.encode(f"<{time} seconds>").ids for time in (0.3, 1.3))
        moment = [2, 5, 5, 3]  # of 64 x 32 pixels: four such would be more than the least of all frames
        self.assertIn(f"{[*first, *moment, *second, *moment]}"[1:-1], f"{ids}")

        video = ("What moves?", "--video", self.folder / "pictures/moving")
        for fps, time in (((), 0.2), (("--fps", 1.5), 0.3)):
            self.ask(*video, *fps)
            with h5py.File(self.folder / "asked/question.h5") as data:
                asked = data["tokens"][...].tolist()
            self.assertIn(f"{tokenizer.encode(f'<{time} seconds>').ids}"[1:-1], f"{asked}")
        refused = self.refused(self.folder / "out/model", *video, "--fps", 0)
        self.assertIn("fps is 0.0; allowed are numbers from 0.001", refused)

    def test_pixtral(self):
        tower = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 2}
        config = LlavaConfig(
            vision_config=AutoConfig.for_model("pixtral", **tower, image_size=100, patch_size=16, hidden_act="silu"),
            text_config=AutoConfig.for_model("mistral", **TEXT),
            image_token_index=4,
            vision_feature_layer=-1,
            vision_feature_select_strategy="full",
        )
        self.check(LlavaForConditionalGeneration, LlavaForConditionalGeneration(config), MISTRAL)

    def test_gemma3(self):
        vision = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 2}
        config = Gemma3Config(
            text_config={**TEXT, "head_dim": 8, "sliding_window": 7, "sliding_window_pattern": 2},
            vision_config={**vision, "image_size": 32, "patch_size": 4},
            mm_tokens_per_image=16,
            image_token_index=5,
        )
        processor = {"do_pan_and_scan": True, "pan_and_scan_min_crop_size": 16}
        model = Gemma3ForConditionalGeneration(config)
        self.check(Gemma3ForConditionalGeneration, model, GEMMA, processor)

    def test_llava_next(self):
        vision = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 3}
        config = LlavaNextConfig(
            vision_config={"model_type": "clip_vision_model", "image_size": 16, "patch_size": 4, **vision},
            text_config={"model_type": "llama", **TEXT},
            image_token_index=2,
            image_grid_pinpoints=[[16, 32], [32, 16], [32, 32], [48, 16], [16, 48]],
        )
        self.check(LlavaNextForConditionalGeneration, LlavaNextForConditionalGeneration(config), SPECIAL)

    def test_llava_onevision(self):
        """One entry has two pictures, none of which is cut, and one has a video, whose frames are pooled."""
        entries = json.loads(self.data.read_text())
        entries[0]["image"] = [entries[0]["image"], entries[1]["image"]]
        entries[0]["conversations"][0]["value"] = "<image>, <image>\nWhat are they?"
        self.data.write_text(json.dumps(entries))
        self.add_video()
        vision = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 2}
        pinpoints = [[high, wide] for high in (16, 32, 48, 64) for wide in (16, 32, 48, 64)]
        config = LlavaOnevisionConfig(
            vision_config={"model_type": "siglip_vision_model", "image_size": 16, "patch_size": 4, **vision},
            text_config={"model_type": "qwen2", **TEXT},
            image_token_index=4,
            video_token_index=5,
            image_grid_pinpoints=pinpoints,
            vision_aspect_ratio="anyres_max_2",
        )
        model = LlavaOnevisionForConditionalGeneration(config)
        processor = {"size": {"height": 16, "width": 16}, "image_grid_pinpoints": pinpoints, "do_pad": True}
        self.check(LlavaOnevisionForConditionalGeneration, model, VIDEO_CHATML, processor)
        self.assertEqual(self.packed(0)[0].count(4), 2 * (16 + 1))
        self.assertEqual(self.packed(3)[0].count(5), 3 * 4 + 1)
        self.ask("What moves?", "--video", self.folder / "pictures/moving")

    def test_internvl(self):
        """A picture becomes so many tiles that 256 tokens hold it. The language model has experts, as InternVL3.5's."""
        experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12}
        config = InternVLConfig(
            text_config={"model_type": "qwen3_moe", **TEXT, **experts},
            vision_config={
                "hidden_size": 24,
                "intermediate_size": 40,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "image_size": [16, 16],
                "patch_size": [4, 4],
            },
            image_token_id=4,
        )
        special = [*CHATML[:2], "<img>", "</img>", "<IMG_CONTEXT>"]
        model = InternVLForConditionalGeneration(config)
        self.add_video()
        self.check(InternVLForConditionalGeneration, model, special, {"min_patches": 2, "max_patches": 5})
        ids, _, _ = self.packed(3)
        tokenizer = Tokenizer.from_file(str(self.folder / "model/tokenizer.json"))
        first, second = (tokenizer.encode(text).ids for text in ("Frame1: ", "\nFrame2: "))
        frame = [2, *[4] * 4, 3]
        self.assertIn(f"{[*first, *frame, *second, *frame]}"[1:-1], f"{ids}")

    def test_smolvlm(self):
        config = SmolVLMConfig(
            text_config={"model_type": "llama", **TEXT, "pad_token_id": 0},
            vision_config={
                "hidden_size": 24,
                "intermediate_size": 40,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "image_size": 16,
                "patch_size": 4,
                "size": {"longest_edge": 32},
            },
            image_token_id=4,
            pad_token_id=0,
        )
        around = ["<|im_start|>", "<end_of_utterance>", "<fake_token_around_image>", "<global-img>", "<image>"]
        tiles = [f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2)]
        self.check(SmolVLMForConditionalGeneration, SmolVLMForConditionalGeneration(config), [*around, *tiles])
        with h5py.File(self.folder / "out/train.h5") as data:
            ids = data["tokens"][: data["token_offsets"][1]].tolist()
        tile = lambda number: [2, 4 + number, 4, 4, 4, 4]  # noqa: E731
        # "User:" comes before 40 x 60 pixels, which become 2 x 2 tiles.
        self.assertEqual(ids[0], 0)
        newline = ids[ids.index(6) + 5]
        grid = [*tile(1), *tile(2), newline, *tile(3), *tile(4), newline, newline, 2, 3, 4, 4, 4, 4, 2]
        self.assertEqual(ids[6 : 6 + len(grid)], grid)

    def test_tiles_are_numbered_as_by_smolvlms_processor(self):
        vision = {"image_size": 364, "patch_size": 14}
        for scale, edge in ((2, 4), (1, 1), (2, 3)):
            config = {"vision_config": {**vision, "size": {"longest_edge": edge * 364}}, "scale_factor": scale}
            processor = SmolVLMImageProcessorPil(
                size={"longest_edge": edge * 364}, max_image_size={"longest_edge": 364}
            )
            for height, width in ((40, 60), (60, 40), (364, 364), (1, 900), (777, 1001), (1456, 1455), (3000, 20)):
                png = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", width, height)
                pieces = idefics3_pieces(config, png, 0)
                _, rows, columns = processor.get_number_of_image_patches(height, width)
                marks = ("<fake_token_around_image>", "<image>", "<global-img>")
                expected = get_image_prompt_string(rows, columns, (26 // scale) ** 2, *marks)
                written = "".join(p * "<image>" if isinstance(p, int) else p for p in pieces)
                self.assertEqual(written, expected, (height, width, edge))

    def test_mistral3(self):
        tower = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 2}
        config = Mistral3Config(
            text_config={"model_type": "mistral", **TEXT},
            vision_config={**tower, "image_size": 100, "patch_size": 8, "hidden_act": "silu"},
            image_token_index=4,
            tie_word_embeddings=False,
        )
        model = Mistral3ForConditionalGeneration(config)
        self.check(Mistral3ForConditionalGeneration, model, MISTRAL, {"size": {"longest_edge": 70}})
        with h5py.File(self.folder / "out/train.h5") as data:
            end = data["token_offsets"][1]
            ids, row = data["tokens"][:end].tolist(), [4] * 4 + [5]  # of 40 x 60 pixels
        self.assertEqual(ids[:2], [0, 2])
        self.assertEqual(ids[2:17], [*row, *row, *row[:4], 6])

    def check_text(self, config):
        entries = [entry for entry in json.loads(self.data.read_text()) if "image" not in entry] * 5
        too_long = [{"from": "human", "value": "Hi!"}, {"from": "gpt", "value": "Hi. " * 200}]
        self.data.write_text(json.dumps([*entries, {"conversations": too_long}]))
        self.check(AutoModelForCausalLM, AutoModelForCausalLM.from_config(config), CHATML, skipped=1)

    def test_text_alone(self):
        self.check_text(AutoConfig.for_model("qwen3", **TEXT))

    def test_qwen3_next(self):
        self.check_text(AutoConfig.for_model("qwen3_next", **TEXT, **HYBRID, **SHARED_MOE))

    def test_mixtures_of_experts_of_text(self):
        """Runs jobs/finetune.sh up to the plan."""
        chosen = {"num_experts": 4, "num_experts_per_tok": 2}
        routed = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "n_group": 2}
        latents = {"q_lora_rank": 12, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8}
        families = {
            "gpt_oss": {"num_local_experts": 4, "head_dim": 8},
            "deepseek_v3": {**routed, **latents, "topk_group": 1, "num_key_value_heads": 4},
            "glm4_moe": routed,
            "mixtral": {"num_local_experts": 4},
            "olmoe": {**chosen, "num_key_value_heads": 4},
            "qwen2_moe": SHARED_MOE,
            "qwen3_moe": {**chosen, "moe_intermediate_size": 12},
        }
        entries = [entry for entry in json.loads(self.data.read_text()) if "image" not in entry] * 5
        self.data.write_text(json.dumps(entries))
        for family, changes in families.items():
            config = AutoConfig.for_model(family, **{**TEXT, **changes})
            directory = self.save(AutoModelForCausalLM.from_config(config), ["<|im_start|>", "<|im_end|>"], family)
            said = self.finetune(directory, OUT=self.folder / f"{family}_out", PLAN_ONLY=1)
            self.assertIn("5 samples, 0 entries skipped", said)
            self.assertIn(f"plan: {family}", said)
            self.assertIn(" active)", said)

    def test_names_of_no_directory(self):
        hub = "llava-hf/llava-1.5-7b-hf"
        self.assertIn(f"{hub} is no Hugging Face directory", self.finetune(hub, fails=2))
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **TEXT))
        directory = self.save(model, SPECIAL)
        (directory / "tokenizer.json").rename(directory / "tekken.json")
        self.assertIn("model has no tokenizer.json, only a tekken.json", self.finetune(directory, fails=1))


if __name__ == "__main__":
    finetune_case.main()
