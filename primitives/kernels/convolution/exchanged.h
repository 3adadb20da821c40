// Gradients of weights that lie as a transposed convolution has them: (channels, taps, outs), where sums are made as
// (outs, taps, channels).
#pragma once
#include "kernels/convolution/transpose.h"
#include "runtime/parallel.h"

namespace mpsf::MPSF_ISA {
namespace {

// to[lane * step + out] = the sum, in order, of `count` of sums[out * pitch + lane] that lie `apart`.
template <typename A, typename To>
void store_exchanged(const A* sums, int64_t pitch, int64_t count, int64_t apart, int64_t outs, int64_t width, To* to,
                     int64_t step) {
  constexpr int L = lanes<A>;
  for (int64_t lane = 0; lane < width; lane += L) {
    const int some = static_cast<int>(smaller(L, width - lane));
    for (int64_t out = 0; out < outs; out += L) {
      const int n = static_cast<int>(smaller(L, outs - out));
      Vec<A> square[L];
      for (int i = 0; i < L; ++i) {
        square[i] = Vec<A>{};
        if (i >= n) continue;
        const A* from = sums + (out + i) * pitch + lane;
        square[i] = load_some(from, some);
        for (int64_t k = 1; k < count; ++k) square[i] += load_some(from + k * apart, some);
      }
      turn_over<A>(square);
      for (int i = 0; i < some; ++i) store_some(to + (lane + i) * step + out, square[i], n);
    }
  }
}

// The same of all weights (outs, taps, channels) of one group, once they are there.
template <typename A, typename To>
void exchange(const A* from, int64_t outs, int64_t taps, int64_t channels, To* to) {
  constexpr int64_t kChannels = 4 * lanes<A>;
  const int64_t pieces = (channels + kChannels - 1) / kChannels;
  parallel_for(pieces * taps, [&](int64_t task) {
    const int64_t tap = task % taps, channel = task / taps * kChannels;
    store_exchanged(from + tap * channels + channel, taps * channels, 1, 0, outs,
                    smaller(kChannels, channels - channel), to + (channel * taps + tap) * outs, taps * outs);
  });
}

}  // namespace
}  // namespace mpsf::MPSF_ISA
