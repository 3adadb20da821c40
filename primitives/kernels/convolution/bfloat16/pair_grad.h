// The weight gradient of bfloat16: sums over blocks of pixels, of whose pairs the cotangents are the rows of a panel
// and the image the lanes, as weight_grad.h has them of float32.
#pragma once
#include "kernels/convolution/bfloat16/pairs.h"
#include "kernels/convolution/weight_grad.h"

namespace mpsf::MPSF_ISA {
namespace {

struct PairGrad : WeightGrad<Bfloat> {
  Bfloat* rounded;  // what is made instead of dw, or null
};

// Distance of an output channel's cotangents in a panel, an odd number of lines of the cache.
constexpr int64_t kGradPitch = kBlockPixels + 32;
constexpr int64_t kGradPanel = int64_t{kBlockPixels} * kPairLanes;
constexpr int64_t kTurnedBytes = int64_t{16} << 20;  // of cotangents that are turned over once for all tasks

// With few channels a whole window is taken as the channels of one tap, if it is not large.
inline bool takes_windows(const PairGrad& g) {
  constexpr int64_t kMost = 2048;
  const int64_t taps = int64_t{g.rows.size} * g.cols.size;
  return g.groups == 1 && g.channels < lanes<float> && taps > 1 && taps * g.channels <= kMost;
}
inline int64_t grad_taps(const PairGrad& g) { return takes_windows(g) ? 1 : int64_t{g.rows.size} * g.cols.size; }
inline int grad_width(const PairGrad& g) {
  return takes_windows(g) ? g.rows.size * g.cols.size * g.channels : g.channels;
}
inline int grad_tiles(const PairGrad& g) { return (g.out_channels + kPairRows - 1) / kPairRows; }
inline int grad_tile_begin(const PairGrad& g, int tile) {
  return static_cast<int>(int64_t{g.out_channels} * tile / grad_tiles(g));
}
inline int grad_blocks(const PairGrad& g) { return (grad_width(g) + kPairLanes - 1) / kPairLanes; }
// Of one block of lanes, as [tap][out][lane].
inline int64_t grad_block_size(const PairGrad& g) { return grad_taps(g) * g.out_channels * kPairLanes; }
// Of a group's cotangents in a block of pixels; AMX reads rows behind the last.
inline int64_t grad_rows_size(const PairGrad& g) { return (int64_t{g.out_channels} + kPairRows) * kGradPitch; }

// Output channels [first, last) of a group as rows of the pixels of a range, with zeros up to a whole unit. `first` is
// a multiple of a vector's lanes.
inline void turn_cotangents(const PairGrad& g, int group, const PixelRange& range, int first, int last, Bfloat* rows) {
  constexpr int L = lanes<float>;
  const int64_t pitch = int64_t{g.groups} * g.out_channels;
  const int count = range.count * range.cols, padded = static_cast<int>(whole_units(count));
  const Bfloat* at[kBlockPixels];
  for (int i = 0, pixel = 0; i < range.count; ++i) {
    const Bfloat* from = g.dy + dy_pixel(g, range.line + i, range.col) * pitch + int64_t{group} * g.out_channels;
    for (int j = 0; j < range.cols; ++j, from += pitch) at[pixel++] = from;
  }
  for (int out = first; out < last; out += L) {
    const int n = min_int(L, last - out);
    for (int pixel = 0; pixel < padded; pixel += 2 * L) {
      Vec<float> turned[L];
#pragma GCC unroll 16
      for (int i = 0; i < L; ++i) {
        const int one = pixel + 2 * i;
        const Bits16 a = one < count ? load_bits(at[one] + out, n) : Bits16{};
        const Bits16 b = one + 1 < count ? load_bits(at[one + 1] + out, n) : Bits16{};
        turned[i] = bit_cast<Vec<float>>(paired(a, b));
      }
      turn_over<float>(turned);
      Bfloat* to = rows + out * kGradPitch + pixel;
      for (int r = 0; r < n; ++r, to += kGradPitch) memcpy(static_cast<void*>(to), &turned[r], sizeof(turned[r]));
    }
  }
}

// Adds sums of dy over a range to `bias`, of output channels [0, out_channels) of a group.
inline void add_cotangents(const PairGrad& g, int group, const PixelRange& range, double* bias) {
  constexpr int L = lanes<float>;
  const int64_t pitch = int64_t{g.groups} * g.out_channels;
  for (int out = 0; out < g.out_channels; out += L) {
    const int n = min_int(L, g.out_channels - out);
    Vec<float> sum = {};
    for (int i = 0; i < range.count; ++i) {
      const Bfloat* from =
          g.dy + dy_pixel(g, range.line + i, range.col) * pitch + int64_t{group} * g.out_channels + out;
      for (int j = 0; j < range.cols; ++j, from += pitch) sum += load_some(from, n);
    }
    for (int j = 0; j < n; ++j) bias[out + j] += static_cast<double>(sum[j]);
  }
}

// Where a group's pixels of a range read the image, for each tap, which count by rows; or whole windows, copied.
class GradPixels {
 public:
  GradPixels(const PairGrad& g, int group)
      : g_(g),
        group_(group),
        pitch_((grad_width(g) + kPairLanes - 1) / kPairLanes * kPairLanes + kPairLanes),
        at_(grad_taps(g) * kBlockPixels),
        copies_(takes_windows(g) ? kBlockPixels * pitch_ : 0) {}

