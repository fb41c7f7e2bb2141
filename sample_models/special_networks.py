"""Small networks with what a scheduler must handle with care.

Quantized and contrib operators, subgraphs, random operators, dynamic dimensions.
"""

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto

from sample_models.graph_builder import CONTRIB_DOMAIN, GraphBuilder, tensor_type
from sample_models.layers import InferenceLayers, TrainingLayers
from sample_models.training import cross_entropy, output_gradients


@dataclass(frozen=True)
class SequenceSize:
    """Sizes of a (batch, tokens, features) sequence."""

    batch: int
    tokens: int
    features: int


def quantized(size: SequenceSize, seed: int) -> onnx.ModelProto:
    """A dynamically quantized layer, contrib Gelu, FusedMatMul and SkipLayerNormalization.

    The hidden tensor passes a QuantizeLinear/DequantizeLinear pair before the second product.
    """
    graph = GraphBuilder("quantized")
    shape = (size.batch, size.tokens, size.features)
    wide = tensor_type(TensorProto.FLOAT, (size.batch, size.tokens, 4 * size.features))
    narrow = tensor_type(TensorProto.FLOAT, shape)
    x = graph.input("x", TensorProto.FLOAT, shape)
    layers = InferenceLayers(graph, seed)
    expanded = _quantized_linear(layers, x, 4 * size.features)
    (hidden,) = graph.opaque("Gelu", [expanded], [wide], domain=CONTRIB_DOMAIN)
    hidden = _quantize_dequantize(graph, hidden)
    weight = layers.weight("contract.weight", (size.features, 4 * size.features))
    (contracted,) = graph.opaque(
        "FusedMatMul", [hidden, weight], [narrow], domain=CONTRIB_DOMAIN, transB=1, alpha=0.5
    )
    scale = layers.weight("norm.scale", (size.features,))
    shift = layers.weight("norm.shift", (size.features,))
    (normal,) = graph.opaque(
        "SkipLayerNormalization",
        [contracted, x, scale, shift],
        [narrow],
        domain=CONTRIB_DOMAIN,
        epsilon=1e-5,
    )
    graph.output(normal)
    return graph.model()


def _quantized_linear(layers: InferenceLayers, x: str, features: int) -> str:
    graph = layers.graph
    inputs = graph.shape(x)[-1]
    # Deterministic weights that cover the int8 range.
    cells = np.arange(inputs * features, dtype=np.int64) * 7919
    weight = ((cells % 255) - 127).astype(np.int8).reshape(inputs, features)
    weight_zero = graph.constant(np.array(0, dtype=np.int8))
    quantized_x, scale, zero = graph.ops("DynamicQuantizeLinear", [x], 3)
    product = graph.op(
        "MatMulInteger", quantized_x, graph.initializer("expand.weight", weight), zero, weight_zero
    )
    scaled = graph.op("Mul", scale, graph.scalar(1.0 / 512), name="output_scale")
    real = graph.op("Mul", graph.op("Cast", product, to=TensorProto.FLOAT), scaled)
    return graph.op("Add", real, layers.weight("expand.bias", (features,)))


def _quantize_dequantize(graph: GraphBuilder, x: str) -> str:
    scale = graph.scalar(1.0 / 16)
    zero = graph.constant(np.array(128, dtype=np.uint8))
    return graph.op("DequantizeLinear", graph.op("QuantizeLinear", x, scale, zero), scale, zero)


def control_flow(size: SequenceSize, trips: int, seed: int) -> onnx.ModelProto:
    """An If and a Loop, both of which read values of the outer graph.

    The hidden tensor made before the If is read again inside the Loop after it, so it may not be
    freed by what the top-level inputs alone say.
    """
    graph = GraphBuilder("control_flow")
    shape = (size.batch, size.tokens, size.features)
    x = graph.input("x", TensorProto.FLOAT, shape)
    layers = InferenceLayers(graph, seed)
    with graph.scope("hidden"):
        hidden = graph.op("Relu", layers.linear(x, size.features))
    positive = graph.op("Greater", graph.op("ReduceMean", x, keepdims=0), graph.scalar(0.0))
    (chosen,) = graph.opaque(
        "If",
        [positive],
        [tensor_type(TensorProto.FLOAT, shape)],
        then_branch=_wide_branch(graph, hidden, layers),
        else_branch=_plain_branch(graph, hidden),
    )
    trip_count = graph.constant(np.array(trips, dtype=np.int64))
    always = graph.constant(np.array(True))
    final, means = graph.opaque(
        "Loop",
        [trip_count, always, chosen],
        [
            tensor_type(TensorProto.FLOAT, shape),
            tensor_type(TensorProto.FLOAT, (trips, size.batch, size.tokens)),
        ],
        body=_loop_body(graph, hidden),
    )
    graph.output(graph.op("Add", final, x, name="y"))
    graph.output(means)
    return graph.model()


