"""U-Net and a small residual network, for training and inference."""

from dataclasses import dataclass

import onnx
from onnx import TensorProto

from sample_models.graph_builder import GraphBuilder
from sample_models.layers import InferenceLayers, Layers, TrainingLayers
from sample_models.training import cross_entropy, output_gradients, output_sgd_updates


@dataclass(frozen=True)
class UNetSize:
    """Sizes of a U-Net; the image side must be divisible by 2**depth."""

    batch: int
    side: int
    width: int
    depth: int
    classes: int = 2


@dataclass(frozen=True)
class ResNetSize:
    """Sizes of a residual network: `blocks` residual blocks at each of the stages' widths."""

    batch: int
    side: int
    widths: tuple[int, ...]
    blocks: int
    group: int
    classes: int = 4


def unet(layers: Layers, x: str, size: UNetSize) -> str:
    """Ronneberger et al., "U-Net" (2015), with normalization and padded convolutions.

    Each level's output waits for its way up: the long skips are what makes memory scarce.
    """
    graph = layers.graph
    skips = []
    for level in range(size.depth):
        with graph.scope(f"down{level}"):
            x = _double_conv(layers, x, size.width << level)
            skips.append(x)
            x = layers.max_pool(x)
    with graph.scope("bottom"):
        x = _double_conv(layers, x, size.width << size.depth)
    for level in reversed(range(size.depth)):
        with graph.scope(f"up{level}"):
            x = graph.op("Concat", skips[level], layers.up_conv(x, size.width << level), axis=1)
            x = _double_conv(layers, x, size.width << level)
    with graph.scope("head"):
        return layers.conv_bias(x, size.classes)


def _double_conv(layers: Layers, x: str, channels: int) -> str:
    for index in range(2):
        with layers.graph.scope(f"conv{index}"):
            x = layers.conv_norm_relu(x, channels)
    return x


def unet_train(size: UNetSize) -> onnx.ModelProto:
    """A training step of a U-Net; loss and gradients are the outputs."""
    graph = GraphBuilder("unet_train")
    image = graph.input("image", TensorProto.FLOAT, (size.batch, 3, size.side, size.side))
    target = graph.input("target", TensorProto.INT64, (size.batch, size.side, size.side))
    layers = TrainingLayers(graph)
    loss = cross_entropy(graph, unet(layers, image, size), target)
    output_gradients(layers, loss)
    return graph.model()


def unet_infer(size: UNetSize, seed: int) -> onnx.ModelProto:
    """Inference of a U-Net with random weights."""
    graph = GraphBuilder("unet_infer")
    image = graph.input("image", TensorProto.FLOAT, (size.batch, 3, size.side, size.side))
    graph.output(unet(InferenceLayers(graph, seed), image, size))
    return graph.model()


def resnet(layers: Layers, x: str, size: ResNetSize) -> str:
    """He et al., "Deep Residual Learning" (2015), with the grouped convolutions of ResNeXt."""
    graph = layers.graph
    with graph.scope("stem"):
        x = layers.conv_norm_relu(x, size.widths[0])
    for stage, width in enumerate(size.widths):
        for block in range(size.blocks):
            with graph.scope(f"stage{stage}.block{block}"):
                stride = 2 if stage > 0 and block == 0 else 1
                x = _residual_block(layers, x, width, stride, size.group)
    with graph.scope("head"):
        pooled = graph.op("GlobalAveragePool", x)
        return layers.linear(graph.op("Flatten", pooled), size.classes)


def _residual_block(layers: Layers, x: str, width: int, stride: int, group: int) -> str:
    graph = layers.graph
    shortcut = x
    if stride != 1 or layers.channels(x) != width:
        with graph.scope("shortcut"):
            shortcut = layers.batch_norm(layers.conv(x, width, kernel=1, stride=stride))
    with graph.scope("conv0"):
        y = layers.conv_norm_relu(x, width, stride=stride)
    with graph.scope("conv1"):
        y = layers.batch_norm(layers.conv(y, width, group=group))
    return graph.op("Relu", graph.op("Add", y, shortcut))


def cnn_train(size: ResNetSize) -> onnx.ModelProto:
    """A training step of a residual network; loss and updated parameters are the outputs."""
    graph = GraphBuilder("cnn_train")
    image = graph.input("image", TensorProto.FLOAT, (size.batch, 3, size.side, size.side))
    target = graph.input("target", TensorProto.INT64, (size.batch,))
    layers = TrainingLayers(graph)
    loss = cross_entropy(graph, resnet(layers, image, size), target)
    output_sgd_updates(layers, loss, rate=0.01)
    return graph.model()