  void find(const PixelRange& range) {
    count_ = range.count * range.cols;
    if (takes_windows(g_)) return copy_windows(range);
    const int64_t pitch = int64_t{g_.groups} * g_.channels;
    for (int tap = 0; tap < grad_taps(g_); ++tap) {
      const Bfloat** at = at_.get() + int64_t{tap} * kBlockPixels;
      for (int i = 0; i < range.count; ++i) {
        const int64_t line = x_line(g_, range.line + i, tap / g_.cols.size);
        const Bfloat* from = g_.x + line * g_.cols.n_in * pitch + int64_t{group_} * g_.channels;
        int64_t col = first(g_.cols, g_.cols.begin + range.col) + int64_t{tap % g_.cols.size} * g_.cols.dilation;
        for (int j = 0; j < range.cols; ++j, ++at, col += g_.cols.stride) {
          *at = line >= 0 && col >= 0 && col < g_.cols.n_in ? from + col * pitch : nullptr;
        }
      }
    }
  }

  // Whether any pixel of a tap, which counts by rows, reads something.
  bool any(int tap) const {
    const Bfloat* const* at = at_.get() + int64_t{tap} * kBlockPixels;
    for (int i = 0; i < count_; ++i) {
      if (at[i]) return true;
    }
    return false;
  }

  // Lanes from `lane` on as [pixel / 2][lane][2], with zeros up to a whole unit.
  void pair_up(int tap, int lane, Bfloat* to) const {
    const Bfloat* const* at = at_.get() + int64_t{tap} * kBlockPixels;
    const int n = min_int(kPairLanes, grad_width(g_) - lane), padded = static_cast<int>(whole_units(count_));
    for (int i = 0; i < padded; i += 2, to += 2 * kPairLanes) {
      const Bfloat *a = i < count_ ? at[i] : nullptr, *b = i + 1 < count_ ? at[i + 1] : nullptr;
      for (int v = 0; v < kPairLanes; v += lanes<float>) {
        const Bits32 pairs =
            paired(a ? load_bits(a + lane + v, n - v) : Bits16{}, b ? load_bits(b + lane + v, n - v) : Bits16{});
        memcpy(static_cast<void*>(to + 2 * v), &pairs, sizeof(pairs));
      }
    }
  }

 private:
  // Where there are elements enough to read beyond the last, a little more is copied, which the next copy overwrites.
  void copy_windows(const PixelRange& range) {
    const int64_t all = int64_t{g_.images} * g_.rows.n_in * g_.cols.n_in * g_.channels;
    const bool touches = g_.cols.dilation == 1;
    const int64_t length = (touches ? g_.cols.size : 1) * int64_t{g_.channels};
    const int runs = touches ? 1 : g_.cols.size;
    Bfloat* copy = copies_.get();
    for (int i = 0, pixel = 0; i < range.count; ++i) {
      int64_t col = first(g_.cols, g_.cols.begin + range.col);
      for (int j = 0; j < range.cols; ++j, ++pixel, copy += pitch_, col += g_.cols.stride) {
        at_[pixel] = copy;
        Bfloat* to = copy;
        for (int q = 0; q < g_.rows.size; ++q) {
          const int64_t line = x_line(g_, range.line + i, q);
          for (int run = 0; run < runs; ++run, to += length) {
            const int64_t begin = col + int64_t{run} * g_.cols.dilation, end = begin + (touches ? g_.cols.size : 1);
            const int64_t from = (line * g_.cols.n_in + begin) * g_.channels;
            if (line >= 0 && begin >= 0 && end <= g_.cols.n_in && length <= kPairLanes && from + kPairLanes <= all) {
              memcpy(static_cast<void*>(to), g_.x + from, kPairLanes * sizeof(Bfloat));
            } else {
              copy_numbers(to, g_.x + from, 0, length, -begin * g_.channels,
                           line < 0 ? 0 : (g_.cols.n_in - begin) * g_.channels);
            }
          }
        }
      }
    }
  }

