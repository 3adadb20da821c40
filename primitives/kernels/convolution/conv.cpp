// Convolution of channels-last images and its gradients, with weights (O, rows, cols, C / groups).
#include "convolution/params.h"
#include "kernels/convolution/depthwise_few.h"
#include "kernels/convolution/depthwise_grad_tiles.h"
#include "kernels/convolution/few_channels.h"
#include "kernels/convolution/few_pixels.h"
#include "kernels/convolution/grouped.h"
#include "kernels/convolution/implicit_gemm.h"
#include "kernels/convolution/weight_grad.h"
#include "kernels/convolution/winograd.h"
#include "kernels/convolution/winograd_grad.h"
#include "kernels/vector/channels.h"

namespace mpsf::MPSF_ISA {
namespace {

// What all operations know: the weights' shape, the image x that is convolved, and the result y.
struct Geometry {
  Axis rows, cols;
  int images, groups, channels, out_channels;  // channels and out_channels of one group
  bool winograd;

  template <typename Params>
  Geometry(const Params& p, int images, const int* weights)
      : rows(p.rows),
        cols(p.cols),
        images(images),
        groups(p.groups),
        channels(weights[3]),
        out_channels(weights[0] / groups),
        winograd(p.winograd != 0) {}

  // The same with all pixels in one line, if each stands for itself.
  Geometry flat() const {
    const int64_t pixels = int64_t{images} * rows.n_in * cols.n_in;
    const auto alone = [](const Axis& a) {
      return a.size == 1 && a.stride == 1 && a.pad == 0 && a.n_in == a.n_out && a.begin == 0 && a.end == a.n_out;
    };
    if (!alone(rows) || !alone(cols) || pixels >= 1 << 30) return *this;
    Geometry g = *this;
    g.images = 1;
    g.rows.n_in = g.rows.n_out = g.rows.end = 1;
    g.cols.n_in = g.cols.n_out = g.cols.end = static_cast<int>(pixels);
    return g;
  }

