# SPDX-License-Identifier: Apache-2.0
"""The items of a record, from files below a folder, data URIs or bytes. JPEG (with four inks, too) and PNG
stay as they are, since zea reads them; WebP, GIF, BMP, TIFF and AVIF become PNG, of what moves the first frame.
Pictures are turned as their EXIF says, since zea reads no EXIF. All are decoded, as training will decode them."""

import base64
import binascii
import io
import os
import re
import reprlib
import shlex
import stat
import urllib.parse
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from dataset_writer import Clip, Video, encoded_size
from packing.decoding import MOST_SAMPLES, Decoder, pillow
from packing.frame_sampling import frames_taken
from packing.record import EntryFault
from packing.source_files import KINDS, is_litter, kind_of

FOLDERS = {"image": "images", "audio": "sounds", "video": "videos"}
CONVERTED = ("WEBP", "GIF", "BMP", "TIFF", "AVIF")
CONVERT = "convert it: ffmpeg -i {} {}"
# Others that users have.
OTHER_KINDS = [
    *KINDS,
    *(
        (place, start, f"{name}; {{}}")
        for place, start, name in [
            (0, b"rf64", "RF64, a WAV of more than 4 GiB"),
            (0, b"rifx", "RIFX, a WAV with its highest bytes first"),
            (0, b"id3", "MP3"),
            (0, b"\xff\xfb", "MP3"),
            (0, b"\xff\xf3", "MP3"),
            (0, b"\xff\xf2", "MP3"),
            (0, b"\xff\xf1", "AAC"),
            (0, b"oggs", "Ogg"),
            (0, b"form", "AIFF"),
            (0, b".snd", "AU"),
            (0, b"0&\xb2u", "WMA"),
            (0, b"\x1aE\xdf\xa3".lower(), "WebM"),
            (4, b"ftypavi", "AVIF"),
            (4, b"ftyphei", "HEIC"),
            (4, b"ftypmif", "HEIF"),
            (4, b"ftyp", "MP4 or M4A"),
            (4, b"jp  \r\n", "JPEG 2000"),
            (0, b"\xff\x0a", "JPEG XL"),
            (4, b"jxl ", "JPEG XL"),
            (0, b"<svg", "SVG"),
            (0, b"<?xml", "SVG"),
            (0, b"%pdf", "PDF"),
        ]
    ),
]
MOST_ITEMS = 4  # of the largest size, that an entry may have
TURNED = "turned as EXIF says"
ORIENTATION = 0x0112  # of the tags; 1: as it is


class Place(NamedTuple):
    """A file: its name in the entry and its real path, which lies inside the folder of its modality."""

    name: str
    real: Path


