"""What gradient rules have in common: the graph they extend, and the registry by operator."""

from collections.abc import Callable, Sequence

from onnx import NodeProto, helper

from sample_models.graph_builder import GraphBuilder

# Operators that read no more of their input than its shape.
SHAPE_READERS = frozenset({"RandomNormalLike", "RandomUniformLike", "Shape", "Size"})


class Backward:
    """The graph being extended, and which of its values the parameters reach."""

    def __init__(self, graph: GraphBuilder, parameters: Sequence[str]) -> None:
        self.graph = graph
        self._reached = set(parameters)
        for node in graph.nodes:
            if node.op_type in SHAPE_READERS:
                continue
            if self._reached.intersection(node.input):
                self._reached.update(node.output)

    def needs(self, value: str) -> bool:
        """Tell whether the gradient of a value is wanted."""
        return value in self._reached


Gradients = Sequence[str | None]
Rule = Callable[[Backward, NodeProto, Gradients], Gradients]
SingleRule = Callable[[Backward, NodeProto, str], Gradients]

RULES: dict[str, Rule] = {}


class NotDifferentiableError(ValueError):
    """A gradient was asked for through a node or an attribute that no rule covers."""


def multi_output_rule(*op_types: str) -> Callable[[Rule], Rule]:
    """Register a rule which takes the gradient of every output (None where there is none)."""

    def register(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(op_types, rule))
        return rule

    return register


def gradient_rule(*op_types: str) -> Callable[[SingleRule], SingleRule]:
    """Register a rule for operators of which only output 0 carries a gradient.

    The rule returns one gradient for each input, or None where no gradient is wanted.
    """

    def register(rule: SingleRule) -> SingleRule:
        def checked(backward: Backward, node: NodeProto, gradients: Gradients) -> Gradients:
            first, *others = gradients
            if first is None or any(other is not None for other in others):
                raise NotDifferentiableError(f"{node.name}: gradient through a side output")
            return rule(backward, node, first)

        multi_output_rule(*op_types)(checked)
        return rule

    return register


def attribute(node: NodeProto, name: str, default: object) -> object:
    """Return a node's attribute value, or the default."""
    for candidate in node.attribute:
        if candidate.name == name:
            return helper.get_attribute_value(candidate)
    return default


def integer(node: NodeProto, name: str, default: int) -> int:
    """Return a node's integer attribute."""
    value = attribute(node, name, default)
    if not isinstance(value, int):
        raise NotDifferentiableError(f"{node.name}: attribute {name} is not an integer")
    return value


def require(node: NodeProto, fact: bool, what: str) -> None:
    """Raise NotDifferentiableError unless the fact that a rule rests on holds."""
    if not fact:
        raise NotDifferentiableError(f"{node.name} ({node.op_type}): {what}")
