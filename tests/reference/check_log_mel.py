# SPDX-License-Identifier: Apache-2.0
"""Log-mel features of WAV and FLAC bytes must be those of transformers' WhisperFeatureExtractor.

usage: check_log_mel.py EXTRACT_LOG_MEL
Samples are written as every kind of file that zea reads; transformers gets the same samples. Speech
comes from espeak-ng where that is installed (at 22050 Hz, resampled here by the formula, in numpy).
Exit code 77 (skipped) where transformers is missing.
"""

import functools
import shutil
import struct
import subprocess
import sys
import tempfile
import wave
from pathlib import Path

try:
    import numpy as np
    from transformers import WhisperFeatureExtractor
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

TOLERANCE = 1e-4
RATE = 16000


def chunk(name, body):
    return name + struct.pack("<I", len(body)) + body + b"\0" * (len(body) % 2)


def wav(samples, kind, bits, rate=RATE):
    """Samples (n,) or (n, channels) as written, and their values in -1..1 as any reader has them."""
    frames = samples.reshape(len(samples), -1).astype(np.float64)
    if kind == "float":
        written = frames.astype({32: "<f4", 64: "<f8"}[bits])
        values, body, tag = written.astype(np.float64), written.tobytes(), 3
    else:
        full = 2.0 ** (bits - 1)
        levels = np.clip(np.rint(frames * full), -full, full - 1).astype(np.int64)
        values, body, tag = levels / full, pcm_bytes(levels, bits), 1
    head = struct.pack(
        "<HHIIHH",
        tag,
        frames.shape[1],
        rate,
        rate * frames.shape[1] * bits // 8,
        frames.shape[1] * bits // 8,
        bits,
    )
    chunks = chunk(b"fmt ", head) + chunk(b"LIST", b"odd") + chunk(b"data", body)
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks, values.mean(axis=1)


