"""A transformer encoder with explicit attention, for training."""

from dataclasses import dataclass
from math import sqrt

import onnx
from onnx import TensorProto

from sample_models.graph_builder import GraphBuilder
from sample_models.layers import Layers, TrainingLayers
from sample_models.training import cross_entropy, output_gradients


@dataclass(frozen=True)
class TransformerSize:
    """Sizes of a transformer; `features` must be divisible by `heads`."""

    batch: int
    tokens: int
    features: int
    heads: int
    layers: int
    classes: int


def transformer(layers: Layers, x: str, size: TransformerSize) -> str:
    """Vaswani et al., "Attention Is All You Need" (2017), normalization first; (B*T, classes)."""
    graph = layers.graph
    for index in range(size.layers):
        with graph.scope(f"layer{index}"):
            with graph.scope("attention"):
                attended = _attention(layers, layers.layer_norm(x), size)
                x = graph.op("Add", x, attended, name="residual")
            with graph.scope("mlp"):
                x = graph.op("Add", x, _mlp(layers, layers.layer_norm(x)), name="residual")
    with graph.scope("head"):
        x = layers.layer_norm(x)
        rows = graph.reshape(x, [size.batch * size.tokens, size.features])
        weight = layers.weight("weight", (size.classes, size.features))
        bias = layers.weight("bias", (size.classes,))
        return graph.op("Gemm", rows, weight, bias, transB=1)


def _attention(layers: Layers, x: str, size: TransformerSize) -> str:
    graph = layers.graph
    with graph.scope("qkv"):
        joined = layers.linear(x, 3 * size.features)
    sizes = graph.integers([size.features] * 3)
    query, key, value = graph.ops("Split", [joined, sizes], 3, axis=-1)
    head = size.features // size.heads
    split = [size.batch, size.tokens, size.heads, head]
    query = graph.op("Transpose", graph.reshape(query, split), perm=[0, 2, 1, 3], name="query")
    key = graph.op("Transpose", graph.reshape(key, split), perm=[0, 2, 3, 1], name="key")
    value = graph.op("Transpose", graph.reshape(value, split), perm=[0, 2, 1, 3], name="value")
    scores = graph.op("MatMul", query, key, name="scores")
    scaled = graph.op("Mul", scores, graph.scalar(1.0 / sqrt(head)), name="scaled_scores")
    weights = graph.op("Softmax", scaled, axis=-1)
    mixed = graph.op("Transpose", graph.op("MatMul", weights, value), perm=[0, 2, 1, 3])
    joined = graph.reshape(mixed, [size.batch, size.tokens, size.features])
    with graph.scope("out"):
        return layers.linear(joined, size.features)


def _mlp(layers: Layers, x: str) -> str:
    features = layers.graph.shape(x)[-1]
    with layers.graph.scope("expand"):
        hidden = layers.graph.op("Gelu", layers.linear(x, 4 * features))
    with layers.graph.scope("contract"):
        return layers.linear(hidden, features)


def transformer_train(size: TransformerSize) -> onnx.ModelProto:
    """A training step of a transformer that labels tokens; loss and gradients are the outputs."""
    graph = GraphBuilder("transformer_train")
    x = graph.input("x", TensorProto.FLOAT, (size.batch, size.tokens, size.features))
    target = graph.input("target", TensorProto.INT64, (size.batch * size.tokens,))
    layers = TrainingLayers(graph)
    loss = cross_entropy(graph, transformer(layers, x, size), target)
    output_gradients(layers, loss)
    return graph.model()
