"""Writes what a type checker knows of `mpsfunc.graph`, whose filters are made of the functions that they stand for.

python docs/graph_stub.py           # the text
python docs/graph_stub.py --write   # the text into mpsfunc/graph/__init__.pyi
"""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable
from inspect import Parameter
from pathlib import Path
from typing import Any

from mpsfunc import graph

PACKAGE = Path(graph.__file__).parent
STUB = PACKAGE / "__init__.pyi"
_WIDE = 120
_START = '''"""The filters with the types of their arguments: python docs/graph_stub.py --write."""

from collections.abc import Sequence
'''
# Where the types are that the filters have of their functions.
_TYPES = {
    "mpsfunc.activation.fused": ("Neuron",),
    "mpsfunc.convolution.states": ("PaddingMode",),
    "mpsfunc.elementwise.dropout": ("Stride",),
    "mpsfunc.elementwise.operands": ("Strides",),
    "mpsfunc.graph.kinds": ("StatisticsName",),
    "mpsfunc.graph.loss_nodes": ("ForwardLossNode", "InitialGradientNode", "LossNode"),
    "mpsfunc.graph.regions": ("Regions",),
    "mpsfunc.image.crop_and_resize": ("CropMethodName",),
    "mpsfunc.image.grid_sample": ("GridCoordinatesName", "GridEdgeName", "GridSampleModeName"),
    "mpsfunc.image.padding": ("PadMode", "Sizes"),
    "mpsfunc.image.resampling": ("FloatOrPair", "NearestCoordinateName", "ResizeCoordinateName"),
    "mpsfunc.losses.arguments": ("ReductionName",),
    "mpsfunc.losses.yolo_arguments": ("ClassLossName", "DistanceName", "YoloReductionName"),
    "mpsfunc.normalization.across_processes": ("Group",),
    "mpsfunc.pooling.reduced": ("ReducedName",),
    "mpsfunc.typing": ("ComparisonName", "CoordinateName", "EdgeMode", "LossName", "MaxEdgeMode", "NeuronName"),
    "mpsfunc.windows.placement": ("IntOrPair", "KernelSize", "OutSize", "Padding", "Pixels"),
    "mpsfunc.windows.transposed": ("ReversePadding",),
}


def filters() -> dict[str, Callable[..., Any]]:
    """All that makes nodes."""
    made = {name: value for name, value in sorted(vars(graph).items()) if inspect.isfunction(value)}
    return {name: value for name, value in made.items() if hasattr(value, "__signature__")}


def imports() -> list[str]:
    """Those of the stub: what the package has besides the filters, and types."""
    lines = (PACKAGE / "__init__.py").read_text(encoding="utf-8").splitlines()
    of_filters = tuple(f"from mpsfunc.graph.{name} " for name in ("filters", "reduction_filters"))
    others = [line for line in lines if line.startswith("from ") and not line.startswith(of_filters)]
    types = [f"from {module} import {', '.join(names)}" for module, names in _TYPES.items()]
    return sorted([*others, *types], key=lambda line: line.split()[1::2])


def declared(name: str, function: Callable[..., Any]) -> str:
    """The definition of a function without what it does."""
    signature = inspect.signature(function)
    arguments: list[str] = []
    for argument in signature.parameters.values():
        if argument.kind is Parameter.KEYWORD_ONLY and "*" not in arguments:
            arguments.append("*")
        default = "" if argument.default is Parameter.empty else " = ..."
        arguments.append(f"{argument.name}: {argument.annotation}{default}")
    lines, result = [f"def {name}({', '.join(arguments)})"], f" -> {signature.return_annotation}: ..."
    if len(lines[0] + result) > _WIDE:
        lines = [f"def {name}("]
        for each in arguments:
            if len(f"{lines[-1]} {each},") > _WIDE or len(lines) == 1:
                lines.append("   ")
            lines[-1] += f" {each},"
        lines.append(")")
    return "\n".join(lines) + result


def stub() -> str:
    """The text of the file."""
    told = [declared(name, function) for name, function in filters().items()]
    return "\n".join([_START, *imports(), "", "# fmt: off", *told, ""])


def main() -> None:
    """Prints or writes it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the file")
    if parser.parse_args().write:
        STUB.write_text(stub(), encoding="utf-8")
    else:
        print(stub(), end="")


if __name__ == "__main__":
    main()
