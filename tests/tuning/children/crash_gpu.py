"""The real child, of whose kernels every second one reads an address that is none."""

import itertools

from tvm.s_tir.meta_schedule.arg_info import ArgInfo

from collage.backends.base import TirKernel
from collage.backends.nvidia.tvm_cuda.schedule import schedule
from collage.measure.worker import serve
from collage.tuning import tuning_worker
from tests.backends.nvidia.faulty import reading_far

_COUNT = itertools.count()


def every_second(module, symbol, constants, device):
    """Make the kernel, or one with its parameters that reads far from the first of them."""
    if next(_COUNT) % 2:
        parameters = ArgInfo.from_entry_func(module, remove_preproc=False)
        module = schedule(
            reading_far(
                [(tuple(parameter.shape), str(parameter.dtype)) for parameter in parameters]
            )
        )
    return TirKernel(module, symbol, constants, device)


if __name__ == "__main__":
    tuning_worker.TirKernel = every_second
    serve(lambda requests, answers: tuning_worker.TuningWorker(requests, answers).run(), __doc__)
