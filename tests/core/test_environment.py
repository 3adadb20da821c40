"""Environment variables are refused where they say nothing that mpsfunc knows."""

from __future__ import annotations

import mlx.core as mx
import pytest
from support import numbers, same_bits

import mpsfunc as mf
from mpsfunc.core import environment, launch

NONSENSE = ("true", "off", "2", " 1", "-1")


@pytest.mark.parametrize("default", [False, True])
def test_switch(default: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MPSFUNC_SWITCH", raising=False)
    assert environment.switch("MPSFUNC_SWITCH", default) is default
    for given, on in {"0": False, "1": True, "": default}.items():
        monkeypatch.setenv("MPSFUNC_SWITCH", given)
        assert environment.switch("MPSFUNC_SWITCH", default) is on


@pytest.mark.parametrize("given", NONSENSE)
def test_winograd(given: str, on_cpu: mx.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = numbers((1, 16, 16, 16)), numbers((16, 3, 3, 16), seed=1)
    y, state = mf.conv_fwd(x, w, padding=1)
    calls = (
        lambda: mf.conv(x, w, padding=1),
        lambda: mf.conv_grad_input(y, w, state),
        lambda: mf.conv_grad_weights(y, x, state),
    )
    monkeypatch.setenv("MPSFUNC_WINOGRAD", given)
    for call in calls:
        with pytest.raises(ValueError, match=f"MPSFUNC_WINOGRAD: not a switch; got '{given}', expected '0' or '1'"):
            call()
    monkeypatch.setenv("MPSFUNC_WINOGRAD", "")
    assert same_bits(mf.conv(x, w, padding=1), y)


@pytest.mark.parametrize("given", NONSENSE)
def test_deterministic(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is a route that it would close."""
    stream = mx.default_stream(mx.cpu)
    monkeypatch.setattr(launch, "backend", lambda stream: "cuda")
    monkeypatch.setenv("MPSFUNC_DETERMINISTIC", given)
    with pytest.raises(ValueError, match="MPSFUNC_DETERMINISTIC: not a switch"):
        launch.routed(stream, "cuda")
    assert not launch.routed(stream, "metal")
    for value, closed in {"0": False, "1": True, "": False}.items():
        monkeypatch.setenv("MPSFUNC_DETERMINISTIC", value)
        assert launch.routed(stream, "cuda") is not closed
