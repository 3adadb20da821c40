// order has the boxes of every image, image after image, each image's as they come; those of image n are from begins[n]
// on and before begins[n+1], and boxes of no image come last. A threadgroup of G threads writes one of these lists.
#include "image/boxes.h"
#include "shared/lanes.h"
const BoxSampleParams<float> p = params_as<BoxSampleParams<float> >(params);
const int count = boxes_shape[0], own = thread_position_in_threadgroup.x, lane = own % 32, slot = own / 32;
threadgroup uint words[G / 32];  // a bit for each box of G

for (int n = threadgroup_position_in_grid.y; n <= p.images; n += threads_per_grid.y) {
  uint before = 0;  // boxes of lists before, of which a simdgroup counts its own
  for (int first = 0; first < count; first += G) {
    const bool earlier = first + own < count && list_of(p, float(boxes[5 * long(first + own)])) < n;
    before += popcount(bits_of_lanes(uint(earlier) << lane));
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (lane == 0) words[slot] = before;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  int begin = 0;
  for (int s = 0; s < G / 32; ++s) begin += words[s];
  int next = begin;
  for (int first = 0; first < count; first += G) {
    const bool mine = first + own < count && list_of(p, float(boxes[5 * long(first + own)])) == n;
    const uint bits = bits_of_lanes(uint(mine) << lane);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (lane == 0) words[slot] = bits;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    int at = next + int(popcount(bits & ((1u << lane) - 1u)));
    for (int s = 0; s < G / 32; ++s) {
      const int some = int(popcount(words[s]));
      if (s < slot) at += some;
      next += some;
    }
    if (mine) order[at] = first + own;
  }
  if (own == 0) begins[n] = begin;
}