def pcm_bytes(levels, bits):
    if bits == 8:
        return (levels + 128).astype(np.uint8).tobytes()
    whole = levels.astype("<i8").reshape(-1, 1).view(np.uint8)
    return whole[:, : bits // 8].tobytes()


def remainder(data, bits, polynomial):
    """The cyclic redundancy check of FLAC's heads (8 bits) and frames (16)."""
    value = 0
    for byte in data:
        value ^= byte << (bits - 8)
        for _ in range(8):
            value = (value << 1) ^ (polynomial if value >> (bits - 1) else 0)
            value &= (1 << bits) - 1
    return value.to_bytes(bits // 8, "big")


def flac(samples, rate=RATE, block=4096):
    """16-bit FLAC without any compression, written from the format's description."""
    levels = np.clip(np.rint(samples * 32768), -32768, 32767).astype(np.int64)
    info = struct.pack(">HH", block, block) + bytes(6)
    info += ((rate << 44) | (15 << 36) | len(levels)).to_bytes(8, "big") + bytes(16)
    data = b"fLaC" + bytes([0x80]) + len(info).to_bytes(3, "big") + info
    for number, first in enumerate(range(0, len(levels), block)):
        part = levels[first : first + block]
        head = bytes([0xFF, 0xF8, 0x70, 0x00 | 4 << 1]) + chr(number).encode()
        head += struct.pack(">H", len(part) - 1)
        head += remainder(head, 8, 0x07)
        frame = head + b"\x02" + part.astype(">i2").tobytes()
        data += frame + remainder(frame, 16, 0x8005)
    return data, levels / 32768


def speech(folder, text, voice):
    """Returns the speech of espeak-ng, as the bytes of its WAV file, and the samples in it."""
    path = folder / "speech.wav"
    subprocess.run(["espeak-ng", "-v", voice, "-w", str(path), text], check=True)
    with wave.open(str(path)) as file:
        levels = np.frombuffer(file.readframes(file.getnframes()), "<i2")
        assert file.getnchannels() == 1 and len(levels) > file.getframerate() // 2
        return path.read_bytes(), levels / 32768, file.getframerate()


def babble(seconds, rate=RATE):
    """Something like speech: a buzz with a moving pitch in syllables, and hiss between them."""
    time = np.arange(int(seconds * rate)) / rate
    pitch = 120 + 30 * np.sin(2 * np.pi * 0.7 * time)
    phase = 2 * np.pi * np.cumsum(pitch) / rate
    buzz = sum(np.sin(k * phase) / k for k in range(1, 30))
    hiss = np.random.default_rng(3).normal(0, 0.02, len(time))
    return 0.2 * buzz * np.maximum(0, np.sin(2 * np.pi * 3 * time)) + hiss


def resampled(samples, rate, new_rate):
    """The formula of zea::resample, for all outputs at once."""
    cutoff = 0.9475937167399596 * min(1, new_rate / rate)
    reach = 64 / cutoff
    centres = np.arange(-(-len(samples) * new_rate // rate))[:, None] * rate / new_rate
    places = np.floor(centres).astype(int) + np.arange(-int(reach) - 1, int(reach) + 2)
    part = (places - centres) / reach
    # The window's argument repeats with the phase; np.i0 is slow.
    squares, which = np.unique(np.round(np.maximum(0, 1 - part**2), 12), return_inverse=True)
    window = (np.i0(14.769656459379492 * np.sqrt(squares)) / np.i0(14.769656459379492))[which]
    weights = cutoff * np.sinc(cutoff * reach * part) * window.reshape(part.shape)
    weights[np.abs(part) > 1] = 0
    padded = np.pad(samples, int(reach) + 2)
    return (weights * padded[places + int(reach) + 2]).sum(axis=1)


def clips():
    """Name, samples at 16 kHz."""
    rng = np.random.default_rng(1)
    time = np.arange(3 * RATE) / RATE
    yield "noise", rng.normal(0, 0.2, 3 * RATE)
    yield "quiet noise", rng.normal(0, 1e-3, 3 * RATE)
    yield "babble", babble(3)
    yield "silence", np.zeros(3 * RATE)
    yield "sine", 0.7 * np.sin(2 * np.pi * 440 * time)
    yield "sweep", 0.5 * np.sin(2 * np.pi * (50 * time + 1300 * time**2))
    yield "click", np.eye(1, 3 * RATE, 20000)[0]
    yield "constant", np.full(3 * RATE, 0.25)
    yield "one sample", np.array([0.5])
    yield "short", rng.normal(0, 0.1, 1234)
    yield "almost too long", babble(2.995)
    yield "a little too long", babble(3.001)
    yield "too long", np.concatenate([babble(4), np.ones(RATE)])


def files(folder):
    """Name, bytes of a file, and the samples at 16 kHz that it stands for."""
    for name, samples in clips():
        yield (f"{name}.wav", *wav(samples, "pcm", 16))
    tone = babble(2)
    for bits in (8, 24, 32):
        yield (f"pcm{bits}.wav", *wav(tone, "pcm", bits))
    for bits in (32, 64):
        yield (f"float{bits}.wav", *wav(tone, "float", bits))
    loud = 40000 * tone
    yield ("float_loud.wav", *wav(loud, "float", 32))
    yield ("stereo.wav", *wav(np.stack([tone, np.roll(tone, 77)], 1), "pcm", 16))
    yield ("six_channels.wav", *wav(np.random.default_rng(2).normal(0, 0.1, (RATE, 6)), "pcm", 24))
    for name, samples in [("babble", tone), ("long", babble(5))]:
        yield (f"{name}.flac", *flac(samples))
    for rate in (8000, 22050, 44100, 48000):
        data, values = wav(babble(0.5, rate), "pcm", 16, rate)
        yield f"babble_{rate}.wav", data, resampled(values, rate, RATE)
    if shutil.which("espeak-ng"):
        for voice, text in [("en", "what is this?"), ("en-us+f3", "is it dark or light?")]:
            data, samples, rate = speech(folder, text, voice)
            yield f"espeak_{voice}.wav", data, resampled(samples, rate, RATE)


def run(program, path, mel_bins, positions):
    run = subprocess.run([program, path, str(mel_bins), str(positions)], capture_output=True)
    assert run.returncode == 0, f"{path.name}: {run.stderr.decode().strip() or run.returncode}"
    return np.frombuffer(run.stdout, np.float32)


@functools.cache
def extractor_of(mel_bins):
    return WhisperFeatureExtractor(feature_size=mel_bins)


def compare(program, path, samples, mel_bins, positions):
    ours = run(program, path, mel_bins, positions).reshape(mel_bins, 2 * positions)
    reference = extractor_of(mel_bins)(
        samples.astype(np.float32),
        sampling_rate=RATE,
        max_length=positions * 320,
        return_tensors="np",
    )["input_features"][0]
    assert reference.shape == ours.shape
    return float(np.abs(ours - reference).max())


def main():
    program, faults, worst, compared = sys.argv[1], [], 0, 0
    with tempfile.TemporaryDirectory() as folder:
        for name, data, samples in files(Path(folder)):
            path = Path(folder) / name
            path.write_bytes(data)
            for mel_bins, positions in [(80, 150), (128, 150), (80, 7)]:
                difference = compare(program, path, samples, mel_bins, positions)
                worst, compared = max(worst, difference), compared + 1
                if not difference <= TOLERANCE:
                    faults.append(f"{name}, {mel_bins} bins, {positions} positions: {difference}")
    print("\n".join(faults + [f"{compared - len(faults)} of {compared} equal; at most {worst:.1e}"]))
    return 1 if faults or compared < 80 else 0


if __name__ == "__main__":
    sys.exit(main())