def _wide_branch(graph: GraphBuilder, hidden: str, layers: InferenceLayers) -> onnx.GraphProto:
    features = graph.shape(hidden)[-1]
    weight = layers.weight("branch.weight", (features, features))
    branch = GraphBuilder("wide", outer=graph)
    branch.output(branch.op("Tanh", branch.op("MatMul", hidden, weight)))
    return branch.graph()


def _plain_branch(graph: GraphBuilder, hidden: str) -> onnx.GraphProto:
    branch = GraphBuilder("plain", outer=graph)
    branch.output(branch.op("Mul", hidden, branch.scalar(0.5)))
    return branch.graph()


def _loop_body(graph: GraphBuilder, hidden: str) -> onnx.GraphProto:
    body = GraphBuilder("body", outer=graph)
    body.input("iteration", TensorProto.INT64, ())
    condition = body.input("condition", TensorProto.BOOL, ())
    state = body.input("state", TensorProto.FLOAT, graph.shape(hidden))
    mixed = body.op("Add", body.op("Mul", state, body.scalar(0.5)), body.op("Sigmoid", hidden))
    body.output(body.op("Identity", condition))
    body.output(mixed)
    body.output(body.op("ReduceMean", mixed, body.integers([2]), keepdims=0))
    return body.graph()


@dataclass(frozen=True)
class RandomSize:
    """Sizes of a two-layer perceptron with noise."""

    batch: int
    features: int
    hidden: int
    classes: int = 2


def random_train(size: RandomSize) -> onnx.ModelProto:
    """A training step with seeded Dropout and RandomNormalLike; loss and gradients are outputs.

    A random node must run once: a second run would draw other numbers than the backward pass
    has been promised.
    """
    graph = GraphBuilder("random")
    x = graph.input("x", TensorProto.FLOAT, (size.batch, size.features))
    target = graph.input("target", TensorProto.INT64, (size.batch,))
    layers = TrainingLayers(graph)
    with graph.scope("layer0"):
        hidden = _dropout(graph, graph.op("Relu", layers.linear(x, size.hidden)), seed=1)
    with graph.scope("layer1"):
        noise = graph.op("RandomNormalLike", hidden, scale=0.1, seed=2.0, name="noise")
        noisy = graph.op("Add", layers.linear(hidden, size.hidden), noise)
        hidden = _dropout(graph, graph.op("Tanh", noisy), seed=3)
    with graph.scope("head"):
        logits = layers.linear(hidden, size.classes)
    output_gradients(layers, cross_entropy(graph, logits, target))
    return graph.model()


def _dropout(graph: GraphBuilder, x: str, seed: int) -> str:
    training = graph.constant(np.array(True))
    return graph.ops("Dropout", [x, graph.scalar(0.25), training], 2, seed=seed)[0]


def dynamic(width: int, classes: int, seed: int) -> onnx.ModelProto:
    """A convolutional classifier whose batch, height and width are dynamic dimensions."""
    graph = GraphBuilder("dynamic")
    full, half = ("height", "width"), ("height_half", "width_half")
    x = graph.input("x", TensorProto.FLOAT, ("batch", 3, *full))
    layers = InferenceLayers(graph, seed)
    for index in range(2):
        with graph.scope(f"conv{index}"):
            x = _dynamic_conv(layers, x, width, full)
    x = graph.declare(layers.max_pool(x), ("batch", width, *half))
    with graph.scope("conv2"):
        x = _dynamic_conv(layers, x, 2 * width, half)
    pooled = graph.op("ReduceMean", x, graph.integers([2, 3]), keepdims=0, name="pooled")
    with graph.scope("head"):
        weight = layers.weight("weight", (classes, 2 * width))
        bias = layers.weight("bias", (classes,))
        graph.output(graph.op("Gemm", pooled, weight, bias, transB=1, name="logits"))
    return graph.model()


def _dynamic_conv(layers: InferenceLayers, x: str, channels: int, sides: tuple[str, str]) -> str:
    graph = layers.graph
    x = graph.declare(layers.conv(x, channels), ("batch", channels, *sides))
    return graph.op("Relu", layers.batch_norm(x))
