// Convolution of channels-last images and its gradients, with weights (O, rows, cols, C / groups).
#include "kernels/convolution/depthwise_few.h"
#include "kernels/convolution/depthwise_grad_tiles.h"
#include "kernels/convolution/dot_products.h"
#include "kernels/convolution/few_channels.h"
#include "kernels/convolution/few_pixels.h"
#include "kernels/convolution/image_by_image.h"
#include "kernels/convolution/products.h"
#include "kernels/convolution/weight_grad.h"
#include "kernels/convolution/winograd.h"
#include "kernels/convolution/winograd_grad.h"
#include "kernels/vector/channels.h"

namespace mpsf::MPSF_ISA {
namespace {

template <typename T>
void multiply_all(const Product<T>& p, bool winograd) {
  if constexpr (sizeof(Acc<T>) == sizeof(float)) {
    const Winograd<Dense, T> dense(p);
    if (winograd && dense.fits()) return dense.run();
    const Winograd<Strided, T> strided(p);
    if (winograd && strided.fits()) return strided.run();
  }
  if (has_few_channels(p)) return product_of_lines(p);
  if (is_of_pixels(p)) return product_of_pixels(p);
  return is_of_few(p) ? product_of_few(p) : product(p);
}

// Calls run(f) with an f that makes a gradient of weights in another way than `weight_grad`; false where none does.
template <typename T, typename F>
bool by_other_ways(const WeightGrad<T>& g, bool winograd, const F& run) {
  if constexpr (sizeof(Acc<T>) == sizeof(float)) {
    const WinogradGrad<Dense, T> dense(g);
    if (winograd && dense.fits()) return run([&] { dense.run(); }), true;
    const WinogradGrad<Strided, T> strided(g);
    if (winograd && strided.fits()) return run([&] { strided.run(); }), true;
  }
  const LineGrad<T> lines(g);
  if (lines.fits()) return run([&] { lines.run(); }), true;
  if (is_of_few(g)) return run([&] { weight_grad_of_few(g); }), true;
  if (g.exchanged && g.merged()) return run([&] { weight_grad(g); }), true;
  return false;
}

// All phases of windows two apart by Winograd's algorithm, where that does.
template <bool Odd, typename T>
bool input_spread(const Geometry& g, const Call& call, const Neuron<Acc<T>>& neuron) {
  if constexpr (sizeof(Acc<T>) != sizeof(float)) {
    return false;
  } else {
    const auto fits = [](const Axis& a) {
      return a.size == 3 && a.stride == 2 && a.dilation == 1 && (a.pad % 2 != 0) == Odd;
    };
    if (!g.winograd || !fits(g.rows) || !fits(g.cols)) return false;
    const Product<T> p = input_product<T>(g, call, neuron, spread_axis(g.rows), spread_axis(g.cols));
    const Winograd<Spread<Odd>, T> spread(p);
    if (!spread.fits()) return false;
    spread.run();
    return true;
  }
}

// The convolution to be, but for what is done with its channels: from in[0] to out[0].
template <typename T>
Depthwise<T> depthwise_of(const Geometry& g, const Call& call, const Neuron<Acc<T>>& neuron, const ConvAxis& rows,
                          const ConvAxis& cols) {
  const Tensor &in = call.in[0], &out = call.out[0];
  Depthwise<T> d = {};
  d.source = data<T>(in), d.result = data<T>(out);
  d.images = g.images;
  d.source_rows = in.shape[1], d.source_cols = in.shape[2];
  d.result_rows = out.shape[1], d.result_cols = out.shape[2];
  d.channels = g.groups, d.planes = d.source_step = d.result_step = 1;
  d.weights = data<Acc<T>>(call.in[1]);
  d.weight_step = g.out_channels * static_cast<int>(g.per_out());
  d.kernel_taps = static_cast<int>(g.per_out()), d.kernel_cols = g.cols.size;
  d.bias = data<Acc<T>>(call.in[2]), d.neuron = &neuron;
  d.streamed = out.streamed && g.groups % lanes<Acc<T>> == 0;
  d.rows = rows, d.cols = cols;
  return d;
}

template <typename T>
void conv_depthwise(const Geometry& g, const Call& call, const Neuron<Acc<T>>& neuron) {
  Depthwise<T> d = depthwise_of<T>(g, call, neuron, forward_axis(g.rows), forward_axis(g.cols));
  d.result_step = g.out_channels;
  for (int plane = 0; plane < g.out_channels; ++plane, ++d.result, ++d.bias, d.weights += d.kernel_taps) {
    depthwise(&d, 1);
  }
}

template <typename T>
void input_depthwise(const Geometry& g, const Call& call, const Neuron<Acc<T>>& neuron) {
  const int down = phases(g.rows), across = phases(g.cols);
  for (int64_t phase = 0; phase < int64_t{down} * across;) {
    Depthwise<T> sums[kMostPhases] = {};
    int count = 0;
    for (; count < kMostPhases && phase < int64_t{down} * across; ++count, ++phase) {
      const int row = static_cast<int>(phase / across), col = static_cast<int>(phase % across);
      sums[count] = depthwise_of<T>(g, call, neuron, input_axis(g.rows, row), input_axis(g.cols, col));
      sums[count].planes = sums[count].source_step = g.out_channels;
    }
    depthwise(sums, count);
  }
}

template <typename T>
void conv_grouped(const Geometry& g, const Call& call, const Neuron<Acc<T>>& neuron) {
  using A = Acc<T>;
  const ConvAxis rows = forward_axis(g.rows), cols = forward_axis(g.cols);
  const A* w = data<A>(call.in[1]);
  const int width = g.groups * g.channels;
  Scratch<A> weights(width * g.per_out());
  const auto at = [&](int lane, int channel, int tap) {
    return w[lane * g.per_out() + int64_t{tap} * g.channels + channel];
  };
  lay_out_planes(rows, cols, g.cols.size, g.channels, width, at, weights.get());
  grouped<T>({data<T>(call.in[0]), data<T>(call.out[0]), g.images, g.rows.n_in, g.cols.n_in, g.rows.n_out, g.cols.n_out,
              width, g.channels, weights.get(), data<A>(call.in[2]), &neuron, rows, cols});
}

template <typename T>
void input_grouped(const Geometry& g, const Call& call, const Neuron<Acc<T>>& neuron, const ConvAxis& rows,
                   const ConvAxis& cols) {
  using A = Acc<T>;
  const A* w = data<A>(call.in[1]);
  const int width = g.groups * g.channels;
  Scratch<A> weights(width * g.per_out());
  const auto at = [&](int lane, int out, int tap) {
    const int64_t channel = lane / g.channels * g.channels + out;
    return w[channel * g.per_out() + int64_t{tap} * g.channels + lane % g.channels];
  };
  lay_out_planes(rows, cols, g.cols.size, g.channels, width, at, weights.get());
  grouped<T>({data<T>(call.in[0]), data<T>(call.out[0]), g.images, g.rows.n_out, g.cols.n_out, g.rows.n_in, g.cols.n_in,
              width, g.channels, weights.get(), data<A>(call.in[2]), &neuron, rows, cols});
}

template <typename T>
void widen(const T* from, int64_t size, Acc<T>* to) {
  using A = Acc<T>;
  parallel_for((size + kChunkElements - 1) / kChunkElements, [&](int64_t chunk) {
    const int64_t end = smaller(size, (chunk + 1) * kChunkElements);
    for (int64_t i = chunk * kChunkElements; i < end; i += lanes<A>) {
      const int n = static_cast<int>(smaller(lanes<A>, end - i));
      store_some(to + i, load_some(from + i, n), n);
    }
  });
}

// A call whose weights are in the accumulator's dtype, as they are or because they were widened from that of the
// images.
template <typename T>
class WideWeights {
  using A = Acc<T>;

