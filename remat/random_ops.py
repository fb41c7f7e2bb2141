"""Ops whose results differ from run to run, and the seeds that make them repeat themselves.

A kernel with a seed draws the same numbers in the first run of every session, whatever runs
before it: each node has a generator of its own. Observed on ONNX Runtime's CPU provider for every
op listed here that a model can hold before it is optimized.
"""

from collections.abc import Mapping, Sequence

from onnx import ModelProto, NodeProto

from remat.onnx_io import all_nodes, read_names, subgraph_nodes

# Their results differ from run to run, so a second execution is a different value.
RANDOM_OPS = frozenset(
    {
        "Bernoulli",
        "BiasDropout",
        "BitmaskBiasDropout",
        "BitmaskDropout",
        "Dropout",
        "Multinomial",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
    }
)
SEED = "seed"


def is_random(node: NodeProto) -> bool:
    """Whether the node, or one in its subgraphs, draws numbers, seeded or not."""
    return any(one.op_type in RANDOM_OPS for one in (node, *subgraph_nodes(node)))


def unseeded(model: ModelProto) -> tuple[str, ...]:
    """The first outputs of the random nodes without a seed, those of subgraphs included."""
    return tuple(node.output[0] for node in all_nodes(model.graph) if _is_unseeded(node))


def unrepeatable(model: ModelProto) -> frozenset[str]:
    """Values that differ from run to run: those of random ops without a seed, and what follows."""
    found: set[str] = set()
    for node in model.graph.node:
        draws = any(_is_unseeded(one) for one in (node, *subgraph_nodes(node)))
        if draws or any(name in found for name in read_names(node)):
            found.update(node.output)
    return frozenset(found)


def seeds_for(models: Sequence[ModelProto]) -> dict[str, int]:
    """A seed for every random node without one, by its first output.

    Where all models call these outputs the same, each has a seed of its own, so that an exchange
    of two would show; else all have one seed.
    """
    names = [sorted(unseeded(model)) for model in models]
    apart = all(one == names[0] for one in names)
    known = sorted({name for one in names for name in one})
    return {name: 1 + (number if apart else 0) for number, name in enumerate(known)}


def give_seeds(model: ModelProto, seeds: Mapping[str, int]) -> None:
    """Put the seeds on the random nodes without one, in place."""
    for node in all_nodes(model.graph):
        if _is_unseeded(node):
            attribute = node.attribute.add(name=SEED)
            # The standard's generators take a float, dropout an integer.
            if "Dropout" in node.op_type:
                attribute.type, attribute.i = attribute.INT, seeds[node.output[0]]
            else:
                attribute.type, attribute.f = attribute.FLOAT, seeds[node.output[0]]


def _is_unseeded(node: NodeProto) -> bool:
    seeded = any(attribute.name == SEED for attribute in node.attribute)
    return node.op_type in RANDOM_OPS and not seeded
