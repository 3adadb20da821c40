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

// Means over a line of terms(i, n, terms): those of the n elements from i on, with zeros in the lanes behind.
template <typename A, int Terms, typename F>
MPSF_INLINE void means_along(int64_t length, A (&means)[Terms], const F& terms) {
  constexpr int64_t L = lanes<A>, kFar = 2 * kBlock * L;
  double totals[Terms] = {};
  int64_t at = 0;
  while (at < length) {
    const int64_t end = smaller(length, at + kFar);
    Vec<A> sums[2][Terms] = {}, each[Terms];
    for (; at + 2 * L <= end; at += 2 * L) {
      for (int k = 0; k < 2; ++k) {
        terms(at + k * L, static_cast<int>(L), each);
        for (int t = 0; t < Terms; ++t) sums[k][t] += each[t];
      }
    }
    for (; at < end; at += L) {
      terms(at, static_cast<int>(smaller(L, end - at)), each);
      for (int t = 0; t < Terms; ++t) sums[0][t] += each[t];
    }
    at = end;
    for (int t = 0; t < Terms; ++t) totals[t] += static_cast<double>(sum_of<A>(sums[0][t] + sums[1][t]));
  }
  for (int t = 0; t < Terms; ++t) means[t] = static_cast<A>(totals[t] / static_cast<double>(length));
}

// Leaves a line less its mean in `room`, with zeros behind, and returns 1 / sqrt(var + eps). Both are told from the
// first element, so that what is constant has no variance and a mean far from zero costs no digits.
template <typename T>
MPSF_INLINE Acc<T> centre(const T* x, int64_t length, Acc<T> eps, Acc<T>* room) {
  using A = Acc<T>;
  constexpr int L = lanes<A>;
  const A top = load(x, 1)[0];
  A mean[1], var[1];
  means_along<A>(
      length, mean, [&](int64_t i, int n, Vec<A>(&terms)[1]) __attribute__((always_inline)) {
        terms[0] = load_some(x + i, n) - top;
        if (n < L) terms[0] = filled_from<A>(terms[0], n, A(0));
      });
  means_along<A>(
      length, var, [&](int64_t i, int n, Vec<A>(&terms)[1]) __attribute__((always_inline)) {
        Vec<A> centred = load_some(x + i, n) - top - mean[0];
        if (n < L) centred = filled_from<A>(centred, n, A(0));
        store(room + i, centred);
        terms[0] = centred * centred;
      });
  return inverse_root(var[0], eps);
}

// Whether every line of an image begins where it may be stored past the caches.
template <typename A>
bool streams(const Tensor& image, int64_t length) {
  return image.streamed && length % lanes<A> == 0;
}

