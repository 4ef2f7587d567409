"""Max and Min with a number have no other bound: infinities stay infinite."""

import numpy as np
import pytest

from collage.backends.base import BuildContext
from collage.backends.cpu.blocked import BlockedBackend
from collage.backends.cpu.onednn import OneDnnBackend
from collage.frontend.region import region_values
from collage.measure.callable_kernel import as_tensors, callable_kernel, poisoned_like
from collage.runtime.arrays import aligned_copy
from collage.runtime.plugin import load_plugin
from tests.backends.cpu.blocked_nets import Net

X = np.ones((8, 16), np.float32)
X[:2, 0] = np.inf, -np.inf


@pytest.mark.parametrize("backend", [BlockedBackend, OneDnnBackend])
@pytest.mark.parametrize(("op", "expected"), [("Max", [np.inf, 0.1]), ("Min", [0.1, -np.inf])])
def test_max_and_min_with_a_number_keep_infinities(backend, op, expected, tmp_path):
    load_plugin()
    net = Net(X.shape)
    function = net.function(tmp_path, net.add(op, "x", net.number(0.1)))
    everything = function.graph.everything
    call, constants = callable_kernel(backend().compile(function, everything, BuildContext(1)), 1)
    names, _ = region_values(function, everything)
    assert names == ("x",)
    output = poisoned_like(X)
    call(*as_tensors([aligned_copy(X), *constants, output]))
    np.testing.assert_allclose(output[:2, 0], expected, rtol=1e-6)
