"""Node-link graphs (networkx), the form in which others publish scheduling problems.

The graphs of Checkmate (MLSys 2020) and Moccasin (ICML 2023) have one output per node: `cost_cpu`
or `duration` is its time, `cost_ram` or `out_cost` its bytes. A link goes from `source` to
`target`, or from `0` to `1`. The order is `graph.order`, or else the topological order that
networkx finds, which is what the published figures start from. Nothing is kept to the end and
`param_cost` is ignored, as there.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import networkx

from remat.problem import NONE, Problem
from remat.problem_fields import MOST, list_of, malformed

_TIMES = ("cost_cpu", "duration")
_SIZES = ("cost_ram", "out_cost")


def read_graph(data: Mapping[str, Any], name: str) -> tuple[str, Problem]:
    """The graph's name (`name` if it has none) and the problem, without a limit.

    Raises UsageError R260.
    """
    graph: networkx.DiGraph[Any] = networkx.DiGraph()
    for at, node in enumerate(list_of(data, "nodes", "the graph")):
        key = node.get("id", node.get("name")) if isinstance(node, dict) else None
        if not isinstance(key, int | str) or key in graph:
            raise malformed(f"nodes[{at}] has no id or name of its own")
        graph.add_node(key, **{str(name): value for name, value in node.items()})
    for at, link in enumerate(list_of(data, "links" if "links" in data else "edges", "the graph")):
        source, target = _ends(link)
        if source not in graph or target not in graph:
            raise malformed(f"links[{at}] joins {source!a} and {target!a}, not two nodes")
        graph.add_edge(source, target)
    attributes = data.get("graph")
    attributes = attributes if isinstance(attributes, dict) else {}
    title = attributes.get("name")
    title = title if isinstance(title, str) and title else name
    return title, _one_output_each(graph, _order(graph, attributes.get("order")))


def _ends(link: Any) -> tuple[Any, Any]:
    ends = link if isinstance(link, dict) else {}
    pair = ends.get("source", ends.get("0")), ends.get("target", ends.get("1"))
    return pair if all(isinstance(end, int | str) for end in pair) else (None, None)


def _order(graph: "networkx.DiGraph[Any]", given: Any) -> list[Any]:
    try:
        order = list(networkx.topological_sort(graph))
    except networkx.NetworkXUnfeasible:
        cycle = " -> ".join(str(edge[0]) for edge in networkx.find_cycle(graph))
        raise malformed(f"its links go round: {cycle}") from None
    if not given:
        return order
    names_each = isinstance(given, list) and len(given) == len(order)
    if not names_each or any(isinstance(one, list | dict) for one in given):
        raise malformed("graph.order does not name each node once")
    place = {key: at for at, key in enumerate(given)}
    if set(place) != set(order):
        raise malformed("graph.order does not name each node once")
    if any(place[source] > place[target] for source, target in graph.edges):
        raise malformed("graph.order puts a node before one that it reads")
    return list(given)


def _one_output_each(graph: "networkx.DiGraph[Any]", order: Sequence[Any]) -> Problem:
    number, n = {key: at for at, key in enumerate(order)}, len(order)
    nodes = [graph.nodes[key] for key in order]
    names = _names(
        order, [str(node.get("name", key)) for key, node in zip(order, nodes, strict=True)]
    )
    return Problem(
        op_names=names,
        time_ns=tuple(_cost(graph.nodes[key], _TIMES, key) for key in order),
        workspace_bytes=(0,) * n,
        reads=tuple(tuple(sorted(number[one] for one in graph.predecessors(key))) for key in order),
        writes=tuple((at,) for at in range(n)),
        value_names=names,
        value_bytes=tuple(_cost(graph.nodes[key], _SIZES, key) for key in order),
        alias_of=(NONE,) * n,
        inplace_of=((),) * n,
        reuse_class=(NONE,) * n,
        kept=frozenset(),
        recomputable=(True,) * n,
        hoisted=(False,) * n,
        limit_bytes=0,
    )


def _names(order: Sequence[Any], labels: Sequence[str]) -> tuple[str, ...]:
    """The labels where they tell the nodes apart, ids beside them elsewhere."""
    if len(set(labels)) == len(labels):
        return tuple(labels)
    return tuple(f"{label} ({key!r})" for key, label in zip(order, labels, strict=True))


def _cost(node: Mapping[str, Any], names: Sequence[str], key: Any) -> int:
    """A cost under the first of these names, rounded up."""
    value = next((node[name] for name in names if name in node), None)
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MOST:
        return math.ceil(value)
    raise malformed(f"node {key!a} has no {' or '.join(names)} from 0 up")
