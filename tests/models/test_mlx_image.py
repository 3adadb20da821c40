"""Models of mlx-image, whose package asks for an MLX of 2025: they run beside ours, and convert."""

from __future__ import annotations

import importlib
import importlib.metadata

import pytest
from models import report
from models.checks import folded_wherever_it_can_be, fused_wherever_it_can_be, nothing_left, proven
from models.comparison import DTYPES
from models.registry import OF_MLX_IMAGE, Network

pytestmark = [pytest.mark.models, pytest.mark.usefixtures("on_cpu")]

# What mlxim.model imports; its data sets need more, which is not here.
NEEDED = ("huggingface_hub", "tqdm", "mlxim.model")
each = pytest.mark.parametrize("network", OF_MLX_IMAGE, ids=lambda network: network.name)
each_dtype = pytest.mark.parametrize("dtype", DTYPES)


def test_what_its_models_need_is_here() -> None:
    missing = []
    for name in NEEDED:
        try:
            importlib.import_module(name)
        except ImportError as error:
            missing.append(f"{name}: {error}")
    assert missing == [], "make models installs these"
    assert importlib.metadata.version("mlx-image") == "0.1.10"
    assert importlib.metadata.version("mlx") != "0.24.2", "the package's own choice"


@each
def test_nothing_is_left(network: Network) -> None:
    nothing_left(network)


@each
def test_the_page_says_what_convert_makes_of_it(network: Network) -> None:
    line = report.rows(report.PAGE.read_text(encoding="utf-8"))[network.name]
    assert tuple(line[1:6]) == report.counts(network), "python -m tests.models --write"


@each
def test_it_is_fused_and_folded_wherever_it_can_be(network: Network) -> None:
    fused_wherever_it_can_be(network)
    folded_wherever_it_can_be(network)


@each_dtype
@each
def test_it_is_as_near_as_stock_and_comes_back_to_the_bit(network: Network, dtype: str) -> None:
    report.keep(network, dtype, proven(network, dtype))
