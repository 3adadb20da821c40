// Where products of bfloat16 read the image: lines of outputs see runs of it, in place or in copies that have zeros
// where windows hang over.
#pragma once
#include "kernels/convolution/bfloat16/pairs.h"
#include "runtime/parallel.h"

namespace mpsf::MPSF_ISA {
namespace {

constexpr int kPairPixels = 112;      // outputs that are made together, to reuse weights
constexpr int64_t kPairDepth = 2048;  // of one run, or of several together, that a tile adds up at once
constexpr int kHeldLines = 256;       // of the source, unless one line of outputs sees more
constexpr int64_t kLineElements = 64 / sizeof(Bfloat);

// Elements [offset, offset + length) of runs [run, run + runs), of which the first is element k of the sum.
struct PairPart {
  int run, runs;
  int64_t offset, length, k;
};

// How a product reads. A run is all taps of a row where they touch in memory, else one tap; or, where runs have no
// whole number of units, all of the sum, gathered pixel by pixel.
class PairPlan {
 public:
  explicit PairPlan(const PairProduct& p)
      : p_(p),
        merged_(p.cols.src_tap == 1 && p.groups == 1),
        gathers_((merged_ ? p.cols.taps : 1) * int64_t{p.channels} % kPairUnit != 0),
        runs_(gathers_  ? 1
              : merged_ ? p.rows.taps
                        : p.rows.taps * p.cols.taps),
        length_(gathers_ ? whole_units(p.depth()) : (merged_ ? p.cols.taps : 1) * int64_t{p.channels}),
        cuts_(length_ == 0 ? 1 : (length_ + kPairDepth - 1) / kPairDepth),
        together_(length_ == 0 ? 1 : max_int(1, static_cast<int>(kPairDepth / length_))) {}

  bool gathers() const { return gathers_; }
  bool merged() const { return merged_; }
  int runs() const { return runs_; }
  int64_t length() const { return length_; }

  // Windows without a tap are one part of no runs.
  int64_t parts() const { return runs_ == 0 ? 1 : cuts_ > 1 ? runs_ * cuts_ : (runs_ + together_ - 1) / together_; }
  PairPart part(int64_t i) const {
    if (cuts_ > 1) {
      const int run = static_cast<int>(i / cuts_);
      const int64_t units = length_ / kPairUnit, cut = i % cuts_;
      const int64_t begin = units * cut / cuts_ * kPairUnit, end = units * (cut + 1) / cuts_ * kPairUnit;
      return {run, 1, begin, end - begin, run * length_ + begin};
    }
    const int run = static_cast<int>(i) * together_;
    return {run, min_int(together_, runs_ - run), 0, length_, run * length_};
  }
  int64_t depth() const { return runs_ * length_; }

  // Outputs of a line are made in pieces, and short lines several at a time.
  int pieces() const { return (p_.cols.count + kPairPixels - 1) / kPairPixels; }
  int lines() const {
    const int most = kHeldLines / max_int(1, p_.rows.taps);
    return pieces() > 1 ? 1 : max_int(1, min_int(most, kPairPixels / p_.cols.count));
  }
  int piece_begin(int piece) const { return static_cast<int>(int64_t{p_.cols.count} * piece / pieces()); }
  int longest() const { return (p_.cols.count + pieces() - 1) / pieces(); }

  // Columns of the source between the first and the last that n outputs see, where there is more than one tap; else
  // those that they see.
  int64_t span(int64_t n) const {
    return p_.cols.taps == 1 ? n : (n - 1) * p_.cols.src_out + int64_t{p_.cols.taps - 1} * p_.cols.src_tap + 1;
  }
  int step() const { return p_.cols.taps == 1 ? p_.cols.src_out : 1; }
  // From an output to the next where all of the sum is gathered.
  int64_t gathered_pitch() const { return odd_lines(length_); }
  // From a column to the next in a copy of a line: whole lines of the cache, an odd number of them where outputs would
  // meet in one place of it and nothing has to touch.
  int64_t copied_pitch() const {
    if (gathers_) return p_.channels;
    return p_.cols.taps == 1 && p_.channels % kMeet == 0 ? odd_lines(p_.channels) : p_.channels;
  }
  bool meets() const { return p_.cols.taps == 1 && int64_t{p_.cols.src_out} * p_.source_channels % kMeet == 0; }

