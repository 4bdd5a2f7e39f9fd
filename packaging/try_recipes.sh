#!/usr/bin/env bash
# Build the recipes for whose tools this machine has, from what `make wheel` puts into dist/, and say which are skipped.
# `make recipes` calls it; BUILDER=podman takes another builder of images than docker.
set -eu
cd "$(dirname "$0")/.."
builder=${BUILDER:-docker}
spack_packages=$PWD/packaging/spack/spack_repo/compss_train

has() {
    command -v "$1" >/dev/null || { echo "skipped: there is no $1"; return 1; }
}

if has "$builder"; then
    "$builder" build --file packaging/Dockerfile --tag compss_train .
    "$builder" run --rm compss_train --version
fi
if has apptainer; then  # its %test runs, too
    apptainer build --force build/compss_train.sif packaging/compss_train.def
fi
if has rattler-build; then  # installs and tests the package, too
    rattler-build build --recipe packaging/conda/recipe.yaml --channel conda-forge --output-dir build/conda
fi
if has spack; then  # only checked: an installation builds PyTorch
    spack -c "repos:compss_train:$spack_packages" audit packages py-compss-train py-filelock py-safetensors
fi