class Media:
    def __init__(self, arguments):
        self.arguments = arguments
        self.roots = {modality: getattr(arguments, FOLDERS[modality]) for modality in FOLDERS}
        self.most_bytes = arguments.max_item_mib << 20
        self.most_together = MOST_ITEMS * self.most_bytes
        self.decoder = Decoder(not arguments.no_decode)
        self.notes, self.left = [], 0

    def items(self, record):
        """By modality; what was converted goes to `notes`."""
        self.notes, self.left = [], self.most_together
        return {name: [self.item(name, s, record) for s in found] for name, found in record.sources.items()}

    def item(self, modality, source, record):
        if modality == "video":
            return self.video(self.place(source, "video"), record.value)
        name, data = self.data(modality, source)
        return self.image(data, name) if modality == "image" else self.clip(data, name)

    def data(self, modality, source):
        """Also what messages call it."""
        if isinstance(source, bytes):
            self.check_bytes(len(source), modality)
            return modality, source
        if isinstance(source, str) and source.startswith("data:"):
            return modality, self.of_uri(source, modality)
        place = self.place(source, modality)
        return f"{modality} {place.name}", self.read(place, modality)

    def of_uri(self, source, modality):
        head, comma, text = source.partition(",")
        self.check_bytes(len(text) * 3 // 4, modality)
        try:
            if not comma or not head.endswith(";base64"):
                raise ValueError("it must be data:TYPE;base64,...")
            return base64.b64decode(text, validate=True)
        except (ValueError, binascii.Error) as fault:
            raise EntryFault("unreadable", f"{modality} inside cannot be read: {fault}") from None

    def check_bytes(self, count, label):
        most = f"more than --max-item-mib {self.most_bytes >> 20}"
        if count > self.most_bytes:
            raise EntryFault("too large", f"{label} has {count} bytes, {most}")
        self.left -= count
        if self.left < 0:
            raise EntryFault(
                "too large",
                f"its items have more than {self.most_together} bytes together, {MOST_ITEMS} times "
                f"--max-item-mib {self.most_bytes >> 20}",
            )

    def place(self, source, modality):
        """A path, also an absolute one or file://, that stays in the folder of its modality wherever links lead."""
        if not isinstance(source, str):
            raise EntryFault(
                "unreadable",
                f"{modality} inside is {reprlib.repr(source)}; allowed are the bytes of a file, or its path: write the "
                f"file into the cell, or leave {modality} out",
            )
        local = re.fullmatch(r"file:(?://(?:localhost)?)?(/(?!/).*)", source, re.IGNORECASE | re.DOTALL)
        if local:
            source = urllib.parse.unquote(local[1], errors="surrogateescape")
        elif re.match(r"[a-z][a-z0-9+.-]*://", source, re.IGNORECASE):
            raise EntryFault(
                "unreadable", f"{modality} {source:.80} is not on this machine; fetch it, and name its file"
            )
        folder, root, name = FOLDERS[modality], self.roots[modality], f"{source:.400}"
        if not PurePosixPath(source).parts:
            raise EntryFault("unreadable", f"{modality} has an empty path")
        if root is None:
            raise EntryFault("unreadable", f"has {modality}, but --{folder} names no folder")
        try:
            inside, path = root.resolve(), root / source
            real = path.resolve()
        except (OSError, ValueError, RuntimeError) as fault:
            raise EntryFault("unreadable", f"{modality} {name} cannot be read: {fault}") from None
        if not real.is_relative_to(inside):
            is_link = Path(os.path.abspath(path)).is_relative_to(os.path.abspath(root))
            why = ": a link leads there" if is_link else f"; name one that holds it: --{folder}"
            raise EntryFault("outside", f"{modality} {name} lies outside the folder of {folder}{why}")
        return Place(name, real)

    def read(self, place, modality):
        label = f"{modality} {place.name}"
        try:
            # Not to wait for whoever writes into a pipe.
            with open(os.open(place.real, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
                state = os.fstat(file.fileno())
                if not stat.S_ISREG(state.st_mode):
                    raise OSError("it is no regular file")
                self.check_bytes(state.st_size, label)
                return file.read(self.most_bytes)
        except (OSError, ValueError) as fault:
            why = getattr(fault, "strerror", None) or fault
            raise EntryFault("unreadable", f"{label} cannot be read: {why}") from None

    def image(self, data, label):
        if not data.startswith((b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n")):
            return self.converted(data, label)
        self.check_pixels(encoded_size(data), label)
        fault = self.decoder.fault(data, False, self.arguments.max_image_pixels)
        if fault:
            raise EntryFault(
                "unreadable", f"{label} cannot be decoded: {fault}; fetch it again, or leave its entry out"
            )
        return self.turned(data, label) if b"Exif\0\0" in data or b"eXIf" in data else data

    def turned(self, data, label):
        """Returns the image rotated as in transformers' load_image, a JPEG with quality 95; an image that needs no
        rotation stays unchanged."""
        from PIL import ImageOps

        try:
            with pillow().open(io.BytesIO(data), formats=("JPEG", "PNG")) as image:
                if image.getexif().get(ORIENTATION, 1) not in range(2, 9):
                    return data
                out, form = io.BytesIO(), "PNG" if image.format == "PNG" else "JPEG"
                more = {"quality": 95, "subsampling": 0} if form == "JPEG" else {}
                ImageOps.exif_transpose(image).save(out, form, **more)
        except Exception as fault:  # damaged files make Pillow throw what they like
            raise EntryFault("unreadable", f"{label} cannot be turned as its EXIF says: {fault}") from None
        self.notes.append(TURNED)
        return out.getvalue()

    def check_pixels(self, size, label):
        height, width = size
        if height * width > self.arguments.max_image_pixels:
            raise EntryFault(
                "too large",
                f"{label} has {height} x {width} pixels, more than --max-image-pixels {self.arguments.max_image_pixels}",
            )

    def converted(self, data, label):
        from PIL import ImageOps, UnidentifiedImageError

        neither = f"is neither JPEG nor PNG, nor {', '.join(CONVERTED)} that can be read"
        try:
            with pillow().open(io.BytesIO(data), formats=CONVERTED) as image:
                self.check_pixels((image.height, image.width), label)
                notes = [f"{image.format} converted to PNG"]
                if image.getexif().get(ORIENTATION, 1) in range(2, 9):
                    notes.append(TURNED)
                out = io.BytesIO()
                ImageOps.exif_transpose(image).convert("RGB").save(out, "PNG")
        except EntryFault:
            raise
        except UnidentifiedImageError:  # which names an address in memory, another each time
            raise EntryFault("unreadable", other_kind(data, label, neither, ".png")) from None
        except Exception as fault:  # damaged files make Pillow throw what they like
            raise EntryFault("unreadable", f"{label} {neither}: {fault}") from None
        self.notes += notes
        return out.getvalue()

    def video(self, place, value):
        """Returns at most --max-frames frames of the first --max-seconds, sampled as by the family's processor."""
        arguments, name = self.arguments, place.name
        if not place.real.is_dir():
            to = shlex.quote(f"{PurePosixPath(name).stem}/%06d.jpg")
            raise EntryFault(
                "unreadable",
                f"video {name} is no folder of frames; make one: ffmpeg -i {shlex.quote(name)} -vf fps={arguments.fps:g} {to}",
            )
        per_second = value.get("fps", arguments.fps)
        if not isinstance(per_second, (int, float)) or not 0.001 <= per_second <= 1000:
            raise EntryFault("turns", f"fps is {per_second!r:.40}; allowed are numbers from 0.001 to 1000")
        frames = (file.name for file in place.real.iterdir() if file.suffix.lower() in (".jpg", ".jpeg", ".png"))
        names = sorted(frame for frame in frames if not is_litter(frame))
        if not names:
            raise EntryFault("unreadable", f"video {name} has no frame (.jpg, .jpeg or .png)")
        if arguments.max_seconds:
            names = names[: max(1, int(arguments.max_seconds * per_second))]
        taken = frames_taken(arguments.family, len(names), arguments.max_frames, per_second)
        frames = [self.frame(place, names[number]) for number in taken]
        try:
            seconds, duration = [number / per_second for number in taken], len(names) / per_second
            return Video(frames, per_second * len(taken) / len(names), seconds, duration)
        except ValueError as fault:
            raise EntryFault("unreadable", f"video {name}: {fault}") from None

    def frame(self, video, name):
        place = self.place(str(video.real / name), "video")._replace(name=f"{video.name}/{name}")
        return self.image(self.read(place, "video"), f"video {place.name}")

    def clip(self, data, label):
        is_wav = data.startswith(b"RIFF") and data[8:12] == b"WAVE"
        if not is_wav and not data.startswith(b"fLaC"):
            raise EntryFault("unreadable", other_kind(data, label, "is neither WAV nor FLAC", ".wav"))
        clip = Clip(data)
        seconds = min(self.arguments.max_clip_seconds, MOST_SAMPLES // max(1, clip.rate_of_samples))
        fault = self.decoder.fault(data, True, seconds)
        if fault:
            raise EntryFault(
                "unreadable", f"{label} cannot be decoded: {fault}; {converting(label, '.pcm.wav')}, or fetch it again"
            )
        return clip


def converting(label, ending):
    """A command for the file that a label names, or for one of any name."""
    name = label.partition(" ")[2] or "OLD"
    return CONVERT.format(shlex.quote(name), shlex.quote(f"{PurePosixPath(name).stem}{ending}"))


def other_kind(data, label, neither, ending):
    if not data:
        return f"{label} is empty: it has no bytes"
    kind = kind_of(data[:256].lstrip()[:64], OTHER_KINDS)
    return f"{label} is {kind.format(converting(label, ending))}" if kind else f"{label} {neither}"
