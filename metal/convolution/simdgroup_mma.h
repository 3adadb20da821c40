// What a simdgroup multiplies together: sixteen channels of sixteen pixels with as many of another image's. Bodies that
// name simdgroup_ have it, on CUDA behind cuda_matrix.h.
#ifndef MPSF_SIMDGROUP_MMA_H
#define MPSF_SIMDGROUP_MMA_H
#include "shared/base.h"
#include "shared/vector_load.h"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
// As tensor cores take them: a lane has two neighbouring pixels in channel lane / 4 of each eight by eight of them.
template <typename T>
struct Pixels16 {
  unsigned pairs[4];
};
struct Sums16 {
  float at[2][4];
};
MPSF_FN Sums16 no_sums16() {
  Sums16 s;
  for (int i = 0; i < 8; ++i) s.at[i / 4][i % 4] = 0;
  return s;
}
// Two times eight pixels, which follow one another in threadgroup memory, on addresses that sixteen divides. Turned: as
// the left side of a product.
template <int Turned, typename T, typename P>
MPSF_FN Pixels16<T> load16(P first, P second, int apart) {
  const int lane = thread_index_in_simdgroup;  // says where its pixel has its eight channels
  const T* from = (lane < 16 ? first : second) + lane % 8 * apart + lane / 8 % 2 * 8;
  Pixels16<T> m;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m.pairs[0]), "=r"(m.pairs[1]), "=r"(m.pairs[2]), "=r"(m.pairs[3])
               : "r"(unsigned(__cvta_generic_to_shared(from))));
  return m;
}
#define MPSF_PRODUCTS(T, type)                                                                                         \
  MPSF_FN Sums16 with_products(Sums16 s, Pixels16<T> a, Pixels16<T> b) {                                               \
    for (int j = 0; j < 2; ++j) {                                                                                      \
      asm("mma.sync.aligned.m16n8k16.row.col.f32." type "." type                                                       \
          ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "                                                                  \
          "{%8, %9}, {%0, %1, %2, %3};"                                                                                \
          : "+f"(s.at[j][0]), "+f"(s.at[j][1]), "+f"(s.at[j][2]), "+f"(s.at[j][3])                                     \
          : "r"(a.pairs[0]), "r"(a.pairs[1]), "r"(a.pairs[2]), "r"(a.pairs[3]), "r"(b.pairs[j]), "r"(b.pairs[2 + j])); \
    }                                                                                                                  \
    return s;                                                                                                          \
  }
MPSF_PRODUCTS(__half, "f16")
MPSF_PRODUCTS(__nv_bfloat16, "bf16")
// Those of the first `down` channels of a and the first `across` of b, multiples of eight.
MPSF_FN void store16(Sums16 s, float* to, int apart, int down, int across) {
  const int lane = thread_index_in_simdgroup;
  for (int i = 0; i < 4; ++i) {
    if (i / 2 * 8 >= down || i % 2 * 8 >= across) continue;
    float* own = to + (i / 2 * 8 + lane / 4) * apart + i % 2 * 8 + lane % 4 * 2;
    own[0] = s.at[i % 2][i / 2 * 2];
    own[1] = s.at[i % 2][i / 2 * 2 + 1];
  }
}
#else
template <typename T>
struct Pixels16 {
  simdgroup_matrix<T, 8, 8> at[4];
};
struct Sums16 {
  simdgroup_matrix<float, 8, 8> at[4];
};
MPSF_FN Sums16 no_sums16() {
  Sums16 s;
  for (int i = 0; i < 4; ++i) s.at[i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  return s;
}
template <int Turned, typename T, typename P>
MPSF_FN Pixels16<T> load16(P first, P second, int apart) {
  Pixels16<T> m;
  for (int i = 0; i < 4; ++i) simdgroup_load(m.at[i], (i < 2 ? first : second) + i % 2 * 8, apart, 0, bool(Turned));
  return m;
}
template <typename T>
MPSF_FN Sums16 with_products(Sums16 s, Pixels16<T> a, Pixels16<T> b) {
  for (int i = 0; i < 8; ++i) {
    simdgroup_multiply_accumulate(s.at[i % 4], a.at[i / 4 * 2 + i % 4 / 2], b.at[i / 4 * 2 + i % 2], s.at[i % 4]);
  }
  return s;
}
MPSF_FN void store16(Sums16 s, device float* to, int apart, int down, int across) {
  for (int i = 0; i < 4; ++i) {
    if (i / 2 * 8 < down && i % 2 * 8 < across) simdgroup_store(s.at[i], to + i / 2 * 8 * apart + i % 2 * 8, apart);
  }
}
#endif

template <typename T, int Wide, int Rows, int Step, typename To, typename From>
MPSF_FN void rows_kept(To to, int to_next, From from, int next, int row, int low, int high) {
  enum { Each = (Rows + Step - 1) / Step, U = Each < 4 ? Each : 4 };  // loads under way at a time
  for (; row < Rows; row += U * Step) {
    Pack<T, 8> held[U];
#pragma unroll
    for (int u = 0; u < U; ++u) {
      const int r = row + u * Step;
      held[u] = nothing<T, 8>();
      if (r >= low && r < high) held[u] = load<8>(from + r * next, Wide);
    }
#pragma unroll
    for (int u = 0; u < U; ++u) {
      const int r = row + u * Step;
      if (r < Rows) to[r * to_next] = held[u];
    }
  }
}
// Keeps rows `row`, `row + Step` and so on of Rows in threadgroup memory, eight channels of each; those before `low`
// and from `high` on are zeros. wide: whether the eight may be loaded at once.
template <typename T, int Rows, int Step, typename To, typename From>
MPSF_FN void keep_rows(To to, int to_next, From from, int next, int row, int low, int high, bool wide) {
  if (wide) return rows_kept<T, 1, Rows, Step>(to, to_next, from, next, row, low, high);
  rows_kept<T, 0, Rows, Step>(to, to_next, from, next, row, low, high);
}

#endif
