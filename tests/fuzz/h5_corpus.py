# SPDX-License-Identifier: Apache-2.0
"""The part of the corpus that is HDF5."""
import json

import h5py
import numpy as np

from corpus_folder import LLAMA, ROOT, put


def h5(target, name, fill, **options):
    path = ROOT / target / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with h5py.File(path, "w", **{"libver": ("v110", "v110"), **options}) as file:
        fill(file)
    return path


def text(value):
    return np.bytes_(value)


def weights(file):
    file.attrs["format"], file.attrs["version"] = text("zea.weights"), text("1")
    file.attrs["config"] = text(json.dumps(LLAMA))
    file["model.embed_tokens.weight"] = np.arange(6, dtype=np.float32).reshape(2, 3)
    file["h/0/weight"] = np.arange(4, dtype=np.float64)
    file["__files__/tokenizer.json"] = np.frombuffer(b"{}", dtype=np.uint8)


def virtual(shape, dtype, source):
    layout = h5py.VirtualLayout(shape=shape, dtype=dtype)
    layout[:] = h5py.VirtualSource(source, "tokens", shape=shape)
    return layout


def hostile(base, place, value):
    """Ways in which dataset `place` may lie elsewhere, or not be what it says."""
    def changed(change):
        def fill(file):
            base(file)
            del file[place]
            change(file)
        return fill

    def reshaped(shape, **options):
        return changed(lambda f: f.create_dataset(place, shape, value.dtype, **options))

    yield "external_link", changed(lambda f: f.__setitem__(place, h5py.ExternalLink("other.h5", "/tokens")))
    yield "soft_link", changed(lambda f: (f.__setitem__("real", value), f.__setitem__(place, h5py.SoftLink("/real"))))
    yield "external_file", reshaped(value.shape, external=[("other.raw", 0, h5py.h5f.UNLIMITED)])
    yield "external_etc", reshaped(value.shape, external=[("/etc/hostname", 0, h5py.h5f.UNLIMITED)])
    yield "virtual", changed(lambda f: f.create_virtual_dataset(place, virtual(value.shape, value.dtype, "other.h5")))
    yield "huge", reshaped((1 << 60,), chunks=(1 << 10,), maxshape=(None,))
    yield "wide", reshaped((1 << 20,) * 5, chunks=(1,) * 5)
    yield "compressed", changed(lambda f: f.create_dataset(place, data=value, compression="gzip"))
    yield "chunked", changed(lambda f: f.create_dataset(place, data=value, chunks=value.shape))
    yield "loop", changed(lambda f: f.__setitem__(place, f["/"]))
    yield "text", changed(lambda f: f.__setitem__(place, "text of any length"))
    yield "compound", changed(lambda f: f.__setitem__(place, np.zeros(3, dtype=[("a", "<f4"), ("b", "<i8")])))


def write_structures(value):
    """Writes HDF5's structures for many datasets and attributes, and for chunks: heaps, trees, arrays."""
    def many(file):
        weights(file)
        for i in range(20):
            file[f"model.layers.{i}.weight"] = np.full(1, i, dtype=np.float32)

    def attributes(file):
        weights(file)
        for i in range(12):
            file.attrs[f"a{i}"] = text(str(i))
        file.attrs["long"] = text("x" * 5000)

    def chunks(file):
        weights(file)
        file.create_dataset("fixed", data=value, chunks=(1, 2))
        file.create_dataset("single", data=value, chunks=(2, 3))

    def growing(file):
        weights(file)
        for name, most in (("fixed", (4, 9)), ("extensible", (None, 3)), ("tree", (None, None))):
            file.create_dataset(name, data=value, chunks=(1, 2), maxshape=most)

    def named(file):
        weights(file)
        file["type"] = np.dtype(np.float32)
        file.create_dataset("x", data=value, dtype=file["type"])

    for name, fill in (("many", many), ("attributes", attributes), ("chunks", chunks), ("named", named)):
        h5("weights", f"good_{name}.h5", fill)
        h5("weights", f"good_{name}_old.h5", fill, libver="earliest")
    h5("weights", "good_growing.h5", growing)


def write_weights():
    h5("weights", "good.h5", weights)
    h5("weights", "good_old.h5", weights, libver="earliest")
    value = np.arange(6, dtype=np.float32).reshape(2, 3)
    for name, fill in hostile(weights, "model.embed_tokens.weight", value):
        h5("weights", name + ".h5", fill)

    def path_name(file):
        weights(file)
        file["__files__/a/../../b"] = np.zeros(1, dtype=np.uint8)

    h5("weights", "companion_path.h5", path_name)
    write_structures(value)
    put("weights", "cut.h5", (ROOT / "weights" / "good.h5").read_bytes()[:300])


