"""Layers of neural networks, written once for training and for inference.

The two differ in where weights come from, in the mode of the normalization and in what the
backward pass wants kept: `TrainingLayers` and `InferenceLayers` each say so in one place.
"""

from abc import ABC, abstractmethod
from math import prod, sqrt

import numpy as np
from onnx import TensorProto

from sample_models.graph_builder import GraphBuilder


def stored_statistic(
    graph: GraphBuilder, random: np.random.RandomState, name: str, channels: int
) -> str:
    """Return an initializer of positive values, one a channel, as normalization stores them."""
    values = random.uniform(0.1, 1.1, size=channels)
    return graph.initializer(name, values.astype(np.float32))


class Layers(ABC):
    """Layers over NCHW images and (batch, tokens, features) sequences, added to a graph."""

    def __init__(self, graph: GraphBuilder) -> None:
        self.graph = graph

    @abstractmethod
    def weight(self, name: str, shape: tuple[int, ...]) -> str:
        """Return a float32 weight of this shape; axis 0 counts the outputs of a unit."""

    @abstractmethod
    def batch_norm(self, x: str) -> str:
        """Normalize each channel."""

    @abstractmethod
    def max_pool(self, x: str) -> str:
        """Halve height and width."""

    def channels(self, x: str) -> int:
        """Return the channel count of an image, the one dimension that is always static."""
        count = self.graph.dimensions(x)[1]
        if isinstance(count, int):
            return count
        raise ValueError(f"{x!r} has a dynamic channel count")

    def conv(self, x: str, channels: int, kernel: int = 3, stride: int = 1, group: int = 1) -> str:
        """Convolve with the padding that keeps the size at stride 1; no bias."""
        shape = (channels, self.channels(x) // group, kernel, kernel)
        weight = self.weight("weight", shape)
        pads = [kernel // 2] * 4
        return self.graph.op("Conv", x, weight, pads=pads, strides=[stride] * 2, group=group)

    def conv_bias(self, x: str, channels: int, kernel: int = 1) -> str:
        """Convolve with a bias, for layers that no normalization follows."""
        weight = self.weight("weight", (channels, self.channels(x), kernel, kernel))
        bias = self.weight("bias", (channels,))
        return self.graph.op("Conv", x, weight, bias, pads=[kernel // 2] * 4)

    def up_conv(self, x: str, channels: int) -> str:
        """Double height and width by a transposed convolution."""
        weight = self.weight("weight", (self.channels(x), channels, 2, 2))
        bias = self.weight("bias", (channels,))
        return self.graph.op("ConvTranspose", x, weight, bias, strides=[2, 2])

    def conv_norm_relu(self, x: str, channels: int, stride: int = 1, group: int = 1) -> str:
        """Convolution, normalization, Relu."""
        y = self.conv(x, channels, stride=stride, group=group)
        return self.graph.op("Relu", self.batch_norm(y))

    def linear(self, x: str, features: int) -> str:
        """Map the last axis; x may have any rank."""
        weight = self.weight("weight", (self.graph.shape(x)[-1], features))
        product = self.graph.op("MatMul", x, weight)
        return self.graph.op("Add", product, self.weight("bias", (features,)))

    def layer_norm(self, x: str) -> str:
        """Normalize the last axis."""
        features = (self.graph.shape(x)[-1],)
        scale, bias = self.weight("scale", features), self.weight("bias", features)
        return self.graph.ops("LayerNormalization", [x, scale, bias], 3, axis=-1)[0]


class TrainingLayers(Layers):
    """Weights are graph inputs; the statistics and places the backward pass reads are kept."""

    def __init__(self, graph: GraphBuilder) -> None:
        super().__init__(graph)
        self.parameters: list[str] = []
        self._random = np.random.RandomState(0)

    def weight(self, name: str, shape: tuple[int, ...]) -> str:
        """Return a graph input, recorded as a parameter to be trained."""
        parameter = self.graph.input(name, TensorProto.FLOAT, shape)
        self.parameters.append(parameter)
        return parameter

    def batch_norm(self, x: str) -> str:
        """Normalize by the statistics of the batch; momentum 0 makes them outputs.

        ONNX Runtime writes outputs 1 and 2 over the buffers of inputs 3 and 4, whoever else reads
        those, and its optimizer merges equal initializers. Each node therefore has running
        statistics of its own and unlike any other's: two nodes that shared them would both end
        with the statistics of the later one. Momentum 0 makes the values themselves irrelevant.
        """
        channels = self.channels(x)
        scale, bias = self.weight("scale", (channels,)), self.weight("shift", (channels,))
        mean = stored_statistic(self.graph, self._random, "running_mean", channels)
        variance = stored_statistic(self.graph, self._random, "running_variance", channels)
        inputs = [x, scale, bias, mean, variance]
        outputs = self.graph.ops("BatchNormalization", inputs, 3, training_mode=1, momentum=0.0)
        return outputs[0]

    def max_pool(self, x: str) -> str:
        """Halve height and width, keeping the places of the maxima."""
        return self.graph.ops("MaxPool", [x], 2, kernel_shape=[2, 2], strides=[2, 2])[0]


class InferenceLayers(Layers):
    """Weights are seeded initializers; normalization uses stored statistics.

    The frozen legacy stream of numpy is used, uniform values only, so that the bytes do not
    depend on the version of numpy or of the C library.
    """

    def __init__(self, graph: GraphBuilder, seed: int) -> None:
        super().__init__(graph)
        self._random = np.random.RandomState(seed)

    def weight(self, name: str, shape: tuple[int, ...]) -> str:
        """Return an initializer scaled to keep the variance of what it is applied to."""
        fan_in = max(prod(shape[1:]), 1)
        bound = sqrt(3.0 / fan_in) if len(shape) > 1 else 0.1
        values = self._random.uniform(-bound, bound, size=shape)
        return self.graph.initializer(name, values.astype(np.float32))

    def batch_norm(self, x: str) -> str:
        """Normalize by stored statistics."""
        channels = self.channels(x)
        names = ("scale", "shift", "mean", "variance")
        stored = [stored_statistic(self.graph, self._random, name, channels) for name in names]
        return self.graph.op("BatchNormalization", x, *stored)

    def max_pool(self, x: str) -> str:
        """Halve height and width."""
        return self.graph.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
