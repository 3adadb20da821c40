// Normalization of lines (groups, lines, length) along their last axis, its gradient and what that one's is made of. A
// group of lines has a scale and a shift (groups, length) of its own. A line is gone over a few times while the first
// cache holds it.
#include "kernels/normalization/channel_vectors.h"
#include "kernels/vector/channels.h"
#include "kernels/vector/lines.h"
#include "kernels/vector/simd.h"
#include "normalization/params.h"
#include "runtime/parallel.h"

namespace mpsf::MPSF_ISA {
namespace {

// Lines that are worked on side by side, so that one's sums are not waited for; those of the gradient have more sums,
// and registers are few.
constexpr int kSide = 4, kSideBack = kRegisters / 8;

// Means over lines of terms(i, n, terms): those of the n elements from i on, with zeros in the lanes behind.
template <typename A, int Terms, typename F>
MPSF_INLINE void means_along(int64_t length, A (&means)[Terms], const F& terms) {
  constexpr int64_t L = lanes<A>;
  const double share = 1 / static_cast<double>(length);
  double totals[Terms] = {};
  int64_t at = 0;
  while (at < length) {
    const int64_t end = smaller(length, at + kBlock * L);
    Vec<A> sums[Terms] = {}, each[Terms];
    for (; at + L <= end; at += L) {
      terms(at, static_cast<int>(L), each);
      for (int t = 0; t < Terms; ++t) sums[t] += each[t];
    }
    if (at < end) {
      terms(at, static_cast<int>(end - at), each);
      for (int t = 0; t < Terms; ++t) sums[t] += each[t];
      at = end;
    }
    for (int t = 0; t < Terms; ++t) totals[t] += static_cast<double>(sum_of<A>(sums[t]));
  }
  for (int t = 0; t < Terms; ++t) means[t] = static_cast<A>(totals[t] * share);
}

// Leaves K lines less their means in `room`, `stride` apart, with zeros behind, and 1 / sqrt(var + eps) of each.
// Moments are told from the first element, so that what is constant has no variance and a mean far from zero costs no
// digits.
template <int K, typename T>
MPSF_INLINE void centre(const T* x, int64_t length, Acc<T> eps, Acc<T>* room, int64_t stride, Acc<T> (&roots)[K]) {
  using A = Acc<T>;
  constexpr int L = lanes<A>;
  A tops[K], mean[K], var[K];
  for (int k = 0; k < K; ++k) tops[k] = load(x + k * length, 1)[0];
  means_along<A>(
      length, mean, [=](int64_t i, int n, Vec<A>(&terms)[K]) __attribute__((always_inline)) {
        for (int k = 0; k < K; ++k) {
          terms[k] = load_some(x + k * length + i, n) - tops[k];
          if (n < L) terms[k] = filled_from<A>(terms[k], n, A(0));
        }
      });
  means_along<A>(
      length, var, [=](int64_t i, int n, Vec<A>(&terms)[K]) __attribute__((always_inline)) {
        for (int k = 0; k < K; ++k) {
          Vec<A> centred = load_some(x + k * length + i, n) - tops[k] - mean[k];
          if (n < L) centred = filled_from<A>(centred, n, A(0));
          store(room + k * stride + i, centred);
          terms[k] = centred * centred;
        }
      });
  for (int k = 0; k < K; ++k) roots[k] = inverse_root(var[k], eps);
}

// Calls f<K>(line) for the lines [begin, end), for K of them at a time while there are as many.
template <int K, typename F>
MPSF_INLINE void side_by_side(int64_t begin, int64_t end, const F& f) {
  int64_t line = begin;
  for (; line + K <= end; line += K) f.template operator()<K>(line);
  for (; line < end; ++line) f.template operator()<1>(line);
}

// Whether every line of an image begins where it may be stored past the caches.
template <typename A>
bool streams(const Tensor& image, int64_t length) {
  return image.streamed && length % lanes<A> == 0;
}

// Calls f<K>(line, group, room, sums) for all lines, K of them or one at a time, where f adds to so many sums with an
// entry an element, which begin at zero; out[s] is what they come to over the lines of each group. Shapes alone cut the
// work: chunks of whole blocks, which are added up in the accumulator's precision, and these in double.
template <int K, typename A, int Sums, typename F>
void sum_over_lines(int64_t groups, int64_t lines, int64_t length, A* const (&out)[Sums], const F& f) {
  const int64_t stride = length + lanes<A>, space = (K + Sums) * stride;
  const int64_t height = 1 + smaller(kBlock, kChunkElements / length), blocks = (lines + height - 1) / height;
  const int64_t few = smaller(blocks, (kChunks + groups - 1) / groups), chunks = few > 0 ? few : 1;
  const auto begin = [&](int64_t chunk) { return smaller(lines, blocks * chunk / chunks * height); };

  const auto add_up = [&](int64_t group, int64_t chunk, double* part, A* room) {
    A* sums[Sums];
    for (int s = 0; s < Sums; ++s) sums[s] = room + (K + s) * stride;
    for (int64_t i = 0; i < Sums * length; ++i) part[i] = 0;
    const int64_t end = begin(chunk + 1);
    for (int64_t block = begin(chunk); block < end; block += height) {
      memset(sums[0], 0, static_cast<size_t>(Sums * stride) * sizeof(A));
      side_by_side<K>(block, smaller(end, block + height),
                      [&]<int N>(int64_t line) { f.template operator()<N>(group * lines + line, group, room, sums); });
      for (int s = 0; s < Sums; ++s) {
        for (int64_t i = 0; i < length; ++i) part[s * length + i] += static_cast<double>(sums[s][i]);
      }
    }
    stream_end();
  };
  const auto finish = [&](int64_t group, double* parts) {
    for (int64_t chunk = 1; chunk < chunks; ++chunk) {
      for (int64_t i = 0; i < Sums * length; ++i) parts[i] += parts[chunk * Sums * length + i];
    }
    for (int s = 0; s < Sums; ++s) {
      for (int64_t i = 0; i < length; ++i) out[s][group * length + i] = static_cast<A>(parts[s * length + i]);
    }
  };

  if (chunks == 1) {
    const int64_t elements = lines * length;
    return parallel_groups(groups, elements + 1, elements, [&](int64_t first, int64_t last) {
      const Scratch<A> room(space);
      const Scratch<double> part(Sums * length);
      for (int64_t group = first; group < last; ++group) {
        add_up(group, 0, part.get(), room.get());
        finish(group, part.get());
      }
    });
  }
  const Scratch<double> parts(groups * chunks * Sums * length);
  parallel_for(groups * chunks, [&](int64_t task) {
    const Scratch<A> room(space);
    add_up(task / chunks, task % chunks, &parts[task * Sums * length], room.get());
  });
  parallel_for(groups, [&](int64_t group) { finish(group, &parts[group * chunks * Sums * length]); });
}

// From x, scale and shift.
template <typename T>
void normalize(const Call& call, Acc<T> eps) {
  using A = Acc<T>;
  const Tensor& out = call.out[0];
  const int64_t lines = out.shape[1], length = out.shape[2], stride = length + lanes<A>;
  const bool streamed = streams<A>(out, length);
  const auto some = [=, &call]<int K>(int64_t line, const A* gamma, const A* beta, A* room) {
    const int64_t from = line * length;
    T* const y = data<T>(out) + from;
    A roots[K];
    centre<K>(data<T>(call.in[0]) + from, length, eps, room, stride, roots);
    along<A>(
        length, [=](int64_t i, int n) __attribute__((always_inline)) {
          const Vec<A> scale = load_some(gamma + i, n), shift = load_some(beta + i, n);
          for (int k = 0; k < K; ++k) {
            const Vec<A> normalized = load(room + k * stride + i) * roots[k];
            store_result(y + k * length + i, normalized * scale + shift, n, streamed);
          }
        });
  };
  parallel_groups(out.shape[0] * lines, length, length, [&](int64_t begin, int64_t end) {
    const Scratch<A> room(kSide * stride);
    for (int64_t line = begin; line < end;) {
      const int64_t group = line / lines, last = smaller(end, (group + 1) * lines);
      const A *gamma = data<A>(call.in[1]) + group * length, *beta = data<A>(call.in[2]) + group * length;
      side_by_side<kSide>(line, last,
                          [&]<int K>(int64_t at) { some.template operator()<K>(at, gamma, beta, room.get()); });
      line = last;
    }
    stream_end();
  });
}

// The gradients of x, scale and shift, from dy, x and the scale.
template <typename T>
void gradient(const Call& call, Acc<T> eps) {
  using A = Acc<T>;
  const Tensor& out = call.out[0];
  const int64_t length = out.shape[2], stride = length + lanes<A>;
  const bool streamed = streams<A>(out, length);
  const auto add = [=, &call]<int K>(int64_t line, int64_t group, A* room, A* const(&sums)[2]) {
    const T *dy = data<T>(call.in[0]) + line * length, *x = data<T>(call.in[1]) + line * length;
    const A* gamma = data<A>(call.in[2]) + group * length;
    T* const dx = data<T>(out) + line * length;
    A* const dgamma = sums[0];
    A* const dbeta = sums[1];
    A roots[K], means[2 * K];  // of dy times the scale, and of that times the normalized line
    centre<K>(x, length, eps, room, stride, roots);
    means_along<A>(
        length, means, [=](int64_t i, int n, Vec<A>(&terms)[2 * K]) __attribute__((always_inline)) {
          const Vec<A> scale = load_some(gamma + i, n);
          Vec<A> of_scale = load(dgamma + i), of_shift = load(dbeta + i);
          for (int k = 0; k < K; ++k) {
            const Vec<A> normalized = load(room + k * stride + i) * roots[k], from = load_some(dy + k * length + i, n);
            of_scale += from * normalized;
            of_shift += from;
            terms[2 * k] = from * scale;
            terms[2 * k + 1] = terms[2 * k] * normalized;
          }
          store(dgamma + i, of_scale);
          store(dbeta + i, of_shift);
        });
    for (int k = 0; k < K; ++k) means[2 * k + 1] *= roots[k];
    along<A>(
        length, [=](int64_t i, int n) __attribute__((always_inline)) {
          const Vec<A> scale = load_some(gamma + i, n);
          for (int k = 0; k < K; ++k) {
            const Vec<A> g = load_some(dy + k * length + i, n) * scale;
            const Vec<A> along_line = load(room + k * stride + i) * means[2 * k + 1];
            store_result(dx + k * length + i, (g - means[2 * k] - along_line) * roots[k], n, streamed);
          }
        });
  };
  sum_over_lines<kSideBack>(out.shape[0], out.shape[1], length, {data<A>(call.out[1]), data<A>(call.out[2])}, add);
}

// The gradients by dy, x and the scale of what u, v and w make of the gradients of x, scale and shift: of
// sum(u * dx) + sum(v * dgamma) + sum(w * dbeta). From dy, x, the scale, u, v and w.
template <typename T>
void second(const Call& call, Acc<T> eps) {
  using A = Acc<T>;
  const Tensor &of_dy = call.out[0], &of_x = call.out[1];
  const int64_t length = of_x.shape[2];
  const bool dy_streamed = streams<A>(of_dy, length), x_streamed = streams<A>(of_x, length);
  const auto add = [=, &call]<int K>(int64_t line, int64_t group, A* room, A* const(&sums)[1]) {
    const T *dy = data<T>(call.in[0]) + line * length, *x = data<T>(call.in[1]) + line * length;
    const T* u = data<T>(call.in[3]) + line * length;
    const A* gamma = data<A>(call.in[2]) + group * length;
    const A *v = data<A>(call.in[4]) + group * length, *w = data<A>(call.in[5]) + group * length;
    T *const by_dy = data<T>(of_dy) + line * length, *const by_x = data<T>(of_x) + line * length;
    A* const by_scale = sums[0];
    A roots[K];
    centre<K>(x, length, eps, room, length + lanes<A>, roots);
    const A root = roots[0];
    A means[6];  // of u, dy times the scale and dy times v, and of each times the normalized line
    means_along<A>(
        length, means, [=](int64_t i, int n, Vec<A>(&terms)[6]) __attribute__((always_inline)) {
          const Vec<A> normalized = load(room + i) * root, from = load_some(dy + i, n);
          store(room + i, normalized);
          terms[0] = load_some(u + i, n);
          terms[1] = from * load_some(gamma + i, n);
          terms[2] = from * load_some(v + i, n);
          for (int t = 0; t < 3; ++t) terms[3 + t] = terms[t] * normalized;
        });
    A both[1];
    means_along<A>(
        length, both, [=](int64_t i, int n, Vec<A>(&terms)[1]) __attribute__((always_inline)) {
          const Vec<A> g = load_some(dy + i, n) * load_some(gamma + i, n);
          terms[0] = load_some(u + i, n) * (g - means[1] - load(room + i) * means[4]);
        });
    along<A>(
        length, [=](int64_t i, int n) __attribute__((always_inline)) {
          const Vec<A> normalized = load(room + i), from = load_some(dy + i, n), scale = load_some(gamma + i, n);
          const Vec<A> of_v = load_some(v + i, n);
          const Vec<A> pulled_u = (load_some(u + i, n) - means[0] - normalized * means[3]) * root;
          const Vec<A> pulled_g = (from * scale - means[1] - normalized * means[4]) * root;
          const Vec<A> pulled_v = from * of_v - means[2] - normalized * means[5];
          const Vec<A> curved = normalized * (root * both[0]) + pulled_u * means[4] + pulled_g * means[3];
          store(by_scale + i, load(by_scale + i) + from * pulled_u);
          store_result(by_dy + i, scale * pulled_u + of_v * normalized + load_some(w + i, n), n, dy_streamed);
          store_result(by_x + i, (pulled_v - curved) * root, n, x_streamed);
        });
  };
  sum_over_lines<1>(of_x.shape[0], of_x.shape[1], length, {data<A>(call.out[2])}, add);
}

template <typename F>
void by_eps(const Call& call, int parameters, const F& f) {
  if (call.in[parameters].size == 0) return;
  const double eps = params_as<LayerNormParams<double>>(call.params).eps;
  by_type(call.out[0].type, [&](auto zero) { f(zero, static_cast<Acc<decltype(zero)>>(eps)); });
}

}  // namespace

void layer_norm(const Call& call) {
  by_eps(call, 1, [&](auto zero, auto eps) { normalize<decltype(zero)>(call, eps); });
}

void layer_norm_grad(const Call& call) {
  by_eps(call, 2, [&](auto zero, auto eps) { gradient<decltype(zero)>(call, eps); });
}

void layer_norm_grad_grad(const Call& call) {
  by_eps(call, 2, [&](auto zero, auto eps) { second<decltype(zero)>(call, eps); });
}

}  // namespace mpsf::MPSF_ISA
