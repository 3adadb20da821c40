// Batch normalization over channels-last pixels: the moments, two affine maps and the two sums between them, each
// direction by a state, and as a whole. Images come in statistics groups with vectors of their own (channels.h): one
// group for batch norm, one an image for instance norm.
#include "kernels/activation/apply.h"
#include "kernels/normalization/channel_maps.h"
#include "kernels/normalization/channel_moments.h"
#include "kernels/normalization/channel_vectors.h"
#include "kernels/vector/channels.h"
#include "kernels/vector/simd.h"
#include "normalization/params.h"
#include "runtime/parallel.h"

namespace mpsf::MPSF_ISA {
namespace {

// Elements of the images that a gradient is kept of between two passes.
constexpr int64_t kKeptElements = 1 << 20;

// What `fill` makes of x, and of what is added to it, with the vectors mean, scale and shift.
template <int Act, bool Adds, typename T>
auto normalizing(const T* x, [[maybe_unused]] const T* added, const Neuron<Acc<T>>& neuron) {
  using V = Vec<Acc<T>>;
  return [x, added, &neuron](int64_t at, int n, const V(&p)[3]) {
    const auto& [mean, scale, shift] = p;
    V z = (load_some(x + at, n) - mean) * scale + shift;
    if constexpr (Adds) z = z + load_some(added + at, n);
    return activated_by<Act>(z, neuron);
  };
}

// Sums of g and of g * (x - mean) over every channel of every statistics group, where g is dy through an activation of
// (x - mean) * scale + shift; without one there are no vectors but the mean. g also goes to `kept`, if that is not
// null.
template <int Act, typename T>
void gradient_sums(const T* dy, const T* x, const StatGroups& stat_groups, const Acc<T>* const (&vectors)[3],
                   const Neuron<Acc<T>>& neuron, Acc<T>* const (&sums)[2], [[maybe_unused]] Acc<T>* kept = nullptr) {
  using A = Acc<T>;
  constexpr int kVectors = Act == kUnchanged ? 1 : 3;
  const auto prepare = [&](int64_t stat_group, A* room) {
    const A* entries[kVectors];
    for (int i = 0; i < kVectors; ++i)
      entries[i] = entries_of(vectors[i], stat_groups, stat_group, room + i * stat_groups.rows.width);
    const T *g = dy + stat_group * stat_groups.size, *from = x + stat_group * stat_groups.size;
    return [=, &neuron](int64_t at, int64_t column, int n, Vec<A>(&terms)[2]) {
      const Vec<A> centred = load_some(from + at, n) - load_some(entries[0] + column, n);
      terms[0] = load_some(g + at, n);
      if constexpr (Act != kUnchanged) {
        const Vec<A> scale = load_some(entries[1] + column, n), shift = load_some(entries[2] + column, n);
        terms[0] = passed_by<Act>(terms[0], centred * scale + shift, neuron);
      }
      if constexpr (is_costly(Act)) {
        if (kept) store_some(kept + stat_group * stat_groups.size + at, terms[0], n);
      }
      terms[1] = terms[0] * centred;
    };
  };
  channel_sums<A, kVectors>(stat_groups, prepare, sums);
}

// Fills dx with a * g + b * (x - mean) + d, from the vectors mean, a, b, d, scale and shift; the last two as above.
template <int Act, typename T, typename Dy>
void fill_gradient(T* dx, bool streamed, const Dy* dy, const T* x, const StatGroups& stat_groups,
                   const Acc<T>* const (&vectors)[6], const Neuron<Acc<T>>& neuron) {
  using V = Vec<Acc<T>>;
  constexpr int kVectors = Act == kUnchanged ? 4 : 6;
  const Acc<T>* read[kVectors];
  for (int i = 0; i < kVectors; ++i) read[i] = vectors[i];
  fill<T, kVectors>(dx, streamed, stat_groups, read, [dy, x, &neuron](int64_t at, int n, const V(&p)[kVectors]) {
    V g = load_some(dy + at, n), centred = load_some(x + at, n) - p[0];
    if constexpr (Act != kUnchanged) g = passed_by<Act>(g, centred * p[4] + p[5], neuron);
    return p[1] * g + p[2] * centred + p[3];
  });
}

// By vectors of statistics groups --------------------------------------------------------------------------

// From x, what is added to it if anything is, mean, scale and shift.
template <bool Adds, typename T>
void normalize(const Call& call) {
  using A = Acc<T>;
  const Tensor &y = call.out[0], *const given = call.in + 1 + Adds;
  const StatGroups stat_groups = stat_groups_of<A>(y, given[0].size);
  const A* const vectors[] = {data<A>(given[0]), data<A>(given[1]), data<A>(given[2])};
  const Neuron<A> neuron(params_as<Activation<double>>(call.params));
  by_form(neuron.form, [&]<int Act>() {
    fill<T, 3>(data<T>(y), streams<A>(y, stat_groups), stat_groups, vectors,
               normalizing<Act, Adds>(data<T>(call.in[0]), data<T>(call.in[Adds]), neuron));
  });
}

// By the vectors (channels,) of a state -------------------------------------------------------------------

// What images less their mean are multiplied with: gamma / sqrt(var + eps).
template <typename A>
struct Slopes : Scratch<A> {
  Slopes(const Tensor& gamma, const Tensor& var, A eps) : Scratch<A>(gamma.size) {
    for (int64_t c = 0; c < gamma.size; ++c) (*this)[c] = data<A>(gamma)[c] * inverse_root(data<A>(var)[c], eps);
  }
};

// From x, mean, var, gamma and beta.
template <typename T>
void normalize_by(const Call& call) {
  using A = Acc<T>;
  const Tensor& y = call.out[0];
  const StatGroups stat_groups = stat_groups_of<A>(y, call.in[1].size);
  const BnByStateParams<double> p = params_as<BnByStateParams<double>>(call.params);
  const Slopes<A> slope(call.in[3], call.in[2], static_cast<A>(p.eps));
  const Neuron<A> neuron(p.act);
  const A* const vectors[] = {data<A>(call.in[1]), slope.get(), data<A>(call.in[4])};
  by_form(neuron.form, [&]<int Act>() {
    const T* x = data<T>(call.in[0]);
    fill<T, 3>(data<T>(y), streams<A>(y, stat_groups), stat_groups, vectors, normalizing<Act, false>(x, x, neuron));
  });
}

// From dy, x, mean, var and the gradients of gamma and beta; for an activation also from gamma and beta.
template <typename T>
void stats_grad_by(const Call& call) {
  using A = Acc<T>;
  const int64_t channels = call.out[0].size;
  const BnByStateParams<double> p = params_as<BnByStateParams<double>>(call.params);
  const A eps = static_cast<A>(p.eps), *mean = data<A>(call.in[2]), *var = data<A>(call.in[3]);
  A *dgamma = data<A>(call.out[0]), *dbeta = data<A>(call.out[1]);
  const StatGroups stat_groups = stat_groups_of<A>(call.in[0], channels);
  const Neuron<A> neuron(p.act);
  by_form(neuron.form, [&]<int Act>() {
    constexpr bool kActs = Act != kUnchanged;
    const Slopes<A> slope(call.in[kActs ? 6 : 3], call.in[3], eps);
    const A* shift = kActs ? data<A>(call.in[7]) : mean;
    gradient_sums<Act>(data<T>(call.in[0]), data<T>(call.in[1]), stat_groups, {mean, slope.get(), shift}, neuron,
                       {dbeta, dgamma});
  });
  for (int64_t c = 0; c < channels; ++c) {
    dgamma[c] = data<A>(call.in[4])[c] + dgamma[c] * inverse_root(var[c], eps);
    dbeta[c] = data<A>(call.in[5])[c] + dbeta[c];
  }
}

// From dy, x, mean, var, the gradients of gamma and beta, gamma, and a count; for an activation also from beta.
template <typename T>
void grad_by(const Call& call) {
  using A = Acc<T>;
  const Tensor& dx = call.out[0];
  const StatGroups stat_groups = stat_groups_of<A>(dx, call.in[2].size);
  const BnByStateParams<double> p = params_as<BnByStateParams<double>>(call.params);
  const A eps = static_cast<A>(p.eps), count = static_cast<A>(*data<int64_t>(call.in[7]));
  const A *mean = data<A>(call.in[2]), *var = data<A>(call.in[3]);
  const Neuron<A> neuron(p.act);
  const int64_t channels = stat_groups.rows.channels;
  const Slopes<A> a(call.in[6], call.in[3], eps);
  const Scratch<A> b(channels), d(channels);
  for (int64_t c = 0; c < channels; ++c) {
    const A share = a[c] / count;
    b[c] = -share * (inverse_root(var[c], eps) * data<A>(call.in[4])[c]);
    d[c] = -share * data<A>(call.in[5])[c];
  }
  by_form(neuron.form, [&]<int Act>() {
    const A* shift = Act != kUnchanged ? data<A>(call.in[8]) : mean;
    fill_gradient<Act>(data<T>(dx), streams<A>(dx, stat_groups), data<T>(call.in[0]), data<T>(call.in[1]), stat_groups,
                       {mean, a.get(), b.get(), d.get(), a.get(), shift}, neuron);
  });
}

// As a whole ----------------------------------------------------------------------------------------------

// What a direction as a whole is told.
template <typename A>
struct Whole {
  int64_t groups;  // of neighbouring channels that share statistics; 0 where each has its own
  A eps, count;    // count: elements that share statistics; known to the gradient only
  Neuron<A> neuron;