def dataset(file):
    file.attrs["format"], file.attrs["version"] = text("zea.dataset"), text("2")
    file.attrs["image_token"], file.attrs["audio_token"] = text("7"), text("6")
    for name, values, dtype in (("token_offsets", [0, 4, 6, 9], np.int64),
                                ("tokens", [7, 7, 1, 2, 3, 4, 7, 6, 5], np.int32),
                                ("loss_mask", [0, 0, 1, 1, 1, 1, 0, 0, 0], np.uint8),
                                ("sample_item_offsets", [0, 1, 1, 3], np.int64),
                                ("item_offsets", [0, 2, 5, 5], np.int64),
                                ("item_bytes", [10, 20, 1, 2, 3], np.uint8), ("item_modality", [0, 0, 1], np.uint8),
                                ("item_rate", [0, 0, 8000], np.int32), ("labels", [1, -1, 0], np.int32),
                                ("token_byte_offsets", [0, 1, 1, 3, 4, 5, 6, 7, 7], np.int64)):
        file[name] = np.array(values, dtype=dtype)
    file["item_shape"] = np.array([[2, 1, 1], [0, 0, 0], [0, 0, 0]], dtype=np.int32)
    file["token_byte_values"] = np.frombuffer(b"abcdefg", dtype=np.uint8)
    file["classes"] = np.array([b"bag", b"coat"])


def write_dataset():
    h5("dataset", "good.h5", dataset)
    h5("dataset", "good_old.h5", dataset, libver="earliest")
    for name, fill in hostile(dataset, "tokens", np.arange(9, dtype=np.int32)):
        h5("dataset", name + ".h5", fill)

    def offsets(values):
        def fill(file):
            dataset(file)
            file["token_offsets"][...] = values
        return fill

    h5("dataset", "offsets_beyond.h5", offsets([0, 1 << 62, 1 << 62, 9]))

    def videos(file):
        dataset(file)
        file.attrs["version"], file.attrs["video_token"] = text("3"), text("5")
        file["item_frames"] = np.array([1, 1, 0], dtype=np.int32)

    h5("dataset", "good_videos.h5", videos)

    def chunks(file):
        dataset(file)
        for name, most in (("tokens", None), ("token_offsets", (None,))):
            values = file[name][()]
            del file[name]
            file.create_dataset(name, data=values, chunks=(2,), maxshape=most)

    h5("dataset", "chunks.h5", chunks)
    h5("dataset", "chunks_old.h5", chunks, libver="earliest")
    h5("dataset", "offsets_back.h5", offsets([0, 9, -(1 << 63), 9]))

    def named(file):
        dataset(file)
        file["sample_name_offsets"] = np.array([0, 1, 1, 5], dtype=np.int64)
        file["sample_name_values"] = np.frombuffer(b"a\nb c", dtype=np.uint8)

    def names(values):
        def fill(file):
            named(file)
            file["sample_name_offsets"][...] = values
        return fill

    h5("dataset", "good_names.h5", named)
    h5("dataset", "names_beyond.h5", names([0, 1, 1 << 62, 5]))
    h5("dataset", "names_back.h5", names([5, -(1 << 63), 1, 0]))


def index(file):
    file.attrs["format"], file.attrs["version"] = text("zea.dataset.index"), text("3")
    file["names"] = np.array([b"0.h5", b"1.h5"])
    for name, values, dtype in (("bytes", [100, 200], np.int64), ("first_samples", [0, 1, 3], np.int64),
                                ("max_token", [7], np.int64), ("learnt_placeholders", [1], np.int64),
                                ("targets", [2, 1, 0], np.int64), ("token_offsets", [0, 4, 6, 9], np.int64),
                                ("sample_item_offsets", [0, 1, 1, 3], np.int64),
                                ("item_offsets", [0, 2, 5, 5], np.int64),
                                ("item_modality", [0, 0, 1], np.uint8), ("item_rate", [0, 0, 8000], np.int32),
                                ("item_frames", [0, 0, 0], np.int32)):
        file[name] = np.array(values, dtype=dtype)
    file["item_shape"] = np.array([[2, 1, 1], [0, 0, 0], [0, 0, 0]], dtype=np.int32)


def write_index():
    """Writes the index of a folder of data sets."""
    h5("index", "good.h5", index)
    for name, fill in hostile(index, "item_offsets", np.array([0, 2, 5, 5], dtype=np.int64)):
        h5("index", name + ".h5", fill)

    def changed(name, values, dtype=np.int64):
        def fill(file):
            index(file)
            del file[name]
            file[name] = np.array(values, dtype=dtype)
        return fill

    offsets = ("item_offsets", "sample_item_offsets", "token_offsets", "first_samples")
    for name in (*offsets, "targets", "max_token", "bytes"):
        h5("index", f"empty_{name}.h5", changed(name, []))
    h5("index", "tokens_back.h5", changed("token_offsets", [0, 9, -(1 << 63), 9]))
    h5("index", "items_beyond.h5", changed("item_offsets", [0, 1 << 62, 1 << 62, (1 << 63) - 1]))
    h5("index", "targets_beyond.h5", changed("targets", [4, 1, 0]))
    h5("index", "token_beyond.h5", changed("max_token", [1 << 40]))
    h5("index", "elsewhere.h5", changed("names", [b"../1.h5", b"/etc/hostname"], "S"))
