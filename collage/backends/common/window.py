"""The sliding window of a convolution or pooling."""

from dataclasses import dataclass

from collage.frontend.onnx_attributes import NodeAttributes

Extents = tuple[int, ...]


@dataclass(frozen=True)
class Window:
    """Geometry of a sliding window, one entry per spatial dimension.

    Attributes:
        kernel: extents.
        strides: elements from one position to the next.
        dilations: elements from one tap to the next; 1 for a dense window.
        pads_begin: elements of padding before the tensor.
        pads_end: elements of padding after the tensor.
    """

    kernel: Extents
    strides: Extents
    dilations: Extents
    pads_begin: Extents
    pads_end: Extents

    def with_rank(self, rank: int) -> "Window":
        """Return the window with unit dimensions in front, up to `rank` dimensions."""
        count = max(rank - len(self.kernel), 0)
        units, zeros = (1,) * count, (0,) * count
        return Window(
            units + self.kernel,
            units + self.strides,
            units + self.dilations,
            zeros + self.pads_begin,
            pads_end=zeros + self.pads_end,
        )


def explicit_window(attributes: NodeAttributes, kernel: Extents) -> Window:
    """Read a window of `kernel` with the pads of the attribute "pads" (default: none)."""
    rank = len(kernel)
    pads = attributes.integers("pads", (0,) * (2 * rank))
    return Window(
        kernel,
        attributes.integers("strides", ()) or (1,) * rank,
        attributes.integers("dilations", ()) or (1,) * rank,
        pads[:rank],
        pads_end=pads[rank:],
    )
