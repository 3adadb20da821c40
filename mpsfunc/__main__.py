"""What this machine runs mpsfunc with, and a short test of every function on each of its devices.

python -m mpsfunc         the report and the test
python -m mpsfunc build   makes the C++ module for the MLX that is here, where mpsfunc came without one for it
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time

import mlx.core as mx

import mpsfunc as mf
from mpsfunc.core import launch, mlx_settings, native, versions
from mpsfunc.core import nvrtc as core_nvrtc
from mpsfunc.core.numpy_later import np
from mpsfunc.selftest import calls as selftest_calls


def main() -> int:
    """Prints the report, which is made to be pasted into an issue; 1 if anything failed."""
    about, forms = (__doc__ or "").split("\n\n", 1)
    parser = argparse.ArgumentParser(
        prog="python -m mpsfunc", description=about, epilog=forms, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="?", choices=["build"], help="make the C++ module, which needs a C++ compiler")
    parser.add_argument("--no-test", action="store_true", help="versions and devices only")
    parser.add_argument("--device", choices=["cpu", "gpu"], help="test this one only")
    args = parser.parse_args()
    if args.what == "build":
        return build()
    os.environ["MLX_ENABLE_TF32"] = "0"  # MLX asks at its first product; what is kept is of whole float32
    for name, value in facts().items():
        print(f"{name:<10} {value}")
    if args.no_test:
        return 0
    here = [device for device in devices() if args.device in (None, device.type.name)]
    if not here:
        why = {"cpu": launch.without_module(), "gpu": "MLX has no GPU"}
        told = why[args.device] if args.device else " and ".join(why.values())
        bring = "" if args.device == "gpu" else f"; the CPU needs {native.remedy()}"
        print(f"nothing to test here: {told}{bring}", file=sys.stderr)
        return 1
    return 1 if sum(not tested(device) for device in here) else 0


def build() -> int:
    """Makes the C++ module and says where it is, or why there is none; 1 then."""
    from mpsfunc.core import building

    try:
        print(f"built, tested and kept: {building.build()}")
    except building.BuildError as error:
        print(f"python -m mpsfunc build: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("python -m mpsfunc build: interrupted; the package is as it was", file=sys.stderr)
        return 130
    return 0


def _numpy() -> str:
    try:
        return str(np.__version__)
    except ModuleNotFoundError:
        return "is missing; run: pip install numpy"


def facts() -> dict[str, str]:
    """Versions, devices and settings."""
    used, *known = launch.instruction_sets() or ("", "")
    name = mx.device_info(mx.Device(mx.cpu)).get("device_name", platform.machine())
    return {
        "mpsfunc": mf.__version__,
        "python": f"{platform.python_version()}, {platform.platform()}",
        "packages": ", ".join(
            f"{package} {version}"
            for package, version in [
                ("mlx", vars(mx)["__version__"]),
                *versions.installed().backends.items(),
                ("numpy", _numpy()),
            ]
        ),
        "devices": ", ".join(map(_name, devices())) or "none",
        "cpu": (
            f"{name}, {used} of {', '.join(known)}, {mf.get_num_threads()} threads"
            if used
            else f"{name}, without the C++ module"
        ),
        "settings": ", ".join(f"{name}={os.environ[name]}" for name in _set()) or "as they come",
        **(_cuda() if mx.is_available(mx.gpu) and not mx.metal.is_available() else {}),
    }


def _set() -> list[str]:
    return sorted(name for name in os.environ if name.startswith("MPSFUNC_"))


def _cuda() -> dict[str, str]:
    nvrtc, folder = core_nvrtc.compiler(repr(mx.Device(mx.gpu, 0))), core_nvrtc.cache_folder()
    read = {**os.environ, **mlx_settings.chosen}
    variable, value = mlx_settings.CUDA_GRAPHS, read.get(mlx_settings.CUDA_GRAPHS, "1")
    graphs = f"{'in' if mlx_settings.has_graphs(value) else 'without'} CUDA graphs ({variable}={value})"
    percent = read.get(mlx_settings.RUN_AHEAD)
    ahead = f"ahead of the GPU by {percent} % of memory ({mlx_settings.RUN_AHEAD}={percent})" if percent else ""
    made = "compiled by MLX in every process, since NVRTC or CUDA's headers were not found"
    if nvrtc:
        where = f"in {folder}, where that can be written" if folder else "nowhere"
        made = f"compiled by NVRTC {'.'.join(map(str, nvrtc.version))}, and kept {where}"
    return {
        "kernels": made,
        "launches": ", ".join(filter(None, (graphs, ahead))),
    }


def devices() -> list[mx.Device]:
    """Those that can be tested: the CPU needs the C++ module."""
    cpu = [mx.Device(mx.cpu)] if launch.instruction_sets() else []
    return cpu + ([mx.Device(mx.gpu)] if mx.is_available(mx.gpu) else [])


def tested(device: mx.Device) -> bool:
    """Prints what became of every family on a device; whether all is well."""
    start, calls, well = time.perf_counter(), 0, True
    for family in selftest_calls.test(device):
        calls += family.calls
        well = well and not family.wrong and not family.error
        told = family.error or (f"{len(family.wrong)} of {family.calls} wrong" if family.wrong else "ok")
        print(f"{_name(device):<10} {family.name}: {told}", *family.wrong, sep="\n             ", flush=True)
    verdict = "all well" if well else "NOT well: please paste all of this into an issue"
    print(f"{_name(device):<10} {calls} calls in {time.perf_counter() - start:.1f} s, {verdict}")
    return well


def _name(device: mx.Device) -> str:
    if device == mx.Device(mx.cpu):
        return "cpu"
    return str(mx.device_info(device).get("device_name", "gpu"))


if __name__ == "__main__":
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read the report has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    sys.exit(code)
