# SPDX-License-Identifier: Apache-2.0
"""Writes zea data sets: token ids with a loss mask, and the images, videos and clips of sound that
stand at placeholders.

The format, an HDF5 file of contiguous, unfiltered datasets (version 3 where there may be videos, else 2):

    root attributes (text)
      format                "zea.dataset"
      version               "2" or "3"; zea reads "1", which has images only, as well
      image_token           id of the placeholder token in decimal, "-1" when there are no images
      audio_token           likewise of sound (not in version 1)
      video_token           likewise of videos (version 3), which may be that of images
    ragged arrays: element i is values[offsets[i] : offsets[i + 1]]
      token_offsets         int64 (samples + 1)
      tokens                int32 (all tokens)
      loss_mask             uint8 (all tokens)    1: learnt, as the target of the token before it
      sample_item_offsets   int64 (samples + 1)   which items belong to a sample
      item_offsets          int64 (items + 1)
      item_bytes            uint8 (all bytes)     JPEG, PNG, WAV or FLAC files as they are, or raw
                                                  pixels (uint8) or sound (int16, mono, little-endian)
      item_shape            int32 (items, 3)      of raw pixels: height, width, channels (1 or 3);
                                                  height, width, 0: of an encoded image whose size
                                                  is known; samples, their rate, 0: of encoded sound
                                                  whose length is known; 0, 0, 0: of others
      item_modality         uint8 (items)         0: image, 1: sound (not in version 1)
      item_rate             int32 (items)         of raw sound: samples per second; of a video's frames:
                                                  how many are 1000 seconds, 0: not known; 0: others
                                                  (not in version 1)
      item_frames           int32 (items)         of an image that begins a video: its frames, of which
                                                  the others are the items behind it, with -1; 0: no
                                                  video (version 3)
    optional
      item_frames_per_second  float64 (items)     exact frame rate of a video's frames; 0: other items
                                                  (version 3; only if item_rate is rounded)
      labels                int32 (samples)       index into classes, or -1
      classes               strings of fixed length, UTF-8
      token_byte_offsets    int64 (vocabulary + 1)
      token_byte_values     uint8                 bytes of each token id; none for special ones
      special_text_offsets  int64 (vocabulary + 1)
      special_text_values   uint8                 what special tokens are called, UTF-8; none for others
      sample_answer_offsets int64 (samples + 1)   which answers are right for a sample, where several are
      answer_offsets        int64 (answers + 1)
      answer_values         uint8                 their texts, UTF-8
      sample_name_offsets   int64 (samples + 1)
      sample_name_values    uint8                 where a sample came from, UTF-8: its entry, and in further
                                                  lines the file of each item

Bytes and names of tokens are by what zea knows the tokenizer: one whose tokens differ from those of the model's
tokenizer.json is refused where a sample holds such a token. Messages about a sample name its entry and file.

In a sample the placeholders of its items stand in the order of the items, as many for each as the
encoder of its modality makes features of it. The file appears under its name only when it is complete.
"""

import os
import struct
import tempfile
from array import array
from pathlib import Path

import h5py
import numpy as np

COPIED = 64 << 20  # bytes at once