  int64_t per_out() const { return int64_t{rows.size} * cols.size * channels; }
  bool partial() const { return rows.end - rows.begin < rows.n_out || cols.end - cols.begin < cols.n_out; }
  bool depthwise() const { return is_depthwise(groups, channels, out_channels); }
  template <typename A>
  bool small_groups() const {
    return is_small_group<A>(groups, channels, out_channels);
  }
};

Activation<double> activation_of(const ConvParams<double>& p) { return {p.kind, p.a, p.b, p.c}; }

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

// Convolution as a product: channels of x times weights give output channels.
template <typename T>
void implicit_gemm(const Geometry& g, const Call& call, const Neuron<Acc<T>>& neuron) {
  using A = Acc<T>;
  Product<T> p = {};
  p.source = data<T>(call.in[0]);
  p.result = data<T>(call.out[0]);
  p.images = g.images;
  p.source_rows = g.rows.n_in, p.source_cols = g.cols.n_in, p.source_channels = g.groups * g.channels;
  p.result_rows = g.rows.n_out, p.result_cols = g.cols.n_out, p.result_channels = g.groups * g.out_channels;
  p.groups = g.groups, p.channels = g.channels, p.out_channels = g.out_channels;
  p.weights = data<A>(call.in[1]);
  p.group_stride = g.out_channels * g.per_out(), p.tap_stride = g.channels, p.channel_stride = 1,
  p.out_stride = g.per_out();
  p.kernel_cols = g.cols.size;
  p.bias = data<A>(call.in[2]), p.neuron = &neuron;
  p.streamed = call.out[0].streamed && p.out_channels % lanes<A> == 0;
  p.rows = forward_axis(g.rows), p.cols = forward_axis(g.cols);
  multiply_all(p, g.winograd);
}

// Backward output channels of dy times weights give channels, for one phase or for all.
template <typename T>
Product<T> input_product(const Geometry& g, const Call& call, const Neuron<Acc<T>>& neuron, const ConvAxis& rows,
                         const ConvAxis& cols) {
  using A = Acc<T>;
  Product<T> p = {};
  p.source = data<T>(call.in[0]);
  p.result = data<T>(call.out[0]);
  p.images = g.images;
  p.source_rows = g.rows.n_out, p.source_cols = g.cols.n_out, p.source_channels = g.groups * g.out_channels;
  p.result_rows = g.rows.n_in, p.result_cols = g.cols.n_in, p.result_channels = g.groups * g.channels;
  p.groups = g.groups, p.channels = g.out_channels, p.out_channels = g.channels;
  p.weights = data<A>(call.in[1]);
  p.group_stride = g.out_channels * g.per_out(), p.tap_stride = g.channels, p.channel_stride = g.per_out(),
  p.out_stride = 1;
  p.kernel_cols = g.cols.size;
  p.bias = data<A>(call.in[2]), p.neuron = &neuron;
  p.streamed = call.out[0].streamed && p.out_channels % lanes<A> == 0;
  p.rows = rows, p.cols = cols;
  return p;
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

// With few channels all phases share the lanes of one product, whose output makes a pixel of each. It reads the
// union of what the phases read, with zero weights where they do not.
template <typename T>
bool input_folded(const Geometry& g, const Call& call, const Neuron<Acc<T>>& neuron) {
  using A = Acc<T>;
  const int down = phases(g.rows), across = phases(g.cols);
  const bool touching = g.rows.dilation == 1 && g.cols.dilation == 1;
  if (g.groups > 1 || !touching || (down == 1 && across == 1)) return false;
  if (int64_t{down} * across > kTileLanes<A> || int64_t{down} * across * g.channels > kTileLanes<A>) return false;
  const int out_channels = down * across * g.channels;
  const auto whole = [](const Axis& a, int count) {
    ConvAxis all = input_axis(a, 0);
    int begin = all.src_first, end = begin + all.taps;
    for (int phase = 1; phase < count; ++phase) {
      const ConvAxis axis = input_axis(a, phase);
      if (axis.taps == 0) continue;
      begin = begin < end ? min_int(begin, axis.src_first) : axis.src_first;
      end = max_int(end, axis.src_first + axis.taps);
    }
    all.src_first = begin, all.taps = end - begin, all.tap_first = 0, all.tap_step = 1, all.src_tap = 1;
    return all;
  };
  const ConvAxis rows = whole(g.rows, down), cols = whole(g.cols, across);
  const int vectors = (out_channels + lanes<A> - 1) / lanes<A>, apart = (g.channels + lanes<A> - 1) / lanes<A>;
  if (int64_t{rows.taps} * cols.taps * vectors > int64_t{g.rows.size} * g.cols.size * apart) return false;

  const A *w = data<A>(call.in[1]), *b = data<A>(call.in[2]);
  const Scratch<A> weights(int64_t{rows.taps} * cols.taps * g.out_channels * out_channels), bias(out_channels);
  clear(weights.get(), int64_t{rows.taps} * cols.taps * g.out_channels * out_channels);
  for (int phase = 0; phase < down * across; ++phase) {
    const ConvAxis down_axis = input_axis(g.rows, phase / across), across_axis = input_axis(g.cols, phase % across);
    for (int q = 0; q < down_axis.taps; ++q) {
      for (int p = 0; p < across_axis.taps; ++p) {
        const int row = down_axis.tap_first + q * down_axis.tap_step,
                  col = across_axis.tap_first + p * across_axis.tap_step;
        const int tap =
            (down_axis.src_first + q - rows.src_first) * cols.taps + across_axis.src_first + p - cols.src_first;
        for (int out = 0; out < g.out_channels; ++out) {
          memcpy(&weights[(int64_t{tap} * g.out_channels + out) * out_channels + phase * g.channels],
                 w + ((int64_t{out} * g.rows.size + row) * g.cols.size + col) * g.channels,
                 static_cast<size_t>(g.channels) * sizeof(A));
        }
      }
    }
    for (int c = 0; c < g.channels; ++c) bias[phase * g.channels + c] = b[c];
  }
  Product<T> p = {};
  p.source = data<T>(call.in[0]);
  p.result = data<T>(call.out[0]);
  p.images = g.images;
  p.source_rows = g.rows.n_out, p.source_cols = g.cols.n_out, p.source_channels = g.out_channels;
  p.result_rows = g.rows.n_in, p.result_cols = g.cols.n_in, p.result_channels = g.channels;
  p.groups = 1, p.channels = g.out_channels, p.out_channels = out_channels;
  p.weights = weights.get();
  p.tap_stride = int64_t{g.out_channels} * out_channels, p.channel_stride = out_channels, p.out_stride = 1;
  p.kernel_cols = cols.taps;
  p.bias = bias.get(), p.neuron = &neuron;
  p.rows = rows, p.cols = cols;
  p.fold_rows = down, p.fold_cols = across;
  product(p);
  return true;
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
    const T* from = data<T>(given.in[1]);
    const int64_t size = given.in[1].size;
    parallel_for((size + kChunkElements - 1) / kChunkElements, [&](int64_t chunk) {
      const int64_t end = smaller(size, (chunk + 1) * kChunkElements);
      for (int64_t i = chunk * kChunkElements; i < end; i += lanes<A>) {
        const int n = static_cast<int>(smaller(lanes<A>, end - i));
        store_some(room_.get() + i, load_some(from + i, n), n);
      }
    });
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

}  // namespace

void conv(const Call& given) {
  by_type(given.in[0].type, [&](auto zero) {
    using T = decltype(zero);
    const WideWeights<T> weights(given);
    const Call& call = weights.call();
    const ConvParams<double> p = params_as<ConvParams<double>>(call.params);
    const Geometry g(p, call.in[0].shape[0], call.in[1].shape);
    const Neuron<Acc<T>> neuron(activation_of(p));
    if (call.out[0].size == 0) return;
    if (g.partial()) clear(data<T>(call.out[0]), call.out[0].size);
    if (g.depthwise()) {
      conv_depthwise<T>(g, call, neuron);
    } else if (g.small_groups<Acc<T>>()) {
      conv_grouped<T>(g, call, neuron);
    } else {
      implicit_gemm<T>(g.flat(), call, neuron);
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
    const Neuron<Acc<T>> neuron(activation_of(p));
    if (call.out[0].size == 0 || input_folded<T>(g, call, neuron)) return;
    if (input_spread<true, T>(g, call, neuron) || input_spread<false, T>(g, call, neuron)) return;
    if (g.depthwise()) return input_depthwise<T>(g, call, neuron);
    if (!g.small_groups<Acc<T>>()) g = g.flat();
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
    const ConvGradWeightsParams p = params_as<ConvGradWeightsParams>(call.params);
    Geometry g(p, call.in[0].shape[0], call.out[0].shape);
    const T *dy = data<T>(call.in[0]), *x = data<T>(call.in[1]);
    Acc<T>*dw = data<Acc<T>>(call.out[0]), *db = call.out_count > 1 ? data<Acc<T>>(call.out[1]) : nullptr;
    if (g.depthwise()) {
      depthwise_grad<T>({dy, x, dw, db, g.images, g.rows, g.cols, g.groups, g.out_channels});
    } else {
      g = g.flat();
      const bool streamed = call.out[0].streamed && g.channels % lanes<Acc<T>> == 0;
      const WeightGrad<T> grad = {dy,      x, dw, db, g.images, g.rows, g.cols, g.groups, g.channels, g.out_channels,
                                  streamed};
      if constexpr (sizeof(Acc<T>) == sizeof(float)) {
        const WinogradGrad<Dense, T> dense(grad);
        if (g.winograd && dense.fits()) return dense.run();
        const WinogradGrad<Strided, T> strided(grad);
        if (g.winograd && strided.fits()) return strided.run();
      }
      const LineGrad<T> lines(grad);
      if (lines.fits()) return lines.run();
      return is_of_few(grad) ? weight_grad_of_few(grad) : weight_grad(grad);
    }
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

}  // namespace mpsf::MPSF_ISA
