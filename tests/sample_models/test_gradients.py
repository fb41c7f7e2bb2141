"""Gradients of the training graphs against central differences, in float64."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto

from sample_models.backward import RULES, NotDifferentiableError
from sample_models.graph_builder import GraphBuilder
from sample_models.image_networks import ResNetSize, UNetSize, cnn_train, unet_train
from sample_models.layers import TrainingLayers
from sample_models.special_networks import RandomSize, random_train
from sample_models.training import output_gradients
from sample_models.transformer import TransformerSize, transformer_train
from tests.sample_models.evaluation import Array, evaluate_float64, random_feeds

SGD_RATE = 0.01
STEP = 1e-5

NETWORKS: dict[str, Callable[[], onnx.ModelProto]] = {
    "unet": lambda: unet_train(UNetSize(batch=2, side=8, width=2, depth=2)),
    # An odd side makes the strided convolutions drop a row that their gradient must restore.
    "cnn": lambda: cnn_train(ResNetSize(batch=2, side=9, widths=(4, 6), blocks=1, group=2)),
    "cnn_even": lambda: cnn_train(ResNetSize(batch=2, side=8, widths=(2, 4), blocks=2, group=1)),
    "transformer": lambda: transformer_train(
        TransformerSize(batch=2, tokens=4, features=6, heads=2, layers=2, classes=3)
    ),
    "random": lambda: random_train(RandomSize(batch=3, features=4, hidden=5)),
}


def gradients_of(
    model: onnx.ModelProto, outputs: Mapping[str, Array], feeds: Mapping[str, Array]
) -> dict[str, Array]:
    """Return the gradient of each parameter, taken out of an update where that is the output."""
    result = {}
    for name, array in outputs.items():
        kind, _, parameter = name.partition(".")
        if kind == "gradient":
            result[parameter] = array
        elif kind == "updated":
            result[parameter] = (feeds[parameter].astype(np.float64) - array) / SGD_RATE
    assert len(result) == len(model.graph.output) - 1
    return result


def check_directions(model: onnx.ModelProto, seed: int) -> None:
    """Compare each gradient with the slope of the loss along a random direction."""
    random = np.random.RandomState(seed)
    feeds = random_feeds(model, {}, seed)
    loss = model.graph.output[0].name
    forward = onnx.utils.Extractor(model).extract_model([v.name for v in model.graph.input], [loss])
    gradients = gradients_of(model, evaluate_float64(model, feeds), feeds)
    for parameter, gradient in gradients.items():
        point = feeds[parameter].astype(np.float64)
        assert gradient.shape == point.shape
        direction = random.standard_normal(point.shape)
        after = evaluate_float64(forward, {**feeds, parameter: point + STEP * direction})[loss]
        before = evaluate_float64(forward, {**feeds, parameter: point - STEP * direction})[loss]
        slope = float(after - before) / (2 * STEP)
        assert float(np.sum(gradient * direction)) == pytest.approx(slope, rel=1e-5, abs=1e-6), (
            parameter
        )


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("seed", [0, 1])
def test_network_gradients(name: str, seed: int) -> None:
    check_directions(NETWORKS[name](), seed)


@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "random"])
def test_onnxruntime_agrees(name: str) -> None:
    """The graphs mean the same in float32; random numbers differ between the two engines."""
    model = NETWORKS[name]()
    feeds = random_feeds(model, {}, seed=2)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    expected = evaluate_float64(model, feeds)
    for value, array in zip(model.graph.output, session.run(None, feeds), strict=True):
        wanted = expected[value.name]
        scale = max(1.0, float(np.abs(wanted).max()))
        assert float(np.abs(array - wanted).max()) <= 2e-3 * scale, value.name


Case = Callable[[TrainingLayers], str]


def _unary(op_type: str, **attributes: Any) -> Case:
    return lambda layers: layers.graph.op(op_type, layers.weight("x", (2, 3, 4)), **attributes)


def _binary(op_type: str, left: tuple[int, ...], right: tuple[int, ...]) -> Case:
    return lambda layers: layers.graph.op(
        op_type, layers.weight("a", left), layers.weight("b", right)
    )


def _conv(op_type: str, weight: tuple[int, ...], **attributes: Any) -> Case:
    def build(layers: TrainingLayers) -> str:
        x = layers.weight("x", (2, 4, 6, 5))
        kernel = layers.weight("w", weight)
        channels = weight[0]
        if op_type == "ConvTranspose":
            channels = weight[1] * int(attributes.get("group", 1))
        bias = layers.weight("b", (channels,))
        return layers.graph.op(op_type, x, kernel, bias, **attributes)

    return build


def _gemm(trans_a: int, trans_b: int) -> Case:
    def build(layers: TrainingLayers) -> str:
        a = layers.weight("a", (4, 2) if trans_a else (2, 4))
        b = layers.weight("b", (3, 4) if trans_b else (4, 3))
        c = layers.weight("c", (3,))
        return layers.graph.op("Gemm", a, b, c, transA=trans_a, transB=trans_b)

    return build


def _reduce(op_type: str, axes: list[int], keepdims: int) -> Case:
    return lambda layers: layers.graph.op(
        op_type,
        layers.weight("x", (2, 3, 4)),
        layers.graph.integers(axes),
        keepdims=keepdims,
    )


def _split(layers: TrainingLayers) -> str:
    graph = layers.graph
    sizes = graph.integers([1, 3])
    first, second = graph.ops("Split", [layers.weight("x", (2, 4)), sizes], 2, axis=1)
    return graph.op("Mul", first, second)


def _reshape(layers: TrainingLayers) -> str:
    graph = layers.graph
    x = graph.op("Unsqueeze", layers.weight("x", (2, 3)), graph.integers([1]))
    x = graph.op("Flatten", graph.op("Reshape", x, graph.integers([3, 1, 2])))
    y = graph.op("Squeeze", layers.weight("y", (3, 1, 2)), graph.integers([1]))
    return graph.op("Mul", x, y)


def _overlapping_pool(layers: TrainingLayers) -> str:
    x = layers.weight("x", (2, 2, 5, 5))
    return layers.graph.ops("MaxPool", [x], 2, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)[0]


def _shared(layers: TrainingLayers) -> str:
    """One value read three times, once twice by the same node."""
    graph = layers.graph
    x = layers.weight("x", (2, 3))
    return graph.op("Add", graph.op("Mul", x, x), graph.op("Tanh", x))


CASES: dict[str, Case] = {
    **{name: _unary(name) for name in ("Relu", "Sigmoid", "Tanh", "Exp", "Erf", "Gelu", "Neg")},
    "softmax_last": _unary("Softmax", axis=-1),
    "softmax_middle": _unary("Softmax", axis=1),
    "transpose": _unary("Transpose", perm=[2, 0, 1]),
    "transpose_default": _unary("Transpose"),
    "pool_global": lambda layers: layers.graph.op(
        "GlobalAveragePool", layers.weight("x", (2, 3, 4, 4))
    ),
    "pool_overlapping": _overlapping_pool,
    "reduce_sum": _reduce("ReduceSum", [0, -1], 0),
    "reduce_mean": _reduce("ReduceMean", [1], 1),
    **{f"{name}_broadcast": _binary(name, (2, 3, 4), (3, 1)) for name in ("Add", "Mul", "Sub")},
    "div_broadcast": _binary("Div", (3, 1), (2, 3, 4)),
    "matmul_flat": _binary("MatMul", (2, 3, 4), (4, 5)),
    "matmul_batched": _binary("MatMul", (2, 3, 4), (2, 4, 5)),
    "matmul_broadcast": _binary("MatMul", (2, 3, 4), (5, 1, 4, 2)),
    **{f"gemm_{a}{b}": _gemm(a, b) for a in (0, 1) for b in (0, 1)},
    "conv_strided": _conv("Conv", (3, 4, 3, 2), strides=[2, 2], pads=[1, 0, 1, 1]),
    "conv_dilated": _conv("Conv", (3, 4, 2, 2), dilations=[2, 3]),
    "conv_grouped": _conv("Conv", (6, 2, 3, 3), group=2, strides=[2, 1], pads=[1] * 4),
    "conv_depthwise": _conv("Conv", (4, 1, 3, 3), group=4, pads=[1] * 4),
    "conv_up": _conv("ConvTranspose", (4, 3, 2, 2), strides=[2, 2]),
    "conv_up_grouped": _conv("ConvTranspose", (4, 3, 3, 3), group=2, strides=[2, 2], pads=[1] * 4),
    "split": _split,
    "reshape": _reshape,
    "shared": _shared,
}


def build_case(case: Case) -> onnx.ModelProto:
    """A training graph whose loss weighs the elements of the case's output unequally."""
    graph = GraphBuilder("case")
    layers = TrainingLayers(graph)
    y = case(layers)
    weights = graph.input("weights", TensorProto.FLOAT, graph.shape(y))
    loss = graph.op("ReduceSum", graph.op("Mul", y, weights), keepdims=0, name="loss")
    graph.output(loss)
    output_gradients(layers, loss)
    return graph.model()


