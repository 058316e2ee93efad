# SPDX-License-Identifier: Apache-2.0
"""The items of a record, from files below a folder, data URIs or bytes. JPEG (with four inks, too) and PNG
stay as they are, since zea reads them; WebP, GIF and BMP become PNG, of what moves the first frame. What EXIF
says is to be turned is turned, since zea reads no EXIF."""

import base64
import binascii
import io
import os
import re
import reprlib
import stat
from pathlib import PurePosixPath

from dataset_writer import Clip, Video, encoded_size
from packing.record import EntryFault

FOLDERS = {"image": "images", "audio": "sounds", "video": "videos"}
CONVERTED = ("WEBP", "GIF", "BMP")
TURNED = "turned as EXIF says"
ORIENTATION = 0x0112  # of the tags; 1: as it is


class Media:
    def __init__(self, arguments):
        self.arguments = arguments
        self.roots = {modality: getattr(arguments, FOLDERS[modality]) for modality in FOLDERS}
        self.most_bytes = arguments.max_item_mib << 20
        self.notes = []

    def items(self, record):
        """By modality; what was converted goes to `notes`."""
        self.notes = []
        return {name: [self.item(name, s, record) for s in found] for name, found in record.sources.items()}

    def item(self, modality, source, record):
        if modality == "video":
            return self.video(self.path(source, "video"), record.value)
        label, data = self.data(modality, source)
        return self.image(data, label) if modality == "image" else clip(data, label)

    def data(self, modality, source):
        if isinstance(source, bytes):
            label, data = modality, source
            self.check_bytes(len(data), label)
        elif isinstance(source, str) and source.startswith("data:"):
            label, data = modality, self.of_uri(source, modality)
        else:
            path = self.path(source, modality)
            label, data = f"{modality} {path}", self.read(path, modality)
        return label, data

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
        if count > self.most_bytes:
            raise EntryFault("too large", f"{label} has {count} bytes, more than --max-item-mib {self.most_bytes >> 20}")

    def path(self, source, modality):
        """Inside the folder of its modality, also where links lead."""
        if not isinstance(source, str):
            raise EntryFault(
                "unreadable",
                f"{modality} inside is {reprlib.repr(source)}; allowed are the bytes of a file, or its path: write the "
                f"file into the cell, or leave {modality} out",
            )
        if re.match(r"[a-z]+://", source):
            raise EntryFault("unreadable", f"{modality} {source[:80]} is not on this machine; fetch it, and name its file")
        path, root = PurePosixPath(source), self.roots[modality]
        if not path.parts:
            raise EntryFault("unreadable", f"{modality} has an empty path")
        if root is None:
            raise EntryFault("unreadable", f"has {modality}, but --{FOLDERS[modality]} names no folder")
        outside = f"{modality} {path} lies outside the folder of {FOLDERS[modality]}"
        if path.is_absolute() or ".." in path.parts:
            raise EntryFault("outside", outside)
        try:
            real = (root / path).resolve()
        except (OSError, ValueError, RuntimeError) as fault:
            raise EntryFault("unreadable", f"{modality} {path} cannot be read: {fault}") from None
        if not real.is_relative_to(root.resolve()):
            raise EntryFault("outside", f"{outside}: a link leads there")
        return path

    def read(self, path, modality):
        try:
            # Not to wait for whoever writes into a pipe.
            with open(os.open(self.roots[modality] / path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
                state = os.fstat(file.fileno())
                if not stat.S_ISREG(state.st_mode):
                    raise OSError("it is no regular file")
                self.check_bytes(state.st_size, f"{modality} {path}")
                return file.read(self.most_bytes)
        except (OSError, ValueError) as fault:
            raise EntryFault("unreadable", f"{modality} {path} cannot be read: {fault}") from None

    def image(self, data, label):
        if not data.startswith((b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n")):
            return self.converted(data, label)
        self.check_pixels(encoded_size(data), label)
        return self.turned(data, label) if b"Exif\0\0" in data or b"eXIf" in data else data

    def turned(self, data, label):
        """Of a JPEG one of quality 95, as transformers' load_image turns it; what has no turn stays as it is."""
        from PIL import Image, ImageOps

        try:
            with Image.open(io.BytesIO(data), formats=("JPEG", "PNG")) as image:
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
        from PIL import Image, ImageOps, UnidentifiedImageError

        neither = f"{label} is neither JPEG nor PNG, nor {', '.join(CONVERTED)} that can be read"
        try:
            with Image.open(io.BytesIO(data), formats=CONVERTED) as image:
                self.check_pixels((image.height, image.width), label)
                self.notes.append(f"{image.format} converted to PNG")
                out = io.BytesIO()
                if image.getexif().get(ORIENTATION, 1) in range(2, 9):
                    self.notes.append(TURNED)
                ImageOps.exif_transpose(image).convert("RGB").save(out, "PNG")
        except EntryFault:
            raise
        except UnidentifiedImageError:  # which names an address in memory, another each time
            raise EntryFault("unreadable", neither) from None
        except Exception as fault:  # damaged files make Pillow throw what they like
            raise EntryFault("unreadable", f"{neither}: {fault}") from None
        return out.getvalue()

    def video(self, path, value):
        """Its first --max-seconds, of which at most --max-frames, evenly spread, are taken."""
        arguments, folder = self.arguments, self.roots["video"] / path
        if not folder.is_dir():
            raise EntryFault(
                "unreadable",
                f"video {path} is no folder of frames; make one: ffmpeg -i {path} "
                f"-vf fps={arguments.fps:g} {path.stem}/%06d.jpg",
            )
        per_second = value.get("fps", arguments.fps)
        if not isinstance(per_second, (int, float)) or not 0 < per_second <= 1000:
            raise EntryFault("turns", f"fps is {per_second}; allowed are numbers above 0, up to 1000")
        names = sorted(file.name for file in folder.iterdir() if file.suffix in (".jpg", ".jpeg", ".png"))
        if not names:
            raise EntryFault("unreadable", f"video {path} has no frame (.jpg, .jpeg or .png)")
        if arguments.max_seconds:
            names = names[: max(1, int(arguments.max_seconds * per_second))]
        count = min(len(names), arguments.max_frames)
        taken = [path / names[round(n * (len(names) - 1) / max(1, count - 1))] for n in range(count)]
        frames = [self.image(self.read(self.path(str(name), "video"), "video"), f"video {name}") for name in taken]
        try:
            return Video(frames, per_second * count / len(names))
        except ValueError as fault:
            raise EntryFault("unreadable", f"video {path}: {fault}") from None


def clip(data, label):
    is_wav = data.startswith(b"RIFF") and data[8:12] == b"WAVE"
    if not is_wav and not data.startswith(b"fLaC"):
        raise EntryFault("unreadable", f"{label} is neither WAV nor FLAC")
    return Clip(data)
