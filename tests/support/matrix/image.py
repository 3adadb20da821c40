"""The part of the matrix of transformations that moves and resamples images."""

from __future__ import annotations

from typing import Any

import mpsfunc as mf
from support.matrix.entry import Entry, entry

IMAGE, LARGE, SMALL = (2, 3, 4, 4), (2, 6, 12, 4), (2, 5, 2, 4)
CENTRED: dict[str, Any] = {"coordinate": "half_pixel", "edge_mode": "clamp"}
NEAREST, BILINEAR = (getattr(mf, f"upsample_{way}_state")(IMAGE, (2, 3)) for way in ("nearest", "bilinear"))
PICKED, MIXED = mf.resize_nearest_state(IMAGE, (5, 2)), mf.resize_bilinear_state(IMAGE, (5, 2), **CENTRED)
AROUND = (1, 5, 1), (0, 2, 2)
MIRRORED = mf.pad_state(IMAGE, *AROUND, mode="mirror")

IMAGES: dict[str, Entry] = {
    "upsample_nearest": entry(lambda x: mf.upsample_nearest(x, (2, 3)), IMAGE),
    "upsample_nearest_fwd": entry(lambda x: mf.upsample_nearest_fwd(x, 2)[0], IMAGE),
    "upsample_nearest_grad": entry(lambda dy: mf.upsample_nearest_grad(dy, NEAREST), LARGE),
    "upsample_bilinear": entry(lambda x: mf.upsample_bilinear(x, (2, 3)), IMAGE),
    "upsample_bilinear with aligned corners": entry(lambda x: mf.upsample_bilinear(x, 2, align_corners=True), IMAGE),
    "upsample_bilinear_fwd": entry(lambda x: mf.upsample_bilinear_fwd(x, 2, **CENTRED)[0], IMAGE),
    "upsample_bilinear_grad": entry(lambda dy: mf.upsample_bilinear_grad(dy, BILINEAR), LARGE),
    "resize_nearest": entry(lambda x: mf.resize_nearest(x, (5, 2), coordinate="half_pixel"), IMAGE),
    "resize_nearest_fwd": entry(lambda x: mf.resize_nearest_fwd(x, (5, 2))[0], IMAGE),
    "resize_nearest_grad": entry(lambda dy: mf.resize_nearest_grad(dy, PICKED), SMALL),
    "resize_bilinear": entry(lambda x: mf.resize_bilinear(x, (5, 2)), IMAGE),
    "resize_bilinear_fwd": entry(lambda x: mf.resize_bilinear_fwd(x, (1, 7), align_corners=True)[0], IMAGE),
    "resize_bilinear_grad": entry(lambda dy: mf.resize_bilinear_grad(dy, MIXED), SMALL),
    "pad": entry(lambda x: mf.pad(x, *AROUND, mode="mirror"), IMAGE),
    "pad with a constant": entry(lambda x: mf.pad(x, *AROUND, value=2.0), IMAGE),
    "pad_fwd": entry(lambda x: mf.pad_fwd(x, 1, (0, 3), "clamp")[0], IMAGE),
    "pad_grad": entry(lambda dy: mf.pad_grad(dy, MIRRORED), (2, 4, 11, 7)),
    "concatenate": entry(lambda a, b: mf.concatenate([a, b]), IMAGE, (2, 3, 4, 3)),
    "concatenate by fours": entry(lambda a, b: mf.concatenate([a, b], pad_to_multiple=4), IMAGE, (2, 3, 4, 3)),
    "concatenate_grad": entry(lambda dy: mf.concatenate_grad(dy, (1, 3), pad_to_multiple=2), (2, 3, 4, 6)),
    "slice_channels": entry(lambda x: mf.slice_channels(x, 1, 3), IMAGE),
    "slice_channels_grad": entry(lambda dy: mf.slice_channels_grad(dy, 1, 7), IMAGE),
    "spatial_mean": entry(lambda x: mf.spatial_mean(x), IMAGE),
    "spatial_mean_grad": entry(lambda dy: mf.spatial_mean_grad(dy, IMAGE), (2, 1, 1, 4)),
}