 private:
  static constexpr int64_t kMeet = 4096 / sizeof(Bfloat);
  static int64_t odd_lines(int64_t n) { return ((n + kLineElements - 1) / kLineElements / 2 * 2 + 1) * kLineElements; }

  const PairProduct& p_;
  const bool merged_, gathers_;
  const int runs_;
  const int64_t length_, cuts_;
  const int together_;
};

// Several lines of outputs, or a piece of one: lines [line, line + count), columns [col, col + cols). Lines go on
// through all images.
struct PairChunk {
  int64_t line;
  int count, col, cols;
};

// What the outputs of a chunk read.
class PairSource {
 public:
  PairSource(const PairProduct& p, const PairPlan& plan, int group)
      : p_(p),
        plan_(plan),
        group_(group),
        gathered_size_(plan.gathers() ? (plan.longest() + kBeyond) * plan.gathered_pitch() + kLineElements : 0),
        held_size_(plan.gathers() && !plan.merged()
                       ? 0
                       : plan.span(plan.longest() + kBeyond) * plan.copied_pitch() + kLineElements),
        gathered_(int64_t{plan.lines()} * gathered_size_),
        copies_(int64_t{plan.lines()} * p.rows.taps * held_size_),
        held_(int64_t{plan.lines()} * p.rows.taps),
        runs_(int64_t{plan.lines()} * plan.runs()),
        lines_(p.rows.taps) {}

  void read(const PairChunk& chunk) {
    count_ = 0;
    const int64_t first = p_.cols.src_first + int64_t{chunk.col} * p_.cols.src_out;
    const int64_t last =
        first + int64_t{chunk.cols - 1} * p_.cols.src_out + int64_t{p_.cols.taps - 1} * p_.cols.src_tap;
    const bool inside = first >= p_.cols.src_begin && last < p_.cols.src_end;
    const bool copies = plan_.gathers() || !inside || plan_.meets() || kBeyond > 0;
    pitch_ = plan_.gathers() ? plan_.gathered_pitch()
             : copies        ? (p_.cols.taps == 1 ? 1 : p_.cols.src_out) * plan_.copied_pitch()
                             : int64_t{p_.cols.src_out} * p_.source_channels;
    for (int i = 0; i < chunk.count; ++i) {
      const Bfloat** runs = runs_.get() + int64_t{i} * plan_.runs();
      const int64_t image = (chunk.line + i) / p_.rows.count, row = (chunk.line + i) % p_.rows.count;
      if (plan_.gathers()) {
        Bfloat* panel = gathered_.get() + i * gathered_size_;
        *runs = panel;
        if (plan_.merged()) {
          gather_lines(image, row, first, chunk.cols, panel);
        } else {
          gather(image, row, first, chunk.cols, panel);
        }
        continue;
      }
      for (int q = 0; q < p_.rows.taps; ++q) {
        const int64_t from = p_.rows.src_first + row * p_.rows.src_out + int64_t{q} * p_.rows.src_tap;
        const bool exists = from >= p_.rows.src_begin && from < p_.rows.src_end;
        const int64_t line = image * p_.source_rows + from;
        const Bfloat* at = !exists  ? nullptr
                           : copies ? copy(line, first, chunk.cols)
                                    : in_place(line) + first * p_.source_channels;
        if (plan_.merged()) {
          runs[q] = at;
          continue;
        }
        const int64_t tap = p_.cols.src_tap * (copies ? plan_.copied_pitch() : p_.source_channels);
        for (int t = 0; t < p_.cols.taps; ++t) runs[q * p_.cols.taps + t] = exists ? at + t * tap : nullptr;
      }
    }
  }

  // Outputs of line number `line` of the chunk from `first` on, for a part of the sum.
  PairPanel panel(int line, int first, int rows, const PairPart& part) const {
    return {runs_.get() + int64_t{line} * plan_.runs() + part.run,
            part.runs,
            part.length,
            part.offset + first * pitch_,
            pitch_,
            rows};
  }

 private:
#if defined(MPSF_TILES)
  static constexpr int kBeyond = kTileSide;  // outputs that the instructions read behind the last
#else
  static constexpr int kBeyond = 0;
#endif

  const Bfloat* in_place(int64_t line) const {
    return p_.source + line * p_.source_cols * p_.source_channels + int64_t{group_} * p_.channels;
  }

