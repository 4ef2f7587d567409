"""The target of a compile: a processor or an NVIDIA GPU, and every rule that differs between the two.

Options, requests, manifests and JSON have the name, "cpu" or "cuda"; a `Target` is that string. It is made at
the edge (`Options.target`, a manifest, a worker's setup). Code with a form of its own for each device asks
`is_gpu`. A rule has a property here, with its reason.
"""

from enum import StrEnum

CPU_PROTOCOL = "cold-3"
"""Version of the measurement protocol (`measure.timing`). Change it whenever costs would change."""
GPU_PROTOCOL = "cuda-cold-2"
"""The same for a GPU (`measure.device`)."""


class Target(StrEnum):
    """The device of a compile's kernels."""

    CPU = "cpu"
    CUDA = "cuda"

    @property
    def is_gpu(self) -> bool:
        """Whether the kernels run on a GPU."""
        return self is Target.CUDA

    @property
    def has_half_precision(self) -> bool:
        """Whether kernels compute in float16 and bfloat16.

        A model of these types keeps them for a GPU. For a processor a float16 model is imported as float32,
        and a bfloat16 model is refused.
        """
        return self.is_gpu

    @property
    def runtime_libraries(self) -> frozenset[str]:
        """Vendor libraries of every bundle, whatever its kernels are: TVM's virtual machine needs them."""
        return frozenset({"cudart"}) if self.is_gpu else frozenset()

    @property
    def takes_device_tensors(self) -> bool:
        """Whether an executable has each function twice: for tensors of the host, and of the device."""
        return self.is_gpu

    @property
    def runs_original_file(self) -> bool:
        """Whether the original file is a fallback plan: the plug-in's frameworks run it on a processor."""
        return not self.is_gpu

    @property
    def is_asynchronous(self) -> bool:
        """Whether a kernel may still run when its call returns.

        Then only events of the device's stream can time it, no host can time it inside an executable, and a
        launch has an overhead of its own.
        """
        return self.is_gpu

    @property
    def measurement_protocol(self) -> str:
        """Version of the measurement protocol, part of every environment of costs."""
        return GPU_PROTOCOL if self.is_gpu else CPU_PROTOCOL

    @property
    def flushes_by_footprint(self) -> bool:
        """Whether the cache flush before a timed call depends on the model: a GPU's is a constant."""
        return not self.is_gpu

    @property
    def limits_address_space(self) -> bool:
        """Whether a worker's address space has a limit: CUDA reserves addresses for all memory there is."""
        return not self.is_gpu

    @property
    def needs_equal_processors(self) -> bool:
        """Whether kernels run only on processors with the instructions of the machine that built them."""
        return not self.is_gpu

    @property
    def rules_need_toolchain(self) -> bool:
        """Whether rules ask the toolchain, which a cluster's controller then needs in the nodes' version."""
        return not self.is_gpu
