# SPDX-License-Identifier: Apache-2.0
"""How Spack builds zea, from the checkout that this file lies in: spack dev-build zea@0.1.0 there.

No release lies on the web yet, so the version names no source.
"""

from spack_repo.builtin.build_systems.cmake import CMakePackage

from spack.package import *


class Zea(CMakePackage):
    """Trains multimodal language models, sharded over many ranks, with HDF5 checkpoints that any
    later layout reads."""

    license("Apache-2.0")

    version("0.1.0")

    variant("nccl", default=False, description="Train on NVIDIA GPUs, one rank per GPU")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.25:", type="build")
    depends_on("mpi@3:")
    depends_on("hdf5@1.10:~mpi")
    depends_on("kokkos@3.7:5+serial")
    depends_on("py-torch@2.11:", type=("build", "link", "run"))
    depends_on("cli11@2:")
    depends_on("flac")
    depends_on("jpeg")
    depends_on("libpng")
    depends_on("nlohmann-json@3.11:")
    depends_on("spdlog")
    depends_on("tomlplusplus@3:")
    depends_on("xxhash@0.8:")
    depends_on("googletest", type="test")

    with when("+nccl"):
        depends_on("py-torch+cuda")
        depends_on("cuda")
        depends_on("nccl")

    def cmake_args(self):
        site_packages = self.spec["python"].package.platlib
        torch = join_path(self.spec["py-torch"].prefix, site_packages, "torch")
        return [
            self.define("ZEA_TORCH_ROOT", torch),
            self.define("ZEA_ISA", ""),  # Spack's compiler wrappers choose it
            self.define("ZEA_ENABLE_TESTS", self.run_tests),
            self.define_from_variant("ZEA_ENABLE_NCCL", "nccl"),
        ]

    def test_answers(self):
        """the installed zea says its version, how it was built, and the plan of a deck"""
        zea = which(self.prefix.bin.zea)
        assert str(self.spec.version) in zea("--version", output=str.split)
        zea("-c")
        inputs = join_path(self.prefix.share, "zea", "inputs")
        deck = join_path(inputs, "gpt2_124m_fsdp.toml")
        zea("-n", "--ranks", "8", "-i", deck, f"model.config={join_path(inputs, 'gpt2_124m.json')}")
