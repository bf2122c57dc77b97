# State: not run.
from spack_repo.builtin.build_systems.autotools import AutotoolsPackage
from spack_repo.builtin.build_systems.cuda import CudaPackage

from spack.package import *


class Sluice(AutotoolsPackage, CudaPackage):
    """Trainer of transformer language models on MPI, one rank per GPU."""

    license("MIT")

    # The sources are those of a release, unpacked: see doc/howto/install.md.
    manual_download = True
    version("0.1.0")

    variant("papi", default=True, description="Hardware counters (run.counters)")

    depends_on("c", type="build")
    depends_on("cxx", type="build", when="+cuda")
    depends_on("autoconf", type="build")
    depends_on("automake", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("mpi")
    depends_on("hdf5+mpi")
    depends_on("hwloc@2:")
    depends_on("openblas")
    depends_on("libyaml")
    depends_on("pcre2")
    depends_on("jansson@2.11:")
    depends_on("utf8proc")
    depends_on("zlib-api")
    depends_on("zstd")
    depends_on("papi", when="+papi")
    depends_on("python@3.8:", type="run")
    depends_on("py-jinja2@3.1:", type="run")
    depends_on("nccl@2.19:", when="+cuda")
    # Python 3.8 or later is suggested: `sluice report` and `top` start it. Training needs none.
    conflicts("cuda_arch=none", when="+cuda", msg="name the GPU: cuda_arch=90a")

    def configure_args(self):
        args = self.with_or_without("papi")
        if self.spec.satisfies("+cuda"):
            arch = ",".join(self.spec.variants["cuda_arch"].value)
            args += [
                "--with-cuda={0}".format(self.spec["cuda"].prefix),
                "--with-nccl={0}".format(self.spec["nccl"].prefix),
                "--with-cuda-arch={0}".format(arch),
            ]
        else:
            args += ["--with-cuda=no", "--with-nccl=no"]
        return args