def length_of(sound):
    """Samples of each channel and their rate, as the head of a WAV or FLAC file says; (0, 0): it does not."""
    if sound[:4] == b"fLaC":
        packed = int.from_bytes(sound[18:26], "big")
        return known(packed & (1 << 36) - 1, packed >> 44)
    place, rate, frame = 12, 0, 0
    while place + 8 <= len(sound):
        size = int.from_bytes(sound[place + 4 : place + 8], "little")
        if sound[place : place + 4] == b"fmt ":
            rate = int.from_bytes(sound[place + 12 : place + 16], "little")
            frame = int.from_bytes(sound[place + 20 : place + 22], "little")
        if sound[place : place + 4] == b"data" and frame:
            return known(min(size, len(sound) - place - 8) // frame, rate)
        place += 8 + size + size % 2
    return 0, 0


def known(samples, rate):
    return (samples, rate) if samples and rate and max(samples, rate) < 1 << 31 else (0, 0)


class Clip:
    """A clip of sound: the bytes of a WAV or FLAC file, or int16 samples of one channel and their
    rate (per second)."""

    def __init__(self, sound, rate=0):
        if isinstance(sound, bytes):
            if rate:
                raise ValueError("a WAV or FLAC file says its rate itself")
            self.samples, self.rate_of_samples = length_of(sound)
        else:
            samples = np.asarray(sound)
            if samples.dtype != np.int16 or samples.ndim != 1 or rate < 1:
                raise ValueError(
                    f"raw sound must be int16 of 1 dim with a rate of 1 or more, not "
                    f"{samples.dtype} {samples.shape} at {rate}"
                )
            sound = samples.astype("<i2").tobytes()
            self.samples, self.rate_of_samples = len(samples), rate
        self.bytes, self.rate = sound, rate

    def averaged_features(self, most):
        """Returns the features of a clip in an encoder that takes the clip's own length and averages two positions of
        20 ms: Qwen2-Audio's, whose longest clip has 750."""
        samples = -(-self.samples * 16000 // max(1, self.rate_of_samples))
        positions = -(-samples // 320)
        return min(positions // 2, most)


    def subsampled_features(self):
        """Returns the features of a clip in Gemma 4's encoder, of 40 ms each. Each needs a frame of 20 ms, which begins
        10 ms before it and has one sample more; clips are cut after 30 s."""
        samples = min(480000, -(-self.samples * 16000 // max(1, self.rate_of_samples)))
        frames = (samples - 161) // 160 + 1
        return max(0, -(-frames // 4))

    def chunked_features(self, window, most_seconds):
        """Returns the number of features of a clip in Qwen3-Omni's encoder: 13 for each whole chunk of 2 `window`
        columns of 10 ms, and an eighth of the columns of the last, partial chunk. Raises ValueError for clips that are
        too short, or longer than `most_seconds`."""
        samples = -(-self.samples * 16000 // max(1, self.rate_of_samples))
        if samples <= 200:  # half a frame
            raise ValueError("too short for one feature, or its length is unknown")
        if samples // 160 > 100 * most_seconds:
            limit = "chunk_length, or n_samples / 16000, of its feature extractor"
            raise ValueError(f"longer than the {most_seconds} s of the audio encoder ({limit}); cut it")
        chunks, rest = divmod(samples // 160, 2 * window)
        for _ in range(3):
            rest = -(-rest // 2)
        return 13 * chunks + rest


class Video:
    """Frames that are alike in size, each the bytes of a JPEG or PNG file or uint8 pixels (height,
    width[, channels]), the frames per second (0: not known), the time of each in seconds (None: evenly spaced), and the
    duration in seconds of the video that they were sampled from (0: not known)."""

    def __init__(self, frames, per_second=0, seconds=None, duration=0):
        self.frames, self.per_second, self.duration = list(frames), per_second, duration
        self.seconds = seconds
        if seconds is None and per_second:
            self.seconds = [number / per_second for number in range(len(self.frames))]
        if not self.frames:
            raise ValueError("a video of no frames")
        sizes = {encoded_size(f) if isinstance(f, bytes) else np.shape(f)[:2] for f in self.frames}
        if len(sizes) > 1:
            raise ValueError(f"a video's frames must be alike in size, not {sorted(sizes)}")
        self.size = sizes.pop()

    @property
    def rate(self):
        return round(1000 * self.per_second)


def per_second_of(file):
    """Returns (items) float64: the frames per second of the video of each item; 0 if the item is no video frame."""
    if "item_frames_per_second" in file:
        return file["item_frames_per_second"][...]
    frames = file["item_frames"][...] if "item_frames" in file else 0
    return np.where(frames != 0, file["item_rate"][...] / 1000, 0)


def write_per_second(file, per_second, frames, rates):
    if np.any(np.where(np.asarray(frames) != 0, np.asarray(rates) / 1000, 0) != per_second):
        file["item_frames_per_second"] = per_second


class DatasetWriter:
    """Collects samples; `with DatasetWriter(path, image_token) as writer: writer.add(...)`."""

    def __init__(
        self, path, image_token, classes=None, token_bytes=None, audio_token=-1, video_token=-1, special_texts=None
    ):
        self.path = Path(path)
        self.image_token, self.audio_token, self.video_token = image_token, audio_token, video_token
        self.classes = classes
        self.token_bytes, self.special_texts = token_bytes, special_texts
        self.answers, self.sample_answer_offsets = [], array("q", [0])
        self.names = []
        self.tokens, self.loss_mask = array("i"), array("B")
        self.token_offsets, self.sample_item_offsets = array("q", [0]), array("q", [0])
        self.item_offsets, self.item_shape, self.labels = array("q", [0]), array("i"), array("i")
        self.item_modality, self.item_rate, self.item_frames = array("B"), array("i"), array("i")
        self.per_second = array("d")
        self.spool = None

    def __enter__(self):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.spool = tempfile.TemporaryFile(
            dir=self.path.parent
        )  # item bytes: they may not fit into memory
        return self

    def add(self, tokens, loss_mask, items=(), label=-1, answers=(), name="", item_names=()):
        """One sample. Items: bytes of JPEG or PNG, uint8 pixels (height, width[, channels]), Clips,
        Videos. `name`: of the entry that it is made of; `item_names`: the file of each item, or ""."""
        if len(tokens) == 0 or len(tokens) != len(loss_mask):
            raise ValueError(
                f"a sample of {len(tokens)} tokens and {len(loss_mask)} loss mask entries"
            )
        self.tokens.extend(tokens)
        self.loss_mask.extend(loss_mask)
        self.token_offsets.append(len(self.tokens))
        for item in items:
            if isinstance(item, Video) and self.video_token < 0:
                raise ValueError("a video, and no video_token to stand for it")
            frames = item.frames if isinstance(item, Video) else [item]
            rate = item.rate if isinstance(item, (Clip, Video)) else 0
            for number, frame in enumerate(frames):
                first = len(frames) if isinstance(item, Video) else 0
                self.item_frames.append(-1 if number else first)
                self.item_rate.append(rate)
                self.per_second.append(item.per_second if isinstance(item, Video) else 0)
                self._add_item(frame)
        self.sample_item_offsets.append(len(self.item_offsets) - 1)
        self.labels.append(label)
        self.names.append(lines_of(name, *item_names))
        self.answers += [answer.encode() for answer in answers]
        self.sample_answer_offsets.append(len(self.answers))

    def append(self, file):
        """All samples of an open file of version 2 or 3, which has the same tokens."""
        for name in ("tokens", "loss_mask", "labels", "item_modality", "item_rate"):
            getattr(self, name).frombytes(file[name][...].tobytes())
        self.item_shape.frombytes(file["item_shape"][...].tobytes())
        frames = file["item_frames"][...] if "item_frames" in file else np.zeros(len(file["item_rate"]), np.int32)
        self.item_frames.frombytes(frames.tobytes())
        self.per_second.frombytes(per_second_of(file).tobytes())
        self._append_answers(file)
        self.names += ragged(file, "sample_name") or [b""] * len(file["labels"])
        for name in ("token_offsets", "sample_item_offsets", "item_offsets"):
            own = getattr(self, name)
            own.frombytes((file[name][1:] + own[-1]).tobytes())
        for begin in range(0, len(file["item_bytes"]), COPIED):
            self.spool.write(file["item_bytes"][begin : begin + COPIED].tobytes())

    def _append_answers(self, file):
        if "sample_answer_offsets" in file:
            own = ragged(file, "answer")
            counts = file["sample_answer_offsets"][1:]
        else:
            own, counts = [], np.zeros(len(file["labels"]), np.int64)
        self.sample_answer_offsets.extend((counts + len(self.answers)).tolist())
        self.answers += own

    def _add_item(self, item):
        shape = (0, 0, 0)
        self.item_modality.append(isinstance(item, Clip))
        if isinstance(item, Clip):
            if not item.rate:
                shape = (item.samples, item.rate_of_samples, 0)
            item = item.bytes
        elif isinstance(item, bytes):
            shape = (*encoded_size(item), 0)
        else:
            pixels = np.asarray(item)
            if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3):
                raise ValueError(
                    f"pixels must be uint8 of 2 or 3 dims, not {pixels.dtype} {pixels.shape}"
                )
            shape = pixels.shape if pixels.ndim == 3 else (*pixels.shape, 1)
            item = pixels.tobytes()
        self.spool.write(item)
        self.item_offsets.append(self.item_offsets[-1] + len(item))
        self.item_shape.extend(shape)

    def __exit__(self, kind, *_):
        try:
            if kind is None:
                self._commit()
        finally:
            self.spool.close()

    def _commit(self):
        unfinished = self.path.with_name(f"{self.path.name}.{os.getpid()}.tmp")
        try:
            # Metadata of format 1.10 carries checksums, and every HDF5 since then reads it.
            with h5py.File(unfinished, "w", libver=("v110", "v110")) as file:
                self._write(file)
            sync(unfinished)
            os.replace(unfinished, self.path)
            sync(self.path.parent)
        finally:
            unfinished.unlink(missing_ok=True)

    def _write(self, file):
        # Text of fixed length: zea refuses the other kind, which HDF5 does not protect against damage.
        has_videos = any(self.item_frames)
        version = "3" if has_videos else "2"
        file.attrs["format"], file.attrs["version"] = np.bytes_("zea.dataset"), np.bytes_(version)
        file.attrs["image_token"] = np.bytes_(str(self.image_token))
        file.attrs["audio_token"] = np.bytes_(str(self.audio_token))
        if has_videos:
            file.attrs["video_token"] = np.bytes_(str(self.video_token))
            file["item_frames"] = np.asarray(self.item_frames, np.int32)
            write_per_second(file, np.asarray(self.per_second, np.float64), self.item_frames, self.item_rate)
        for name in ("token_offsets", "sample_item_offsets", "item_offsets"):
            file[name] = np.asarray(getattr(self, name), np.int64)
        file["tokens"] = np.asarray(self.tokens, np.int32)
        file["loss_mask"] = np.asarray(self.loss_mask, np.uint8)
        file["item_shape"] = np.asarray(self.item_shape, np.int32).reshape(-1, 3)
        file["item_modality"] = np.asarray(self.item_modality, np.uint8)
        file["item_rate"] = np.asarray(self.item_rate, np.int32)
        file["labels"] = np.asarray(self.labels, np.int32)
        self._write_item_bytes(file)
        if self.classes is not None:
            file.create_dataset("classes", data=np.array([c.encode() for c in self.classes], dtype="S"))
        if self.token_bytes is not None:
            write_texts(file, "token_byte", self.token_bytes)
        if self.special_texts is not None:
            write_texts(file, "special_text", self.special_texts)
        if self.answers:
            file["sample_answer_offsets"] = np.asarray(self.sample_answer_offsets, np.int64)
            write_texts(file, "answer", self.answers)
        if any(self.names):
            write_texts(file, "sample_name", self.names)

    def _write_item_bytes(self, file):
        target = file.create_dataset("item_bytes", (self.item_offsets[-1],), np.uint8)
        self.spool.seek(0)
        position = 0
        while part := self.spool.read(COPIED):
            target[position : position + len(part)] = np.frombuffer(part, np.uint8)
            position += len(part)


def write_texts(file, name, texts):
    file[f"{name}_offsets"] = np.concatenate([[0], np.cumsum([len(text) for text in texts])]).astype(np.int64)
    file[f"{name}_values"] = np.frombuffer(b"".join(texts), np.uint8)


def ragged(file, name):
    """The texts that write_texts() wrote; none where it did not."""
    if f"{name}_offsets" not in file:
        return []
    ends, values = file[f"{name}_offsets"][...], file[f"{name}_values"][...].tobytes()
    return [values[begin:end] for begin, end in zip(ends, ends[1:])]


def lines_of(*texts):
    """A line of each, without those at the end that are empty."""
    lines = "\n".join(" ".join(text.split()) for text in texts)
    return lines.rstrip("\n").encode(errors="replace")


def told_size(height, width):
    """Zeros for both where one tells of no picture."""
    return (height, width) if 0 < min(height, width) and max(height, width) < 1 << 31 else (0, 0)


def encoded_size(image):
    """Height and width by the header of a PNG or JPEG; zeros where it does not tell."""
    if image.startswith(b"\x89PNG\r\n\x1a\n") and len(image) >= 24:
        width, height = struct.unpack(">II", image[16:24])
        return told_size(height, width)
    place = 2
    while image.startswith(b"\xff\xd8") and place + 9 <= len(image):
        mark, kind, length, height, width = struct.unpack(">BBHxHH", image[place : place + 9])
        if mark != 0xFF or length < 2:
            break
        # A frame, of which the other codes of this range are no beginnings.
        if 0xC0 <= kind <= 0xCF and kind not in (0xC4, 0xC8, 0xCC):
            return told_size(height, width)
        place += 1 if kind == 0xFF else 2 + length
    return 0, 0


def sync(path):
    """Waits until a file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
