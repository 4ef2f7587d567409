"""The node tests of `onnx.backend.test` on the kernels of every backend, and inside an executable."""
