"""Gradient rules of elementwise, reduction, shape and matrix operators."""

from math import pi, sqrt

import numpy as np
from onnx import NodeProto, numpy_helper

from sample_models.backward import (
    Backward,
    Gradients,
    attribute,
    gradient_rule,
    integer,
    multi_output_rule,
    require,
)
from sample_models.graph_builder import GraphBuilder


def reduce_sum(graph: GraphBuilder, value: str, axes: list[int], keepdims: int) -> str:
    """Sum over axes."""
    return graph.op("ReduceSum", value, graph.integers(axes), keepdims=keepdims)


def reduce_to_shape(graph: GraphBuilder, gradient: str, shape: tuple[int, ...]) -> str:
    """Undo broadcasting: sum a gradient over the axes along which `shape` was stretched."""
    wide = graph.shape(gradient)
    if wide == shape:
        return gradient
    lead = len(wide) - len(shape)
    stretched = [lead + axis for axis, size in enumerate(shape) if size < wide[lead + axis]]
    axes = [*range(lead), *stretched]
    return graph.reshape(reduce_sum(graph, gradient, axes, keepdims=1), shape)


def _for_input(backward: Backward, node: NodeProto, index: int, gradient: str) -> str:
    shape = backward.graph.shape(node.input[index])
    return reduce_to_shape(backward.graph, gradient, shape)


@gradient_rule("Add")
def add_gradient(backward: Backward, node: NodeProto, gradient: str) -> Gradients:
    """d a = g, d b = g, each summed over what was broadcast."""
    return [
        _for_input(backward, node, index, gradient) if backward.needs(value) else None
        for index, value in enumerate(node.input)
    ]


@gradient_rule("Sub")
def sub_gradient(backward: Backward, node: NodeProto, gradient: str) -> Gradients:
    """d a = g, d b = -g."""
    left = right = None
    if backward.needs(node.input[0]):
        left = _for_input(backward, node, 0, gradient)
    if backward.needs(node.input[1]):
        right = _for_input(backward, node, 1, backward.graph.op("Neg", gradient))
    return [left, right]


@gradient_rule("Mul")
def mul_gradient(backward: Backward, node: NodeProto, gradient: str) -> Gradients:
    """d a = g b, d b = g a."""
    result: list[str | None] = [None, None]
    for index, value in enumerate(node.input):
        if backward.needs(value):
            product = backward.graph.op("Mul", gradient, node.input[1 - index])
            result[index] = _for_input(backward, node, index, product)
    return result


@gradient_rule("Div")
def div_gradient(backward: Backward, node: NodeProto, gradient: str) -> Gradients:
    """d a = g / b, d b = -(g / b) y."""
    graph = backward.graph
    left = right = None
    quotient = graph.op("Div", gradient, node.input[1])
    if backward.needs(node.input[0]):
        left = _for_input(backward, node, 0, quotient)
    if backward.needs(node.input[1]):
        right = graph.op("Neg", graph.op("Mul", quotient, node.output[0]))
        right = _for_input(backward, node, 1, right)
    return [left, right]


@gradient_rule("Neg")
def neg_gradient(backward: Backward, node: NodeProto, gradient: str) -> Gradients:
    """d x = -g."""
    return [backward.graph.op("Neg", gradient)]


@gradient_rule("Relu")
def relu_gradient(backward: Backward, node: NodeProto, gradient: str) -> Gradients:
    """d x = g where y > 0, read from the output so that the input can be freed."""
    graph = backward.graph
    zero = graph.scalar(0.0)
    positive = graph.op("Greater", node.output[0], zero)
    return [graph.op("Where", positive, gradient, zero)]


@gradient_rule("Sigmoid")
def sigmoid_gradient(backward: Backward, node: NodeProto, gradient: str) -> Gradients:
    """d x = g y (1 - y)."""
    graph = backward.graph
    slope = graph.op("Mul", node.output[0], graph.op("Sub", graph.scalar(1.0), node.output[0]))
    return [graph.op("Mul", gradient, slope)]


@gradient_rule("Tanh")
def tanh_gradient(backward: Backward, node: NodeProto, gradient: str) -> Gradients:
    """d x = g (1 - y^2)."""
    graph = backward.graph
    square = graph.op("Mul", node.output[0], node.output[0])
    return [graph.op("Mul", gradient, graph.op("Sub", graph.scalar(1.0), square))]


