# Three images from one file: controller (flows, registry, receiver, linking), measure (pods that measure on the
# nodes that will serve) and serve-base (loads bundles, and nothing more).
#
#   make images                                   # docker, podman or buildah, whichever is there
#   docker build --target serve-base -t collage-serve .
#
# Python packages have exactly the versions of constraints.txt. Pin the base by digest where you build for
# production: --build-arg BASE_IMAGE=docker.io/library/python:3.11-slim-bookworm@sha256:...
# --build-arg CUDA=1 adds the libraries of a GPU and, to the controller, the compilers (docs/nvidia.md).
# All images run as uid 65532 with a read-only root; /tmp is the one folder they write to.
ARG BASE_IMAGE=docker.io/library/python:3.11-slim-bookworm
ARG VERSION=0.1.0

# What all images share; OpenMP's library is what their kernels need of Debian. Without a line in /etc/passwd a
# kubelet gives the user of an image the group 0. containers/build.sh labels version and revision: as values of
# arguments they would make layers anew, or come from a builder's cache. No library reports home
# (collage/telemetry.py).
FROM ${BASE_IMAGE} AS base
ENV PATH=/opt/collage/bin:$PATH \
    PYTHONPATH=/app \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp \
    TMPDIR=/tmp \
    XDG_CACHE_HOME=/tmp/cache \
    ORT_DISABLE_TELEMETRY=1 \
    MLFLOW_DISABLE_TELEMETRY=true \
    PREFECT_SERVER_ANALYTICS_ENABLED=false \
    DO_NOT_TRACK=true
WORKDIR /app
RUN apt-get update \
    && apt-get install -y --no-install-recommends libgomp1 \
    && rm -rf /var/lib/apt/lists/* /var/log/* /var/cache/ldconfig/aux-cache \
    && echo "collage:x:65532:65532::/tmp:/usr/sbin/nologin" >> /etc/passwd \
    && echo "collage:x:65532:" >> /etc/group
LABEL org.opencontainers.image.licenses="Apache-2.0"

# The wheel, with the plug-in that g++ compiles: the only stages with a compiler are this one and controller.
FROM ${BASE_IMAGE} AS wheel
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY constraints.txt .
# pip before 25 applies the first to the build's own requirements, later ones the second.
ENV PIP_CONSTRAINT=/src/constraints.txt PIP_BUILD_CONSTRAINT=/src/constraints.txt
RUN python -m venv /opt/build
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY native native
COPY collage collage
RUN --mount=type=cache,target=/root/.cache/pip \
    /opt/build/bin/pip wheel --no-deps --wheel-dir /dist .

FROM ${BASE_IMAGE} AS environment
RUN python -m venv /opt/collage
COPY constraints.txt /src/
COPY --from=wheel /dist /dist
ENV PIP_CONSTRAINT=/src/constraints.txt PIP_NO_COMPILE=0 PIP_DISABLE_PIP_VERSION_CHECK=1

# oneDNN's wheel holds its library three times, where links will do.
FROM environment AS controller-environment
ARG CUDA=
RUN --mount=type=cache,target=/root/.cache/pip \
    /opt/collage/bin/pip install "$(echo /dist/*.whl)[flows,mlflow,receiver${CUDA:+,cuda-build}]" \
    && { [ -z "$CUDA" ] || /opt/collage/bin/pip install --no-deps nvidia-cutlass; } \
    && /opt/collage/bin/pip uninstall -q -y pip setuptools \
    && cd /opt/collage/lib && ln -sf libdnnl.so.3 libdnnl.so && ln -sf libdnnl.so.3 libdnnl.so.3.2

FROM environment AS measure-environment
ARG CUDA=
RUN --mount=type=cache,target=/root/.cache/pip \
    /opt/collage/bin/pip install "$(echo /dist/*.whl)[compile,s3,obstore${CUDA:+,cuda}]" \
    && /opt/collage/bin/pip uninstall -q -y pip setuptools \
    && cd /opt/collage/lib && ln -sf libdnnl.so.3 libdnnl.so && ln -sf libdnnl.so.3 libdnnl.so.3.2

# OpenVINO's wheel brings plug-ins for devices and readers of formats that a bundle never uses.
FROM environment AS serve-environment
ARG CUDA=
ARG SERVE_EXTRAS=serve,s3,obstore
RUN --mount=type=cache,target=/root/.cache/pip \
    /opt/collage/bin/pip install "$(echo /dist/*.whl)[${SERVE_EXTRAS}${CUDA:+,cuda}]" \
    && /opt/collage/bin/pip uninstall -q -y pip setuptools \
    && cd /opt/collage/lib && ln -sf libdnnl.so.3 libdnnl.so && ln -sf libdnnl.so.3 libdnnl.so.3.2 \
    && cd /opt/collage/lib/python3*/site-packages/openvino/libs \
    && rm -f libopenvino_intel_gpu_plugin* libopenvino_intel_npu* libopenvino_gguf* cache.json \
             libopenvino_tensorflow* libopenvino_pytorch* libopenvino_paddle* libopenvino_jax*

FROM base AS controller
ARG VERSION
LABEL org.opencontainers.image.title="collage-controller" \
      org.opencontainers.image.description="Collage: flows, registry, webhook receiver, and linking of executables"
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/* /var/log/* /var/cache/ldconfig/aux-cache
COPY --from=controller-environment /opt/collage /opt/collage
COPY prefect.yaml ./
COPY containers containers
COPY flows flows
RUN python -m containers.sbom collage-controller "${VERSION}" /usr/share/sbom
# Signed statements of bundles name it; as an environment variable at the end it makes no layer.
ARG REVISION=unknown
ENV SOURCE_REVISION=${REVISION}
USER 65532:65532
CMD ["python", "-m", "flows.worker"]

FROM base AS measure
ARG VERSION
LABEL org.opencontainers.image.title="collage-measure" \
      org.opencontainers.image.description="Collage: measures candidates on the node that will serve"
COPY --from=measure-environment /opt/collage /opt/collage
COPY containers containers
RUN python -m containers.sbom collage-measure "${VERSION}" /usr/share/sbom
USER 65532:65532
ENTRYPOINT ["python", "-m", "containers.measure"]
CMD ["--help"]

FROM base AS serve-base
ARG VERSION
LABEL org.opencontainers.image.title="collage-serve-base" \
      org.opencontainers.image.description="Collage: loads a bundle and answers; no compiler"
COPY --from=serve-environment /opt/collage /opt/collage
COPY containers containers
RUN python -m containers.sbom collage-serve-base "${VERSION}" /usr/share/sbom
EXPOSE 8080
USER 65532:65532
CMD ["python", "-m", "containers.serve", "--bundle", "/mnt/models", "--port", "8080"]
