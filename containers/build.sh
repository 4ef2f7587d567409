#!/usr/bin/env bash
# Build the images with docker, podman or buildah, whichever is there (first found, or $BUILDER).
#
#   containers/build.sh [TARGET...]          # default: controller measure serve-base
#
# REPOSITORY (default: collage) and VERSION (default: the project's) name them: REPOSITORY/TARGET:VERSION.
# CUDA=1 adds what a GPU needs. BASE_IMAGE pins the base; BUILD_FLAGS is passed on (a proxy, a CA bundle, --pull, ...).
set -euo pipefail
cd "$(dirname "$0")/.."

builder=${BUILDER:-}
for one in docker podman buildah; do
  [ -n "$builder" ] && break
  command -v "$one" >/dev/null || continue
  # A docker client without its daemon builds nothing.
  [ "$one" = docker ] && ! docker info >/dev/null 2>&1 && continue
  builder=$one
done
[ -n "$builder" ] || { echo "images are built with docker, podman or buildah; none works here" >&2; exit 2; }

version=${VERSION:-$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)}
revision=$(git rev-parse --verify --quiet HEAD 2>/dev/null || echo unknown)
arguments=(--build-arg "VERSION=$version" --build-arg "REVISION=$revision"
  --label "org.opencontainers.image.version=$version"
  --label "org.opencontainers.image.revision=$revision")
[ -n "${BASE_IMAGE:-}" ] && arguments+=(--build-arg "BASE_IMAGE=$BASE_IMAGE")
[ -n "${CUDA:-}" ] && arguments+=(--build-arg "CUDA=1")
# Layers are kept between targets: buildah alone does not do so by itself.
[ "$builder" = buildah ] && arguments+=(--layers)
export DOCKER_BUILDKIT=1

for target in "${@:-controller measure serve-base}"; do
  for one in $target; do
    # shellcheck disable=SC2086
    "$builder" build "${arguments[@]}" ${BUILD_FLAGS:-} --target "$one" \
      -t "${REPOSITORY:-collage}/$one:$version" .
  done
done
