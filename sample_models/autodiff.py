"""Reverse-mode automatic differentiation over an ONNX graph under construction.

The reverse accumulation of Griewank and Walther, "Evaluating Derivatives" (2nd ed., chapter 3):
nodes are visited backwards, each adds the contribution of its outputs' gradients to those of its
inputs. The result is ordinary ONNX: the backward pass is appended to the forward one, and reads
the forward values it needs, which is what makes a training step hungry for memory.
"""

from collections.abc import Sequence

from onnx import NodeProto

from sample_models import gradient_rules, gradient_rules_nn
from sample_models.backward import RULES, Backward, Gradients, NotDifferentiableError
from sample_models.graph_builder import GraphBuilder

# The rule modules register themselves; naming them keeps the imports honest.
RULE_MODULES = (gradient_rules, gradient_rules_nn)


def gradients(graph: GraphBuilder, loss: str, parameters: Sequence[str]) -> dict[str, str]:
    """Append the backward pass of a scalar loss; return the gradient of each parameter by name.

    A gradient of several contributions is summed as they come, so that no two partial sums are
    kept. Raises NotDifferentiableError when a node has no rule or a parameter is not reached.
    """
    backward = Backward(graph, parameters)
    totals = {loss: graph.scalar(1.0)}
    for node in reversed(list(graph.nodes)):
        if not any(backward.needs(value) for value in node.input):
            continue
        incoming = [totals.pop(value, None) for value in node.output]
        if all(gradient is None for gradient in incoming):
            continue
        if node.op_type not in RULES:
            raise NotDifferentiableError(f"{node.name}: no gradient rule for {node.op_type}")
        with graph.scope(f"grad.{node.name}"):
            outgoing = RULES[node.op_type](backward, node, incoming)
            _accumulate(backward, totals, node, outgoing)
    missing = [parameter for parameter in parameters if parameter not in totals]
    if missing:
        raise NotDifferentiableError(f"the loss does not depend on {missing}")
    return {parameter: totals[parameter] for parameter in parameters}


def _accumulate(
    backward: Backward, totals: dict[str, str], node: NodeProto, outgoing: Gradients
) -> None:
    for value, gradient in zip(node.input, outgoing, strict=True):
        if gradient is None or not backward.needs(value):
            continue
        if value in totals:
            gradient = backward.graph.op("Add", totals[value], gradient, name="accumulate")
        totals[value] = gradient
