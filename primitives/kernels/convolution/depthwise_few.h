// Depthwise convolution of fewer channels than a vector has lanes: a vector holds neighbouring pixels, and weights are
// repeated. Lines of the image are widened and padded first, so that a tap reads one run of memory for a line of
// outputs.
#pragma once
#include "kernels/convolution/depthwise_tiles.h"

namespace mpsf::MPSF_ISA {
namespace {

// Pixels `first`, first + step and so on of a line, `count` of them, with zeros where they are not in [begin, end).
// Writes up to one vector behind.
template <typename T>
void pad_pixels(const T* line, int channels, int64_t first, int step, int64_t count, int begin, int end, Acc<T>* to) {
  if (step == 1) {
    return copy_run(to, line + first * channels, 0, count * channels, (begin - first) * channels,
                    (end - first) * channels);
  }
  for (int64_t at = first; count > 0; --count, at += step, to += channels) {
    const bool there = at >= begin && at < end;
    store_some(to, there ? load_some(line + at * channels, channels) : Vec<Acc<T>>{}, channels);
  }
}

template <typename T>
class DepthwiseOfFew {
  using A = Acc<T>;
  static constexpr int L = lanes<A>, kVectors = kRegisters == 32 ? 8 : 4;
  static constexpr int64_t kMostBytes = int64_t{1} << 19, kBand = 16, kTasks = 16;

 public:
  explicit DepthwiseOfFew(const Depthwise<T>& d)
      : d_(d),
        period_(d.channels / static_cast<int>(gcd(d.channels, L))),
        table_(period_ == 1 ? 1 : period_ + kVectors - 1),
        span_(d.cols.count + int64_t{d.cols.taps - 1} * d.cols.src_tap / d.cols.src_out),
        line_((span_ * d.cols.src_out * d.channels / L + kVectors + 1) * L),
        ring_(int64_t{d.rows.taps - 1} * d.rows.src_tap + 1) {}

  bool fits() const {
    return d_.dense() && d_.channels < L && d_.cols.out_step == 1 && d_.rows.taps > 0 && d_.cols.taps > 0 &&
           ring_ * line_ * static_cast<int64_t>(sizeof(A)) <= kMostBytes;
  }

  void run() const {
    const Scratch<A> weights(int64_t{d_.taps()} * table_ * L), bias(int64_t{table_} * L);
    A* w = weights.get();
    for (int q = 0; q < d_.rows.taps; ++q) {
      for (int p = 0; p < d_.cols.taps; ++p, w += table_ * L) repeat(d_.weights + d_.tap(q, p), d_.weight_step, w);
    }
    repeat(d_.bias, 1, bias.get());
    const int64_t lines = int64_t{d_.images} * d_.rows.count, band = smaller(kBand, (lines + kTasks - 1) / kTasks);
    parallel_for(lines == 0 ? 0 : (lines + band - 1) / band, [&](int64_t task) {
      const Scratch<A> room(ring_ * line_);
      const Scratch<int64_t> held(ring_);  // the line of all images that is in each place
      for (int64_t i = 0; i < ring_; ++i) held[i] = -1;
      const Scratch<const A*> used(d_.rows.taps), with(d_.rows.taps);
      for (int64_t line = task * band; line < smaller(lines, (task + 1) * band); ++line) {
        const int64_t image = line / d_.rows.count, row = line % d_.rows.count;
        int count = 0;
        for (int q = 0; q < d_.rows.taps; ++q) {
          const int64_t from = d_.rows.src_first + row * d_.rows.src_out + int64_t{q} * d_.rows.src_tap;
          if (from < d_.rows.src_begin || from >= d_.rows.src_end) continue;
          const int64_t at = image * d_.source_rows + from;
          A* const to = room.get() + at % ring_ * line_;
          if (held[at % ring_] != at) pad(at, to);
          held[at % ring_] = at;
          used[count] = to;
          with[count++] = weights.get() + int64_t{q} * d_.cols.taps * table_ * L;
        }
        const int64_t out_row = image * d_.result_rows + d_.rows.out_first + row * d_.rows.out_step;
        T* const result = d_.result + (out_row * d_.result_cols + d_.cols.out_first) * d_.channels;
        if (period_ == 1) {
          outputs<true>(used.get(), with.get(), count, bias.get(), result);
        } else {
          outputs<false>(used.get(), with.get(), count, bias.get(), result);
        }
      }
    });
  }

