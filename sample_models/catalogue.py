"""The sample models by name, with their sizes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import onnx

from sample_models.image_networks import (
    ResNetSize,
    UNetSize,
    cnn_train,
    unet_infer,
    unet_train,
)
from sample_models.memory_patterns import BranchesSize, NeighboursSize, branches, knn
from sample_models.special_networks import (
    RandomSize,
    SequenceSize,
    control_flow,
    dynamic,
    quantized,
    random_train,
)
from sample_models.transformer import TransformerSize, transformer_train


@dataclass(frozen=True)
class Sample:
    """A sample model; `dimensions` binds the named dimensions for its peak and its runs."""

    build: Callable[[], onnx.ModelProto]
    dimensions: Mapping[str, int] = field(default_factory=dict)


SAMPLES: dict[str, Sample] = {
    "unet_train": Sample(lambda: unet_train(UNetSize(batch=4, side=128, width=16, depth=3))),
    "cnn_train": Sample(
        lambda: cnn_train(ResNetSize(batch=8, side=64, widths=(16, 32, 64), blocks=2, group=4))
    ),
    "transformer_train": Sample(
        lambda: transformer_train(
            TransformerSize(batch=4, tokens=256, features=128, heads=8, layers=2, classes=16)
        )
    ),
    "unet_infer": Sample(lambda: unet_infer(UNetSize(batch=1, side=384, width=8, depth=3), seed=1)),
    "branches": Sample(lambda: branches(BranchesSize(count=8, rows=256, columns=4096), seed=2)),
    "knn": Sample(lambda: knn(NeighboursSize(queries=1280, points=1280, neighbours=8))),
    "quantized": Sample(lambda: quantized(SequenceSize(batch=2, tokens=512, features=128), seed=3)),
    "control_flow": Sample(
        lambda: control_flow(SequenceSize(batch=4, tokens=256, features=128), trips=4, seed=4)
    ),
    "random": Sample(lambda: random_train(RandomSize(batch=1024, features=64, hidden=512))),
    "dynamic": Sample(
        lambda: dynamic(width=16, classes=10, seed=5),
        {"batch": 4, "height": 96, "width": 96, "height_half": 48, "width_half": 48},
    ),
}