  const PairGrad& g_;
  const int group_;
  const int64_t pitch_;
  const Scratch<const Bfloat*> at_;
  const Scratch<Bfloat> copies_;
  int count_ = 0;
};

// A task: sums over some of the pixels for blocks of lanes [first_block, last_block) of a group.
class PairGradTask {
 public:
  // Adds sums of dy to `bias` besides, unless that is null. `turned` has the group's cotangents of all pixel blocks, or
  // is null.
  PairGradTask(const PairGrad& g, int group, int first_block, int last_block, double* bias, const Bfloat* turned)
      : g_(g),
        bias_(bias),
        turned_(turned),
        group_(group),
        first_(first_block),
        last_(last_block),
        pixels_(g, group),
        rows_(turned ? 0 : grad_rows_size(g)),
        columns_(kGradPanel) {}

  // Adds up pixel blocks [begin, end) into total, which starts at the first block of lanes.
  void add(int64_t begin, int64_t end, float* total) {
    const int64_t size = (last_ - first_) * grad_block_size(g_);
    if (end - begin <= kRunBlocks) return add_run(begin, end, total);
    clear(total, size);
    const Scratch<float> sums(size);
    for (; begin < end; begin += kRunBlocks) {
      add_run(begin, smaller(end, begin + kRunBlocks), sums.get());
      for (int64_t i = 0; i < size; i += lanes<float>) store(total + i, load(total + i) + load(sums.get() + i));
    }
  }

 private:
  void add_run(int64_t begin, int64_t end, float* sums) {
    for (int64_t index = begin; index < end; ++index) {
      const PixelRange range = pixel_range(g_, index);
      const Bfloat* rows = turned_ ? turned_ + index * grad_rows_size(g_) : rows_.get();
      if (!turned_) turn_cotangents(g_, group_, range, 0, g_.out_channels, rows_.get());
      if (bias_) add_cotangents(g_, group_, range, bias_);
      pixels_.find(range);
      const int64_t depth = whole_units(int64_t{range.count} * range.cols);
      for (int block = first_; block < last_; ++block) {
        for (int tap = 0; tap < grad_taps(g_); ++tap) {
          float* sum = sums + (block - first_) * grad_block_size(g_) + int64_t{tap} * g_.out_channels * kPairLanes;
          if (!pixels_.any(tap)) {
            if (index == begin) clear(sum, int64_t{g_.out_channels} * kPairLanes);
            continue;
          }
          pixels_.pair_up(tap, block * kPairLanes, columns_.get());
          for (int tile = 0; tile < grad_tiles(g_); ++tile) multiply(rows, tile, depth, block, index > begin, sum);
        }
      }
    }
  }

  void multiply(const Bfloat* rows, int tile, int64_t depth, int block, bool add, float* sums) {
    const int from = grad_tile_begin(g_, tile), to = grad_tile_begin(g_, tile + 1);
    const int width = grad_width(g_) - block * kPairLanes;
    const PairPanel panel = {&rows, 1, depth, from * kGradPitch, kGradPitch, to - from};
    pair_tile(to - from, width)(panel, columns_.get(), add, {sums + from * kPairLanes, kPairLanes}, nullptr);
  }

