"""NVIDIA toolchains: one backend per folder; libraries, operator chains and nvcc are common to them.

Libraries are opened at run time: a machine without a GPU imports these modules, lists candidates and (with
nvcc from PyPI) compiles. A missing library is a reason of `availability`, never an import error. Support of
an operator depends on the toolchain's interface, not on the machine.
"""