  // A line of the source from a column on, as n outputs see it.
  const Bfloat* copy(int64_t line, int64_t col, int n) {
    for (int i = count_ - 1; i >= 0; --i) {
      if (held_[i] == line) return copies_.get() + i * held_size_;
    }
    Bfloat* to = copies_.get() + count_ * held_size_;
    held_[count_++] = line;
    const int64_t span = plan_.span(n), channels = p_.channels, pitch = plan_.copied_pitch();
    const Bfloat* from = in_place(line);
    if (p_.groups == 1 && plan_.step() == 1 && pitch == channels) {
      copy_numbers(to, from + col * channels, 0, span * channels, (p_.cols.src_begin - col) * channels,
                   (p_.cols.src_end - col) * channels);
      return to;
    }
    Bfloat* at = to;
    for (int64_t i = 0; i < span; ++i, col += plan_.step(), at += pitch) {
      const bool exists = col >= p_.cols.src_begin && col < p_.cols.src_end;
      copy_numbers(at, exists ? from + col * p_.source_channels : from, 0, channels, 0, exists ? channels : 0);
    }
    return to;
  }

  // All of the sum for outputs of a line, each with zeros up to a whole unit, from copies of the lines that have zeros
  // around them. What is copied too much the next copy overwrites.
  void gather_lines(int64_t image, int64_t row, int64_t col, int n, Bfloat* panel) {
    const int64_t length = int64_t{p_.cols.taps} * p_.channels;
    const int64_t step = (p_.cols.taps == 1 ? 1 : p_.cols.src_out) * plan_.copied_pitch();
    for (int q = 0; q < p_.rows.taps; ++q) {
      const int64_t from = p_.rows.src_first + row * p_.rows.src_out + int64_t{q} * p_.rows.src_tap;
      const bool exists = from >= p_.rows.src_begin && from < p_.rows.src_end;
      lines_[q] = exists ? copy(image * p_.source_rows + from, col, n) : nullptr;
    }
    for (int i = 0; i < n; ++i, panel += pitch_) {
      Bfloat* to = panel;
      for (int q = 0; q < p_.rows.taps; ++q, to += length) {
        if (!lines_[q]) {
          clear(to, length);
          continue;
        }
        const Bfloat* at = lines_[q] + i * step;
        for (int64_t k = 0; k < length; k += kLineElements) {
          memcpy(static_cast<void*>(to + k), at + k, kLineElements * sizeof(Bfloat));
        }
      }
      clear(to, plan_.length() - p_.depth());
    }
  }

  // The same, number by number as they lie.
  void gather(int64_t image, int64_t row, int64_t col, int n, Bfloat* panel) const {
    const int64_t rest = plan_.length() - p_.depth();
    for (int i = 0; i < n; ++i, col += p_.cols.src_out, panel += pitch_) {
      Bfloat* to = panel;
      for (int q = 0; q < p_.rows.taps; ++q) {
        const int64_t from = p_.rows.src_first + row * p_.rows.src_out + int64_t{q} * p_.rows.src_tap;
        const bool exists = from >= p_.rows.src_begin && from < p_.rows.src_end;
        const Bfloat* line = in_place(image * p_.source_rows + (exists ? from : p_.rows.src_begin));
        const int taps = plan_.merged() ? 1 : p_.cols.taps;
        const int64_t length = (plan_.merged() ? p_.cols.taps : 1) * int64_t{p_.channels};
        for (int t = 0; t < taps; ++t, to += length) {
          const int64_t at = col + int64_t{t} * p_.cols.src_tap;
          const int64_t low = (p_.cols.src_begin - at) * p_.channels, high = (p_.cols.src_end - at) * p_.channels;
          copy_numbers(to, line + at * p_.source_channels, 0, length, low, exists ? high : 0);
        }
      }
      clear(to, rest);
    }
  }

  const PairProduct& p_;
  const PairPlan& plan_;
  const int group_;
  const int64_t gathered_size_, held_size_;
  const Scratch<Bfloat> gathered_, copies_;
  const Scratch<int64_t> held_;
  const Scratch<const Bfloat*> runs_, lines_;
  int count_ = 0;
  int64_t pitch_ = 0;
};

}  // namespace
}  // namespace mpsf::MPSF_ISA
