"""Gradient rules of convolution, pooling, normalization and the loss."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from onnx import NodeProto

from sample_models.backward import (
    Backward,
    Gradients,
    attribute,
    gradient_rule,
    integer,
    require,
)
from sample_models.gradient_rules import reduce_sum, zeros_of_shape
from sample_models.graph_builder import GraphBuilder


@dataclass(frozen=True)
class Window:
    """The sliding window of a convolution; one entry a spatial axis, pads begins then ends."""

    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    group: int


def _integers(node: NodeProto, name: str, default: Sequence[int]) -> tuple[int, ...]:
    value = attribute(node, name, list(default))
    require(node, isinstance(value, list), f"attribute {name} is not a list")
    return tuple(int(item) for item in value) if isinstance(value, list) else ()


def _window(graph: GraphBuilder, node: NodeProto) -> Window:
    require(node, attribute(node, "auto_pad", b"NOTSET") == b"NOTSET", "auto_pad")
    spatial = len(graph.shape(node.input[0])) - 2
    return Window(
        strides=_integers(node, "strides", [1] * spatial),
        dilations=_integers(node, "dilations", [1] * spatial),
        pads=_integers(node, "pads", [0] * (2 * spatial)),
        group=integer(node, "group", 1),
    )


def _sum_but_channels(graph: GraphBuilder, gradient: str) -> str:
    rank = len(graph.shape(gradient))
    return reduce_sum(graph, gradient, [0, *range(2, rank)], keepdims=0)


@gradient_rule("Conv")
def conv_gradient(backward: Backward, node: NodeProto, gradient: str) -> Gradients:
    """d x = ConvTranspose(g, w); d w = the correlation of x and g; d b = sum of g."""
    graph, (x, weight, *bias) = backward.graph, node.input
    window = _window(graph, node)
    result: list[str | None] = [None, None]
    if backward.needs(x):
        result[0] = _conv_input_gradient(graph, gradient, x, weight, window)
    if backward.needs(weight):
        result[1] = _weight_gradient(graph, x, gradient, graph.shape(weight), window)
    return [*result, *[_sum_but_channels(graph, gradient) for _ in bias]]


@gradient_rule("ConvTranspose")
def conv_transpose_gradient(backward: Backward, node: NodeProto, gradient: str) -> Gradients:
    """d x = Conv(g, w); d w = the correlation of g and x, roles swapped; d b = sum of g."""
    graph, (x, weight, *bias) = backward.graph, node.input
    window = _window(graph, node)
    result: list[str | None] = [None, None]
    if backward.needs(x):
        result[0] = graph.op(
            "Conv",
            gradient,
            weight,
            strides=window.strides,
            dilations=window.dilations,
            pads=window.pads,
            group=window.group,
        )
    if backward.needs(weight):
        result[1] = _weight_gradient(graph, gradient, x, graph.shape(weight), window)
    return [*result, *[_sum_but_channels(graph, gradient) for _ in bias]]


def _conv_input_gradient(
    graph: GraphBuilder, gradient: str, x: str, weight: str, window: Window
) -> str:
    # A strided convolution drops the remainder of the division by the stride; output_padding
    # brings those rows and columns back.
    kernel = graph.shape(weight)[2:]
    spatial = range(len(kernel))
    sizes, steps = graph.shape(x)[2:], graph.shape(gradient)[2:]
    covered = [
        (steps[i] - 1) * window.strides[i]
        + window.dilations[i] * (kernel[i] - 1)
        + 1
        - window.pads[i]
        - window.pads[len(kernel) + i]
        for i in spatial
    ]
    return graph.op(
        "ConvTranspose",
        gradient,
        weight,
        strides=window.strides,
        dilations=window.dilations,
        pads=window.pads,
        group=window.group,
        output_padding=[sizes[i] - covered[i] for i in spatial],
    )


def _weight_gradient(
    graph: GraphBuilder, wide: str, narrow: str, weight_shape: tuple[int, ...], window: Window
) -> str:
    """Correlate the two ends of a convolution over batch and space, by a Conv itself.

    `wide` is (N, G*A, ...) at the side where the strides apply, `narrow` is (N, G*B, ...) at the
    other. Batch takes the place of the channels, `narrow` that of the kernel; strides and
    dilations change places. Result: (G*B, A, kernel), the shape of the weight.
    """
    kernel = weight_shape[2:]
    axes = list(range(2, 2 + len(kernel)))
    product = graph.op(
        "Conv",
        _channels_as_batch(graph, wide, window.group),
        _channels_as_kernels(graph, narrow),
        strides=window.dilations,
        dilations=window.strides,
        pads=window.pads,
        group=window.group,
    )
    if graph.shape(product)[2:] != kernel:
        starts, ends = graph.integers([0] * len(axes)), graph.integers(kernel)
        product = graph.op("Slice", product, starts, ends, graph.integers(axes))
    return graph.op("Transpose", product, perm=[1, 0, *axes])


def _channels_as_batch(graph: GraphBuilder, value: str, group: int) -> str:
    """(N, G*A, ...) to (A, G*N, ...)."""
    batch, channels, *space = graph.shape(value)
    axes = list(range(2, 2 + len(space)))
    if group == 1:
        return graph.op("Transpose", value, perm=[1, 0, *axes])
    split = graph.reshape(value, [batch, group, channels // group, *space])
    turned = graph.op("Transpose", split, perm=[2, 1, 0, *(axis + 1 for axis in axes)])
    return graph.reshape(turned, [channels // group, group * batch, *space])


def _channels_as_kernels(graph: GraphBuilder, value: str) -> str:
    """(N, G*B, ...) to (G*B, N, ...); the groups stay outermost as Conv wants them."""
    axes = list(range(2, len(graph.shape(value))))
    return graph.op("Transpose", value, perm=[1, 0, *axes])


@gradient_rule("MaxPool")
def max_pool_gradient(backward: Backward, node: NodeProto, gradient: str) -> Gradients:
    """d x = g added at the places that the Indices output names.

    Indices count in the flattened input, batch and channels included, so one flat scatter does.
    """
    require(node, len(node.output) == 2, "the Indices must be an output")
    require(node, integer(node, "storage_order", 0) == 0, "only row-major Indices")
    graph, x = backward.graph, node.input[0]
    count = prod(graph.shape(gradient))
    zeros = zeros_of_shape(graph, (prod(graph.shape(x)),))
    places = graph.reshape(node.output[1], [count])
    updates = graph.reshape(gradient, [count])
    scattered = graph.op("ScatterElements", zeros, places, updates, axis=0, reduction="add")
    return [graph.reshape(scattered, graph.shape(x))]


@gradient_rule("BatchNormalization")
def batch_norm_gradient(backward: Backward, node: NodeProto, gradient: str) -> Gradients:
    """Gradient in training mode (Ioffe and Szegedy, "Batch Normalization", section 3).

    With momentum 0 the second and third outputs are the statistics of this batch, which the
    rule needs; with any other momentum they would be mixed with those of earlier batches.
    """
    require(node, integer(node, "training_mode", 0) == 1, "only training mode")
    require(node, attribute(node, "momentum", 0.9) == 0.0, "momentum must be 0")
    require(node, len(node.output) == 3, "the batch statistics must be outputs")
    graph, (x, scale) = backward.graph, node.input[:2]
    _, mean, variance = node.output
    channels = graph.shape(x)[1]
    column = [1, channels, *([1] * (len(graph.shape(x)) - 2))]
    epsilon = graph.scalar(float(str(attribute(node, "epsilon", 1e-5))))
    deviation = graph.op("Sqrt", graph.op("Add", variance, epsilon))
    inverse = graph.op("Reciprocal", deviation, name="inverse_deviation")
    centred = graph.op("Sub", x, graph.reshape(mean, column))
    normal = graph.op("Mul", centred, graph.reshape(inverse, column), name="normalized")
    d_bias = _sum_but_channels(graph, gradient)
    d_scale = _sum_but_channels(graph, graph.op("Mul", gradient, normal))
    d_x = None
    if backward.needs(x):
        share = graph.scalar(channels / prod(graph.shape(x)))
        bias_share = graph.reshape(graph.op("Mul", d_bias, share), column)
        scale_share = graph.reshape(graph.op("Mul", d_scale, share), column)
        inner = graph.op("Sub", gradient, bias_share)
        inner = graph.op("Sub", inner, graph.op("Mul", normal, scale_share))
        factor = graph.reshape(graph.op("Mul", scale, inverse), column)
        d_x = graph.op("Mul", inner, factor)
    return [d_x, d_scale, d_bias, None, None]


@gradient_rule("LayerNormalization")
def layer_norm_gradient(backward: Backward, node: NodeProto, gradient: str) -> Gradients:
    """Gradient of normalization over the last axis (Ba et al., "Layer Normalization")."""
    graph, (x, scale, *bias) = backward.graph, node.input
    last = len(graph.shape(x)) - 1
    require(node, integer(node, "axis", -1) in (-1, last), "only the last axis")
    require(node, len(node.output) == 3, "Mean and InvStdDev must be outputs")
    _, mean, inverse = node.output
    normal = graph.op("Mul", graph.op("Sub", x, mean), inverse, name="normalized")
    rows = list(range(last))
    d_scale = reduce_sum(graph, graph.op("Mul", gradient, normal), rows, keepdims=0)
    d_bias = [reduce_sum(graph, gradient, rows, keepdims=0) for _ in bias]
    d_x = None
    if backward.needs(x):
        scaled = graph.op("Mul", gradient, scale)
        axis = graph.integers([last])
        offset = graph.op("ReduceMean", scaled, axis, keepdims=1)
        slope = graph.op("ReduceMean", graph.op("Mul", scaled, normal), axis, keepdims=1)
        inner = graph.op("Sub", scaled, offset)
        inner = graph.op("Sub", inner, graph.op("Mul", normal, slope))
        d_x = graph.op("Mul", inner, inverse)
    return [d_x, d_scale, *d_bias]


@gradient_rule("SoftmaxCrossEntropyLoss")
def cross_entropy_gradient(backward: Backward, node: NodeProto, gradient: str) -> Gradients:
    """d logits = (softmax - one-hot target) / number of targets (mean reduction, no weights)."""
    require(node, attribute(node, "reduction", b"mean") == b"mean", "only the mean")
    require(node, len(node.input) == 2, "no class weights")
    require(node, len(node.output) == 2, "log_prob must be an output")
    require(node, attribute(node, "ignore_index", None) is None, "no ignore_index")
    graph, (logits, target) = backward.graph, node.input
    softmax = graph.op("Exp", node.output[1], name="softmax")
    depth = graph.constant(np.array(graph.shape(logits)[1], dtype=np.int64))
    off_on = graph.constant(np.array([0.0, 1.0], dtype=np.float32))
    one_hot = graph.op("OneHot", target, depth, off_on, axis=1)
    share = graph.op("Mul", gradient, graph.scalar(1.0 / prod(graph.shape(target))))
    return [graph.op("Mul", graph.op("Sub", softmax, one_hot), share), None]
