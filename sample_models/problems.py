"""Scheduling problems of the families that papers on rematerialization use, as JSON.

    python sample_models/problems.py FAMILY SIZE [SEED] > problem.json

    unet DEPTH           training steps: a network and its backward part, op by op, where the
    residual BLOCKS      backward op of f reads the gradients of what f made, f's inputs and, if f
    transformer LAYERS   is one whose gradient needs it, its output (as in Checkmate's graphs)
    chain OPS
    layered OPS          random layers with links between neighbours and skips over some, times
                         and sizes drawn alike (after Gagrani et al., NeurIPS 2022, appendix A)

The same arguments give the same bytes. One output per op; nothing is kept to the end.
"""

import itertools
import json
import math
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Network:
    """Forward ops in order: time, bytes, what each reads, whether its gradient needs its output."""

    seed: int
    time: list[int] = field(default_factory=list)
    size: list[int] = field(default_factory=list)
    reads: list[tuple[int, ...]] = field(default_factory=list)
    needs_output: list[bool] = field(default_factory=list)

    def op(self, time: int, size: int, *reads: int, needs_output: bool = False) -> int:
        """Add an op, up to a tenth slower than `time`; its number."""
        draw = random.Random(1000 * self.seed + len(self.time))
        self.time.append(time + draw.randrange(0, max(1, time // 10)))
        self.size.append(size)
        self.reads.append(reads)
        self.needs_output.append(needs_output)
        return len(self.time) - 1


Row = dict[str, object]


def row(name: str, time: int, size: int, reads: Sequence[str]) -> Row:
    """An op with one output of its own name."""
    written = {"name": name, "bytes": size}
    return {"name": name, "time_ns": time, "reads": list(reads), "writes": [written]}


def training(network: Network) -> list[Row]:
    """The network, a loss over what nothing reads, and a gradient of each op in reverse."""
    count = len(network.time)
    users: list[list[int]] = [[] for _ in range(count)]
    for op, reads in enumerate(network.reads):
        for source in dict.fromkeys(reads):
            users[source].append(op)
    names = [f"f{op}" for op in range(count)]
    rows = [
        row(names[op], network.time[op], network.size[op], [names[r] for r in network.reads[op]])
        for op in range(count)
    ]
    ends = [names[op] for op in range(count) if not users[op]]
    rows.append(row("loss", min(network.time), max(1, min(network.size) // 4), ends))
    for op in reversed(range(count)):
        inputs = list(dict.fromkeys(network.reads[op]))
        # Its result are the gradients of its inputs; where it has none, those of its weights.
        size = sum(network.size[r] for r in inputs) or max(1, network.size[op] // 8)
        gradients = [f"b{user}" for user in users[op]] or ["loss"]
        own = [names[op]] if network.needs_output[op] else []
        sources = [*gradients, *(names[r] for r in inputs), *own]
        rows.append(row(f"b{op}", 2 * network.time[op], size, sources))
    return rows


def chain(ops: int, seed: int) -> list[Row]:
    """Convolution, normalization and activation in turn, halved in size four times."""
    net = Network(seed)
    for number in range(ops):
        time, before = (400, 60, 40)[number % 3], range(max(0, number - 1), number)
        net.op(time, 4096 >> (number * 5 // ops), *before, needs_output=number % 3 != 0)
    return training(net)


def unet(depth: int, seed: int) -> list[Row]:
    """Halving and doubling, with a skip from each level to its counterpart."""
    net, skips = Network(seed), []
    last = net.op(200, 2048)
    for level in range(depth):
        size = 4096 >> level
        for _ in range(2):
            last = net.op(30, size, net.op(300, size, last), needs_output=True)
        skips.append(last)
        last = net.op(50, size // 4, last, needs_output=True)
    for _ in range(2):
        last = net.op(300, 4096 >> depth, last)
    for level in reversed(range(depth)):
        size = 4096 >> level
        last = net.op(40, 2 * size, net.op(150, size, last), skips[level])
        for _ in range(2):
            last = net.op(30, size, net.op(300, size, last), needs_output=True)
    return training(net)


def residual(blocks: int, seed: int) -> list[Row]:
    """Bottleneck blocks, each added to its input, halved in size three times."""
    net = Network(seed)
    last = net.op(300, 4096)
    for block in range(blocks):
        size = 4096 >> (block * 4 // blocks)
        inner = net.op(30, size // 4, net.op(200, size // 4, last), needs_output=True)
        inner = net.op(30, size // 4, net.op(350, size // 4, inner), needs_output=True)
        last = net.op(40, size, net.op(200, size, inner), last)
    net.op(20, 16, last)
    return training(net)


def transformer(layers: int, seed: int) -> list[Row]:
    """Attention and a feed-forward part per layer, the scores four times as large as the rest."""
    net, width = Network(seed), 512
    last = net.op(20, width)
    for _ in range(layers):
        normed = net.op(15, width, last)
        query, key, value = (net.op(100, width, normed) for _ in range(3))
        scores = net.op(40, 4 * width, net.op(60, 4 * width, query, key), needs_output=True)
        mixed = net.op(100, width, net.op(60, width, scores, value))
        last = net.op(10, width, mixed, last)
        wide = net.op(30, 4 * width, net.op(400, 4 * width, net.op(15, width, last)))
        last = net.op(10, width, net.op(400, width, wide), last)
    return training(net)


def layered(ops: int, seed: int) -> list[Row]:
    """Random layers: each op reads a fifth of the layer before, and one link in seven skips."""
    draw = random.Random(seed)
    mean = max(2, round(math.sqrt(ops) / 2))
    layers: list[list[int]] = []
    while (made := sum(map(len, layers))) < ops:
        width = min(ops - made, max(1, round(draw.gauss(mean, mean * 3 / 8))))
        layers.append(list(range(made, made + width)))
    reads: list[set[int]] = [set() for _ in range(ops)]
    for before, layer in itertools.pairwise(layers):
        for op in layer:
            reads[op] = {one for one in before if draw.random() < 0.2} or {draw.choice(before)}
    for _ in range(sum(map(len, reads)) // 7 if len(layers) > 2 else 0):
        source = draw.randrange(len(layers) - 2)
        target = draw.randrange(source + 2, len(layers))
        reads[draw.choice(layers[target])].add(draw.choice(layers[source]))
    return [
        row(
            f"n{op}",
            draw.randrange(1, 1001),
            draw.randrange(1, 1001),
            [f"n{r}" for r in sorted(reads[op])],
        )
        for op in range(ops)
    ]


FAMILIES: dict[str, Callable[[int, int], list[Row]]] = {
    family.__name__: family for family in (chain, layered, residual, transformer, unet)
}


def text(family: str, size: int, seed: int = 0) -> str:
    """The problem's file, without a budget."""
    rows = ",".join(f"\n    {json.dumps(one)}" for one in FAMILIES[family](size, seed))
    name = f"{family}-{size}" + (f"-{seed}" if seed else "")
    head = {"format": "remat.problem", "version": 1, "name": name}
    lines = "".join(f"  {json.dumps(key)}: {json.dumps(value)},\n" for key, value in head.items())
    return "{\n" + lines + f'  "ops": [{rows}\n  ]\n' + "}\n"


def main(arguments: Sequence[str]) -> int:
    """Print a problem; 2 where the arguments name none."""
    numbers = arguments[1:]
    is_known = len(arguments) in (2, 3) and arguments[0] in FAMILIES
    if not is_known or not all(one.isascii() and one.isdecimal() for one in numbers):
        print(__doc__, file=sys.stderr)
        return 2
    size, seed = int(numbers[0]), int(numbers[1]) if len(numbers) > 1 else 0
    if size < 1:
        print("SIZE is at least 1", file=sys.stderr)
        return 2
    sys.stdout.write(text(arguments[0], size, seed))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
