// Metal's matrices of simdgroups in CUDA's terms; cuda.h comes first, and only for bodies that name them.

// An 8 by 8 matrix of a simdgroup, which is a warp: lane i holds two neighbours in row i / 4. A product of its own two
// elements takes this row of the left matrix and these two columns of the right one. It reads them as it loads a
// matrix, so that only products of results ask the other lanes; a compiler drops what is not asked for.
template <typename V, int Cols, int Rows = Cols>
struct simdgroup_matrix {
  static_assert(Cols == 8 && Rows == 8, "Metal has 8 by 8 matrices only");
  V held[2], row[8], cols[8][2];
  bool loaded;
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;

template <typename V, int Cols, int Rows = Cols>
__device__ inline simdgroup_matrix<V, Cols, Rows> make_filled_simdgroup_matrix(V value) {
  simdgroup_matrix<V, Cols, Rows> m;
  for (int k = 0; k < 8; ++k) m.row[k] = m.cols[k][0] = m.cols[k][1] = value;
  m.held[0] = m.held[1] = value;
  m.loaded = true;
  return m;
}

// Where an element is in memory. Bodies give no origin but 0, which alone converts to a pointer.
__device__ inline size_t simdgroup_offset(int row, int col, size_t stride, bool transposed) {
  return transposed ? col * stride + row : row * stride + col;
}
template <typename V>
__device__ inline void simdgroup_load(simdgroup_matrix<V, 8, 8>& m, const V* from, size_t stride = 8,
                                      const void* origin = 0, bool transposed = false) {
  const int row = thread_index_in_simdgroup / 4, col = thread_index_in_simdgroup % 4 * 2;
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    m.row[k] = from[simdgroup_offset(row, k, stride, transposed)];
    for (int j = 0; j < 2; ++j) m.cols[k][j] = from[simdgroup_offset(k, col + j, stride, transposed)];
  }
  for (int j = 0; j < 2; ++j) m.held[j] = from[simdgroup_offset(row, col + j, stride, transposed)];
  m.loaded = true;
}
template <typename V>
__device__ inline void simdgroup_store(const simdgroup_matrix<V, 8, 8>& m, V* to, size_t stride = 8,
                                       const void* origin = 0, bool transposed = false) {
  const int row = thread_index_in_simdgroup / 4, col = thread_index_in_simdgroup % 4 * 2;
  for (int j = 0; j < 2; ++j) to[simdgroup_offset(row, col + j, stride, transposed)] = m.held[j];
}

// d = a b + c
template <typename V>
__device__ inline void simdgroup_multiply_accumulate(simdgroup_matrix<float, 8, 8>& d,
                                                     const simdgroup_matrix<V, 8, 8>& a,
                                                     const simdgroup_matrix<V, 8, 8>& b,
                                                     const simdgroup_matrix<float, 8, 8>& c) {
  const int lane = thread_index_in_simdgroup;
  float sum[2] = {c.held[0], c.held[1]};
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const V left = a.loaded ? a.row[k] : __shfl_sync(0xffffffffu, a.held[k % 2], lane / 4 * 4 + k / 2);
    for (int j = 0; j < 2; ++j) {
      const V right = b.loaded ? b.cols[k][j] : __shfl_sync(0xffffffffu, b.held[j], k * 4 + lane % 4);
      sum[j] += float(left) * float(right);
    }
  }
  for (int j = 0; j < 2; ++j) d.held[j] = sum[j];
  d.loaded = false;
}