 public:
  explicit WideWeights(const Call& given)
      : in_{given.in[0], given.in[1], given.in[2]}, room_(is_narrow(given) ? given.in[1].size : 0), call_(given) {
    call_.in = in_;
    if (!is_narrow(given)) return;
    in_[1].data = room_.get();
    widen(data<T>(given.in[1]), given.in[1].size, room_.get());
  }
  WideWeights(const WideWeights&) = delete;
  WideWeights& operator=(const WideWeights&) = delete;
  const Call& call() const { return call_; }

 private:
  static bool is_narrow(const Call& given) { return sizeof(T) != sizeof(A) && given.in[1].type == given.in[0].type; }

  Tensor in_[3];
  const Scratch<A> room_;
  Call call_;
};

// Where gradients of weights are made, in the accumulator's dtype: the result, or memory from which round() makes it.
template <typename T>
class WideGradient {
  using A = Acc<T>;

 public:
  explicit WideGradient(const Tensor& out)
      : out_(out), narrow_(sizeof(T) != sizeof(A) && out.type != Type::f32), room_(narrow_ ? out.size : 0) {}
  A* get() const { return narrow_ ? room_.get() : data<A>(out_); }
  bool streamed() const { return !narrow_ && out_.streamed; }

  void round() const {
    if (!narrow_) return;
    T* const to = data<T>(out_);
    parallel_for((out_.size + kChunkElements - 1) / kChunkElements, [&](int64_t chunk) {
      const int64_t end = smaller(out_.size, (chunk + 1) * kChunkElements);
      for (int64_t i = chunk * kChunkElements; i < end; i += lanes<A>) {
        const int n = static_cast<int>(smaller(lanes<A>, end - i));
        store_some(to + i, load_some(room_.get() + i, n), n);
      }
    });
  }