  const PairGrad& g_;
  double* const bias_;
  const Bfloat* const turned_;
  const int group_, first_, last_;
  GradPixels pixels_;
  const Scratch<Bfloat> rows_;
  const Scratch<Bfloat> columns_;
};

// Sums of one lane block or of several parts of them to the weights; `sums` are of lane block 0 of group 0, of the
// first part.
inline void store_weights(const PairGrad& g, int64_t parts, int64_t part_size, const float* sums, int group,
                          int first_block, int last_block) {
  const int64_t taps = grad_taps(g);
  if (g.exchanged) {  // and of one group, without windows that are taken whole
    for (int64_t block = first_block; block < last_block; ++block) {
      const int64_t lane = block * kPairLanes;
      for (int64_t tap = 0; tap < taps; ++tap) {
        const auto store_in = [&](auto* to) {
          store_exchanged(sums + block * grad_block_size(g) + tap * g.out_channels * kPairLanes, kPairLanes, parts,
                          part_size, g.out_channels, smaller(kPairLanes, g.channels - lane),
                          to + (lane * taps + tap) * g.out_channels, taps * g.out_channels);
        };
        g.rounded ? store_in(g.rounded) : store_in(g.dw);
      }
    }
    return;
  }
  const int end = min_int(grad_width(g), last_block * kPairLanes);
  for (int64_t i = 0; i < g.out_channels * taps; ++i) {
    const int64_t to = (int64_t{group} * g.out_channels * taps + i) * grad_width(g);
    for (int lane = first_block * kPairLanes; lane < end; lane += lanes<float>) {
      const float* from = sums + (int64_t{group} * grad_blocks(g) + lane / kPairLanes) * grad_block_size(g) +
                          (i % taps * g.out_channels + i / taps) * kPairLanes + lane % kPairLanes;
      Vec<float> sum = load(from);
      for (int64_t part = 1; part < parts; ++part) sum += load(from + part * part_size);
      const int n = min_int(lanes<float>, end - lane);
      if (g.rounded) {
        store_result(g.rounded + to + lane, sum, n, g.streamed);
      } else {
        store_result(g.dw + to + lane, sum, n, g.streamed);
      }
    }
  }
}

inline void weight_grad_of_pairs(const PairGrad& g) {
  const int64_t out_channels = int64_t{g.groups} * g.out_channels;
  if (out_channels == 0) return;
  if (g.lines() == 0 || g.line() == 0) {
    if (g.db) clear(g.db, out_channels);
    return g.rounded ? clear(g.rounded, g.size()) : clear(g.dw, g.size());
  }
  const int blocks = grad_blocks(g);
  const int64_t part_size = int64_t{g.groups} * blocks * grad_block_size(g), pixel_blocks = g.pixel_blocks();
  const int64_t affordable = kPartBytes / ((part_size + 1) * static_cast<int64_t>(sizeof(float))) + 1;
  const int64_t parts = smaller(pixel_blocks, smaller(kMaxParts, affordable));
  const int64_t splits = smaller(max_int(1, blocks), (kMaxParts + parts * g.groups - 1) / (parts * g.groups));
  const Scratch<double> bias(g.db ? parts * out_channels : 0);
  if (g.db) clear(bias.get(), parts * out_channels);
  // Where several tasks read the same cotangents these are turned over once, unless they are many.
  const int64_t size = grad_rows_size(g);
  const bool shared =
      splits > 1 && g.groups * pixel_blocks * size * static_cast<int64_t>(sizeof(Bfloat)) <= kTurnedBytes;
  const Scratch<Bfloat> turned(shared ? g.groups * pixel_blocks * size : 0);
  constexpr int kTurned = 64;  // output channels that are turned over together
  const int64_t shares = (g.out_channels + kTurned - 1) / kTurned;
  parallel_for(shared ? g.groups * pixel_blocks * shares : 0, [&](int64_t task) {
    const int64_t at = task / shares;
    const int first = static_cast<int>(task % shares) * kTurned;
    turn_cotangents(g, static_cast<int>(at / pixel_blocks), pixel_range(g, at % pixel_blocks), first,
                    min_int(first + kTurned, g.out_channels), turned.get() + at * size);
  });
  const Scratch<float> sums(parts * part_size);
  parallel_for(parts * g.groups * splits, [&](int64_t task) {
    const Tiles taken;
    const int64_t split = task % splits, part = task / splits / g.groups;
    const int group = static_cast<int>(task / splits % g.groups);
    const int begin = static_cast<int>(blocks * split / splits), end = static_cast<int>(blocks * (split + 1) / splits);
    double* const own =
        g.db && split == 0 ? bias.get() + part * out_channels + int64_t{group} * g.out_channels : nullptr;
    const Bfloat* const rows = shared ? turned.get() + int64_t{group} * pixel_blocks * size : nullptr;
    PairGradTask(g, group, begin, end, own, rows)
        .add(pixel_blocks * part / parts, pixel_blocks * (part + 1) / parts,
             sums.get() + part * part_size + (int64_t{group} * blocks + begin) * grad_block_size(g));
    if (parts > 1) return;
    store_weights(g, 1, part_size, sums.get(), group, begin, end);
    stream_end();
  });
  if (parts > 1) {
    parallel_for(int64_t{g.groups} * blocks, [&](int64_t task) {
      const int block = static_cast<int>(task % blocks);
      store_weights(g, parts, part_size, sums.get(), static_cast<int>(task / blocks), block, block + 1);
      stream_end();
    });
  }
  for (int64_t out = 0; g.db && out < out_channels; ++out) {
    for (int64_t part = 1; part < parts; ++part) bias[out] += bias[part * out_channels + out];
    g.db[out] = static_cast<float>(bias[out]);
  }
}

}  // namespace
}  // namespace mpsf::MPSF_ISA
