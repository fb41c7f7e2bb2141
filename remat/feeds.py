"""Inputs to run a model on: the caller's own, or made up so that most models accept them.

Floats are standard normal, integers 0 or 1 (valid as labels, ids and masks nearly everywhere),
except that an integer input which the graph compares with a constant takes that constant (a
sampling rate, say). Strings are single letters.
"""

import math
import os
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt
import onnx
from onnx import ModelProto, TensorProto, numpy_helper

from remat.errors import BadModel, UsageError
from remat.files import whole
from remat.onnx_io import caller_inputs, subgraphs_of
from remat.units import format_bytes

Array = npt.NDArray[np.generic]

# The runtime returns most 8-bit floats as raw bytes, but none of these.
NOT_RETURNED = frozenset(
    getattr(TensorProto, name)
    for name in ("BFLOAT16", "INT4", "UINT4", "INT2", "UINT2", "FLOAT4E2M1", "FLOAT8E8M0")
    if hasattr(TensorProto, name)  # some are younger than the oldest onnx that we run on
)


def make(model: ModelProto, seed: int) -> dict[str, Array]:
    """One array per input of a model whose dimensions are all bound.

    Raises BadModel R504 for an input that is no tensor, or of a type that numpy lacks, and
    UsageError R232 where the inputs are larger than this machine's memory.
    """
    _require_room(model)
    random = np.random.default_rng(seed)
    compared = _compared_with(model)
    return {info.name: _array(info, random, compared) for info in caller_inputs(model)}


def _require_room(model: ModelProto) -> None:
    total = sum(
        _numpy_type(info).itemsize
        * math.prod(dim.dim_value for dim in info.type.tensor_type.shape.dim)
        for info in caller_inputs(model)
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if total > memory:
        room = f"this machine has {format_bytes(memory)} of memory"
        fact = f"the inputs would take {format_bytes(total)}, {room}"
        raise UsageError("R232", fact, fix="use smaller sizes: --dim")


def _array(
    info: onnx.ValueInfoProto, random: np.random.Generator, compared: Mapping[str, int]
) -> Array:
    dtype = _numpy_type(info)
    tensor = info.type.tensor_type
    shape = tuple(dim.dim_value for dim in tensor.shape.dim)
    if tensor.elem_type == TensorProto.STRING:
        return random.choice(np.array(["a", "b", "c"], dtype=object), size=shape)
    if info.name in compared:
        return np.full(shape, compared[info.name], dtype)
    if np.issubdtype(dtype, np.integer) or dtype == np.bool_:
        return random.integers(0, 2, size=shape).astype(dtype)
    if np.issubdtype(dtype, np.complexfloating):
        return (random.standard_normal(shape) + 1j * random.standard_normal(shape)).astype(dtype)
    return np.asarray(random.standard_normal(shape)).astype(dtype)


def _numpy_type(info: onnx.ValueInfoProto) -> np.dtype[np.generic]:
    """The numpy type of an input. Raises BadModel R504 where the runtime takes no such array."""
    _require_tensor("input", info)
    kind = info.type.tensor_type.elem_type
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind))
    if dtype.isbuiltin != 1:
        raise _not_exchanged("input", info)
    return dtype


def require_tensors(model: ModelProto) -> None:
    """Raises BadModel R504 where an input or output is nothing that numpy holds (a sequence, an
    optional, bfloat16, ...): the runtime neither takes nor returns it as an array."""
    for info in caller_inputs(model):
        _numpy_type(info)
    for info in model.graph.output:
        if info.type.WhichOneof("value") is None:
            continue
        _require_tensor("output", info)
        if info.type.tensor_type.elem_type in NOT_RETURNED:
            raise _not_exchanged("output", info)


def _require_tensor(role: str, info: onnx.ValueInfoProto) -> None:
    kind = info.type.WhichOneof("value")
    if kind != "tensor_type":
        found = (kind or "value of no type").replace("_", " ")
        fact = f"{role} {info.name} is a {found}, only tensors are supported"
        raise BadModel("R504", fact)


def _not_exchanged(role: str, info: onnx.ValueInfoProto) -> BadModel:
    name = TensorProto.DataType.Name(info.type.tensor_type.elem_type).lower()
    return BadModel(
        "R504",
        f"{role} {info.name} is a {name} tensor, which the runtime does not exchange with numpy",
        fix="cast it inside the model: float inputs and outputs around it",
    )


def _compared_with(model: ModelProto) -> dict[str, int]:
    """Integer inputs that an Equal compares with a constant, and the first such constant."""
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant":
            for attribute in node.attribute:
                if attribute.name == "value":
                    constants[node.output[0]] = attribute.t
    found: dict[str, int] = {}
    for left, right in _comparisons(model.graph):
        for name, other in ((left, right), (right, left)):
            if other in constants:
                value = numpy_helper.to_array(constants[other])
                if value.size == 1 and np.issubdtype(value.dtype, np.integer):
                    found.setdefault(name, int(value.reshape(-1)[0]))
    return found