 private:
  const Tensor& out_;
  const bool narrow_;
  const Scratch<A> room_;
};

template <typename T>
void multiply_flat(const Geometry& g, const Call& call, const Neuron<Acc<T>>& neuron) {
  if (!forward_dots<WideDots<T>>(g.flat(), call, neuron)) {
    multiply_all(forward_product<T>(g.flat(), call, neuron), g.winograd);
  }
}

}  // namespace

void conv(const Call& given) {
  by_type(given.in[0].type, [&](auto zero) {
    using T = decltype(zero);
    const WideWeights<T> weights(given);
    const Call& call = weights.call();
    const ConvParams<double> p = params_as<ConvParams<double>>(call.params);
    const Geometry g(p, call.in[0].shape[0], call.in[1].shape);
    const Alone alone(g.little());
    const Neuron<Acc<T>> neuron(activation_of(p));
    if (call.out[0].size == 0) return;
    if (g.partial()) clear(data<T>(call.out[0]), call.out[0].size);
    if (g.depthwise()) {
      conv_depthwise<T>(g, call, neuron);
    } else if (g.small_groups<Acc<T>>()) {
      conv_grouped<T>(g, call, neuron);
    } else {
      multiply_flat<T>(g, call, neuron);
    }
  });
}

int64_t layout_words(Type, const int* shape, int groups) {
  const int64_t depth = int64_t{shape[1]} * shape[2] * shape[3];
  return words_of_blocks<float>(shape, groups, kTileLanes<float>, depth, sizeof(float));
}

void conv_layout(const Call& call) {
  const ConvLayoutParams params = params_as<ConvLayoutParams>(call.params);
  by_type(call.in[0].type, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (sizeof(Acc<T>) == sizeof(float)) {
      const Tensor& w = call.in[0];
      const bool narrow = sizeof(T) != sizeof(float);
      const Scratch<float> wide(narrow ? w.size : 0);
      if (narrow) widen(data<T>(w), w.size, wide.get());
      const float* const weights = narrow ? wide.get() : data<float>(w);
      const Product<float> p = weights_product<float, float>(w.shape, params.groups, weights);
      write_header(p, params.isa, false, call.out[0].data);
      const int blocks = (p.out_channels + kTileLanes<float> - 1) / kTileLanes<float>;
      lay_out_weights(p, 0, blocks, data<float>(call.out[0]) + Layout::kWords);
    }
  });
}

void conv_laid_out(const Call& call) {
  by_type(call.in[0].type, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (sizeof(Acc<T>) == sizeof(float)) {
      const ConvParams<double> p = params_as<ConvParams<double>>(call.params);
      const Geometry g = laid_out_geometry(p, call);
      const Alone alone(g.little());
      const Neuron<float> neuron(activation_of(p));
      if (call.out[0].size == 0) return;
      if (g.partial()) clear(data<T>(call.out[0]), call.out[0].size);
      Product<T> product = forward_product<T>(g.flat(), call, neuron);
      product.laid = product.weights + Layout::kWords;
      product.added = call.in_count > 3 ? data<T>(call.in[3]) : nullptr;
      multiply_all(product, g.winograd);
    }
  });
}

void conv_grad_input(const Call& given) {
  by_type(given.in[0].type, [&](auto zero) {
    using T = decltype(zero);
    const WideWeights<T> weights(given);
    const Call& call = weights.call();
    const ConvParams<double> p = params_as<ConvParams<double>>(call.params);
    Geometry g(p, call.in[0].shape[0], call.in[1].shape);
    const Alone alone(g.little());
    const Neuron<Acc<T>> neuron(activation_of(p));
    if (call.out[0].size == 0) return;
    if (input_folded<T>(g, call, neuron, [](const Product<T>& p) { product(p); })) return;
    if (!g.depthwise() && !g.small_groups<Acc<T>>()) g = g.flat().apart();
    if (input_dots<WideDots<T>>(g, call, neuron)) return;
    if (input_spread<true, T>(g, call, neuron) || input_spread<false, T>(g, call, neuron)) return;
    if (g.depthwise()) return input_depthwise<T>(g, call, neuron);
    for (int row = 0; row < phases(g.rows); ++row) {
      for (int col = 0; col < phases(g.cols); ++col) {
        const ConvAxis rows = input_axis(g.rows, row), cols = input_axis(g.cols, col);
        if (g.small_groups<Acc<T>>()) {
          input_grouped<T>(g, call, neuron, rows, cols);
        } else {
          multiply_all(input_product<T>(g, call, neuron, rows, cols), g.winograd);
        }
      }
    }
  });
}