@gradient_rule("Exp")
def exp_gradient(backward: Backward, node: NodeProto, gradient: str) -> Gradients:
    """d x = g y."""
    return [backward.graph.op("Mul", gradient, node.output[0])]


@gradient_rule("Erf")
def erf_gradient(backward: Backward, node: NodeProto, gradient: str) -> Gradients:
    """d x = g 2/sqrt(pi) exp(-x^2)."""
    graph = backward.graph
    square = graph.op("Mul", node.input[0], node.input[0])
    bell = graph.op("Exp", graph.op("Neg", square))
    return [graph.op("Mul", gradient, graph.op("Mul", bell, graph.scalar(2.0 / sqrt(pi))))]


@gradient_rule("Gelu")
def gelu_gradient(backward: Backward, node: NodeProto, gradient: str) -> Gradients:
    """d x = g (cdf(x) + x pdf(x)) with the standard normal distribution (erf form only)."""
    require(node, attribute(node, "approximate", b"none") == b"none", "only the erf form")
    graph, x = backward.graph, node.input[0]
    erf = graph.op("Erf", graph.op("Mul", x, graph.scalar(1.0 / sqrt(2.0))))
    twice_cdf = graph.op("Add", erf, graph.scalar(1.0))
    cdf = graph.op("Mul", twice_cdf, graph.scalar(0.5), name="cdf")
    half_square = graph.op("Mul", graph.op("Mul", x, x), graph.scalar(-0.5))
    bell = graph.op("Exp", half_square)
    pdf = graph.op("Mul", bell, graph.scalar(1.0 / sqrt(2.0 * pi)), name="pdf")
    slope = graph.op("Add", cdf, graph.op("Mul", x, pdf))
    return [graph.op("Mul", gradient, slope)]


@gradient_rule("Softmax")
def softmax_gradient(backward: Backward, node: NodeProto, gradient: str) -> Gradients:
    """d x = y (g - sum(g y)) along the axis of the softmax."""
    graph, y = backward.graph, node.output[0]
    axis = integer(node, "axis", -1)
    inner = reduce_sum(graph, graph.op("Mul", gradient, y), [axis], keepdims=1)
    return [graph.op("Mul", y, graph.op("Sub", gradient, inner))]


@gradient_rule("Dropout")
def dropout_gradient(backward: Backward, node: NodeProto, gradient: str) -> Gradients:
    """d x = g / (1 - ratio) where the mask kept x; the mask comes from the forward pass.

    The node must run in training mode, so that ratio and mask are those of the forward pass.
    """
    require(node, len(node.output) == 2, "the mask must be an output")
    require(node, len(node.input) == 3, "ratio and training mode must be inputs")
    graph = backward.graph
    kept = graph.op("Where", node.output[1], gradient, graph.scalar(0.0))
    keep_ratio = graph.op("Sub", graph.scalar(1.0), node.input[1], name="keep_ratio")
    return [graph.op("Div", kept, keep_ratio), None, None]


