"""Regions as programs of primitives, in oneDNN's terms: translation of ONNX nodes and fusion.

Two backends run such programs: oneDNN's own primitives, and the plug-in's kernels in blocked layout. A node
becomes one or more `Primitive`s (`translate`); elementwise readers become post-ops of the primitive before
them (`fusion`).
"""
