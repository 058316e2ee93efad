# SPDX-License-Identifier: Apache-2.0
"""Whether training will be able to decode an item: asked of zea's own readers, which a build has as a library. Where
there is no build, pictures are decoded by Pillow, and of sound only the first bytes are looked at."""

import ctypes
import io
import shutil
import sys
from pathlib import Path

LIBRARY = "libzea_item_check.so"
JOBS = Path(__file__).resolve().parents[1]
MOST_SAMPLES = 1 << 28  # of a clip, which are 4 bytes each


def libraries():
    """Returns the libraries of builds, the newest first, and of an installed tree."""
    built = sorted(JOBS.parent.glob(f"build/*/src/data/{LIBRARY}"), key=lambda path: -path.stat().st_mtime)
    program = shutil.which("zea-inspect")
    beside = [Path(program).resolve().parents[1] / "src/data" / LIBRARY] if program else []
    prefix = (JOBS / "../../..").resolve()  # the root folder has no parent
    installed = [path for pattern in ("lib*/zea", "lib/*/zea") for path in prefix.glob(f"{pattern}/{LIBRARY}")]
    return [path for path in (*built, *beside, *installed) if path.is_file()]


def pillow():
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = None  # --max-image-pixels is the bound
    return Image


class Decoder:
    def __init__(self, is_wanted=True):
        self.is_wanted, self.check = is_wanted, None
        for path in libraries() if is_wanted else []:
            try:
                self.check = ctypes.CDLL(str(path)).zea_check_item
            except (OSError, AttributeError):  # of another machine, or with a sanitizer
                continue
            numbers = (ctypes.c_int, ctypes.c_int64)
            self.check.argtypes = [ctypes.c_char_p, ctypes.c_size_t, *numbers, ctypes.c_char_p, ctypes.c_size_t]
            return
        if is_wanted:
            print(
                "there is no build of zea to decode items with (jobs/build.sh): pictures are decoded by Pillow, which "
                "passes over some damage, and of sound only the first bytes are looked at",
                file=sys.stderr,
            )

    def fault(self, data, is_sound, limit):
        """Why an item of at most `limit` pixels or seconds cannot be decoded; None: it can be."""
        if not self.is_wanted or (is_sound and not self.check):
            return None
        if not self.check:
            return fault_by_pillow(data)
        message = ctypes.create_string_buffer(400)
        is_bad = self.check(data, len(data), is_sound, limit, message, len(message))
        return message.value.decode("utf-8", "replace") if is_bad else None


def fault_by_pillow(data):
    try:
        with pillow().open(io.BytesIO(data), formats=("JPEG", "PNG")) as image:
            image.load()
    except Exception as fault:  # damaged files make Pillow throw what they like
        return str(fault) if isinstance(fault, OSError) and " at 0x" not in str(fault) else type(fault).__name__
    return None
