// One spatial axis of a convolution, seen from the array that is being computed.
#pragma once
#include "shared/geometry.h"

namespace mpsf::MPSF_ISA {
namespace {

// Output number t lies at out_first + t * out_step. Its tap number u is the kernel's tap tap_first + u * tap_step
// and reads src_first + t * src_out + u * src_tap, which exists within [src_begin, src_end). Taps are
// counted so that src_tap is positive.
struct ConvAxis {
  int count, out_first, out_step;
  int taps, tap_first, tap_step;
  int src_first, src_out, src_tap;
  int src_begin, src_end;
};

inline ConvAxis forward_axis(const Axis& a) {
  return {a.end - a.begin, a.begin, 1, a.size, 0, 1, first(a, a.begin), a.stride, a.dilation, 0, a.n_in};
}

inline int common_divisor(int a, int b) { return b == 0 ? a : common_divisor(b, a % b); }

// The inputs of one phase, those equal to `phase` modulo the stride, meet the same taps, and neighbours among
// them meet neighbouring outputs of the convolution: backward is one forward-like sum for each phase.
inline int phases(const Axis& a) { return min_int(a.stride, a.n_in); }

inline ConvAxis input_axis(const Axis& a, int phase) {
  const int common = common_divisor(a.stride, a.dilation), step = a.stride / common;
  const auto reach = [&](int tap) { return phase + a.pad - tap * a.dilation; };
  int tap = 0;
  while (tap < min_int(step, a.size) && floor_div(reach(tap), a.stride) * a.stride != reach(tap)) ++tap;
  const int taps = tap < min_int(step, a.size) ? (a.size - 1 - tap) / step + 1 : 0;
  const int last = tap + (taps - 1) * step;
  ConvAxis axis = {};
  axis.count = ceil_div(a.n_in - phase, a.stride);
  axis.out_first = phase;
  axis.out_step = a.stride;
  axis.taps = taps;
  axis.tap_first = last;
  axis.tap_step = -step;
  axis.src_first = floor_div(reach(last), a.stride);
  axis.src_out = 1;
  axis.src_tap = a.dilation / common;
  axis.src_begin = a.begin;
  axis.src_end = a.end;
  return axis;
}

// Inputs of windows of three taps two apart, in fours that see three outputs of the convolution. The first of them
// meets the middle tap only where the padding is odd.
inline ConvAxis spread_axis(const Axis& a) {
  ConvAxis axis = {};
  axis.count = a.n_in;
  axis.out_step = 1;
  axis.taps = 3, axis.tap_step = 1;
  axis.src_first = floor_div(a.pad, 2) - (a.pad % 2 == 0 ? 1 : 0);
  axis.src_out = axis.src_tap = 1;
  axis.src_begin = a.begin;
  axis.src_end = a.end;
  return axis;
}

// Outputs of an axis of which every tap exists: [begin, end). The others have fewer.
struct Inner {
  int begin, end;
};

inline Inner inner(const ConvAxis& axis) {
  const int last = axis.src_end - 1 - (axis.taps - 1) * axis.src_tap - axis.src_first;
  const int begin = max_int(0, ceil_div(axis.src_begin - axis.src_first, axis.src_out));
  const int end = min_int(axis.count, floor_div(last, axis.src_out) + 1);
  return begin < end ? Inner{begin, end} : Inner{0, 0};
}

// Calls f(output, tap_begin, tap_end) for `Pixels` outputs at a time that have the same taps, or for one.
template <int Pixels, typename F>
void for_pixels(const ConvAxis& axis, const F& f) {
  const Inner whole = inner(axis);
  for (int out = 0; out < axis.count;) {
    if (out >= whole.begin && out + Pixels <= whole.end) {
      f.template operator()<Pixels>(out, 0, axis.taps);
      out += Pixels;
    } else {
      const int first = axis.src_first + out * axis.src_out;
      const int begin = max_int(0, ceil_div(axis.src_begin - first, axis.src_tap));
      const int end = min_int(axis.taps, floor_div(axis.src_end - 1 - first, axis.src_tap) + 1);
      f.template operator()<1>(out, begin, end);
      ++out;
    }
  }
}

// A kernel as [plane][tap][lane], in the order of the sides' taps. at(lane, plane, tap) is a weight, where tap
// counts as the kernel does.
template <typename A, typename F>
void lay_out_planes(const ConvAxis& rows, const ConvAxis& cols, int kernel_cols, int planes, int lanes, const F& at,
                    A* to) {
  for (int plane = 0; plane < planes; ++plane) {
    for (int q = 0; q < rows.taps; ++q) {
      for (int p = 0; p < cols.taps; ++p) {
        const int row = rows.tap_first + q * rows.tap_step, col = cols.tap_first + p * cols.tap_step;
        for (int lane = 0; lane < lanes; ++lane) *to++ = at(lane, plane, row * kernel_cols + col);
      }
    }
  }
}

}  // namespace
}  // namespace mpsf::MPSF_ISA
