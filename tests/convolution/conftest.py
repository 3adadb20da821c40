"""What tests of convolutions share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.bfloat16_case import LEVELS, level


@pytest.fixture(params=LEVELS)
def used(request: pytest.FixtureRequest) -> Iterator[str]:
    """A set that multiplies bfloat16, in use while the test runs."""
    module = pytest.importorskip("mpsfunc._primitives", reason="mpsfunc was built without its C++ module")
    before = module.isa()
    module.set_isa(level(request.param))
    yield request.param
    module.set_isa(before)
