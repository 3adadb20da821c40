// Products of few pixels whose weights lie with what is summed side by side: convolutions, and input gradients whose
// weights are exchanged. Vectors run along the channels, and tiles read the image and the weights where they lie; to
// lay weights out would take longer than such a product.
#pragma once
#include "kernels/convolution/products.h"

namespace mpsf::MPSF_ISA {
namespace {

// Pixels and outputs of a tile.
constexpr int kDotRows = kRegisters == 32 ? 6 : 3;
template <typename A>
constexpr int kDotOuts = lanes<A> < 4 ? lanes<A> : 4;
constexpr int kDotChunk = 3 * kDotRows;  // pixels that share weights while these are near
constexpr int64_t kDotDepth = 512;       // that a tile adds up at once, about
// Pixels at most: where windows have one tap, or sums are shorter than kLongDots, weights are soon laid out.
constexpr int64_t kShortDotPixels = 16, kLongDots = 1024;

// Vectors of numbers and of their products.
template <typename T>
struct WideDots {
  using Image = T;
  using Weight = Acc<T>;
  using Sums = Vec<Acc<T>>;
  static constexpr int kStep = lanes<Acc<T>>, kMostPixels = 64;
  template <typename From>
  static MPSF_INLINE Sums read(const From* from) {
    return load(from);
  }
  template <typename From>
  static MPSF_INLINE Sums read(const From* from, int n) {
    return load(from, n);
  }
  static MPSF_INLINE Sums add(Sums sums, Sums image, Sums weights) { return sums + image * weights; }
};

// Channels [begin, begin + length) of some taps. Of each tap: where its weights lie, and which pixels it reads.
template <typename D>
struct DotPart {
  const int64_t* at;
  const typename D::Image* const* pixels;
  int taps;
  int64_t pitch, begin, length;
};

template <typename D>
using DotTile = void (*)(const DotPart<D>& part, int64_t pixel, const typename D::Weight* const* outs, bool add,
                         Acc<typename D::Image>* sums);

// sums[r][out][lane] = (add ? sums[r][out][lane] : 0) + the sum over taps and every kStep-th channel of
// pixels[tap][pixel + r][channel] * outs[out][at[tap] + channel]. From one pixel to the next lie as many outs as lanes.
template <typename D, int Rows>
void multiply_dots(const DotPart<D>& part, int64_t pixel, const typename D::Weight* const* outs, bool add,
                   Acc<typename D::Image>* sums) {
  using A = Acc<typename D::Image>;
  using V = decltype(D::read(outs[0]));
  constexpr int L = lanes<A>;
  Vec<A> acc[Rows][kDotOuts<A>];
#pragma GCC unroll 6
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int o = 0; o < kDotOuts<A>; ++o) acc[r][o] = Vec<A>{};
  }
  const typename D::Image* const* pixels = part.pixels + pixel;
  for (int tap = 0; tap < part.taps; ++tap, pixels += part.pitch) {
    const typename D::Image* x[Rows];
    const typename D::Weight* w[kDotOuts<A>];
#pragma GCC unroll 6
    for (int r = 0; r < Rows; ++r) x[r] = pixels[r] + part.begin;
#pragma GCC unroll 4
    for (int o = 0; o < kDotOuts<A>; ++o) w[o] = outs[o] + part.at[tap] + part.begin;
    int64_t k = 0;
    for (; k + D::kStep <= part.length; k += D::kStep) {
      V image[Rows];
#pragma GCC unroll 6
      for (int r = 0; r < Rows; ++r) image[r] = D::read(x[r] + k);
#pragma GCC unroll 4
      for (int o = 0; o < kDotOuts<A>; ++o) {
        const V weights = D::read(w[o] + k);
#pragma GCC unroll 6
        for (int r = 0; r < Rows; ++r) acc[r][o] = D::add(acc[r][o], image[r], weights);
      }
    }
    if (k == part.length) continue;
    const int n = static_cast<int>(part.length - k);
    V image[Rows];
#pragma GCC unroll 6
    for (int r = 0; r < Rows; ++r) image[r] = D::read(x[r] + k, n);
#pragma GCC unroll 4
    for (int o = 0; o < kDotOuts<A>; ++o) {
      const V weights = D::read(w[o] + k, n);
#pragma GCC unroll 6
      for (int r = 0; r < Rows; ++r) acc[r][o] = D::add(acc[r][o], image[r], weights);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int o = 0; o < kDotOuts<A>; ++o) {
      A* to = sums + (r * L + o) * L;
      store(to, add ? load(to) + acc[r][o] : acc[r][o]);
    }
  }
}

