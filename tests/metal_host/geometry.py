"""The images of `test_traffic.py`, and what their bytes and taps come to."""

from __future__ import annotations

SHAPE = (2, 12, 12, 16)
IMAGE, VECTOR = 2 * 12 * 12 * 16 * 4, 16 * 4  # bytes, as below
LONG = (1, 64, 64, 16)  # for sums, where a thread has 64 pixels to go over
LONG_IMAGE = 64 * 64 * 16 * 4
WHOLE = (LONG_IMAGE, LONG_IMAGE)  # needed, and loaded at most
WEIGHTS = 16 * 3 * 3 * 16 * 4
# Times that 3x3 windows with stride 1 and padding 1 read an element of the image, edges included.
READS = (3 * 12 - 2) ** 2 / 12**2
READS_5 = (5 * 12 - 6) ** 2 / 12**2  # and 5x5 windows with padding 2
# Times that tiles of two by two pixels, seven by seven of them, load a window of 3x3 taps: all but the first have two
# along an axis.
ON_TILES = (2 * 6) ** 2 / 6**2
