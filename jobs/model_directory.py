# SPDX-License-Identifier: Apache-2.0
"""The facts of a Hugging Face directory that packing needs: the tokens that stand for images and audio, the number of
features of each, and the form of a conversation's turns."""

import datetime
import json
import math
import sys
import time

from image_features import (
    idefics3_pieces,
    idefics3_whole,
    in_words,
    internvl_features,
    internvl_tile_features,
    llava_next_features,
    llava_onevision_features,
    llava_onevision_side,
    one_of,
    patches_a_side,
    pixtral_rows,
    size_of,
    squares_into,
    squares_padded,
    squares_within,
)


class Turns:
    """How a pair of turns is written: the human's between `opening` and `reply`, the answer up to
    `end`, which is learnt, and `gap`, which is not. Around an image stand two tokens, and around
    these `beside_image`, which is text like any other; between its rows stands `row_end`. `around_audio` stands around
    an audio clip, `around_video` around a video, whose parts have `around_image` (or `around_part`, which no template
    writes) around them. `template_wraps`: a chat template writes these tokens itself, with `video_mark` between those
    of a video, unless it is the placeholder. A turn that does not begin with an image begins with `before_text`."""

    def __init__(self, start, opening, reply, lead, end, gap, before_text=""):
        self.start, self.opening, self.reply, self.lead = start, opening, reply, lead
        self.end, self.gap, self.before_text = end, gap, before_text
        self.around_image, self.beside_image, self.row_end = ("", ""), "", ""
        self.around_video, self.video_mark, self.template_wraps = ("", ""), "", False
        self.around_audio, self.around_part = ("", ""), None


def vicuna_turns(bos="<s>", eos="</s>"):
    return Turns(bos, "USER: ", " ASSISTANT:", " ", eos, "")


# Families that write the second of each moment of a video into the text.
TIMED = ("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe")
# The side of a patch, and the least and the most pixels of an image, where nobody says.
OMNI, OMNI3 = "qwen2_5_omni_thinker", "qwen3_omni_moe_thinker"
OMNIS = (OMNI, OMNI3)
# Directories of whole models, which contain the thinker: model_type -> model_type of the thinker.
WHOLE_OMNIS = {"qwen2_5_omni": OMNI, "qwen3_omni_moe": OMNI3}
QWEN_VL = dict.fromkeys(("qwen2_vl", "qwen2_5_vl", OMNI), (14, 56 * 56, 28 * 28 * 1280))
QWEN_VL |= dict.fromkeys((*TIMED, OMNI3), (16, 256 * 256, 4096 * 4096))


# The side of a patch, the limits of pixels, and the number of equal frames as which the processor counts an image. It
# enlarges images that are smaller than a square of patches.
GLM_VL = dict.fromkeys(("glm4v", "glm4v_moe", "glm46v"), (14, 112 * 112, 28 * 28 * 15000, 2))


def mistral_turns(bos, eos):
    return Turns(bos, "[INST]", "[/INST]", "", eos, "")


def chatml_turns():
    user, assistant = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"
    return Turns("", user, assistant, "", "<|im_end|>", "\n")


def kimi_turns():
    user, assistant = "<|im_user|>user<|im_middle|>", "<|im_end|><|im_assistant|>assistant<|im_middle|>"
    return Turns("", user, assistant, "", "<|im_end|>", "")


def idefics3_turns(start):
    end = "<end_of_utterance>"
    return Turns(start, "User:", f"{end}\nAssistant:", " ", end, "\n", before_text=" ")


def gemma_turns(begin, end):
    return Turns("<bos>", f"{begin}user\n", f"{end}\n{begin}model\n", "", end, "\n")


# Likewise of all frames of a video together, and what a template writes for a video, by its id in config.json.
GLM_VIDEOS, GLM_VIDEO = (112 * 112, 28 * 28 * 2 * 30000), "<|video|>"


