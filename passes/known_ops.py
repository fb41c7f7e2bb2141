"""Ops that ONNX Runtime's fusions write into the standard domain and the standard does not know.

Some layer normalizations are fused into `LayerNormalization`, which ONNX has from opset 17 on,
others into `SimplifiedLayerNormalization`, which it never had; the runtime runs both under any
opset, but checkers and other tools refuse such a file. The former are kept where the file can be
said to be of opset 17; any other such fusion is left out.
"""

import onnx
from onnx import ModelProto, NodeProto
from onnx.defs import OpSchema

from remat.onnx_io import all_nodes

STANDARD = ("", "ai.onnx")
LAYER_NORM_OPSET = 17
# From this opset on, all that changed up to 17 are types, and attributes and inputs that are
# optional and without effect where they are left out; but for what `_changes_meaning` names.
LEAST_OPSET_TO_RAISE = 13
ATTRIBUTES = {
    "axis": OpSchema.AttrType.INT,
    "epsilon": OpSchema.AttrType.FLOAT,
    "stash_type": OpSchema.AttrType.INT,
}
FUSIONS = {
    "LayerNormalization": ("LayerNormFusionL1", "LayerNormFusionL2", "LayerNormFusion"),
    "SimplifiedLayerNormalization": ("SimplifiedLayerNormFusion",),
}


def unknown_ops(model: ModelProto) -> frozenset[str]:
    """The kinds of ops of the standard domain that its opset does not have."""
    opset = standard_opset(model)
    return frozenset(node.op_type for node in _standard(model) if not _is_known(node, opset))


def standard_opset(model: ModelProto) -> int:
    """The version of the standard domain that a model imports; 1 if it imports none."""
    return max((one.version for one in model.opset_import if one.domain in STANDARD), default=1)


def raise_opset(model: ModelProto) -> bool:
    """Say in place that a model is of opset 17, if it has ops that only that knows, and every op
    means the same there; whether it was done."""
    opset = standard_opset(model)
    if not LEAST_OPSET_TO_RAISE <= opset < LAYER_NORM_OPSET or not unknown_ops(model):
        return False
    for node in _standard(model):
        if not _is_known(node, LAYER_NORM_OPSET) or _changes_meaning(node, opset):
            return False
    for one in model.opset_import:
        if one.domain in STANDARD:
            one.version = LAYER_NORM_OPSET
    return True


def fusions_of(kinds: frozenset[str]) -> list[str]:
    """The runtime's optimizers to leave out so that it writes no such ops."""
    wanted = kinds & FUSIONS.keys()
    # Without the first fusion, the second takes over a part of what it would have fused.
    if "LayerNormalization" in wanted:
        wanted = frozenset(FUSIONS)
    return [name for kind in sorted(wanted) for name in FUSIONS[kind]]


def excuse(model: ModelProto) -> None:
    """Make such ops known to the checker in this process, where a model comes with them (some
    exporters write them): what the runtime accepts is not for us to refuse."""
    for kind in sorted(unknown_ops(model) & frozenset(FUSIONS)):
        if not onnx.defs.has(kind, 1, ""):
            onnx.defs.register_schema(_any_floats(kind))


def _any_floats(kind: str) -> OpSchema:
    """Takes and gives any number of float tensors, with the attributes that these ops have."""
    inputs, outputs = (
        OpSchema.FormalParameter(
            name,
            "T",
            param_option=OpSchema.FormalParameterOption.Variadic,
            is_homogeneous=False,
            min_arity=1,
        )
        for name in ("inputs", "outputs")
    )
    floats = [f"tensor({name})" for name in ("float", "double", "float16", "bfloat16")]
    attributes = [
        OpSchema.Attribute(name, kind_of, required=False) for name, kind_of in ATTRIBUTES.items()
    ]
    return OpSchema(
        kind,
        "",
        1,
        inputs=[inputs],
        outputs=[outputs],
        type_constraints=[("T", floats, "")],
        attributes=attributes,
    )


def _standard(model: ModelProto) -> list[NodeProto]:
    return [node for node in all_nodes(model.graph) if node.domain in STANDARD]


def _is_known(node: NodeProto, opset: int) -> bool:
    try:
        onnx.defs.get_schema(node.op_type, opset, "")
    except onnx.defs.SchemaError:
        return False
    return True


def _changes_meaning(node: NodeProto, opset: int) -> bool:
    """RoiAlign takes another default from 16 on; a BatchNormalization that trains, other outputs
    from 14 on."""
    if node.op_type == "RoiAlign":
        return opset < 16
    return node.op_type == "BatchNormalization" and opset < 14 and len(node.output) > 1