template <typename D, int Rows = kDotRows>
DotTile<D> dot_tile(int rows) {
  if constexpr (Rows > 1) {
    if (rows < Rows) return dot_tile<D, Rows - 1>(rows);
  }
  return multiply_dots<D, Rows>;
}

// The sum of each of as many vectors as there are lanes.
template <typename A>
MPSF_INLINE Vec<A> add_across(const A* from) {
  constexpr int L = lanes<A>;
  Vec<A> sums[L];
#pragma GCC unroll 16
  for (int i = 0; i < L; ++i) sums[i] = load(from + i * L);
    // Vectors half of them apart, whose lanes take turns: their numbers are the lanes of the last in order.
#pragma GCC unroll 4
  for (int count = L / 2; count > 0; count /= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < count; ++i) {
      sums[i] = by_turns<false>(sums[i], sums[i + count]) + by_turns<true>(sums[i], sums[i + count]);
    }
  }
  return sums[0];
}

template <typename D>
bool is_of_dots(const Product<typename D::Image, typename D::Weight>& p) {
  const int64_t most = p.rows.taps * p.cols.taps > 1 && p.depth() >= kLongDots ? D::kMostPixels : kShortDotPixels;
  return p.groups == 1 && p.fold_rows * p.fold_cols == 1 && p.channel_stride == 1 &&
         p.channels >= lanes<Acc<typename D::Image>> && p.pixels() <= smaller(most, D::kMostPixels);
}

// A task: the pixels of one product for as many outputs as there are lanes.
template <typename D>
class DotTask {
  using T = typename D::Image;
  using W = typename D::Weight;
  using A = Acc<T>;
  static constexpr int L = lanes<A>;

 public:
  DotTask(const Product<T, W>& p, const T* zeros)
      : p_(p),
        taps_(p.rows.taps * p.cols.taps),
        parts_(p.channels <= kDotDepth ? 1 : (p.channels + kDotDepth - 1) / kDotDepth),
        together_(p.channels == 0 ? 1 : max_int(1, static_cast<int>(kDotDepth / p.channels))),
        at_(taps_),
        pixels_(int64_t{taps_} * kDotChunk),
        sums_(int64_t{kDotChunk} * L * L),
        zeros_(zeros) {
    for (int tap = 0; tap < taps_; ++tap) {
      const int row = p.rows.tap_first + tap / p.cols.taps * p.rows.tap_step;
      const int col = p.cols.tap_first + tap % p.cols.taps * p.cols.tap_step;
      at_[tap] = (int64_t{row} * p.kernel_cols + col) * p.tap_stride;
    }
  }

