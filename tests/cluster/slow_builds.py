"""A toolchain whose builds take long and need no processor, as a compiler on another machine does."""

import time

from collage.backends.cpu.onnxruntime import OnnxRuntimeBackend

BUILD_S = 1.2


class SlowBuilds(OnnxRuntimeBackend):
    name = "slow"

    def compile(self, function, nodes, context, variant=""):
        time.sleep(BUILD_S)
        return super().compile(function, nodes, context, variant)
