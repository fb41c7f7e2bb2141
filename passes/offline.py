"""ONNX Runtime's own graph optimizer, run offline as the first pass.

The optimized graph is what a plain session would run, so scheduling it loses no speed; the
result is then run with optimizations off and stays as scheduled. At the full level the layout
pass writes blocked convolutions (domain com.microsoft.nchwc) that suit only CPUs of one family;
at the extended level the file runs anywhere.
"""

import platform
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
from onnx import ModelProto, TensorProto, helper

from remat.child import Payload
from remat.errors import BadModel
from remat.onnx_io import make_dense, tidy, write
from remat.passes.known_ops import fusions_of, raise_opset, unknown_ops

NCHWC_DOMAIN = "com.microsoft.nchwc"
# Past this size initializers go to a file of their own: a protobuf holds less than 2 GiB.
INLINE_WEIGHTS_LIMIT_BYTES = 1 << 30
WEIGHTS_SUFFIX = ".weights"
MOST_ROUNDS = 4
# A file and line of the runtime's sources, and the function there.
_LOCATION = re.compile(r"/onnxruntime_src/\S+:\d+ [^()]*\([^()]*\)( const)? ")
MOST_TEXT = 300


def optimize_offline(payload: Payload) -> Payload:
    """Run in a fresh process: write payload["target"], the optimized payload["model"].

    Fusions whose ops the standard does not know are left out (`remat.passes.known_ops`).
    Repeated until nothing changes: what one round fuses or inlines gives the next one more to do,
    and a session that loads the result is to find nothing left. `portable` stops at the extended
    level; `external` puts large initializers into TARGET.weights. Raises BadModel R505 where the
    runtime refuses the model.
    """
    target = Path(payload["target"])
    with tempfile.TemporaryDirectory(prefix=".remat-", dir=target.parent) as folder:
        model, result = _until_settled(payload, Path(folder), [])
        given = onnx.load_model(payload["model"], load_external_data=False)
        left_out = fusions_of(unknown_ops(model) - unknown_ops(given))
        if left_out:
            model, result = _until_settled(payload, Path(folder), left_out)
        make_dense(model)
        _complete_shapes(model, result.with_name("shapes.onnx"))
        weights = result.with_name(target.name + WEIGHTS_SUFFIX)
        if weights.exists():
            weights.replace(target.with_name(weights.name))
    tidy(model)
    write(model, target)
    return {}


def _until_settled(
    payload: Payload, folder: Path, left_out: Sequence[str]
) -> tuple[ModelProto, Path]:
    """The model after the rounds, and its file in a folder of its own."""
    source = Path(payload["model"])
    kinds: list[tuple[str, str]] = []
    for _ in range(MOST_ROUNDS):
        result = Path(tempfile.mkdtemp(dir=folder), Path(payload["target"]).name)
        _optimize_once(source, result, payload, left_out)
        model = onnx.load_model(str(result), load_external_data=False)
        if raise_opset(model):
            write(model, result)
        before, kinds = kinds, sorted((node.domain, node.op_type) for node in model.graph.node)
        source = result
        if kinds == before:
            break
    return model, result


def _optimize_once(source: Path, target: Path, payload: Payload, left_out: Sequence[str]) -> None:
    import onnxruntime as ort

    levels = ort.GraphOptimizationLevel
    options = ort.SessionOptions()
    options.log_severity_level = 3
    portable = payload["portable"]
    options.graph_optimization_level = (
        levels.ORT_ENABLE_EXTENDED if portable else levels.ORT_ENABLE_ALL
    )
    options.optimized_model_filepath = str(target)
    if payload["external"]:
        key = "session.optimized_model_external_initializers_file_name"
        options.add_session_config_entry(key, target.name + WEIGHTS_SUFFIX)
    try:
        ort.InferenceSession(
            str(source),
            options,
            providers=["CPUExecutionProvider"],
            disabled_optimizers=list(left_out),
        )
    except runtime_errors() as error:
        place = str(payload["place"])
        raise BadModel(
            "R505",
            f"ONNX Runtime does not accept the model: {first_line(error)}",
            place=place,
            fix=f"see whether it opens without remat: {_opens(place)}",
        ) from None


def _opens(place: str) -> str:
    return f'python -c "import onnxruntime as o; o.InferenceSession({place!r})"'


def _complete_shapes(model: ModelProto, probe: Path) -> None:
    """Tell what the runtime infers of values whose shape a saved model lacks, in place.

    Those that its optimizer made or inlined; it reuses buffers by what it infers. A session
    reports it for graph outputs, so in a copy, written to `probe`, such values are outputs.
    """
    import onnxruntime as ort

    known = {info.name for info in (*model.graph.value_info, *model.graph.output)}
    missing = [name for node in model.graph.node for name in node.output if name]
    copy = ModelProto()
    copy.CopyFrom(model)
    for name in missing:
        if name not in known:
            copy.graph.output.add(name=name)
    write(copy, probe)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = ort.InferenceSession(str(probe), options, providers=["CPUExecutionProvider"])
    except runtime_errors():
        # Not every type can be an output; the shapes stay unknown then.
        return
    _give_outputs_shapes(model, {value.name: value.shape for value in session.get_outputs()})
    for value in session.get_outputs():
        element = re.fullmatch(r"tensor\((\w+)\)", value.type)
        # An unknown rank is reported as no dimensions, as a scalar is, whose shape matters less.
        static = value.shape and all(isinstance(dim, int) for dim in value.shape)
        if value.name not in known and element and static:
            kind = TensorProto.DataType.Value(element[1].upper())
            info = helper.make_tensor_value_info(value.name, kind, value.shape)
            model.graph.value_info.append(info)


def _give_outputs_shapes(
    model: ModelProto, shapes: Mapping[str, Sequence[int | str | None]]
) -> None:
    """An output without a shape is nothing to the runtime and an error to the checker."""
    for info in model.graph.output:
        tensor = info.type.tensor_type
        # An unknown rank is reported as no dimensions, too.
        if tensor.HasField("shape") or not shapes.get(info.name):
            continue
        for size in shapes[info.name]:
            dim = tensor.shape.dim.add()
            if isinstance(size, int):
                dim.dim_value = size


def runtime_errors() -> tuple[type[BaseException], ...]:
    """What a session raises; the module of these types has no public name."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    named = [getattr(state, name) for name in dir(state)]
    kinds = [kind for kind in named if isinstance(kind, type) and issubclass(kind, Exception)]
    return (*kinds, RuntimeError, ValueError)


def first_line(error: BaseException) -> str:
    """The message without the runtime's code location."""
    text = _LOCATION.sub("", " ".join(str(error).split())).rstrip(". ")
    return text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]} [...]"


def is_cpu_specific(model: onnx.ModelProto) -> bool:
    """Whether the layout pass wrote ops for one CPU family."""
    return any(node.domain == NCHWC_DOMAIN for node in model.graph.node)


def cpu_family() -> str:
    """What the layout pass depends on: the architecture and its widest vectors."""
    machine = platform.machine()
    flags = _cpu_fields().get("flags", "").split()
    widest = next((flag for flag in ("avx512f", "avx2", "avx") if flag in flags), "baseline")
    return f"{machine}-{widest}"


def cpu_model() -> str:
    """The CPU's name, with its core count left out."""
    return _cpu_fields().get("model name", "") or platform.processor() or platform.machine()


def _cpu_fields() -> dict[str, Any]:
    """The first processor's fields from the kernel, where it tells them."""
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return {}
    first = path.read_text().split("\n\n")[0]
    pairs = (line.split(":", 1) for line in first.splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, value in pairs}
