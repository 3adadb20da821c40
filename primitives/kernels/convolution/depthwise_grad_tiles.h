// The weight gradient of depthwise convolution with three, five or seven taps a row: while the pixels of a vector of
// channels go by, the sums of several rows of taps stay in registers.
#pragma once
#include "kernels/convolution/depthwise_grad.h"

namespace mpsf::MPSF_ISA {
namespace {

// Rows of K taps whose sums registers hold.
template <int K>
constexpr int kTapRows = kRegisters == 32 ? (K == 3   ? 3
                                             : K == 5 ? 5
                                                      : 4)
                                          : (K == 3   ? 3
                                             : K == 5 ? 2
                                                      : 1);

// Lines [line, last) and columns [begin, end) of outputs; and how far behind lies what is read next, in dy and in x.
struct GradPiece {
  int64_t line, last;
  int begin, end;
  int64_t ahead_dy, ahead_x;
};

// Adds to sums, [row of taps][tap][lane], the products of a piece for a vector of channels, where rows of taps begin
// with `first`.
template <typename T, int K>
void add_tap_rows(const DepthwiseGrad<T>& g, const GradPiece& piece, int channel, int first, double* sums) {
  using A = Acc<T>;
  constexpr int L = lanes<A>, Q = kTapRows<K>;
  const Axis &rows = g.rows, &cols = g.cols;
  const int64_t pitch = g.channels, step = pitch * cols.stride, tap_pitch = pitch * cols.dilation;
  const int selected = rows.end - rows.begin, reach = (K - 1) * cols.dilation;
  const int inner_begin = min_int(piece.end, max_int(piece.begin, ceil_div(cols.pad, cols.stride)));
  const int whole = floor_div(cols.n_in - 1 - reach + cols.pad, cols.stride) + 1;
  const int inner_end = max_int(inner_begin, min_int(piece.end, whole));
  Vec<A> acc[Q][K] = {};
  for (int64_t line = piece.line; line < piece.last; ++line) {
    const int row = rows.begin + static_cast<int>(line % selected);
    const int64_t image = line / selected;
    const T* const dy = g.dy + channel + (image * rows.n_out + row) * cols.n_out * pitch;
    const T* x[Q];
    bool all = true;
#pragma GCC unroll 8
    for (int q = 0; q < Q; ++q) {
      const int from = first + q < rows.size ? source(rows, row, first + q) : -1;
      x[q] = from < 0 ? nullptr : g.x + channel + (image * rows.n_in + from) * cols.n_in * pitch;
      all = all && x[q];
    }
    const auto add_some = [&](int from, int to) {
      int at = from * cols.stride - cols.pad;
      for (int col = from; col < to; ++col, at += cols.stride) {
        const Vec<A> d = load(dy + col * pitch);
        const int64_t offset = at * pitch;
#pragma GCC unroll 8
        for (int p = 0; p < K; ++p) {
          const int tap = at + p * cols.dilation;
          if (tap < 0 || tap >= cols.n_in) continue;
#pragma GCC unroll 8
          for (int q = 0; q < Q; ++q) {
            if (x[q]) acc[q][p] += d * load(x[q] + offset + p * tap_pitch);
          }
        }
      }
    };
    if (!all) {
      add_some(piece.begin, piece.end);
      continue;
    }
    add_some(piece.begin, inner_begin);
    const T* from = dy + inner_begin * pitch;
    int64_t at = inner_begin * step - cols.pad * pitch;
    for (int col = inner_begin; col < inner_end; ++col, from += pitch, at += step) {
      const Vec<A> d = load(from);
      fetch<1>(from, piece.ahead_dy);
      fetch<1>(x[Q - 1] + at, piece.ahead_x);
#pragma GCC unroll 8
      for (int q = 0; q < Q; ++q) {
#pragma GCC unroll 8
        for (int p = 0; p < K; ++p) acc[q][p] += d * load(x[q] + at + p * tap_pitch);
      }
    }
    add_some(inner_end, piece.end);
  }
#pragma GCC unroll 8
  for (int q = 0; q < Q; ++q) {
    if (first + q >= rows.size) break;
#pragma GCC unroll 8
    for (int p = 0; p < K; ++p, sums += L) {
      for (int i = 0; i < L; ++i) sums[i] += static_cast<double>(acc[q][p][i]);
    }
  }
}

template <typename T, int K>
class DepthwiseGradTiles {
  using A = Acc<T>;
  static constexpr int L = lanes<A>, kVectors = 8, kTasks = 16;

 public:
  explicit DepthwiseGradTiles(const DepthwiseGrad<T>& g)
      : g_(g),
        taps_(int64_t{g.rows.size} * K),
        each_(taps_ + (g.db ? 1 : 0)),
        whole_(g.channels / L),
        vectors_((g.channels + L - 1) / L),
        blocks_((whole_ + kVectors - 1) / kVectors),
        parts_(smaller(g.lines(), kTasks < blocks_ ? 1 : kTasks / blocks_)) {}

