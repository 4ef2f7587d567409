"""What the NVIDIA toolchains share: finding their libraries, chains of operators, the compiler.

Every toolchain is a backend of its own, one folder each, with `device = "cuda"`. Libraries are opened at
run time, so a machine without a GPU imports, lists candidates and (with nvcc from PyPI) compiles; what is
missing there is a reason of `availability`, never an import error. Whether an operator is supported does
not depend on the machine: it is a matter of the toolchain's interface alone.
"""