@gradient_rule("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def reshape_gradient(backward: Backward, node: NodeProto, gradient: str) -> Gradients:
    """d x = g in the shape of x."""
    graph = backward.graph
    back = graph.reshape(gradient, graph.shape(node.input[0]))
    return [back, *([None] * (len(node.input) - 1))]


@gradient_rule("Transpose")
def transpose_gradient(backward: Backward, node: NodeProto, gradient: str) -> Gradients:
    """d x = g transposed by the inverse permutation."""
    rank = len(backward.graph.shape(node.input[0]))
    permutation = attribute(node, "perm", list(reversed(range(rank))))
    inverse = [int(axis) for axis in np.argsort(np.array(permutation))]
    return [backward.graph.op("Transpose", gradient, perm=inverse)]


@gradient_rule("Concat")
def concat_gradient(backward: Backward, node: NodeProto, gradient: str) -> Gradients:
    """d x_i = the slice of g that x_i filled."""
    graph = backward.graph
    axis = integer(node, "axis", 0)
    sizes = graph.integers([graph.shape(value)[axis] for value in node.input])
    return graph.ops("Split", [gradient, sizes], len(node.input), axis=axis)


@multi_output_rule("Split")
def split_gradient(backward: Backward, node: NodeProto, gradients: Gradients) -> Gradients:
    """d x = the gradients of the parts, joined; every part must have one."""
    parts = [gradient for gradient in gradients if gradient is not None]
    require(node, len(parts) == len(node.output), "a part does not reach the loss")
    joined = backward.graph.op("Concat", *parts, axis=integer(node, "axis", 0))
    return [joined, *([None] * (len(node.input) - 1))]


@gradient_rule("ReduceSum", "ReduceMean", "GlobalAveragePool")
def reduction_gradient(backward: Backward, node: NodeProto, gradient: str) -> Gradients:
    """d x = g (over the count of summed elements, for a mean) stretched to the shape of x."""
    graph, x = backward.graph, node.input[0]
    shape = graph.shape(x)
    axes = _reduced_axes(backward, node, len(shape))
    kept = [1 if axis in axes else size for axis, size in enumerate(shape)]
    gradient = graph.reshape(gradient, kept)
    if node.op_type != "ReduceSum":
        count = int(np.prod([shape[axis] for axis in axes]))
        gradient = graph.op("Mul", gradient, graph.scalar(1.0 / count))
    stretched = graph.op("Expand", gradient, graph.integers(shape))
    return [stretched, *([None] * (len(node.input) - 1))]


def _reduced_axes(backward: Backward, node: NodeProto, rank: int) -> list[int]:
    if node.op_type == "GlobalAveragePool":
        return list(range(2, rank))
    if len(node.input) == 1:
        return list(range(rank))
    axes = numpy_helper.to_array(backward.graph.constant_value(node.input[1]))
    return [int(axis) % rank for axis in axes]


def zeros_of_shape(graph: GraphBuilder, shape: tuple[int, ...]) -> str:
    """Return a float32 tensor of zeros, made when the graph runs."""
    zero = numpy_helper.from_array(np.zeros(1, dtype=np.float32))
    return graph.op("ConstantOfShape", graph.integers(shape), value=zero)


@gradient_rule("MatMul")
def matmul_gradient(backward: Backward, node: NodeProto, gradient: str) -> Gradients:
    """d a = g b^T, d b = a^T g, over the last two axes."""
    graph, (a, b) = backward.graph, node.input
    left = right = None
    if backward.needs(a):
        left = _for_input(backward, node, 0, graph.op("MatMul", gradient, _swap(graph, b)))
    if not backward.needs(b):
        return [left, right]
    if len(graph.shape(b)) == 2:
        # One flat product in place of a batch of them that would have to be summed.
        a, gradient = _flatten_rows(graph, a), _flatten_rows(graph, gradient)
    product = graph.op("MatMul", _swap(graph, a), gradient)
    right = _for_input(backward, node, 1, product)
    return [left, right]


def _swap(graph: GraphBuilder, value: str) -> str:
    rank = len(graph.shape(value))
    return graph.op("Transpose", value, perm=[*range(rank - 2), rank - 1, rank - 2])


def _flatten_rows(graph: GraphBuilder, value: str) -> str:
    shape = graph.shape(value)
    return graph.reshape(value, [int(np.prod(shape[:-1])), shape[-1]])


@gradient_rule("Gemm")
def gemm_gradient(backward: Backward, node: NodeProto, gradient: str) -> Gradients:
    """y = a' b' + c with a', b' transposed or not; alpha and beta must be 1."""
    require(node, attribute(node, "alpha", 1.0) == 1.0, "alpha must be 1")
    require(node, attribute(node, "beta", 1.0) == 1.0, "beta must be 1")
    graph, (a, b, *rest) = backward.graph, node.input
    trans_a, trans_b = integer(node, "transA", 0), integer(node, "transB", 0)
    left = right = None
    if backward.needs(a) and trans_a:
        left = graph.op("Gemm", b, gradient, transA=trans_b, transB=1)
    elif backward.needs(a):
        left = graph.op("Gemm", gradient, b, transB=1 - trans_b)
    if backward.needs(b) and trans_b:
        right = graph.op("Gemm", gradient, a, transA=1, transB=trans_a)
    elif backward.needs(b):
        right = graph.op("Gemm", a, gradient, transA=1 - trans_a)
    bias = [_for_input(backward, node, 2, gradient)] if rest else []
    return [left, right, *bias]
