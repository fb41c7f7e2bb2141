"""Graphs whose peak memory hangs on one thing: the order of nodes, or one wide expression."""

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto

from sample_models.graph_builder import GraphBuilder


@dataclass(frozen=True)
class BranchesSize:
    """Each of `count` branches widens (rows, 1) to (rows, columns)."""

    count: int
    rows: int
    columns: int


def branches(size: BranchesSize, seed: int) -> onnx.ModelProto:
    """Branches that each widen the input and reduce it again, gated by the branch after them.

    The last branch alone can start; run from it backwards, two wide tensors are live at a time.
    In file order, breadth first, all are. Depth first from the output, as ONNX Runtime orders by
    default, is no better: each gate's wide operand stands later in the file than the summary it
    waits for, and is therefore visited, and held, first.
    """
    graph = GraphBuilder("branches")
    x = graph.input("x", TensorProto.FLOAT, (size.rows, 1))
    random = np.random.RandomState(seed)
    wide = []
    for index in range(size.count):
        values = random.uniform(-1.0, 1.0, size=(1, size.columns)).astype(np.float32)
        weight = graph.initializer(f"weight{index}", values)
        wide.append(graph.op("Mul", x, weight, name=f"widen{index}"))
    summaries = [x]
    for index in reversed(range(size.count)):
        activated = graph.op("Sigmoid", wide[index], name=f"activate{index}")
        gated = graph.op("Mul", activated, summaries[-1], name=f"gate{index}")
        axes = graph.integers([1])
        summaries.append(graph.op("ReduceMean", gated, axes, keepdims=1, name=f"summary{index}"))
    graph.output(graph.op("Concat", *summaries[1:], axis=1, name="summaries"))
    return graph.model()


@dataclass(frozen=True)
class NeighboursSize:
    """Sizes of a nearest-neighbour search among points of three coordinates."""

    queries: int
    points: int
    neighbours: int


def knn(size: NeighboursSize) -> onnx.ModelProto:
    """The nearest points of each query by naive pairwise differences (queries, points, 3)."""
    graph = GraphBuilder("knn")
    queries = graph.input("queries", TensorProto.FLOAT, (size.queries, 3))
    points = graph.input("points", TensorProto.FLOAT, (size.points, 3))
    rows = graph.op("Unsqueeze", queries, graph.integers([1]), name="query_rows")
    columns = graph.op("Unsqueeze", points, graph.integers([0]), name="point_columns")
    difference = graph.op("Sub", rows, columns, name="difference")
    square = graph.op("Mul", difference, difference, name="square")
    distance = graph.op("ReduceSum", square, graph.integers([2]), keepdims=0, name="distance")
    count = graph.integers([size.neighbours])
    nearest, indices = graph.ops("TopK", [distance, count], 2, name="nearest", axis=1, largest=0)
    graph.output(graph.op("Sqrt", nearest, name="nearest_distance"))
    graph.output(indices)
    return graph.model()
