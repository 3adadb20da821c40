// Convolution of bfloat16 and its input gradient as one product, as implicit_gemm.h has it of float32: lines of the
// source by weights that are laid out in pairs.
#pragma once
#include "kernels/convolution/bfloat16/pair_lines.h"

namespace mpsf::MPSF_ISA {
namespace {

// A task: some chunks of lane blocks [begin, end) of a group. `weights` starts at block `begin`.
class PairTask {
 public:
  PairTask(const PairProduct& p, const PairPlan& plan, int group, int begin, int end, const Bfloat* weights)
      : p_(p),
        plan_(plan),
        group_(group),
        begin_(begin),
        blocks_(end - begin),
        tiles_((plan.longest() + kPairRows - 1) / kPairRows),
        weights_(weights),
        source_(p, plan, group),
        sums_(keeps_sums() ? int64_t{blocks_} * plan.lines() * tiles_ * kTileSums : kTileSums) {}

  // `ahead` is stepped through once for each of steps() tiles, or a few less.
  void compute(const PairChunk& chunk, Ahead ahead) {
    source_.read(chunk);
    for (int64_t i = 0; i < plan_.parts(); ++i) {
      const PairPart part = plan_.part(i);
      for (int block = 0; block < blocks_; ++block) {
        const Bfloat* weights = weights_ + (block * plan_.depth() + part.k) * kPairLanes;
        for (int line = 0; line < chunk.count; ++line) {
          const int tiles = (chunk.cols + kPairRows - 1) / kPairRows;
          for (int tile = 0; tile < tiles; ++tile, ahead.step()) {
            const int first = chunk.cols * tile / tiles, rows = chunk.cols * (tile + 1) / tiles - first;
            float* sums =
                keeps_sums() ? sums_.get() + ((block * plan_.lines() + line) * tiles_ + tile) * kTileSums : sums_.get();
            multiply(source_.panel(line, first, rows, part), weights, i, begin_ + block, chunk.line + line,
                     chunk.col + first, sums);
          }
        }
      }
    }
  }

  int64_t steps() const { return plan_.parts() * blocks_ * plan_.lines() * tiles_; }

 private:
  static constexpr int64_t kTileSums = int64_t{kPairRows} * kPairLanes;

  bool folds() const { return p_.fold_rows * p_.fold_cols > 1; }
  bool keeps_sums() const { return plan_.parts() > 1; }

  // One tile for one part of the sum; the last part's sums become results.
  void multiply(const PairPanel& panel, const Bfloat* weights, int64_t part, int block, int64_t line, int col,
                float* sums) {
    const int64_t image = line / p_.rows.count;
    const int first = block * kPairLanes, row = static_cast<int>(line % p_.rows.count);
    const bool last = part == plan_.parts() - 1;
    const int64_t to_row = image * p_.result_rows + p_.rows.out_first + int64_t{row} * p_.rows.out_step;
    const int64_t to = to_row * p_.result_cols + p_.cols.out_first + int64_t{col} * p_.cols.out_step;
    const int64_t channel = int64_t{group_} * p_.out_channels + first;
    const Finish finish = {p_.result + to * p_.result_channels,
                           int64_t{p_.cols.out_step} * p_.result_channels,
                           channel,
                           p_.out_channels - first,
                           p_.bias,
                           p_.neuron,
                           p_.streamed,
                           p_.added ? p_.added + to * p_.result_channels : nullptr};
    pair_tile(panel.rows, finish.count)(panel, weights, part > 0, {sums, kPairLanes},
                                        last && !folds() ? &finish : nullptr);
    if (!last || !folds()) return;
    Pixel at = {static_cast<int>(image), row, col};
    for (int r = 0; r < panel.rows; ++r, step(p_, at)) unfold(p_, at, sums + r * kPairLanes);
  }

  const PairProduct& p_;
  const PairPlan& plan_;
  const int group_, begin_, blocks_, tiles_;
  const Bfloat* weights_;
  PairSource source_;
  const Scratch<float> sums_;
};

// Lane blocks [first, first + count) of every group, as [group][block][k / 2][lane][2].
inline void lay_out_all_pairs(const PairProduct& p, int first, int count, Bfloat* to) {
  const int64_t block_size = whole_units(p.depth()) * kPairLanes;
  parallel_for(int64_t{p.groups} * count, [&](int64_t task) {
    lay_out_pairs(p, static_cast<int>(task / count), first + static_cast<int>(task % count), 0, p.depth(),
                  to + task * block_size);
  });
}

inline void product_of_pairs(const PairProduct& p) {
  if (p.pixels() == 0 || p.out_channels == 0) return;
  const PairPlan plan(p);
  const int blocks = (p.out_channels + kPairLanes - 1) / kPairLanes;
  const int64_t block_size = plan.depth() * kPairLanes;
  const int batch = static_cast<int>(
      smaller(blocks, kWeightBytes / (p.groups * (block_size + 1) * static_cast<int64_t>(sizeof(Bfloat))) + 1));
  // Chunks are pieces of a line, or several lines.
  const int64_t lines = int64_t{p.images} * p.rows.count, pieces = plan.pieces();
  const int64_t balanced = (lines * pieces + kProductTasks - 1) / kProductTasks;
  const int64_t each = smaller(plan.lines(), balanced), chunks = (lines + each - 1) / each * pieces;
  const int64_t stretch = smaller(kTaskChunks, (chunks + kProductTasks - 1) / kProductTasks);
  const int64_t stretches = (chunks + stretch - 1) / stretch;
  const auto chunk_at = [&](int64_t i) {
    const int64_t line = i / pieces * each;
    const int piece = static_cast<int>(i % pieces), col = plan.piece_begin(piece);
    return PairChunk{line, static_cast<int>(smaller(each, lines - line)), col, plan.piece_begin(piece + 1) - col};
  };
  const Scratch<Bfloat> weights(p.laid ? 0 : p.groups * batch * block_size);

  for (int first = 0; first < blocks; first += batch) {
    const int count = min_int(batch, blocks - first);
    if (!p.laid) lay_out_all_pairs(p, first, count, weights.get());
    // Few pixels: split the lanes as well.
    const int64_t tasks = stretches * p.groups;
    const int splits = static_cast<int>(smaller(count, (kProductTasks + tasks - 1) / tasks));
    parallel_for(tasks * splits, [&](int64_t task) {
      const Tiles taken;
      const int split = static_cast<int>(task % splits), group = static_cast<int>(task / splits % p.groups);
      const int begin = count * split / splits, end = count * (split + 1) / splits;
      const Bfloat* own = p.laid ? p.laid + (int64_t{group} * blocks + first + begin) * block_size
                                 : weights.get() + (int64_t{group} * count + begin) * block_size;
      PairTask work(p, plan, group, first + begin, first + end, own);
      int64_t chunk = task / splits / p.groups * stretch;
      const int64_t last = smaller(chunks, chunk + stretch);
      for (; chunk < last; ++chunk) {
        Ahead ahead;
        if (chunk + 1 < last) {
          const PairChunk next = chunk_at(chunk + 1);
          ahead = source_ahead(p, next.line * p.cols.count + next.col,
                               int64_t{next.count - 1} * p.cols.count + next.cols, work.steps());
        }
        work.compute(chunk_at(chunk), ahead);
      }
      stream_end();
    });
  }
}

}  // namespace
}  // namespace mpsf::MPSF_ISA
