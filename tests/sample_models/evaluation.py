"""Feeds for sample graphs, and their evaluation in float64 by the ONNX reference evaluator.

The reference evaluator computes in the type it is given, but for three operators: Erf rounds to
float32, and so does Gelu, made of it; ConvTranspose is wrong for more than one group. All three
are replaced here.
"""

from collections.abc import Mapping
from math import erf, sqrt
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

Array = NDArray[Any]


class Erf(OpRun):
    """Erf in the type of its input."""

    def _run(self, x: Array) -> tuple[Array]:
        return (np.vectorize(erf, otypes=[x.dtype])(x),)


class Gelu(OpRun):
    """Gelu by the error function, in the type of its input."""

    def _run(self, x: Array, approximate: str = "none") -> tuple[Array]:
        assert approximate == "none"
        return (x * (1 + np.vectorize(erf, otypes=[x.dtype])(x / sqrt(2))) / 2,)


class ConvTranspose(OpRun):
    """A two-dimensional transposed convolution with groups, one kernel cell at a time."""

    def _run(
        self,
        x: Array,
        weight: Array,
        bias: Array | None = None,
        dilations: list[int] | None = None,
        group: int = 1,
        output_padding: list[int] | None = None,
        pads: list[int] | None = None,
        strides: list[int] | None = None,
        **_: object,
    ) -> tuple[Array]:
        step_y, step_x = strides or [1, 1]
        reach_y, reach_x = dilations or [1, 1]
        extra_y, extra_x = output_padding or [0, 0]
        top, left, bottom, right = pads or [0, 0, 0, 0]
        batch, channels, rows, columns = x.shape
        kernel_y, kernel_x = weight.shape[2:]
        high = (rows - 1) * step_y + (kernel_y - 1) * reach_y + 1 + extra_y
        broad = (columns - 1) * step_x + (kernel_x - 1) * reach_x + 1 + extra_x
        inputs = x.reshape(batch, group, channels // group, rows, columns)
        kernels = weight.reshape(group, channels // group, -1, kernel_y, kernel_x)
        y = np.zeros((batch, group, kernels.shape[2], high, broad), dtype=x.dtype)
        for i in range(kernel_y):
            for j in range(kernel_x):
                cells = np.einsum("bgcyx,gcm->bgmyx", inputs, kernels[..., i, j])
                end_y = i * reach_y + rows * step_y
                end_x = j * reach_x + columns * step_x
                y[..., i * reach_y : end_y : step_y, j * reach_x : end_x : step_x] += cells
        y = y.reshape(batch, -1, high, broad)[..., top : high - bottom, left : broad - right]
        return (y if bias is None else y + bias[:, None, None],)


def random_feeds(
    model: onnx.ModelProto, dimensions: Mapping[str, int], seed: int
) -> dict[str, Array]:
    """Return standard-normal float32 and 0/1 integer inputs; named dimensions are looked up."""
    random = np.random.RandomState(seed)
    feeds: dict[str, Array] = {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        shape = [dim.dim_value or dimensions[dim.dim_param] for dim in tensor.shape.dim]
        if tensor.elem_type == TensorProto.FLOAT:
            feeds[value.name] = random.standard_normal(shape).astype(np.float32)
        else:
            feeds[value.name] = random.randint(0, 2, shape, dtype=np.int64)
    return feeds


def evaluate_float64(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Return the outputs of a model by name, every float32 in it taken as float64."""
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    tensors = [*wide.graph.initializer]
    tensors += [item.t for node in wide.graph.node for item in node.attribute if item.HasField("t")]
    for tensor in tensors:
        if tensor.data_type == TensorProto.FLOAT:
            array = numpy_helper.to_array(tensor).astype(np.float64)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    evaluator = ReferenceEvaluator(wide, new_ops=[Erf, Gelu, ConvTranspose])
    inputs = {
        name: array.astype(np.float64) if array.dtype == np.float32 else array
        for name, array in feeds.items()
    }
    results = evaluator.run(None, inputs)
    return dict(zip([value.name for value in model.graph.output], results, strict=True))
