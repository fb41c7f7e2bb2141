"""Would ONNX Runtime's optimizer leave a model as it is, and in which order would it then run?"""

import tempfile
from pathlib import Path

import onnx

from remat.child import Payload
from remat.errors import BadModel
from remat.passes.offline import WEIGHTS_SUFFIX, first_line, runtime_errors


def optimized_order(payload: Payload) -> Payload:
    """Run in a fresh process: `nodes`, the names of the nodes that are left of payload["model"]
    after every optimization, in the order in which a plain session runs them.

    The runtime saves an optimized model in that order. Raises BadModel R511 where it refuses it.
    """
    import onnxruntime as ort

    source = Path(payload["model"])
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    with tempfile.TemporaryDirectory(prefix=".remat-", dir=source.parent) as folder:
        target = Path(folder, "optimized.onnx")
        options.optimized_model_filepath = str(target)
        # What is not small goes to a file of its own: only the nodes are wanted.
        key = "session.optimized_model_external_initializers_file_name"
        options.add_session_config_entry(key, target.name + WEIGHTS_SUFFIX)
        try:
            ort.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])
        except runtime_errors() as error:
            fact = f"ONNX Runtime does not accept the model: {first_line(error)}"
            raise BadModel("R511", fact, place=str(source)) from None
        model = onnx.load_model(str(target), load_external_data=False)
    return {"nodes": [node.name for node in model.graph.node]}
