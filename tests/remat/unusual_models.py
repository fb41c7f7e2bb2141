"""Models that ONNX Runtime accepts and that other tools stumble over."""

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

SHAPE = [4, 16, 32]


def model(nodes: list[NodeProto], opset: int = 17, shape: list[int] | None = None) -> ModelProto:
    """`nodes` make y of x; there are constants `two`, `eps`, `gain` and `axes`."""
    constants = {
        "two": np.array(2, np.float32),
        "eps": np.array(1e-5, np.float32),
        "gain": np.linspace(0.5, 1.5, SHAPE[-1], dtype=np.float32),
        "axes": np.array([-1]),
    }
    used = {name for node in nodes for name in node.input}
    return helper.make_model(
        helper.make_graph(
            nodes,
            "unusual",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape or SHAPE)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape or SHAPE)],
            [
                numpy_helper.from_array(constants[name], name)
                for name in sorted(used & {*constants})
            ],
        ),
        opset_imports=[helper.make_opsetid("", opset)],
        ir_version=8,
    )


def normalization(opset: int, *, centered: bool) -> ModelProto:
    """A layer normalization as exporters spell it out, behind a Relu and before another."""
    make = helper.make_node
    nodes = [make("Relu", ["x"], ["r"])]
    if centered:
        nodes += [_mean(opset, "r", "mean"), make("Sub", ["r", "mean"], ["c"])]
    source = "c" if centered else "r"
    nodes += [
        make("Pow", [source, "two"], ["square"]),
        _mean(opset, "square", "variance"),
        make("Add", ["variance", "eps"], ["sum"]),
        make("Sqrt", ["sum"], ["root"]),
        make("Div", [source, "root"], ["unit"]),
        make("Mul", ["unit", "gain"], ["scaled"]),
    ]
    if centered:
        nodes.append(make("Add", ["scaled", "gain"], ["shifted"]))
    return model([*nodes, make("Relu", [nodes[-1].output[0]], ["y"])], opset)


def _mean(opset: int, source: str, target: str) -> NodeProto:
    if opset < 18:
        return helper.make_node("ReduceMean", [source], [target], axes=[-1])
    return helper.make_node("ReduceMean", [source, "axes"], [target])
