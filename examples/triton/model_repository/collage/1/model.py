"""A Collage bundle in Triton's Python backend; needs `pip install 'collage[runtime,sign]'` in its image."""

import json

import triton_python_backend_utils as pb_utils

from collage.errors import CollageError, InputError
from collage.runtime.loader import load


class TritonPythonModel:
    """Triton makes one a model instance, each in a process of its own."""

    def initialize(self, args):
        """Load the bundle and compare it with its golden data: an unfit one fails the model's load.

        The parameter `entry` names the entry that this model serves, for a bundle of several.
        """
        config = json.loads(args["model_config"])
        parameters = config["parameters"]
        folder = parameters["bundle"]["string_value"]
        self.entry = parameters["entry"]["string_value"] if "entry" in parameters else None
        try:
            self.bundle = load(folder)
            self.bundle.check()
        except CollageError as error:
            raise pb_utils.TritonModelException(str(error)) from error
        self.inputs = [tensor["name"] for tensor in config["input"]]
        self.outputs = [tensor["name"] for tensor in config["output"]]

    def execute(self, requests):
        """Answer every request, in order; shapes choose the bundle's function."""
        return [self.answer(request) for request in requests]

    def answer(self, request):
        inputs = {
            name: tensor.as_numpy()
            for name in self.inputs
            if (tensor := pb_utils.get_input_tensor_by_name(request, name)) is not None
        }
        try:
            outputs = self.bundle.run(inputs, self.entry)
        except InputError as error:
            return pb_utils.InferenceResponse([], pb_utils.TritonError(str(error)))
        requested = set(request.requested_output_names())
        tensors = [
            pb_utils.Tensor(name, outputs[name]) for name in self.outputs if name in requested
        ]
        return pb_utils.InferenceResponse(tensors)

    def finalize(self):
        """Let go of the bundle."""
        self.bundle = None
