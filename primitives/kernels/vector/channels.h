// Going over images by rows of vectors: sums over all pixels, one for each channel, in a layout that makes them fast
// for any number of channels; and lines shared out among threads.
#pragma once
#include "kernels/vector/simd.h"
#include "runtime/parallel.h"

namespace mpsf::MPSF_ISA {
namespace {

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t gcd(int64_t a, int64_t b) { return b == 0 ? a : gcd(b, a % b); }

// Enough to hide the latency of an addition, few enough for the registers of every instruction set.
constexpr int kTile = 4;
// Elements that one lane adds up in the accumulator's own precision; longer sums go on in double.
constexpr int64_t kBlock = 128;
// Chunks that all statistics groups are cut into, or somewhat more; whatever the threads, since sums depend on how they
// are cut.
constexpr int64_t kChunks = 64;

// Channels-last pixels seen as rows: each row is `side` pixels side by side, so that few or odd channels
// still fill whole vectors. Entry i of a row belongs to channel i % channels.
struct Rows {
  int64_t channels;
  int64_t count;  // whole rows
  int64_t width;  // entries of a whole row
  int64_t rest;   // entries behind the last whole row
  int64_t most = kChunks;

  // Work is cut by the shape alone: chunks of whole blocks, and one more chunk whose only row is the rest.
  int64_t blocks() const { return (count + kBlock - 1) / kBlock; }
  int64_t chunks() const { return smaller(blocks(), most); }
  int64_t begin(int64_t chunk) const {
    if (chunk > chunks()) return count + 1;
    return chunk == chunks() ? count : blocks() * chunk / chunks() * kBlock;
  }
  int64_t width_of(int64_t chunk) const { return chunk < chunks() ? width : rest; }
  int64_t pixels_of(int64_t chunk) const { return (begin(chunk + 1) - begin(chunk)) * width_of(chunk) / channels; }
};

// The rows of so many elements.
template <typename A>
Rows rows_of(int64_t size, int64_t channels) {
  constexpr int64_t L = lanes<A>;
  int64_t side = 1;
  if (channels < 16 * L) {
    int64_t even = L / gcd(channels, L);  // fewest pixels that fill whole vectors
    while (channels * side * even < kTile * L) ++side;
    side *= even;
  }
  int64_t width = channels * side, count = size / width;
  return {channels, count, width, size - count * width};
}

// Images in statistics groups that lie one after the other, all alike; each has entries of its own in a vector
// (stat_groups, channels).
struct StatGroups {
  int64_t count;
  int64_t size;  // elements of a statistics group
  Rows rows;     // of a statistics group
};

// The statistics groups of an image that vectors of so many entries describe.
template <typename A>
StatGroups stat_groups_of(const Tensor& image, int64_t entries) {
  const int64_t channels = image.shape[image.ndim - 1], count = entries / channels, size = image.size / count;
  StatGroups stat_groups{count, size, rows_of<A>(size, channels)};
  stat_groups.rows.most = (kChunks + count - 1) / count;
  return stat_groups;
}

// Elements of an image in one chunk of work.
constexpr int64_t kChunkElements = 1 << 14;

// Whether statistics groups are not cut up: they are small, or nobody is there to share their chunks. (Every task asks
// for room and waits for what it streamed.)
inline bool stay_whole(const StatGroups& stat_groups) { return stat_groups.rows.chunks() <= 1 || works_alone(); }

// Cuts statistics groups into work: f(begin, end, first, last) for the chunks [first, last) of the groups [begin, end):
// all chunks of several groups if these are to stay whole, else one chunk of one group.
template <typename F>
void parallel_stat_groups(const StatGroups& stat_groups, bool whole, bool backwards, const F& f) {
  const int64_t chunks = stat_groups.rows.chunks() + 1;
  const int64_t each = whole ? 1 + kChunkElements / (stat_groups.size + 1) : 1;
  const int64_t tasks = whole ? (stat_groups.count + each - 1) / each : stat_groups.count * chunks;
  parallel_for(tasks, [&](int64_t i) {
    const int64_t task = backwards ? tasks - 1 - i : i;
    if (whole) return f(task * each, smaller(stat_groups.count, (task + 1) * each), int64_t{0}, chunks);
    f(task / chunks, task / chunks + 1, task % chunks, task % chunks + 1);
  });
}

// Calls f(statistics groups, first) for groups from number `first` on: a few that one thread sees through, while their
// images are in its caches, where every thread has several; else for all at once, so that threads share their pixels.
template <typename F>
void for_stat_groups(const StatGroups& all, const F& f) {
  constexpr int64_t kEach = 4;
  if (all.count < kEach * get_num_threads()) return f(all, int64_t{0});
  const int64_t each = 1 + kChunkElements / (all.size + 1);
  parallel_for((all.count + each - 1) / each, [&](int64_t i) {
    StatGroups some = all;  // their rows are cut as those of all are
    some.count = smaller(each, all.count - i * each);
    f(some, i * each);
  });
}

// What statistics groups come to in two steps: piece(group, chunk, part, room) makes `entries` numbers of a chunk that
// has pixels, with `space` numbers of room, and finish(group, parts) what is made of those of all chunks.
template <typename F, typename G>
void reduce_stat_groups(const StatGroups& stat_groups, int64_t entries, int64_t space, const F& piece,
                        const G& finish) {
  const int64_t chunks = stat_groups.rows.chunks() + 1;
  const bool whole = stay_whole(stat_groups);
  Scratch<double> parts(whole ? 0 : stat_groups.count * chunks * entries);
  parallel_stat_groups(stat_groups, whole, false, [&](int64_t begin, int64_t end, int64_t first, int64_t last) {
    Scratch<double> room(space), own(whole ? chunks * entries : 0);
    for (int64_t stat_group = begin; stat_group < end; ++stat_group) {
      double* part = whole ? own.get() : &parts[stat_group * chunks * entries];
      for (int64_t chunk = first; chunk < last; ++chunk) {
        if (stat_groups.rows.pixels_of(chunk) > 0) piece(stat_group, chunk, part + chunk * entries, room.get());
      }
      if (whole) finish(stat_group, part);
    }
  });
  if (whole) return;
  parallel_for(stat_groups.count,
               [&](int64_t stat_group) { finish(stat_group, &parts[stat_group * chunks * entries]); });
}

// Asks for the lines of so many bytes, for the second cache; so many elements ahead, which may be behind the array.
template <int64_t Bytes, typename T>
MPSF_INLINE void fetch(const T* from, int64_t ahead = 0) {
  const auto address = reinterpret_cast<uintptr_t>(from) + static_cast<uintptr_t>(ahead) * sizeof(T);
  for (uintptr_t i = 0; i < Bytes; i += 64) __builtin_prefetch(reinterpret_cast<const void*>(address + i), 0, 2);
}

// Calls f(column, n, tile) for the vectors of a row: kTile whole ones at a time, then two, then single ones of n lanes.
template <typename A, typename F>
MPSF_INLINE void for_columns(int64_t width, F f) {
  constexpr int L = lanes<A>;
  int64_t column = 0;
  for (; column + kTile * L <= width; column += kTile * L) f.template operator()<kTile>(column, L);
  for (; column + 2 * L <= width; column += 2 * L) f.template operator()<2>(column, L);
  for (; column < width; column += L) f.template operator()<1>(column, static_cast<int>(smaller(L, width - column)));
}

template <typename T>
MPSF_INLINE Vec<Acc<T>> load_some(const T* p, int n) {
  return n == lanes<Acc<T>> ? load(p) : load(p, n);
}

template <typename T>
MPSF_INLINE void store_some(T* p, Vec<Acc<T>> v, int n) {
  if (n == lanes<Acc<T>>) {
    store(p, v);
  } else {
    store(p, v, n);
  }
}

// Stores past the caches where `streamed`; then p is aligned and n whole.
template <typename T>
MPSF_INLINE void store_result(T* p, Vec<Acc<T>> v, int n, bool streamed) {
  if (streamed) {
    stream(p, v);
  } else {
    store_some(p, v, n);
  }
}

// A statistics group's entries of a vector (stat_groups, channels), repeated until a row has one for each of its own.
// They lie in `room` where they had to be copied.
template <typename A>
const A* entries_of(const A* vector, const StatGroups& stat_groups, int64_t stat_group, A* room) {
  const int64_t channels = stat_groups.rows.channels, width = stat_groups.rows.width;
  const A* entries = vector + stat_group * channels;
  if (width == channels) return entries;
  for (int64_t i = 0; i < width; i += channels) {
    memcpy(room + i, entries, static_cast<size_t>(channels) * sizeof(A));
  }
  return room;
}

// Adds the entries of a row, or its rest, to their channels, which start at zero.
inline void fold(const double* row, int64_t width, double* channel, int64_t channels) {
  for (int64_t c = 0; c < channels; ++c) channel[c] = row[c];
  for (int64_t i = channels; i < width; i += channels) {
    for (int64_t c = 0; c < channels; ++c) channel[c] += row[i + c];
  }
}

// out[t][statistics group] of the parts of its chunks, in which the sums of term t are for each channel.
template <typename A, int Terms>
void add_chunks(const Rows& rows, int64_t stat_group, double* parts, A* const (&out)[Terms]) {
  const int64_t channels = rows.channels;
  double* total = parts;
  bool any_pixels = false;
  for (int64_t chunk = 0; chunk <= rows.chunks(); ++chunk) {
    if (rows.pixels_of(chunk) == 0) continue;
    double* part = parts + chunk * Terms * channels;
    if (any_pixels) {
      for (int64_t i = 0; i < Terms * channels; ++i) total[i] += part[i];
    } else {
      total = part;
    }
    any_pixels = true;
  }
  for (int t = 0; t < Terms; ++t) {
    for (int64_t c = 0; c < channels; ++c) {
      out[t][stat_group * channels + c] = any_pixels ? static_cast<A>(total[t * channels + c]) : A(0);
    }
  }
}

// out[t][statistics group][c] = the sum of term t over the pixels of channel c. prepare(group, room) makes a `term` of
// a group, with `Vectors` rows of room; term(offset, column, n, terms) the terms of the n elements from `offset` on in
// the group, which are the entries of a row from `column` on; zeros behind them.
template <typename A, int Vectors, int Terms, typename F>
void channel_sums(const StatGroups& stat_groups, const F& prepare, A* const (&out)[Terms]) {
  constexpr int L = lanes<A>;
  const Rows& rows = stat_groups.rows;
  const int64_t channels = rows.channels, stride = rows.width + kTile * L;
  reduce_stat_groups(
      stat_groups, Terms * channels, Terms * stride + Vectors * rows.width,
      [&](int64_t stat_group, int64_t chunk, double* part, double* sums) {
        const auto term = prepare(stat_group, reinterpret_cast<A*>(sums + Terms * stride));
        const int64_t width = rows.width_of(chunk), begin = rows.begin(chunk), end = rows.begin(chunk + 1);
        for (int64_t block = begin; block < end; block += kBlock) {
          const int64_t block_end = smaller(end, block + kBlock);
          for_columns<A>(width, [&]<int N>(int64_t column, int n) {
            Vec<A> acc[Terms][N] = {};
            for (int64_t row = block; row < block_end; ++row) {
              for (int v = 0; v < N; ++v) {
                Vec<A> terms[Terms];
                term(row * rows.width + column + v * L, column + v * L, n, terms);
                for (int t = 0; t < Terms; ++t) acc[t][v] += terms[t];
              }
            }
            A lane[Terms][N * L];
            memcpy(lane, acc, sizeof(lane));
            for (int t = 0; t < Terms; ++t) {
              double* sum = &sums[t * stride + column];
              if (block == begin) {
                for (int i = 0; i < N * L; ++i) sum[i] = static_cast<double>(lane[t][i]);
              } else {
                for (int i = 0; i < N * L; ++i) sum[i] += static_cast<double>(lane[t][i]);
              }
            }
          });
        }
        for (int t = 0; t < Terms; ++t) fold(&sums[t * stride], width, part + t * channels, channels);
      },
      [&](int64_t stat_group, double* parts) { add_chunks(rows, stat_group, parts, out); });
}

// Calls f(begin, end) for groups of the lines of an image, each of so many elements; several even where they are few,
// if it is work enough, so that threads share it evenly.
template <typename F>
void parallel_groups(int64_t lines, int64_t elements, int64_t work, const F& f) {
  if (lines == 0) return;
  const int64_t several = lines * work > kChunkElements ? 1 + lines / 16 : lines;
  const int64_t group = smaller(1 + kChunkElements / elements, several);
  parallel_for((lines + group - 1) / group,
               [&](int64_t chunk) { f(chunk * group, smaller(lines, (chunk + 1) * group)); });
}

// Calls f(line) for each of them.
template <typename F>
void parallel_lines(int64_t lines, int64_t elements, const F& f) {
  parallel_groups(lines, elements, elements, [&](int64_t begin, int64_t end) {
    for (int64_t line = begin; line < end; ++line) f(line);
  });
}

}  // namespace
}  // namespace mpsf::MPSF_ISA
