// Maps over channels-last images whose vectors have one entry a channel, or one a channel of each statistics group.
#pragma once
#include "kernels/normalization/channel_vectors.h"
#include "kernels/vector/channels.h"
#include "kernels/vector/simd.h"
#include "runtime/parallel.h"

namespace mpsf::MPSF_ISA {
namespace {

// Bytes of the result that a column of vectors is followed through.
constexpr int64_t kBand = 1 << 14;

// Whether every row of an image of these statistics groups begins where it may be stored past the caches.
template <typename A>
bool streams(const Tensor& image, const StatGroups& stat_groups) {
  constexpr int L = lanes<A>;
  return image.streamed && stat_groups.rows.width % L == 0 && (stat_groups.count == 1 || stat_groups.size % L == 0);
}

// Fills `N` vectors side by side of so many rows, from element `at` on, where they are in column `column`. What the
// loop reads is held by this function itself: a store might change what is reached through a reference.
template <int N, bool Streamed, typename T, int Count, typename F>
MPSF_INLINE void fill_column(T* image, int64_t at, int64_t height, int64_t pitch, const Acc<T>* const (&entries)[Count],
                             int64_t column, int n, F f) {
  constexpr int L = lanes<Acc<T>>;
  Vec<Acc<T>> p[N][Count];
  for (int v = 0; v < N; ++v) {
    for (int i = 0; i < Count; ++i) p[v][i] = load_some(entries[i] + column + v * L, n);
  }
  for (int64_t row = 0; row < height; ++row, at += pitch) {
    for (int v = 0; v < N; ++v) store_result(image + at + v * L, f(at + v * L, n, p[v]), n, Streamed);
  }
}

// Fills statistics groups with f(at, n, p): n elements from `at` on, where p holds their entries of `Count` vectors
// with one entry a channel of each group. Runs from back to front, because the caches hold the end of what the pass
// before went through.
template <typename T, int Count, typename F>
void fill(T* image, bool streamed, const StatGroups& stat_groups, const Acc<T>* const (&vectors)[Count], const F& f) {
  using A = Acc<T>;
  const Rows& rows = stat_groups.rows;

  // `height` rows of `width` elements from `offset` on.
  auto fill_band = [&](const A* const(&entries)[Count], int64_t offset, int64_t height, int64_t width) {
    for_columns<A>(width, [&]<int N>(int64_t column, int n) {
      const int64_t at = offset + column;
      if (streamed && n == lanes<A>) {
        fill_column<N, true>(image, at, height, rows.width, entries, column, n, f);
      } else {
        fill_column<N, false>(image, at, height, rows.width, entries, column, n, f);
      }
    });
  };

  const int64_t band = 1 + kBand / (rows.width * static_cast<int64_t>(sizeof(T)));
  const auto fill_chunks = [&](int64_t begin, int64_t end, int64_t first, int64_t last) {
    Scratch<A> room(Count * rows.width);
    for (int64_t stat_group = end - 1; stat_group >= begin; --stat_group) {
      const A* entries[Count];
      for (int i = 0; i < Count; ++i) {
        entries[i] = entries_of(vectors[i], stat_groups, stat_group, &room[i * rows.width]);
      }
      for (int64_t chunk = last - 1; chunk >= first; --chunk) {
        const int64_t width = rows.width_of(chunk), chunk_end = rows.begin(chunk + 1);
        for (int64_t row = rows.begin(chunk); width > 0 && row < chunk_end; row += band) {
          fill_band(entries, stat_group * stat_groups.size + row * rows.width, smaller(band, chunk_end - row), width);
        }
      }
    }
    stream_end();
  };
  parallel_stat_groups(stat_groups, stay_whole(stat_groups), true, fill_chunks);
}

}  // namespace
}  // namespace mpsf::MPSF_ISA