  static bool fits(const DepthwiseGrad<T>& g) {
    return g.planes == 1 && g.cols.size == K && g.channels >= L && g.lines() > 0;
  }

  // Parts of the lines are summed up by themselves, for a block of vectors of channels.
  void run() const {
    const Scratch<double> sums(parts_ * vectors_ * each_ * L);  // [part][vector][tap, and then the bias][lane]
    parallel_for(parts_ * blocks_, [&](int64_t task) { add(task / blocks_, task % blocks_, sums.get()); });
    parallel_for(blocks_, [&](int64_t block) {
      for (int64_t v = begin_of(block); v < begin_of(block + 1); ++v) store_sums(v, sums.get() + v * each_ * L);
    });
  }

 private:
  // The last vector may overlap the one before, and then is in the same block.
  int64_t begin_of(int64_t block) const { return block == blocks_ ? vectors_ : whole_ * block / blocks_; }
  int channel_of(int64_t vector) const { return static_cast<int>(smaller(vector * L, g_.channels - L)); }

  void add(int64_t part, int64_t block, double* sums) const {
    const int64_t first = begin_of(block), last = begin_of(block + 1), end = g_.lines() * (part + 1) / parts_;
    double* const own = sums + (part * vectors_ + first) * each_ * L;
    clear(own, (last - first) * each_ * L);
    const Axis &rows = g_.rows, &cols = g_.cols;
    const int band = max_int(1, kPiece / max_int(1, cols.end - cols.begin));
    for (int64_t line = g_.lines() * part / parts_; line < end; line += band) {
      GradPiece piece = {line, smaller(end, line + band), 0, 0, 0, 0};
      piece.ahead_dy = int64_t{band} * cols.n_out * g_.channels;
      piece.ahead_x = int64_t{band} * rows.stride * cols.n_in * g_.channels;
      for (piece.begin = cols.begin; piece.begin < cols.end; piece.begin = piece.end) {
        piece.end = piece.begin + min_int(kPiece, cols.end - piece.begin);
        double* sum = own;
        for (int64_t v = first; v < last; ++v) {
          const int channel = channel_of(v);
          for (int q = 0; q < rows.size; q += kTapRows<K>) {
            add_tap_rows<T, K>(g_, piece, channel, q, sum + int64_t{q} * K * L);
          }
          sum += taps_ * L;
          if (g_.db) add_bias(piece, channel, sum), sum += L;
        }
      }
    }
  }

  void add_bias(const GradPiece& piece, int channel, double* sum) const {
    const int selected = g_.rows.end - g_.rows.begin;
    Vec<A> acc = {};
    for (int64_t line = piece.line; line < piece.last; ++line) {
      const int64_t row = line / selected * g_.rows.n_out + g_.rows.begin + line % selected;
      for (int64_t col = piece.begin; col < piece.end; ++col) {
        acc += load(g_.dy + channel + (row * g_.cols.n_out + col) * g_.channels);
      }
    }
    for (int i = 0; i < L; ++i) sum[i] += static_cast<double>(acc[i]);
  }

  // Adds up the parts of a vector, from that of the first part on.
  void store_sums(int64_t vector, const double* from) const {
    const int64_t channel = channel_of(vector), apart = vectors_ * each_ * L;
    for (int64_t tap = 0; tap < each_; ++tap, from += L) {
      for (int i = 0; i < L; ++i) {
        double total = from[i];
        for (int64_t part = 1; part < parts_; ++part) total += from[part * apart + i];
        (tap < taps_ ? g_.dw[(channel + i) * taps_ + tap] : g_.db[channel + i]) = static_cast<A>(total);
      }
    }
  }

  const DepthwiseGrad<T>& g_;
  const int64_t taps_, each_;  // sums of a channel, without and with that of the bias
  const int64_t whole_, vectors_, blocks_, parts_;
};

template <typename T, int K>
bool depthwise_grad_by_tiles(const DepthwiseGrad<T>& g) {
  const bool fits = DepthwiseGradTiles<T, K>::fits(g);
  if (fits) DepthwiseGradTiles<T, K>(g).run();
  return fits;
}

template <typename T>
void depthwise_grad(const DepthwiseGrad<T>& g) {
  if constexpr (sizeof(Acc<T>) == sizeof(float)) {
    if (depthwise_grad_by_tiles<T, 3>(g) || depthwise_grad_by_tiles<T, 5>(g) || depthwise_grad_by_tiles<T, 7>(g))
      return;
  }
  depthwise_grad_of_any(g);
}

}  // namespace
}  // namespace mpsf::MPSF_ISA
