// Average pooling. Forward and gradient are one gather, and differ in who owns the divisor: an output of the pooling is
// what is made in one and what is read in the other.
#include "kernels/vector/channels.h"
#include "kernels/vector/simd.h"
#include "kernels/vector/tap_lists.h"
#include "pooling/params.h"
#include "runtime/parallel.h"

namespace mpsf::MPSF_ISA {
namespace {

// For an output the inputs that it reads, with its divisor.
template <typename A>
constexpr auto each_tap = [](const Axis& a, int o, const auto& add) {
  if (!selected(a, o)) return;
  const A count = static_cast<A>(max_int(1, divisor(a, o)));
  const int start = first(a, o), end = tap_end(a, o);
  for (int k = tap_begin(a, o); k < end; ++k) add(start + k * a.dilation, count);
};

// For an input the outputs that read it, with its share in each.
template <typename A>
constexpr auto each_reader = [](const Axis& a, int i, const auto& add) {
  for (int o = reader_begin(a, i); o < reader_end(a, i); ++o) {
    if (reads(a, o, i)) add(o, 1 / static_cast<A>(max_int(1, divisor(a, o))));
  }
};

template <typename A>
bool is_power_of_two(A value) {
  return (static_cast<int64_t>(value) & (static_cast<int64_t>(value) - 1)) == 0;
}

// The means of windows that read these lines at these columns.
template <typename T, typename A, typename Rows, typename Cols>
MPSF_INLINE void means(const Line<T, A>* lines, Rows rows, const Entry<A>* taps, Cols cols, int64_t shift,
                       int64_t length, T* out) {
  constexpr int L = lanes<A>;
  const A divisor = rows > 0 && cols > 0 ? lines[0].weight * taps[0].weight : 1, reciprocal = 1 / divisor;
  const bool exact = is_power_of_two(divisor);
  for_vectors<A>(length, [&]<int N>(int64_t at, int n) {
    Vec<A> sum[N] = {};
    for (int i = 0; i < rows; ++i) {
      for (int block = 0; block < cols; block += kBlock) {  // sums of sums lose less in a large window
        Vec<A> across[N] = {};
        for (int j = block; j < cols && j < block + kBlock; ++j) {
          for (int v = 0; v < N; ++v) across[v] += load_some(lines[i].data + shift + taps[j].at + at + v * L, n);
        }
        for (int v = 0; v < N; ++v) sum[v] += across[v];
      }
    }
    for (int v = 0; v < N; ++v) {
      sum[v] = exact ? sum[v] * reciprocal : sum[v] / divisor;  // equal, and a division takes ten times as long
      store_some(out + at + v * L, sum[v], n);
    }
  });
}

template <typename T>
void forward(const Call& call) {
  using A = Acc<T>;
  const PoolParams windows = params_as<PoolParams>(call.params);
  over_windows<T, A>(
      call, windows.rows, windows.cols, each_tap<A>,
      [&](auto lines, auto row_count, auto taps, auto col_count, int, int, int64_t shift, int64_t at, int64_t length) {
        means(lines, row_count, taps, col_count, shift, length, data<T>(call.out[0]) + at);
      });
}

// The sums of the shares in the windows at `rows` and `cols`.
template <typename T, typename A, typename Rows, typename Cols>
MPSF_INLINE void shares(const T* dy, const Entry<A>* rows, Rows row_count, const Entry<A>* cols, Cols col_count,
                        int64_t length, T* dx, bool streamed) {
  constexpr int L = lanes<A>;
  for_vectors<A>(length, [=]<int N>(int64_t at, int n) {
    Vec<A> acc[N] = {};
    for (int i = 0; i < row_count; ++i) {
      for (int j = 0; j < col_count; ++j) {
        const T* from = dy + rows[i].at + cols[j].at + at;
        const A share = rows[i].weight * cols[j].weight;
        for (int v = 0; v < N; ++v) acc[v] += load_some(from + v * L, n) * share;
      }
    }
    for (int v = 0; v < N; ++v) store_result(dx + at + v * L, acc[v], n, streamed);
  });
}

template <typename T>
void gradient(const Call& call) {
  using A = Acc<T>;
  const PoolParams windows = params_as<PoolParams>(call.params);
  over_pixels<T, A>(call, windows.rows, windows.cols, nullptr, each_reader<A>,
                    [&](int64_t from, auto rows, auto row_count, auto cols, auto col_count, auto, T* made,
                        int64_t length, bool streamed) {
                      shares(data<T>(call.in[0]) + from, rows, row_count, cols, col_count, length, made, streamed);
                    });
}

}  // namespace

void avg_pool(const Call& call) {
  if (call.out[0].size == 0) return;
  by_type(call.in[0].type, [&](auto zero) { forward<decltype(zero)>(call); });
}

void avg_pool_grad(const Call& call) {
  if (call.out[0].size == 0) return;
  by_type(call.in[0].type, [&](auto zero) { gradient<decltype(zero)>(call); });
}

}  // namespace mpsf::MPSF_ISA