  explicit Whole(const BatchNormParams<double>& p)
      : groups(p.groups), eps(static_cast<A>(p.eps)), count(static_cast<A>(p.elements)), neuron(p.act) {}

  // Calls f(at, size) for every group of channels of so many entries.
  template <typename F>
  void for_groups(int64_t entries, int64_t channels, const F& f) const {
    if (groups == 0) return;
    const int64_t size = channels / groups;
    for (int64_t at = 0; at < entries; at += size) f(at, size);
  }
};

// From x, what is added to it if anything is, gamma and beta.
template <bool Adds, typename T>
void normalized(const Call& call) {
  using A = Acc<T>;
  const Tensor& y = call.out[0];
  const StatGroups all = stat_groups_of<A>(y, call.out[1].size);
  const Whole<A> whole(params_as<BatchNormParams<double>>(call.params));
  const bool streamed = streams<A>(y, all);
  const int64_t channels = all.rows.channels;
  const A *gamma = data<A>(call.in[1 + Adds]), *beta = data<A>(call.in[2 + Adds]);
  by_form(whole.neuron.form, [&]<int Act>() {
    for_stat_groups(all, [&](const StatGroups& stat_groups, int64_t first) {
      const int64_t entries = stat_groups.count * channels, offset = first * stat_groups.size;
      const T *x = data<T>(call.in[0]) + offset, *added = data<T>(call.in[Adds]) + offset;
      A *mean = data<A>(call.out[1]) + first * channels, *var = data<A>(call.out[2]) + first * channels;
      moments_of(x, stat_groups, mean, var);
      whole.for_groups(entries, channels,
                       [&](int64_t at, int64_t size) { join_moments(mean + at, var + at, size, mean + at, var + at); });
      Scratch<A> scale(entries), shift(entries);
      for (int64_t i = 0; i < entries; ++i) {
        scale[i] = gamma[i % channels] * inverse_root(var[i], whole.eps);
        shift[i] = beta[i % channels];
      }
      const A* const vectors[] = {mean, scale.get(), shift.get()};
      fill<T, 3>(data<T>(y) + offset, streamed, stat_groups, vectors, normalizing<Act, Adds>(x, added, whole.neuron));
    });
  });
}

// The entries that statistics groups from `first` on have of a vector, one a channel, where it holds `width` for each
// of them: one for each channel, or one for some neighbouring channels together.
template <typename A>
struct ByChannel : Scratch<A> {
  ByChannel(const Tensor& vector, int64_t width, int64_t first, int64_t entries, int64_t channels)
      : Scratch<A>(entries) {
    const A* from = data<A>(vector) + first * width;
    const int64_t size = channels / width;
    for (int64_t at = 0; at < entries; at += size, ++from) {
      for (int64_t i = at; i < at + size; ++i) (*this)[i] = *from;
    }
  }
};

// The gradients that others have of mean and variance are zeros where their vectors are empty.
template <typename T>
void normalized_grad(const Call& call) {
  using A = Acc<T>;
  const Tensor& result = call.out[0];
  const StatGroups all = stat_groups_of<A>(result, call.out[1].size);
  const Whole<A> whole(params_as<BatchNormParams<double>>(call.params));
  const bool streamed = streams<A>(result, all);
  const int64_t channels = all.rows.channels, width = call.in[4].size / all.count;
  const bool others = call.in[6].size > 0;
  const A *gamma = data<A>(call.in[2]), *beta = data<A>(call.in[3]);
  by_form(whole.neuron.form, [&]<int Act>() {
    for_stat_groups(all, [&](const StatGroups& stat_groups, int64_t first) {
      const int64_t entries = stat_groups.count * channels, from = first * channels;
      const int64_t elements = stat_groups.count * stat_groups.size, offset = first * stat_groups.size;
      const T *dy = data<T>(call.in[0]) + offset, *x = data<T>(call.in[1]) + offset;
      const ByChannel<A> mean(call.in[4], width, first, entries, channels);
      const ByChannel<A> var(call.in[5], width, first, entries, channels);
      A *dgamma = data<A>(call.out[1]) + from, *dbeta = data<A>(call.out[2]) + from;
      Scratch<A> a(entries), b(entries), d(entries), shift(entries);
      for (int64_t i = 0; i < entries; ++i) {
        a[i] = gamma[i % channels] * inverse_root(var[i], whole.eps);
        shift[i] = beta[i % channels];
      }
      T* const dx = data<T>(result) + offset;
      // dy through the activation is kept for the second pass where the caches hold it: as the result, or apart where
      // that is of 16 bits.
      constexpr bool kApart = sizeof(T) < sizeof(A);
      const bool keeps = is_costly(Act) && stat_groups.count < all.count && elements <= kKeptElements;
      const Scratch<A> room(keeps && kApart ? elements : 0);
      A* const kept = !keeps ? nullptr : kApart ? room.get() : reinterpret_cast<A*>(dx);
      gradient_sums<Act>(dy, x, stat_groups, {mean.get(), a.get(), shift.get()}, whole.neuron, {dbeta, dgamma}, kept);
      for (int64_t i = 0; i < entries; ++i) {
        const A dmean = others ? data<A>(call.in[6])[from + i] : A(0);
        const A dvar = others ? data<A>(call.in[7])[from + i] : A(0);
        const Factors<A> f(gamma[i % channels], var[i], dmean, dvar, dbeta[i], dgamma[i], whole.count, whole.eps);
        dgamma[i] = f.dgamma, b[i] = f.b, d[i] = f.d;
      }
      whole.for_groups(entries, channels, [&](int64_t at, int64_t size) {
        join_sum(&b[at], size, &b[at]);
        join_sum(&d[at], size, &d[at]);
      });
      // The factor of g is what the image less its mean is multiplied with, too.
      const A* const vectors[] = {mean.get(), a.get(), b.get(), d.get(), a.get(), shift.get()};
      if constexpr (is_costly(Act)) {
        if (keeps) return fill_gradient<kUnchanged>(dx, false, kept, x, stat_groups, vectors, whole.neuron);
      }
      fill_gradient<Act>(dx, streamed, dy, x, stat_groups, vectors, whole.neuron);
    });
  });
}

}  // namespace

void bn_stats(const Call& call) {
  const Tensor& mean = call.out[0];
  if (mean.size == 0) return;
  by_type(call.in[0].type, [&](auto zero) {
    using T = decltype(zero);
    using A = Acc<T>;
    moments_of(data<T>(call.in[0]), stat_groups_of<A>(call.in[0], mean.size), data<A>(mean), data<A>(call.out[1]));
  });
}

void bn_normalize(const Call& call) {
  if (call.out[0].size == 0) return;
  by_type(call.out[0].type, [&](auto zero) { normalize<false, decltype(zero)>(call); });
}

void bn_normalize_add(const Call& call) {
  if (call.out[0].size == 0) return;
  by_type(call.out[0].type, [&](auto zero) { normalize<true, decltype(zero)>(call); });
}

void bn_stats_grad(const Call& call) {
  const Tensor &total = call.out[0], &dot = call.out[1];
  if (total.size == 0) return;
  by_type(call.in[0].type, [&](auto zero) {
    using T = decltype(zero);
    using A = Acc<T>;
    const StatGroups stat_groups = stat_groups_of<A>(call.in[0], total.size);
    const Neuron<A> neuron(params_as<Activation<double>>(call.params));
    by_form(neuron.form, [&]<int Act>() {
      constexpr int kScale = Act == kUnchanged ? 2 : 3, kShift = Act == kUnchanged ? 2 : 4;
      gradient_sums<Act>(data<T>(call.in[0]), data<T>(call.in[1]), stat_groups,
                         {data<A>(call.in[2]), data<A>(call.in[kScale]), data<A>(call.in[kShift])}, neuron,
                         {data<A>(total), data<A>(dot)});
    });
  });
}

void bn_grad(const Call& call) {
  const Tensor& dx = call.out[0];
  if (dx.size == 0) return;
  by_type(dx.type, [&](auto zero) {
    using T = decltype(zero);
    using A = Acc<T>;
    const StatGroups stat_groups = stat_groups_of<A>(dx, call.in[2].size);
    const Neuron<A> neuron(params_as<Activation<double>>(call.params));
    by_form(neuron.form, [&]<int Act>() {
      const A* vectors[6];
      for (int i = 0; i < 6; ++i) vectors[i] = data<A>(call.in[Act == kUnchanged && i > 3 ? 2 : 2 + i]);
      fill_gradient<Act>(data<T>(dx), streams<A>(dx, stat_groups), data<T>(call.in[0]), data<T>(call.in[1]),
                         stat_groups, {vectors[0], vectors[1], vectors[2], vectors[3], vectors[4], vectors[5]}, neuron);
    });
  });
}

void bn_normalize_by(const Call& call) {
  if (call.out[0].size == 0) return;
  by_type(call.out[0].type, [&](auto zero) { normalize_by<decltype(zero)>(call); });
}

void bn_stats_grad_by(const Call& call) {
  if (call.out[0].size == 0) return;
  by_type(call.in[0].type, [&](auto zero) { stats_grad_by<decltype(zero)>(call); });
}

void bn_grad_by(const Call& call) {
  if (call.out[0].size == 0) return;
  by_type(call.out[0].type, [&](auto zero) { grad_by<decltype(zero)>(call); });
}

void batch_norm(const Call& call) {
  if (call.out[1].size == 0) return;
  by_type(call.in[0].type, [&](auto zero) { normalized<false, decltype(zero)>(call); });
}

void batch_norm_add(const Call& call) {
  if (call.out[1].size == 0) return;
  by_type(call.in[0].type, [&](auto zero) { normalized<true, decltype(zero)>(call); });
}

void batch_norm_grad(const Call& call) {
  if (call.out[1].size == 0) return;
  by_type(call.in[0].type, [&](auto zero) { normalized_grad<decltype(zero)>(call); });
}

}  // namespace mpsf::MPSF_ISA