  void compute(int block) {
    const W* outs[L];
    for (int o = 0; o < L; ++o) outs[o] = p_.weights + min_int(block * L + o, p_.out_channels - 1) * p_.out_stride;
    const int64_t pixels = p_.pixels(), chunks = (pixels + kDotChunk - 1) / kDotChunk;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      const int64_t begin = pixels * chunk / chunks, count = pixels * (chunk + 1) / chunks - begin;
      find(begin, count);
      multiply(outs, count);
      finish(block, begin, count);
    }
  }

 private:
  // Where the pixels of a chunk read, for each tap.
  void find(int64_t begin, int64_t count) {
    Pixel at = pixel_at(p_, begin);
    for (int64_t i = 0; i < count; ++i, step(p_, at)) {
      const T** to = pixels_.get() + i;
      for (int q = 0; q < p_.rows.taps; ++q) {
        const int row = p_.rows.src_first + at.row * p_.rows.src_out + q * p_.rows.src_tap;
        const bool inside = row >= p_.rows.src_begin && row < p_.rows.src_end;
        const T* line = p_.source + (int64_t{at.image} * p_.source_rows + row) * p_.source_cols * p_.source_channels;
        for (int p = 0; p < p_.cols.taps; ++p, to += kDotChunk) {
          const int col = p_.cols.src_first + at.col * p_.cols.src_out + p * p_.cols.src_tap;
          const bool there = inside && col >= p_.cols.src_begin && col < p_.cols.src_end;
          *to = there ? line + int64_t{col} * p_.source_channels : zeros_;
        }
      }
    }
  }

  void multiply(const W* const* outs, int64_t count) {
    const int64_t tiles = (count + kDotRows - 1) / kDotRows;
    if (taps_ == 0) clear(sums_.get(), count * L * L);
    for (int tap = 0; tap < taps_; tap += together_) {
      for (int64_t part = 0; part < parts_; ++part) {
        const int64_t from = p_.channels * part / parts_, length = p_.channels * (part + 1) / parts_ - from;
        const DotPart<D> run = {
            at_.get() + tap, pixels_.get() + int64_t{tap} * kDotChunk, min_int(together_, taps_ - tap), kDotChunk, from,
            length};
        for (int out = 0; out < L; out += kDotOuts<A>) {
          for (int64_t tile = 0; tile < tiles; ++tile) {
            const int64_t first = count * tile / tiles, rows = count * (tile + 1) / tiles - first;
            dot_tile<D>(static_cast<int>(rows))(run, first, outs + out, tap + part > 0,
                                                sums_.get() + (first * L + out) * L);
          }
        }
      }
    }
  }

  void finish(int block, int64_t begin, int64_t count) {
    const int lane = block * L, n = min_int(L, p_.out_channels - lane);
    const Vec<A> bias = load_some(p_.bias + lane, n);
    Pixel at = pixel_at(p_, begin);
    for (int64_t i = 0; i < count; ++i, step(p_, at)) {
      Vec<A> value[1][1] = {{add_across(sums_.get() + i * L * L) + bias}};
      apply(value, p_.neuron);
      const int row = p_.rows.out_first + at.row * p_.rows.out_step,
                col = p_.cols.out_first + at.col * p_.cols.out_step;
      T* to = p_.result + ((int64_t{at.image} * p_.result_rows + row) * p_.result_cols + col) * p_.result_channels;
      store_result(to + lane, value[0][0], n, p_.streamed);
    }
  }

  const Product<T, W>& p_;
  const int taps_;
  const int64_t parts_;
  const int together_;
  const Scratch<int64_t> at_;
  const Scratch<const T*> pixels_;
  const Scratch<A> sums_;
  const T* const zeros_;
};

// Several products, as the phases of an input gradient are; they have the same channels.
template <typename D>
void products_of_dots(const Product<typename D::Image, typename D::Weight>* products, int64_t count) {
  using T = typename D::Image;
  constexpr int L = lanes<Acc<T>>;
  const int64_t blocks = (products->out_channels + L - 1) / L;
  const Scratch<T> zeros(products->channels);
  clear(zeros.get(), products->channels);
  parallel_for(blocks * count, [&](int64_t task) {
    DotTask<D>(products[task % count], zeros.get()).compute(static_cast<int>(task / count));
    stream_end();
  });
}

// A convolution of few pixels, or all phases of an input gradient; false where there are more.
template <typename D>
bool forward_dots(const Geometry& g, const Call& call, const Neuron<Acc<typename D::Image>>& neuron) {
  const auto p = forward_product<typename D::Image, typename D::Weight>(g, call, neuron);
  if (!is_of_dots<D>(p)) return false;
  products_of_dots<D>(&p, 1);
  return true;
}

template <typename D>
bool input_dots(const Geometry& g, const Call& call, const Neuron<Acc<typename D::Image>>& neuron) {
  constexpr int64_t kMost = 64;
  const int64_t across = phases(g.cols), count = phases(g.rows) * across;
  if (g.groups > 1 || g.out_stride() != 1 || count > kMost) return false;
  const Scratch<Product<typename D::Image, typename D::Weight>> products(count);
  for (int64_t i = 0; i < count; ++i) {
    const ConvAxis rows = input_axis(g.rows, static_cast<int>(i / across)),
                   cols = input_axis(g.cols, static_cast<int>(i % across));
    products[i] = input_product<typename D::Image, typename D::Weight>(g, call, neuron, rows, cols);
    if (!is_of_dots<D>(products[i])) return false;
  }
  products_of_dots<D>(products.get(), count);
  return true;
}

}  // namespace
}  // namespace mpsf::MPSF_ISA