void conv_grad_weights(const Call& call) {
  by_type(call.in[0].type, [&](auto zero) {
    using T = decltype(zero);
    using A = Acc<T>;
    const ConvGradWeightsParams p = params_as<ConvGradWeightsParams>(call.params);
    Geometry g(p, call.in[0].shape[0], call.out[0].shape);
    const Alone alone(g.little());
    const T *dy = data<T>(call.in[0]), *x = data<T>(call.in[1]);
    const WideGradient<T> wide(call.out[0]);
    A *const dw = wide.get(), *const db = call.out_count > 1 ? data<A>(call.out[1]) : nullptr;
    if (g.depthwise()) {
      depthwise_grad<T>({dy, x, dw, db, g.images, g.rows, g.cols, g.groups, g.out_channels});
      return wide.round();
    }
    g = g.flat();
    const bool streamed = wide.streamed() && g.channels % lanes<A> == 0 && !g.exchanged;
    WeightGrad<T> grad = {dy,       x,          dw, db, g.images, g.rows, g.cols, g.groups, g.channels, g.out_channels,
                          streamed, g.exchanged};
    const bool made = by_other_ways(grad, g.winograd, [&](const auto& make) {
      if (!g.exchanged) return make();
      const Scratch<A> turned(grad.size());
      grad.dw = turned.get(), grad.exchanged = false;
      make();
      exchange(turned.get(), g.out_channels, int64_t{g.rows.size} * g.cols.size, g.channels, dw);
    });
    if (!made) weight_grad(grad);
    wide.round();
  });
}

void conv_grad_bias(const Call& call) {
  by_type(call.in[0].type, [&](auto zero) {
    using T = decltype(zero);
    using A = Acc<T>;
    if (call.out[0].size == 0) return;
    const T* dy = data<T>(call.in[0]);
    A* const db[1] = {data<A>(call.out[0])};
    channel_sums<A, 0>(
        stat_groups_of<A>(call.in[0], call.out[0].size),
        [=](int64_t, A*) {
          return [=](int64_t offset, int64_t, int n, Vec<A>* terms) { terms[0] = load_some(dy + offset, n); };
        },
        db);
  });
}

// Of each image by itself the gradient of weights that lead, pixel by pixel, from the second to the first.
void gram_matrix(const Call& call) {
  by_type(call.in[0].type, [&](auto zero) {
    using T = decltype(zero);
    const int64_t images = call.in[0].shape[0];
    if (call.out[0].size == 0) return;
    for_images(images, [&](int64_t image) {
      const Tensor first = part_of<T>(call.in[0], image, images), second = part_of<T>(call.in[1], image, images);
      const Tensor sums = part_of<Acc<T>>(call.out[0], image, images);
      const Geometry g = of_pixels(second, first.shape[3]);
      const WeightGrad<T> grad = {data<T>(first),
                                  data<T>(second),
                                  data<Acc<T>>(sums),
                                  nullptr,
                                  1,
                                  g.rows,
                                  g.cols,
                                  1,
                                  g.channels,
                                  g.out_channels,
                                  false};
      if (!by_other_ways(grad, false, [](const auto& make) { make(); })) weight_grad(grad);
    });
  });
}

// Of each image by itself the convolution with a matrix of its own.
void gram_matrix_grad(const Call& call) {
  by_type(call.in[0].type, [&](auto zero) {
    using T = decltype(zero);
    using A = Acc<T>;
    const int64_t images = call.in[0].shape[0], outs = call.out[0].shape[3];
    if (call.out[0].size == 0) return;
    const Neuron<A> none(Activation<double>{});
    const Scratch<A> zeros(outs);
    clear(zeros.get(), outs);
    for_images(images, [&](int64_t image) {
      Tensor in[3] = {part_of<T>(call.in[0], image, images), part_of<A>(call.in[1], image, images), {}};
      in[2].data = zeros.get();
      const Tensor out = part_of<T>(call.out[0], image, images);
      multiply_flat<T>(of_pixels(in[0], out.shape[3]), {in, &out, 1, nullptr}, none);
    });
  });
}

}  // namespace mpsf::MPSF_ISA
