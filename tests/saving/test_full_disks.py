"""Saving where a file may not grow, a disk is full, or a user may write nowhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts and changes users")


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


FILL = """
import os, resource, sys
import mlx.core as mx, mpsfunc as mf
folder, limit = sys.argv[1], int(sys.argv[2])
path = os.path.join(folder, "saved")
mf.save(path, "old")
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    with mx.stream(mx.cpu):
        mf.save(path, mx.zeros(1 << 20))
except OSError as error:
    print(error)
print(mf.load(path), os.listdir(folder))
"""


def filled(folder: Path, limit: int) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", FILL, str(folder), str(limit)], env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_file_that_may_not_grow_leaves_the_old_one(tmp_path: Path) -> None:
    said, left = filled(tmp_path, 1 << 16)
    assert said == f"[Errno 27] save: the file cannot be written: File too large: '{tmp_path}/saved'"
    assert left == "old ['saved']"


@as_root
def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if not shutil.which("mount") or subprocess.run(mounted, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        said, left = filled(disk, 0)
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    assert said == f"[Errno 28] save: the file cannot be written: No space left on device: '{disk}/saved'"
    assert left == "old ['saved']"


# Nobody in particular -----------------------------------------------------------------------------------

NOBODY = """
import os, pathlib, warnings
warnings.simplefilter("error")
import mlx.core as mx, mpsfunc as mf
from mpsfunc.core import nvrtc
assert os.geteuid() == 65534 and not os.access(pathlib.Path.home(), os.W_OK)
class Compiler:
    version, options = (13, 0), ()
    def compile(self, source):
        return b"code"
with mx.stream(mx.cpu):
    y = mf.avg_pool(mx.ones((1, 4, 4, 1)), 2)
    mx.eval(y)
assert nvrtc.machine_code("text", Compiler()) == b"code"
try:
    mf.save(pathlib.Path.home() / "saved", y)
except PermissionError as error:
    print(error)
"""


@as_root
@pytest.mark.needs_cpu_module
def test_a_user_who_may_write_nowhere(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o755)
    # It may read what root's folders hold, since Python itself may lie there, and write nothing.
    reads = [
        f"--{kind}={'-all,' if kind != 'ambient-caps' else ''}+dac_read_search" for kind in ("inh-caps", "ambient-caps")
    ]
    user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *reads]
    if not shutil.which("setpriv") or subprocess.run([*user, "true"], capture_output=True).returncode:
        pytest.skip("there is no setpriv, or it may not give up rights")
    variables = {
        key: value for key, value in environment().items() if key not in ("XDG_CACHE_HOME", "MPSFUNC_CACHE_DIR")
    }
    done = subprocess.run(
        [*user, sys.executable, "-B", "-c", NOBODY],
        env=variables | {"HOME": str(home)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"[Errno 13] save: the file cannot be written: Permission denied: '{home}/saved'"
    assert not list(home.iterdir())
