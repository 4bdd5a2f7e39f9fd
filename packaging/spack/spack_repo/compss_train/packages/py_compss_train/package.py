"""Spack's recipe, for Spack 1.0 and later.

    spack repo add packaging/spack/spack_repo/compss_train
    spack install --no-checksum py-compss-train

The checksum of a version belongs here as soon as it is published: ``spack checksum
py-compss-train`` writes it.
"""

from spack.package import *
from spack_repo.builtin.build_systems.python import PythonPackage


class PyCompssTrain(PythonPackage):
    """Train any PyTorch model with many workers, as tasks that an engine runs."""

    pypi = "compss_train/compss_train-0.1.0.tar.gz"
    license("Apache-2.0")

    version("0.1.0")

    variant("online", default=False, description="Train while simulations run")

    with default_args(type="build"):
        depends_on("py-setuptools@77:")

    with default_args(type=("build", "run")):
        depends_on("python@3.11:")
        depends_on("py-cloudpickle@3.0:")
        depends_on("py-filelock@3.30:")
        depends_on("py-loky@3.5:")
        depends_on("py-numpy@1.26:")
        depends_on("py-safetensors@0.7:")
        depends_on("py-tomli-w@1.0:")
        depends_on("py-torch@2.6:")
        depends_on("py-tqdm@4.65:")
        depends_on("py-pyzmq@25:", when="+online")