# Likewise of a video's frame; in timed videos of all frames together.
QWEN_VL_VIDEOS = dict.fromkeys(("qwen2_vl", "qwen2_5_vl", OMNI), (128 * 28 * 28, 768 * 28 * 28))
QWEN_VL_VIDEOS |= dict.fromkeys(TIMED, (4096, 24576 * 32 * 32)) | {OMNI3: (128 * 32 * 32, 768 * 32 * 32)}
# Defaults of families whose configs leave them out.
USUAL_IMAGE_TOKENS = {"gemma3": 262144, "internvl": 151667, "llava_onevision": 151646, "mistral3": 10}
USUAL_IMAGE_TOKENS |= dict.fromkeys(QWEN_VL, 151655) | {"idefics3": 128257, "smolvlm": 128257}
USUAL_IMAGE_TOKENS |= {"qwen3_5": 248056, "qwen3_5_moe": 248056, "gemma4": 258880, "glm4v_moe": 151363}
USUAL_IMAGE_TOKENS |= {"glm4v": 151343, "glm46v": 151343, "kimi_k25": 163605}
USUAL_VIDEO_TOKENS = {family: USUAL_IMAGE_TOKENS[family] + 1 for family in (*QWEN_VL, "llava_onevision")}
USUAL_VIDEO_TOKENS |= {"gemma4": 258884}
# Default maximum features of an image and of a video frame, and maximum frames.
GEMMA4_FEATURES, GEMMA4_FRAME_FEATURES, GEMMA4_FRAMES = 280, 70, 32
# Kimi-K2.5: the most patches of an image, and of a side, before the image is padded.
KIMI, KIMI_PATCHES, KIMI_SIDE = "kimi_k25", 16384, 512
# Kimi-K2.5 videos: the most patches of a frame, the frames of a chunk, the video token and its default id.
KIMI_FRAME_PATCHES, KIMI_FRAMES, KIMI_VIDEO, KIMI_VIDEO_ID = 4096, 4, "<|kimi_k25_video_placeholder|>", 163840
# The ids of tokens before and after an item, another name of each, and its default.
GEMMA4_AROUND = {"image": (("boi_token_id", "", 255999), ("eoi_token_id", "", 258882)),
                 "audio": (("boa_token_id", "", 256000), ("eoa_token_id", "eoa_token_index", 258883))}
# Families that mark where an image begins and ends.
AROUND_IMAGES = {"internvl": ("<img>", "</img>"), "gemma3": ("<start_of_image>", "<end_of_image>")}
AROUND_IMAGES |= dict.fromkeys(QWEN_VL, ("<|vision_start|>", "<|vision_end|>"))
AROUND_IMAGES[OMNI] = ("<|vision_bos|>", "<|vision_eos|>")
AROUND_AUDIO = {OMNI: ("<|audio_bos|>", "<|audio_eos|>"), OMNI3: ("<|audio_start|>", "<|audio_end|>")}
AROUND_IMAGES |= dict.fromkeys(GLM_VL, ("<|begin_of_image|>", "<|end_of_image|>"))
AROUND_IMAGES[KIMI] = ("<|media_begin|>image<|media_content|>", "<|media_end|>")
AROUND_CHUNKS = ("<|media_begin|>video<|media_content|>", "<|media_end|>")
# Families that number their tiles in the text.
TILES_IN_TEXT = ("idefics3", "smolvlm")
# Tokens before the patches of towers.
LEARNED_TOKENS = {"clip_vision_model": 1, "vit": 1, "dinov2": 1}
# Most frames of a video where no directory says it.
USUAL_FRAMES = 768
GLM46V_FRAMES = 640