def _comparisons(graph: onnx.GraphProto) -> Iterator[tuple[str, str]]:
    for node in graph.node:
        if node.op_type == "Equal":
            yield node.input[0], node.input[1]
        for attribute in node.attribute:
            for inner in subgraphs_of(attribute):
                yield from _comparisons(inner)


_UNREADABLE = (
    *(OSError, ValueError, EOFError, AttributeError, TypeError, KeyError),
    *(NotImplementedError, BadZipFile, zlib.error),
)


def read(path: Path) -> dict[str, Array]:
    """The arrays of an .npz file. Raises UsageError R230 where it is not one."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except _UNREADABLE as error:
        fix = "write it with numpy: np.savez('inputs.npz', **{name: array})"
        why = error.strerror if isinstance(error, OSError) and error.strerror else "no .npz file"
        fact = f"the inputs cannot be read: {why}"
        raise UsageError("R230", fact, place=str(path), fix=fix) from None


def given_or_made(
    arrays: Mapping[str, Array] | None, model: ModelProto, path: Path | None, seed: int
) -> dict[str, Array]:
    """What the caller gave in the file `path`, or what is made up where `arrays` is None."""
    return make(model, seed) if arrays is None else fitting(arrays, model, path)


def fitting(arrays: Mapping[str, Array], model: ModelProto, path: Path | None) -> dict[str, Array]:
    """The arrays that a model takes. Raises UsageError R231 where they do not fit it."""
    for info in caller_inputs(model):
        if info.name not in arrays:
            names = ", ".join(arrays) or "nothing"
            fact = f"no array for input {info.name!r}; the file has {names}"
            raise UsageError("R231", fact, place=str(path))
        _fits(info, arrays[info.name], path)
    return {info.name: arrays[info.name] for info in caller_inputs(model)}


def _fits(info: onnx.ValueInfoProto, array: Array, path: Path | None) -> None:
    tensor, dtype = info.type.tensor_type, _numpy_type(info)
    if array.dtype != dtype and tensor.elem_type != TensorProto.STRING:
        fact = f"input {info.name!r} is {array.dtype}, the model wants {dtype}"
        raise UsageError("R231", fact, place=str(path), fix="convert the array with .astype()")
    wanted = [dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim]
    if not tensor.HasField("shape"):
        return
    pairs = zip(wanted, array.shape, strict=False)
    if len(wanted) != array.ndim or any(w is not None and w != got for w, got in pairs):
        fact = f"input {info.name!r} has shape {array.shape}, the model wants {tuple(wanted)}"
        raise UsageError("R231", fact, place=str(path))


def give_ranks(arrays: Mapping[str, Array], model: ModelProto) -> None:
    """Let inputs without any shape have as many dimensions as the arrays, in place.

    Raises BadModel R515 where there is no array to tell.
    """
    for info in caller_inputs(model):
        tensor = info.type.tensor_type
        if tensor.HasField("shape") or info.type.WhichOneof("value") != "tensor_type":
            continue
        if info.name not in arrays:
            fact = f"input {info.name!r} has no shape, not even a number of dimensions"
            fix = "give real inputs: --inputs x.npz, written with numpy.savez"
            raise BadModel("R515", fact, fix=fix)
        tensor.shape.SetInParent()
        for _ in range(arrays[info.name].ndim):
            tensor.shape.dim.add()


def bind_from(arrays: Mapping[str, Array], model: ModelProto) -> dict[str, int]:
    """The sizes of dynamic dimensions that given inputs imply."""
    dims: dict[str, int] = {}
    for info in caller_inputs(model):
        if info.name not in arrays:
            continue
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            if not dim.HasField("dim_value") and axis < arrays[info.name].ndim:
                dims[dim.dim_param or f"{info.name}.{axis}"] = arrays[info.name].shape[axis]
    return dims


def save(arrays: Mapping[str, Array], path: Path) -> None:
    """Write to .npz (strings as unicode, no pickle)."""
    plain = {
        name: array.astype(str) if array.dtype == object else array
        for name, array in arrays.items()
    }
    np.savez(path, allow_pickle=False, **{f"a{i}": a for i, a in enumerate(plain.values())})
    path.with_suffix(".names").write_text("\n".join(plain))


def load(path: Path) -> dict[str, Array]:
    """What `save` wrote."""
    names = path.with_suffix(".names").read_text().split("\n")
    with np.load(path, allow_pickle=False) as archive:
        arrays = [archive[f"a{i}"] for i in range(len(archive.files))]
    plain = [array.astype(object) if array.dtype.kind == "U" else array for array in arrays]
    return dict(zip(names, plain, strict=False))


def publish(arrays: Mapping[str, Array], path: Path) -> None:
    """Write an .npz keyed by name, whole or not at all."""
    plain = {n: a.astype(str) if a.dtype == object else a for n, a in arrays.items()}
    with whole(path) as partial, partial.open("wb") as stream:
        np.savez(stream, allow_pickle=False, **plain)
