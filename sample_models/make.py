"""Writes the sample models: `python sample_models/make.py [NAME ...] [--output DIRECTORY]`.

Every run writes the same bytes. Needs onnx and numpy alone.
"""

import argparse
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent

if __name__ == "__main__":
    # Run by its path, a script sees its own folder only; the imports below start one above it.
    sys.path.insert(0, str(HERE.parent))

from sample_models.catalogue import SAMPLES  # noqa: E402
from sample_models.liveness import peak_liveness_bytes  # noqa: E402


def write(name: str, directory: Path) -> str:
    """Write one model as `NAME.onnx`; return its row of the table in the README."""
    sample = SAMPLES[name]
    model = sample.build()
    content = model.SerializeToString(deterministic=True)
    (directory / f"{name}.onnx").write_bytes(content)
    peak_bytes = peak_liveness_bytes(model, sample.dimensions)
    return f"{name}.onnx | {len(model.graph.node)} | {len(content):,} | {peak_bytes:,}"


def main(arguments: list[str]) -> None:
    """Write the models named, or all of them."""
    parser = argparse.ArgumentParser(description="write the sample models")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SAMPLES)}")
    parser.add_argument("--output", type=Path, default=HERE, help="folder (default: this one)")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in SAMPLES]
    if unknown:
        parser.error(f"unknown sample {', '.join(unknown)}; there are {', '.join(SAMPLES)}")
    options.output.mkdir(parents=True, exist_ok=True)
    print("file | ops | bytes | peak liveness in bytes")
    for name in options.names or SAMPLES:
        print(write(name, options.output))


if __name__ == "__main__":
    main(sys.argv[1:])