// Calls f(line, group, room, sums) for all lines, where f adds to so many sums with an entry an element, which begin at
// zero; out[s] is what they come to over the lines of each group. Shapes alone cut the work: chunks of whole blocks,
// which are added up in the accumulator's precision, and these in double.
template <typename A, int Sums, typename F>
void sum_over_lines(int64_t groups, int64_t lines, int64_t length, A* const (&out)[Sums], const F& f) {
  const int64_t stride = length + lanes<A>;
  const int64_t height = 1 + smaller(kBlock, kChunkElements / length), blocks = (lines + height - 1) / height;
  const int64_t few = smaller(blocks, (kChunks + groups - 1) / groups), chunks = few > 0 ? few : 1;
  const auto begin = [&](int64_t chunk) { return smaller(lines, blocks * chunk / chunks * height); };
  const auto room_bytes = static_cast<size_t>(Sums * stride) * sizeof(A);

  const auto add_up = [&](int64_t group, int64_t chunk, double* part, A* room) {
    A* sums[Sums];
    for (int s = 0; s < Sums; ++s) sums[s] = room + (1 + s) * stride;
    for (int64_t i = 0; i < Sums * length; ++i) part[i] = 0;
    const int64_t end = begin(chunk + 1);
    for (int64_t block = begin(chunk); block < end; block += height) {
      memset(sums[0], 0, room_bytes);
      for (int64_t line = block; line < smaller(end, block + height); ++line) {
        f(group * lines + line, group, room, sums);
      }
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

  const int64_t space = (1 + Sums) * stride;
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
  const int64_t lines = out.shape[1], length = out.shape[2], all = out.shape[0] * lines;
  const bool streamed = streams<A>(out, length);
  parallel_groups(all, length, length, [&](int64_t begin, int64_t end) {
    const Scratch<A> room(length + lanes<A>);
    for (int64_t line = begin; line < end; ++line) {
      const A *gamma = data<A>(call.in[1]) + line / lines * length, *beta = data<A>(call.in[2]) + line / lines * length;
      const A root = centre(data<T>(call.in[0]) + line * length, length, eps, room.get());
      T* const y = data<T>(out) + line * length;
      along<A>(
          length, [&](int64_t i, int n) __attribute__((always_inline)) {
            const Vec<A> normalized = load(&room[i]) * root;
            store_result(y + i, normalized * load_some(gamma + i, n) + load_some(beta + i, n), n, streamed);
          });
    }
    stream_end();
  });
}

// The gradients of x, scale and shift, from dy, x and the scale.
template <typename T>
void gradient(const Call& call, Acc<T> eps) {
  using A = Acc<T>;
  const Tensor& out = call.out[0];
  const int64_t length = out.shape[2];
  const bool streamed = streams<A>(out, length);
  const auto add = [&](int64_t line, int64_t group, A* room, A* const(&sums)[2]) {
    const T *dy = data<T>(call.in[0]) + line * length, *x = data<T>(call.in[1]) + line * length;
    const A* gamma = data<A>(call.in[2]) + group * length;
    T* const dx = data<T>(out) + line * length;
    const A root = centre(x, length, eps, room);
    A means[2];  // of dy times the scale, and of that times the normalized line
    means_along<A>(
        length, means, [&](int64_t i, int n, Vec<A>(&terms)[2]) __attribute__((always_inline)) {
          const Vec<A> normalized = load(room + i) * root, from = load_some(dy + i, n);
          store(room + i, normalized);
          store(sums[0] + i, load(sums[0] + i) + from * normalized);
          store(sums[1] + i, load(sums[1] + i) + from);
          terms[0] = from * load_some(gamma + i, n);
          terms[1] = terms[0] * normalized;
        });
    along<A>(
        length, [&](int64_t i, int n) __attribute__((always_inline)) {
          const Vec<A> g = load_some(dy + i, n) * load_some(gamma + i, n);
          store_result(dx + i, (g - means[0] - load(room + i) * means[1]) * root, n, streamed);
        });
  };
  sum_over_lines<A, 2>(out.shape[0], out.shape[1], length, {data<A>(call.out[1]), data<A>(call.out[2])}, add);
}

// The gradients by dy, x and the scale of what u, v and w make of the gradients of x, scale and shift: of
// sum(u * dx) + sum(v * dgamma) + sum(w * dbeta). From dy, x, the scale, u, v and w.
template <typename T>
void second(const Call& call, Acc<T> eps) {
  using A = Acc<T>;
  const Tensor &of_dy = call.out[0], &of_x = call.out[1];
  const int64_t length = of_x.shape[2];
  const bool dy_streamed = streams<A>(of_dy, length), x_streamed = streams<A>(of_x, length);
  const auto add = [&](int64_t line, int64_t group, A* room, A* const(&sums)[1]) {
    const T *dy = data<T>(call.in[0]) + line * length, *x = data<T>(call.in[1]) + line * length;
    const T* u = data<T>(call.in[3]) + line * length;
    const A* gamma = data<A>(call.in[2]) + group * length;
    const A *v = data<A>(call.in[4]) + group * length, *w = data<A>(call.in[5]) + group * length;
    T *const by_dy = data<T>(of_dy) + line * length, *const by_x = data<T>(of_x) + line * length;
    const A root = centre(x, length, eps, room);
    A means[6];  // of u, dy times the scale and dy times v, and of each times the normalized line
    means_along<A>(
        length, means, [&](int64_t i, int n, Vec<A>(&terms)[6]) __attribute__((always_inline)) {
          const Vec<A> normalized = load(room + i) * root, from = load_some(dy + i, n);
          store(room + i, normalized);
          terms[0] = load_some(u + i, n);
          terms[1] = from * load_some(gamma + i, n);
          terms[2] = from * load_some(v + i, n);
          for (int t = 0; t < 3; ++t) terms[3 + t] = terms[t] * normalized;
        });
    A both[1];
    means_along<A>(
        length, both, [&](int64_t i, int n, Vec<A>(&terms)[1]) __attribute__((always_inline)) {
          const Vec<A> g = load_some(dy + i, n) * load_some(gamma + i, n);
          terms[0] = load_some(u + i, n) * (g - means[1] - load(room + i) * means[4]);
        });
    along<A>(
        length, [&](int64_t i, int n) __attribute__((always_inline)) {
          const Vec<A> normalized = load(room + i), from = load_some(dy + i, n), scale = load_some(gamma + i, n);
          const Vec<A> of_v = load_some(v + i, n);
          const Vec<A> pulled_u = (load_some(u + i, n) - means[0] - normalized * means[3]) * root;
          const Vec<A> pulled_g = (from * scale - means[1] - normalized * means[4]) * root;
          const Vec<A> pulled_v = from * of_v - means[2] - normalized * means[5];
          const Vec<A> curved = normalized * (root * both[0]) + pulled_u * means[4] + pulled_g * means[3];
          store(sums[0] + i, load(sums[0] + i) + from * pulled_u);
          store_result(by_dy + i, scale * pulled_u + of_v * normalized + load_some(w + i, n), n, dy_streamed);
          store_result(by_x + i, (pulled_v - curved) * root, n, x_streamed);
        });
  };
  sum_over_lines<A, 1>(of_x.shape[0], of_x.shape[1], length, {data<A>(call.out[2])}, add);
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
