"""Spack's own recipe with the version that compss_train needs."""

from spack.package import *
from spack_repo.builtin.packages.py_filelock.package import PyFilelock as BuiltinPyFilelock


class PyFilelock(BuiltinPyFilelock):
    """Spack's package, with a newer version."""

    version("3.30.0", sha256="1774e682dbe443bd60f9609162fc596e2c80dc84ffc2957068953406d0520090")
