// As resample, where pixels read many that their neighbours read too. A thread owns V channels of a column of y and
// walks down the rows of x that a strip of y reads. Of a row it mixes once the READS pixels that its column reads. Where
// GATHERS, it keeps the last KEPT such mixtures, and a row of y is their sum by weight as soon as the last is there; else
// a mixture is added at once to the KEPT rows of y that read it.
//
// `cols` has for each column of y the first pixel that it reads, and READS weights. `rows` has for each row of y where
// the rows of x that it reads begin and end; then for each row of y, where GATHERS, KEPT weights of these; else for each
// row of x the first row of y that reads it, and KEPT weights. What has no weight does not count, not even infinity. Of
// the next row each column asks for AHEAD pixels in advance, those in the middle of its own.
#include "image/params.h"
#include "shared/vector_load.h"
const ResampleStripLaunch p = params_as<ResampleStripLaunch>(params);
const int channels = x_shape[3], lanes = channels / V, pitch = x_shape[2] * channels;
const long x_image = long(x_shape[1]) * pitch, y_image = long(p.height) * p.width * channels;
const int ow = thread_position_in_grid.x / lanes, c = thread_position_in_grid.x % lanes * V;
if (ow >= p.width) return;
const bool wide = aligned<V>(x);
auto reads = cols + ow * (1 + READS);
float share[READS];
bool whole = wide;
for (int k = 0; k < READS; ++k) {
  share[k] = as_type<float>(reads[1 + k]);
  whole = whole && share[k] != 0;
}

// A threadgroup has one strip, so that the compiler knows where its threads agree: a thread has registers for little
// beside pixels.
const int top = threadgroup_position_in_grid.y * p.strip, bottom = min(top + p.strip, p.height);
const int begin = rows[2 * top], end = rows[2 * bottom - 1];
auto lists = rows + 2 * p.height;
for (int n = threadgroup_position_in_grid.z; n < x_shape[0]; n += threads_per_grid.z) {
  auto image = x + n * x_image;
  auto to = y + n * y_image + ow * channels + c;
  Pack<float, V> kept[KEPT];
  for (int k = 0; k < KEPT; ++k) kept[k] = nothing<float, V>();
  int oh = GATHERS ? top : lists[begin * (1 + KEPT)];
  uint at = uint(reads[0] * channels + c + begin * pitch);
  for (int ih = begin; ih < end; ++ih, at += pitch) {
    Pack<T, V> in[READS];
    if (whole) {
      #pragma unroll
      for (int k = 0; k < READS; ++k) in[k] = load<V>(image + (at + uint(k * channels)), true);
    } else {
      #pragma unroll
      for (int k = 0; k < READS; ++k) {
        in[k] = nothing<T, V>();
        if (share[k] != 0) in[k] = load<V>(image + (at + uint(k * channels)), wide);
      }
    }
    prefetch<AHEAD>(image + (at + uint(pitch + (READS - AHEAD) / 2 * channels)), channels, ih + 1 < end);
    Pack<float, V> line = nothing<float, V>();
    #pragma unroll
    for (int k = 0; k < READS; ++k) {
      for (int j = 0; j < V; ++j) line.v[j] += share[k] * float(in[k].v[j]);
    }
    if (GATHERS) {
      #pragma unroll
      for (int k = 0; k < KEPT - 1; ++k) kept[k] = kept[k + 1];
      kept[KEPT - 1] = line;
      for (; oh < bottom && rows[2 * oh + 1] == ih + 1; ++oh) {
        Pack<float, V> sum = nothing<float, V>();
        #pragma unroll
        for (int k = 0; k < KEPT; ++k) {
          const float weight = as_type<float>(lists[oh * KEPT + k]);
          if (weight == 0) continue;
          for (int j = 0; j < V; ++j) sum.v[j] += weight * kept[k].v[j];
        }
        store(to + oh * p.width * channels, rounded<T>(sum));
      }
    } else {
      auto readers = lists + ih * (1 + KEPT);
      for (const int first = readers[0]; oh < first; ++oh) {
        if (oh >= top && oh < bottom) store(to + oh * p.width * channels, rounded<T>(kept[0]));
        #pragma unroll
        for (int k = 0; k < KEPT - 1; ++k) kept[k] = kept[k + 1];
        kept[KEPT - 1] = nothing<float, V>();
      }
      #pragma unroll
      for (int k = 0; k < KEPT; ++k) {
        const float weight = as_type<float>(readers[1 + k]);
        if (weight == 0) continue;
        for (int j = 0; j < V; ++j) kept[k].v[j] += weight * line.v[j];
      }
    }
  }
  for (; !GATHERS && oh < bottom; ++oh) {
    if (oh >= top) store(to + oh * p.width * channels, rounded<T>(kept[0]));
    #pragma unroll
    for (int k = 0; k < KEPT - 1; ++k) kept[k] = kept[k + 1];
    kept[KEPT - 1] = nothing<float, V>();
  }
}