def read_object(path):
    """Returns the object of a JSON file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as fault:
        sys.exit(f"{path} cannot be read: {fault}")
    return found if isinstance(found, dict) else sys.exit(f"{path} holds no JSON object")


class ModelDirectory:
    """Ids of placeholders by modality, those that the model has not being absent."""

    def __init__(self, folder, max_pixels=0, max_tiles=0, video_max_pixels=0):
        self.folder, self.max_pixels, self.max_tiles = folder, max_pixels, max_tiles
        self.video_max_pixels = video_max_pixels
        self.tokenizer = folder / "tokenizer.json"
        self.config = self._read("config.json")
        if not self.config:
            sys.exit(f"{folder}: has no config.json; name a Hugging Face directory")
        self.family = self.config.get("model_type")
        if self.family in WHOLE_OMNIS:  # only the thinker reads images, videos and audio
            self.config, self.family = self.config.get("thinker_config", {}), WHOLE_OMNIS[self.family]
        if video_max_pixels and self.family in ("internvl", "smolvlm", "llava_onevision"):
            sys.exit(f"--video-max-pixels: frames of {self.family} become squares of one size; leave it out")
        self.interleaves_audio = self.family in OMNIS
        self.processor = self._processor("image_processor", "preprocessor_config.json")
        self.video_processor = self._processor("video_processor", "video_preprocessor_config.json")
        is_gemma4 = self.family == "gemma4"
        self.most_frames = self._most_frames()
        tower = (self.config.get("vision_config") or {}).get("model_type")
        self.has_rows = tower == "pixtral" or self.family == "mistral3"
        self.placeholders = {}
        self.missing = {}  # modality -> why the model has no placeholder for it
        is_chunked = self.family == KIMI  # each chunk of frames of a video is one item
        said = self.video_processor or self.processor
        most = min(KIMI_FRAMES, (self.config.get("vision_config") or {}).get("pos_emb_time", KIMI_FRAMES))
        self.frames_per_item = said.get("temporal_patch_size", most) if is_chunked else 0
        if self.config.get("vision_config") is not None:
            usual = USUAL_IMAGE_TOKENS.get(self.family, 32000)
            if self.family == KIMI:  # by its published name
                usual = self.config.get("media_placeholder_token_id", usual)
            self.placeholders["image"] = self._either("image", usual)
            if self.family in USUAL_VIDEO_TOKENS:
                self.placeholders["video"] = self._either("video", USUAL_VIDEO_TOKENS[self.family])
            if self.family == KIMI:  # published configs have the same placeholder for images and videos
                has_one = "media_placeholder_token_id" in self.config
                usual = self.placeholders["image"] if has_one else KIMI_VIDEO_ID
                self.placeholders["video"] = self.config.get("video_token_id", usual)
            if self.family in (*GLM_VL, "internvl", "smolvlm"):  # a video's frames are images in the text
                self.placeholders["video"] = self.placeholders["image"]
        if self.config.get("audio_config") is not None:
            usual = 258881 if is_gemma4 else 151646 if self.family in OMNIS else -1
            self.placeholders["audio"] = self._either("audio", usual)

    def _read(self, name):
        path = self.folder / name
        return read_object(path) if path.is_file() else {}

    def _processor(self, key, file):
        """Returns the settings from the file that transformers takes; an audio processor's file has the same name."""
        whole = self._read("processor_config.json").get(key)
        alone = self._read(file)
        keys = ({"sampling_rate", "feature_size"}, {"image_processor_type", "image_mean"})
        of_sound, of_images = (not some.isdisjoint(alone) for some in keys)  # a file may have both
        found = whole or ({} if of_sound and not of_images else alone)
        if isinstance(found.get("size"), int):
            found["size"] = {"height": found["size"]}
        return {key: value for key, value in found.items() if value is not None}

    def _most_frames(self):
        """Returns the most frames that the family's processor samples from a video."""
        own = self.video_processor or self.processor
        if self.family == "glm46v":
            return GLM46V_FRAMES
        if self.family in GLM_VL:
            return int(own.get("max_duration", 300) * own.get("fps", 2))
        usual = (own.get("video_sampling") or {}).get("max_frames", USUAL_FRAMES)
        return own.get("max_frames", own.get("num_frames", GEMMA4_FRAMES if self.family == "gemma4" else usual))

    def _either(self, item, default):
        return self.config.get(f"{item}_token_id", self.config.get(f"{item}_token_index", default))

    def check_tokens(self, tokenizer, names):
        """Refuses a directory whose processor writes another token for an item than its model looks for. `names`: the
        tokenizer's special tokens by name."""
        processor = self._read("processor_config.json")
        usual = "[IMG]" if self.has_rows else "<|image_pad|>" if self.family in QWEN_VL else "<image>"
        usual = "<|image|>" if self.family in GLM_VL else "<|media_pad|>" if self.family == KIMI else usual
        usual = "<|IMAGE|>" if self.family == OMNI else usual
        placeholders = self.placeholders
        if self.family in GLM_VL:  # whose processors write the same one for frames
            placeholders = {"image": placeholders["image"]}
        if self.family == "gemma4":  # only the tokenizer names its image token
            usual = None
        video = placeholders.get("video")
        if self.family == KIMI and video not in tokenizer.get_added_tokens_decoder():
            placeholders = {"image": placeholders["image"]}
            self.placeholders.pop("video", None)
            self.missing["video"] = f"{self.tokenizer.name} has no special token {video}, video_token_id of config.json"
        for modality, token in placeholders.items():
            key = f"{modality}_token"
            name = names.get(key) or processor.get(key) or (usual if modality == "image" else None)
            found = tokenizer.token_to_id(name) if isinstance(name, str) else None
            if found not in (None, token) and self.family not in ("gemma3", "internvl"):
                sys.exit(f"{self.folder}: {key}_id of config.json is {token} ({tokenizer.id_to_token(token)}), but the "
                         f"processor writes {name}, which is {found}: make them agree")

    def spelled(self, modality, item):
        """An image's features with the texts around its tiles, of families that write these: pieces of
        text and numbers of placeholders."""
        if modality != "image" or self.family not in TILES_IN_TEXT:
            return None
        return idefics3_pieces(self.config, item, self.max_tiles, self.processor.get("size"))

    def turns(self, tokenizer):
        """As its instruction models are trained: ChatML, Gemma's or Mistral's where the tokenizer has
        that, Vicuna's else."""
        turns = self._turns_of_text(tokenizer)
        turns.around_image = AROUND_IMAGES.get(self.family, ("", ""))
        turns.around_audio = AROUND_AUDIO.get(self.family, ("", ""))
        if self.family == "gemma4" and "image" in self.placeholders:
            turns.around_image = self._around_of_gemma4(tokenizer, "image")
        if self.family == "gemma4" and "audio" in self.placeholders:
            turns.around_audio = self._around_of_gemma4(tokenizer, "audio")
        turns.template_wraps = self.family in QWEN_VL or self.family in GLM_VL or self.family == KIMI
        if self.family in ("internvl", "smolvlm"):
            turns.video_mark = "<video>"
        if self.family in GLM_VL:
            turns.around_video, turns.video_mark = ("<|begin_of_video|>", "<|end_of_video|>"), GLM_VIDEO
        if self.family == KIMI and "video" in self.placeholders:
            image, video = (self.placeholders[name] for name in ("image", "video"))
            turns.around_part = AROUND_CHUNKS
            turns.video_mark = KIMI_VIDEO if video == image else tokenizer.id_to_token(video)
        turns.beside_image = "\n\n" if self.family == "gemma3" else ""
        if self.has_rows and tokenizer.token_to_id("[IMG_BREAK]") is not None:  # in whatever form the turns are
            turns.around_image, turns.row_end = ("", "[IMG_END]"), "[IMG_BREAK]"
        return turns

    def _around_of_gemma4(self, tokenizer, modality):
        """Returns the texts of the tokens before and after an image or a clip, by their ids in config.json."""
        known = self.config
        ids = {key: known.get(key, known.get(alias, usual)) for key, alias, usual in GEMMA4_AROUND[modality]}
        for key, token in ids.items():
            if tokenizer.id_to_token(token) is None:
                sys.exit(f"{self.folder}: {key} of config.json is {token}, which {self.tokenizer.name} does not have; "
                         f"the text marks {modality} items by {' and '.join(ids)}")
        return tuple(map(tokenizer.id_to_token, ids.values()))

    def _turns_of_text(self, tokenizer):
        for begin, end in (("<start_of_turn>", "<end_of_turn>"), ("<|turn>", "<turn|>")):  # the latter of Gemma 4
            if tokenizer.token_to_id(begin) is not None:
                return gemma_turns(begin, end)
        if tokenizer.token_to_id("<|im_middle|>") is not None:
            return kimi_turns()
        if self.family in TILES_IN_TEXT:
            for name in ("<fake_token_around_image>", "<global-img>"):
                if tokenizer.token_to_id(name) is None:
                    sys.exit(f"{self.tokenizer}: has no token {name}, which stands around the images of {self.family}")
            start = "<|im_start|>" if tokenizer.token_to_id("<|im_start|>") is not None else "<|begin_of_text|>"
            return idefics3_turns(start)
        if tokenizer.token_to_id("<|im_start|>") is not None:
            return chatml_turns()
        names = self._read("tokenizer_config.json")
        text = lambda token: token.get("content", "") if isinstance(token, dict) else token or ""  # noqa: E731
        bos, eos = text(names.get("bos_token", "<s>")), text(names.get("eos_token", "</s>"))
        is_mistral = tokenizer.token_to_id("[IMG_BREAK]") is not None
        return mistral_turns(bos, eos) if is_mistral else vicuna_turns(bos, eos)

    def rows(self, modality, item, is_alone=True):
        """Features of an item's bytes, by rows of the text; raises ValueError where there can be none.
        `is_alone`: its sample has no other image."""
        if modality == "image" and self.has_rows:
            return pixtral_rows(self.config, self.processor, item)
        if modality == "image" and self.family == "llava_onevision":
            return [llava_onevision_features(self.config, item, is_alone)]
        return [self.features(modality, item)]

    def moments(self, video):
        """Returns the text before the features of each temporal patch of a video, their number, and the text after
        them."""
        if self.family == "gemma4":
            return self._frames_of_gemma4(video)
        if self.family == "llava_onevision":
            return [("", len(video.frames) * math.ceil(llava_onevision_side(self.config) / 2) ** 2 + 1, "")]
        if self.family == "internvl":
            count = internvl_tile_features(self.config)
            return [("\n" * (n > 0) + f"Frame{n + 1}: ", count, "") for n in range(len(video.frames))]
        if self.family == "smolvlm":
            return self._frames_of_smolvlm(video)
        if self.family == KIMI:
            return self._chunks_of_kimi(video)
        per_moment = self.config["vision_config"].get("temporal_patch_size", 2)
        frames = len(video.frames)
        moments = math.ceil(frames / per_moment)
        count = self._video_features(video, frames, per_moment)
        if self.family not in (*TIMED, *GLM_VL):
            return [("", moments * count, "")]
        if not video.per_second:
            raise ValueError("its frames per second are not known, but the family writes the time of its frames")
        times = [video.seconds[min(n, frames - 1)] for n in range(moments * per_moment)]
        ends = zip(times[::per_moment], times[per_moment - 1 :: per_moment])
        if self.family in GLM_VL:
            stamps = (f"{first:.1f} seconds" if self.family == "glm46v" else f"{int(first)}" for first, _ in ends)
            return [("", count, stamp) for stamp in stamps]
        return [(f"<{(first + last) / 2:.1f} seconds>", count, "") for first, last in ends]

    def _frames_of_smolvlm(self, video):
        """The text before the first frame counts frames in words and says how long the video lasts."""
        if not video.per_second:
            raise ValueError("its frames per second are not known, but the family writes the time before each frame")
        seconds = [int(second) for second in video.seconds]
        duration = datetime.timedelta(seconds=int(video.duration or video.seconds[-1]))
        intro = (f"You are provided the following series of {in_words(len(seconds))} frames from a {duration} [H:MM:SS] "
                 "video.\n")
        before, count, after = idefics3_whole(self.config)
        stamps = [f"\nFrame from {second // 60:02d}:{second % 60:02d}:{before}" for second in seconds]
        last = len(seconds) - 1
        return [(intro * (n == 0) + stamp, count, after + "\n\n" * (n == last)) for n, stamp in enumerate(stamps)]

    def _chunks_of_kimi(self, video):
        if not video.per_second:
            raise ValueError("its frames per second are not known, but the family writes the time before each chunk")
        said, most = self.video_processor or self.processor, self.video_max_pixels
        count = self._kimi_features(video.size, said, most, KIMI_FRAME_PATCHES, "--video-max-pixels")
        begins = video.seconds[:: self.frames_per_item]
        clock = lambda begin: time.strftime("%H:%M:%S", time.gmtime(begin))  # noqa: E731
        return [(f"{clock(begin)}.{int(begin % 1 * 1000):03d}", count, "") for begin in begins]

    def _kimi_features(self, size, said, most_pixels, usual, option):
        vision = self.config["vision_config"]
        patch, merged = vision.get("patch_size", 14), one_of(vision.get("merge_kernel_size", 2))
        most = most_pixels // patch**2 if most_pixels else said.get("max_patches", usual)
        if most < 1:
            raise ValueError(f"{option} = {most_pixels} is less than the {patch**2} pixels of a patch")
        return squares_padded(size, patch, merged, most, said.get("size", {}).get("max_height", KIMI_SIDE))

    def _frames_of_gemma4(self, video):
        if not video.per_second:
            raise ValueError("its frames per second are not known, but the family writes the time before each frame")
        most = self.video_processor.get("max_soft_tokens", GEMMA4_FRAME_FEATURES)
        count = self._gemma4_features(video.size, most, self.video_max_pixels)
        seconds = [int(second) for second in video.seconds]
        return [(f"{' ' * (n > 0)}{time // 60:02d}:{time % 60:02d} ", count, "") for n, time in enumerate(seconds)]

    def _gemma4_features(self, size, most, most_pixels):
        vision = self.config["vision_config"]
        step = vision.get("patch_size", 16) * vision.get("pooling_kernel_size", 3)
        return squares_into(size, step, most_pixels // step**2 if most_pixels else most)

    def _video_features(self, video, frames, per_moment):
        vision, size = self.config["vision_config"], video.size
        patch = (QWEN_VL | GLM_VL)[self.family][0]
        step = vision.get("patch_size", patch) * vision.get("spatial_merge_size", 2)
        # Qwen-Omni's processors set the pixel limits of frames, whatever the files say.
        processor = {} if self.family in OMNIS else self.video_processor or self.processor
        limits = limits_of(processor, QWEN_VL_VIDEOS.get(self.family, GLM_VIDEOS), self.video_max_pixels)
        if self.family not in (*TIMED, *GLM_VL):
            return squares_within(size, step, limits)
        stretch = max(1, step / min(size))
        made = round(frames / per_moment) * per_moment
        return squares_within([int(side * stretch) for side in size], step, limits, frames, made)

    def _audio_features(self, clip):
        audio = self.config["audio_config"]
        positions = audio.get("max_source_positions", 1500)
        if self.family in OMNIS:
            whole = self._read("processor_config.json").get("feature_extractor")
            said = whole or self._read("preprocessor_config.json")
            if not whole and {"sampling_rate", "feature_size"}.isdisjoint(said):
                said = {"chunk_length": 300}
            if self.family == OMNI3:  # whose processor does not cut clips; its published files say n_samples only
                seconds = said.get("chunk_length") or said.get("n_samples", 4800000) // 16000
                return clip.chunked_features(audio.get("n_window", 50), seconds)
            positions = 50 * (said.get("chunk_length") or 30)
        if self.family in ("qwen2_audio", OMNI):
            count = clip.averaged_features(positions // 2)
            if not count:
                raise ValueError("too short for a feature, or of unknown length")
            return count
        if self.family == "gemma4":
            count = clip.subsampled_features()
            if not count:
                raise ValueError("too short for a feature, or of unknown length")
            return count
        if self.family == "voxtral":
            return positions * audio.get("hidden_size", 1280) // audio.get("intermediate_size", 5120)
        return positions

    def crops(self, item):
        """How many stand beside the whole image; 0: none do."""
        if self.family != "gemma3" or not self.processor.get("do_pan_and_scan"):
            return 0
        sides = size_of(item)
        longer, shorter = max(sides), min(sides)
        least = self.processor.get("pan_and_scan_min_crop_size", 256)
        if longer / shorter < self.processor.get("pan_and_scan_min_ratio_to_activate", 1.2):
            return 0
        nearest = min(int(longer / shorter + 0.5), longer // least)
        crops = min(max(2, nearest), self.processor.get("pan_and_scan_max_num_crops", 4))
        return 0 if min(math.ceil(longer / crops), shorter) < least else crops

    def features(self, modality, item):
        if modality == "audio":
            return self._audio_features(item)
        vision = self.config["vision_config"]
        if self.family in QWEN_VL:
            patch, *usual = QWEN_VL[self.family]
            step = vision.get("patch_size", patch) * vision.get("spatial_merge_size", 2)
            return squares_within(size_of(item), step, limits_of(self.processor, usual, self.max_pixels))
        if self.family in GLM_VL:
            patch, *usual, frames = GLM_VL[self.family]
            step, size = vision.get("patch_size", patch) * vision.get("spatial_merge_size", 2), size_of(item)
            stretch = max(1, step / min(size))
            limits = limits_of(self.processor, usual, frames * self.max_pixels)
            return squares_within([int(side * stretch) for side in size], step, limits, frames, frames)
        if self.family == KIMI:
            return self._kimi_features(size_of(item), self.processor, self.max_pixels, KIMI_PATCHES, "--max-pixels")
        if self.family == "gemma3":
            return self.config.get("mm_tokens_per_image", 256)
        if self.family == "gemma4":
            most = self.processor.get("max_soft_tokens", GEMMA4_FEATURES)
            return self._gemma4_features(size_of(item), most, self.max_pixels)
        if self.family == "internvl":
            most = self.max_tiles or self.processor.get("max_patches", 12)
            return internvl_features(self.config, item, self.processor.get("min_patches", 1), most)
        if self.family == "llava_next":
            return llava_next_features(self.config, item)
        tower = vision.get("model_type", "clip_vision_model")
        side = patches_a_side(vision)
        learned = LEARNED_TOKENS.get(tower, 0)
        if tower == "dinov2_with_registers":
            learned = 1 + vision.get("num_register_tokens", 4)
        tokens = side * side + learned
        return tokens - (self.config.get("vision_feature_select_strategy", "default") == "default")


def limits_of(processor, usual, most):
    """The least and the most pixels, where the deck does not say the most."""
    size = processor.get("size", {})
    least = processor.get("min_pixels", size.get("min_pixels", size.get("shortest_edge", usual[0])))
    return least, most or processor.get("max_pixels", size.get("max_pixels", size.get("longest_edge", usual[1])))
