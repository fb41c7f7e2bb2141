"""Turns a forward graph with a loss into a training step."""

from sample_models.autodiff import gradients
from sample_models.graph_builder import GraphBuilder
from sample_models.layers import TrainingLayers


def cross_entropy(graph: GraphBuilder, logits: str, target: str) -> str:
    """Add the mean cross-entropy of logits (N, classes, ...) and make it a graph output."""
    loss, _ = graph.ops("SoftmaxCrossEntropyLoss", [logits, target], 2, name="loss")
    graph.output(loss)
    return loss


def output_gradients(layers: TrainingLayers, loss: str) -> None:
    """Append the backward pass; each parameter's gradient, `gradient.NAME`, is an output."""
    graph = layers.graph
    for parameter, gradient in gradients(graph, loss, layers.parameters).items():
        graph.output(graph.op("Identity", gradient, name=f"gradient.{parameter}"))


def output_sgd_updates(layers: TrainingLayers, loss: str, rate: float) -> None:
    """Append backward pass and a step of gradient descent; `updated.NAME` is an output."""
    graph = layers.graph
    for parameter, gradient in gradients(graph, loss, layers.parameters).items():
        step = graph.op("Mul", gradient, graph.scalar(rate), name=f"step.{parameter}")
        graph.output(graph.op("Sub", parameter, step, name=f"updated.{parameter}"))