@pytest.mark.parametrize("name", CASES)
def test_rule(name: str) -> None:
    model = build_case(CASES[name])
    onnx.checker.check_model(model, full_check=True)
    check_directions(model, seed=3)


def test_every_rule_is_exercised() -> None:
    models = [*(build() for build in NETWORKS.values()), *map(build_case, CASES.values())]
    forward = {
        node.op_type
        for model in models
        for node in model.graph.node
        if not node.name.startswith("grad")
    }
    assert set(RULES) <= forward


@pytest.mark.parametrize("name", NETWORKS)
def test_no_dead_nodes(name: str) -> None:
    graph = NETWORKS[name]().graph
    read = {value for node in graph.node for value in node.input}
    read.update(value.name for value in graph.output)
    dead = [node.name for node in graph.node if not read.intersection(node.output)]
    assert dead == []


def test_an_operator_without_rule_is_refused() -> None:
    with pytest.raises(NotDifferentiableError, match="no gradient rule for Cos"):
        build_case(lambda layers: layers.graph.op("Cos", layers.weight("x", (2,))))


def test_a_parameter_outside_the_loss_is_refused() -> None:
    def build(layers: TrainingLayers) -> str:
        layers.weight("unused", (2,))
        return layers.weight("x", (2,))

    with pytest.raises(NotDifferentiableError, match="unused"):
        build_case(build)


def test_inference_mode_normalization_is_refused() -> None:
    def build(layers: TrainingLayers) -> str:
        weights = [layers.weight(name, (3,)) for name in ("scale", "shift", "mean", "variance")]
        return layers.graph.op("BatchNormalization", layers.weight("x", (2, 3, 4, 4)), *weights)

    with pytest.raises(NotDifferentiableError, match="training mode"):
        build_case(build)
