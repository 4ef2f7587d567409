#!/usr/bin/env bash
# For machines that reach Debian's archive but no image registry: make a stand-in for the Dockerfile's base image
# (Debian 12 with its Python 3.11, by debootstrap) and tag it with the base's name, so that the build pulls nothing.
# Needs root, buildah and debootstrap.
set -euo pipefail
name=${1:-docker.io/library/python:3.11-slim-bookworm}
buildah inspect --type image "$name" >/dev/null 2>&1 && exit 0

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
debootstrap --variant=minbase --include=ca-certificates,python3-minimal,python3-venv \
  bookworm "$folder/root" "${DEBIAN_MIRROR:-http://deb.debian.org/debian}"
rm -rf "$folder"/root/var/cache/apt/archives/*.deb "$folder"/root/var/lib/apt/lists/*
for one in python python3; do ln -s /usr/bin/python3 "$folder/root/usr/local/bin/$one"; done
container=$(buildah from scratch)
buildah add --quiet "$container" "$folder/root" / >/dev/null
buildah config --cmd python3 --env PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin "$container"
buildah commit --quiet --rm "$container" "$name" >/dev/null
