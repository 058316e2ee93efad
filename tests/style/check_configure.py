# SPDX-License-Identifier: Apache-2.0
"""CMake takes the libtorch that Torch_DIR names, and sanitizers, and refuses versions that cannot work together, each
with a sentence.

usage: check_configure.py CMAKE ROOT TORCH_ROOT CXX [NVCC]
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
import script_main  # noqa: E402

CMAKE, ROOT, TORCH, CXX, *NVCC = sys.argv[1:]
TORCH = Path(TORCH)
NVIDIA = TORCH.parent / "nvidia"
CUDA = next(iter(NVIDIA.glob("cu[0-9]*")), None)
FAMILY = re.search("[0-9]+$", CUDA.name)[0] if CUDA else ""


def linked(source, target, replaced):
    """`target` as a folder of links to what is in `source`, but for files with other text."""
    target.mkdir(parents=True)
    for path in source.iterdir():
        if path.name not in replaced:
            (target / path.name).symlink_to(path)
    for name, text in replaced.items():
        (target / name).write_text(text)
    return target


class Configure(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = Path(tempfile.mkdtemp(prefix="zea-configure-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)

    def configure(self, *defines):
        """In a build folder that keeps what it found, but not what is chosen here."""
        command = [CMAKE, "-G", "Unix Makefiles", "-S", ROOT, "-B", self.folder / "build"]
        command += ["-UZEA_*", "-UTorch_DIR", "-DZEA_ENABLE_TESTS=OFF"]
        done = subprocess.run(
            [*command, *(f"-D{define}" for define in defines)], check=False, capture_output=True, text=True, timeout=300
        )
        return done.returncode, " ".join((done.stdout + done.stderr).split())

    def refuse(self, sentence, *defines):
        """Returns what was said."""
        code, said = self.configure(*defines)
        self.assertNotEqual(code, 0, said)
        self.assertIn(sentence, said)
        return said

    def torch_like(self, name, version=None, cuda=None):
        """The Torch_DIR of a libtorch of another version, or for another CUDA."""
        root = self.folder / name
        config = TORCH / "share/cmake/Torch"
        text = (config / "TorchConfigVersion.cmake").read_text()
        if version:
            text = re.sub(r'PACKAGE_VERSION "[0-9.]+"', f'PACKAGE_VERSION "{version}"', text, count=1)
        linked(config, root / "share/cmake/Torch", {"TorchConfigVersion.cmake": text})
        (root / "include").symlink_to(TORCH / "include")
        (root / "lib").mkdir()
        for library in ("libtorch_cpu.so", "libc10.so"):
            (root / "lib" / library).symlink_to(TORCH / "lib" / library)
        if cuda:
            self.library(root / f"libcudart.so.{cuda}", "")
            self.library(root / "lib/libtorch_cuda.so", "", root / f"libcudart.so.{cuda}")
        return root / "share/cmake/Torch"

    def library(self, path, text, *needs):
        options = ["-shared", "-fPIC", "-Wl,--no-as-needed", f"-Wl,-soname,{path.name}"]
        command = [CXX, *options, "-x", "c++", "-", "-x", "none", *needs, "-o", path]
        subprocess.run([str(word) for word in command], input=text, text=True, check=True)

    def runtime_like(self, name, family):
        text = (CUDA / "include/cuda_runtime_api.h").read_text()
        other = re.sub(r"(#define CUDART_VERSION +)[0-9]+", rf"\g<1>{family}080", text)
        return linked(CUDA / "include", self.folder / name, {"cuda_runtime_api.h": other})

    def test_takes_the_libtorch_that_torch_dir_names(self):
        code, said = self.configure(f"Torch_DIR={TORCH}/share/cmake/Torch")
        self.assertEqual(code, 0, said)
        self.assertRegex(said, rf"libtorch: [0-9.]+ (without CUDA|for CUDA [0-9]+) in {re.escape(str(TORCH))} ")

        config = self.torch_like("plain")
        code, said = self.configure(f"Torch_DIR={config}", "ZEA_ENABLE_NCCL=OFF")
        self.assertEqual(code, 0, said)
        self.assertRegex(said, rf"libtorch: [0-9.]+ without CUDA in {re.escape(str(self.folder))}/plain ")
        links = (self.folder / "build/src/CMakeFiles/zea.dir/link.txt").read_text()
        self.assertIn(f"{self.folder}/plain/lib/libtorch_cpu.so", links)
        self.assertNotIn(f"{TORCH}/lib", links)

    @unittest.skipUnless(os.environ.get("ZEA_WHOLE"), "under the label long")
    def test_takes_sanitizers_with_all_tests(self):
        command = [CMAKE, "--preset", "asan", "-S", ROOT, "-B", self.folder / "asan"]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300, cwd=ROOT)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_refuses_a_torch_dir_without_torch(self):
        self.refuse(f"no TorchConfig.cmake in Torch_DIR = '{self.folder}'", f"Torch_DIR={self.folder}")
        self.refuse(
            f"ZEA_TORCH_ROOT = '{self.folder}', but Torch_DIR lies in '{TORCH}'; name one of them",
            f"Torch_DIR={TORCH}/share/cmake/Torch", f"ZEA_TORCH_ROOT={self.folder}",
        )  # fmt: skip
        self.refuse(f"no libtorch in '{self.folder}'", f"ZEA_TORCH_ROOT={self.folder}")

    def test_refuses_an_old_libtorch(self):
        config = self.torch_like("old", version="2.9.1")
        self.assertIn("zea needs 2.10 or newer", self.refuse("libtorch 2.9.1 in", f"Torch_DIR={config}"))
        config = self.torch_like("oldest", version="2.10.0")
        code, said = self.configure(f"Torch_DIR={config}", "ZEA_ENABLE_NCCL=OFF")
        self.assertEqual(code, 0, said)

    @unittest.skipUnless(CUDA, "no wheels of NCCL and CUDA")
    def test_refuses_an_old_nccl(self):
        text = (NVIDIA / "nccl/include/nccl.h").read_text()
        old = re.sub(r"(#define NCCL_MINOR +)[0-9]+", r"\g<1>19", text)
        include = linked(NVIDIA / "nccl/include", self.folder / "nccl", {"nccl.h": old})
        self.refuse("zea needs 2.20 or newer", f"ZEA_NCCL_INCLUDE_DIR={include}")

    @unittest.skipUnless(CUDA, "no wheels of NCCL and CUDA")
    def test_refuses_a_runtime_of_another_cuda(self):
        include = self.runtime_like("runtime", int(FAMILY) - 1)
        self.refuse(f"is of CUDA {int(FAMILY) - 1}, libtorch in", f"ZEA_CUDART_INCLUDE_DIR={include}")

    @unittest.skipUnless(CUDA and NVCC, "no wheels of NCCL and CUDA, or no nvcc")
    def test_refuses_an_nvcc_of_another_cuda(self):
        """Also where that is the one of the wheels, which CMake looks for under the CUDA of the runtime."""
        family = int(FAMILY) - 1
        wheels = [f"ZEA_NCCL_INCLUDE_DIR={NVIDIA}/nccl/include", f"ZEA_NCCL_LIBRARY={NVIDIA}/nccl/lib/libnccl.so.2"]
        choices = [
            f"Torch_DIR={self.torch_like('other', cuda=family)}", *wheels,
            f"ZEA_CUDART_INCLUDE_DIR={self.runtime_like('other_runtime', family)}",
            f"ZEA_CUDART_LIBRARY={CUDA}/lib/libcudart.so.{FAMILY}", f"ZEA_NVCC={NVCC[0]}",
        ]  # fmt: skip
        self.refuse(f"libtorch and the CUDA runtime are of CUDA {family}: device kernels need an nvcc", *choices)
        code, said = self.configure(*choices, "ZEA_ENABLE_CUDA_KERNELS=OFF")
        self.assertEqual(code, 0, said)
        self.assertIn(f"for CUDA {family} in", said)


if __name__ == "__main__":
    script_main.main(verbosity=2)