 private:
  // One number a channel, `step` apart, again and again.
  void repeat(const A* from, int64_t step, A* to) const {
    for (int i = 0; i < table_ * L; ++i) to[i] = from[i % d_.channels * step];
  }

  void pad(int64_t line, A* to) const {
    const ConvAxis& cols = d_.cols;
    const T* const from = d_.source + line * d_.source_cols * d_.channels;
    for (int phase = 0; phase < cols.src_out; ++phase, to += span_ * d_.channels) {
      pad_pixels(from, d_.channels, int64_t{cols.src_first} + phase, cols.src_out, span_, cols.src_begin, cols.src_end,
                 to);
    }
  }

  // A line of outputs, from so many lines with the weights of each.
  template <bool Same>
  void outputs(const A* const* lines, const A* const* weights, int count, const A* bias, T* result) const {
    const int64_t size = int64_t{d_.cols.count} * d_.channels;
    int64_t at = 0;
    for (; at + kVectors * L <= size; at += kVectors * L) {
      tile<kVectors, Same>(lines, weights, count, bias, at, L, result + at);
    }
    for (; at < size; at += L) {
      tile<1, Same>(lines, weights, count, bias, at, static_cast<int>(smaller(L, size - at)), result + at);
    }
  }

  // Vectors of n lanes from element `at` of a line on. Same says that all have the same weights.
  template <int Vectors, bool Same>
  MPSF_INLINE void tile(const A* const* lines, const A* const* weights, int count, const A* bias, int64_t at, int n,
                        T* result) const {
    const ConvAxis& cols = d_.cols;
    const int64_t phase = Same ? 0 : at / L % period_ * L;
    Vec<A> acc[Vectors][1];
#pragma GCC unroll 8
    for (int i = 0; i < Vectors; ++i) acc[i][0] = load(bias + phase + (Same ? 0 : i * L));
    for (int q = 0; q < count; ++q) {
      const A* w = weights[q] + phase;
      for (int p = 0; p < cols.taps; ++p, w += int64_t{table_} * L) {
        const int64_t reach = int64_t{p} * cols.src_tap;
        const A* x = lines[q] + at + (reach % cols.src_out * span_ + reach / cols.src_out) * d_.channels;
        const Vec<A> same = load(w);
#pragma GCC unroll 8
        for (int i = 0; i < Vectors; ++i) acc[i][0] += load(x + i * L) * (Same ? same : load(w + i * L));
      }
    }
    apply(acc, d_.neuron);
#pragma GCC unroll 8
    for (int i = 0; i < Vectors; ++i) store_some(result + i * L, acc[i][0], n);
  }

  const Depthwise<T>& d_;
  const int period_, table_;   // vectors after which weights repeat, and those that are laid out for a tap
  const int64_t span_, line_;  // pixels a tap reads for a line of outputs; elements that a line takes
  const int64_t ring_;         // lines from the first tap's to the last one's
};

// One sum, or the phases of one gradient.
template <typename T>
void depthwise(const Depthwise<T>* sums, int count) {
  if (depthwise_by_tiles(sums, count)) return;
  for (int i = 0; i < count; ++i) {
    const DepthwiseOfFew<T> few(sums[i]);
    if (few.fits()) {
      few.run();
    } else {
      depthwise_of_any(sums[i]);
    }
  }
}

}  // namespace
}  // namespace mpsf::MPSF_ISA
