// Samples in boxes. Rows and columns of a box read independently of each other, so each bin of an axis has a list of
// pixels, in which those that several samples mix stand once. An image's gradient is added up by threads that own a
// band of its rows each, in the order of boxes and bins, so that how it is cut into bands does not matter.
#include "kernels/image/samples.h"
#include "kernels/vector/tap_lists.h"

namespace mpsf::MPSF_ISA {
namespace {

using Params = BoxSampleParams<double>;

// A pixel's weights in a bin: in its value, and in the derivatives by what a box says of an axis first and second.
template <typename A>
struct BinWeights {
  A value, first, second;
};

// The pixels of each bin along an axis.
template <typename A>
using Bins = Lists<BinWeights<A>>;
template <typename A>
using Pixel = Entry<BinWeights<A>>;

// Adds up what weights a bin has of the pixels along an axis.
template <typename A>
class AxisSums {
 public:
  AxisSums(const Params& p, int axis, bool steep)
      : p_(p),
        axis_(axis),
        length_(axis ? p.width : p.height),
        count_(axis ? p.cols : p.rows),
        order_(axis ? p.order_x : p.order_y),
        steep_(steep && order_ == 0),
        room_(length_) {
    memset(static_cast<void*>(room_.get()), 0, static_cast<size_t>(length_) * sizeof(BinWeights<A>));
  }

  // Lists the pixels of bins of a box that have weight, each `step` times its number.
  void list(const A* box, int begin, int end, int64_t step, Bins<A>& bins) const {
    const Span<A> span = span_of<A>(box, axis_);
    for (int bin = begin; bin < end; ++bin) {
      add(span, bin, step, bins);
      bins.close();
    }
  }
  void list(const A* box, int64_t step, Bins<A>& bins) const { list(box, 0, count_, step, bins); }

 private:
  void add(Span<A> span, int bin, int64_t step, Bins<A>& bins) const {
    const int samples = samples_of(p_, span);
    const SampleRange range = samples_near(p_, length_, count_, span, bin, samples);
    int begin = length_, end = 0;
    for (int s = range.begin; s < range.end; ++s) {
      const BoxPlace<A> place = box_place(p_, count_, span, bin, s, samples);
      const BoxTaps<A> taps = box_weights(p_, length_, place, order_, samples);
      if (!taps.inside) continue;
      begin = min_int(begin, taps.index[0]);
      end = max_int(end, taps.index[1] + 1);
      for (int k = 0; k < 2; ++k) room_[taps.index[k]].value += taps.weight[k];
      if (!steep_) continue;
      const BoxTaps<A> sloping = box_taps(p_, length_, place.at, true, A(1) / static_cast<A>(samples));
      for (int k = 0; k < 2; ++k) {
        room_[taps.index[k]].first += sloping.weight[k] * place.by_first;
        room_[taps.index[k]].second += sloping.weight[k] * place.by_second;
      }
    }
    for (int i = begin; i < end; ++i) {
      const BinWeights<A> found = room_[i];
      if (found.value != 0 || found.first != 0 || found.second != 0) bins.add(i * step, found);
      room_[i] = {0, 0, 0};
    }
  }

  const Params& p_;
  int axis_, length_, count_, order_;
  bool steep_;
  Scratch<BinWeights<A>> room_;
};

// The images that are sampled, the boxes, and how large what belongs to them is.
template <typename A>
struct BoxSampler {
  Params p;
  const A* boxes;
  int64_t count, channels, pitch, image;

  BoxSampler(const Call& call, const Tensor& given, int64_t channels_)
      : p(params_as<Params>(call.params)),
        boxes(data<A>(given)),
        count(given.shape[0]),
        channels(channels_),
        pitch(p.width * channels),
        image(p.height * pitch) {}

  // Calls f(box, number of its image, first line, line behind the last) for the boxes of some lines, rows of bins.
  template <typename F>
  void over_boxes(int64_t begin, int64_t end, const F& f) const {
    for (int64_t line = begin, next; line < end; line = next) {
      const int64_t number = line / p.rows;
      const A* box = boxes + 5 * number;
      next = smaller(end, (number + 1) * p.rows);
      f(box, image_of(p, box[0]), line, next);
    }
  }
  // Calls f(begin, end) for lines that threads share out.
  template <typename F>
  void parallel(const F& f) const {
    const int64_t elements = p.cols * channels;
    parallel_groups(count * p.rows, elements, elements * (4 + 4 * p.samples), f);
  }
};

// out is the sum of the pixels at from + row.at + col.at, times the weights of both, of lists that are not empty.
template <typename T, typename A, typename Rows, typename Cols>
MPSF_INLINE void mix_bin(const T* from, const Pixel<A>* rows, Rows row_count, const Pixel<A>* cols, Cols col_count,
                         int64_t channels, T* out, bool streamed) {
  constexpr int L = lanes<A>;
  for_vectors<A>(channels, [=]<int N>(int64_t at, int n) {
    Vec<A> sum[N] = {};
    for (int i = 0; i < row_count; ++i) {
      const T* line = from + rows[i].at + at;
      Vec<A> mixed[N] = {};
      for (int j = 0; j < col_count; ++j) {
        for (int v = 0; v < N; ++v) mixed[v] += load_some(line + cols[j].at + v * L, n) * cols[j].weight.value;
      }
      for (int v = 0; v < N; ++v) sum[v] += mixed[v] * rows[i].weight.value;
    }
    for (int v = 0; v < N; ++v) store_result(out + at + v * L, sum[v], n, streamed);
  });
}

template <typename T>
void forward(const Call& call) {
  using A = Acc<T>;
  const Tensor &x = call.in[0], &y = call.out[0];
  const BoxSampler<A> sampler(call, call.in[1], x.shape[3]);
  const Params& p = sampler.p;
  const int64_t channels = sampler.channels;
  const bool streamed = y.streamed && channels % lanes<A> == 0;
  const Vec<A> outside = splat(static_cast<A>(p.outside));
  sampler.parallel([&](int64_t begin, int64_t end) {
    const AxisSums<A> down(p, 0, false), across(p, 1, false);
    sampler.over_boxes(begin, end, [&](const A* box, int image, int64_t line, int64_t behind) {
      Bins<A> rows(static_cast<int>(behind - line)), cols(p.cols);
      if (image >= 0) {
        down.list(box, static_cast<int>(line % p.rows), static_cast<int>((behind - 1) % p.rows) + 1, sampler.pitch,
                  rows);
        across.list(box, channels, cols);
      }
      const T* from = image < 0 ? data<T>(x) : data<T>(x) + image * sampler.image;
      for (int64_t i = line; i < behind; ++i) {
        for (int j = 0; j < p.cols; ++j) {
          T* out = data<T>(y) + (i * p.cols + j) * channels;
          const int row_count = image < 0 ? 0 : rows.size(i - line), col_count = image < 0 ? 0 : cols.size(j);
          if (row_count == 0 || col_count == 0) {
            for_vectors<A>(channels, [=]<int N>(int64_t at, int n) {
              for (int v = 0; v < N; ++v) store_some(out + at + v * lanes<A>, outside, n);
            });
            continue;
          }
          for_counts<true>(row_count, col_count, [&](auto known_rows, auto known_cols) {
            mix_bin<T, A>(from, rows.begin(i - line), known_rows, cols.begin(j), known_cols, channels, out, streamed);
          });
        }
      }
    });
    stream_end();
  });
}

template <typename T>
void adjoint(const Call& call) {
  using A = Acc<T>;
  constexpr int64_t kTasks = 16, kBands = 8;  // of an image, each of which looks at all boxes
  const Tensor &dy = call.in[0], &dx = call.out[0];
  const BoxSampler<A> sampler(call, call.in[1], dy.shape[3]);
  const Params& p = sampler.p;
  const int64_t channels = sampler.channels, pitch = sampler.pitch, each = p.rows * p.cols * channels;
  const int64_t work = 4 * sampler.count * each / p.images + sampler.image;  // of an image, about
  const int64_t wanted = work < kChunkElements ? 1 : smaller(kBands, (kTasks + p.images - 1) / p.images);
  const int64_t bands = smaller(wanted, (p.height + 7) / 8);
  const int64_t together = bands > 1 ? 1 : 1 + kChunkElements / work;
  sum_by_bands<T>(dx, bands, together, [&](int64_t image, int top, int bottom, A* sums) {
    const AxisSums<A> down(p, 0, false), across(p, 1, false);
    const Scratch<Entry<A>> entries(p.width);
    for (int64_t number = 0; number < sampler.count; ++number) {
      const A* box = sampler.boxes + 5 * number;
      if (image_of(p, box[0]) != image || !may_read(p, p.rows, span_of<A>(box, 0), top, bottom)) continue;
      Bins<A> rows(p.rows), cols(p.cols);
      down.list(box, 1, rows);
      across.list(box, channels, cols);
      for (int i = 0; i < p.rows; ++i) {
        for (const Pixel<A>* row = rows.begin(i); row < rows.end(i); ++row) {
          if (row->at < top || row->at >= bottom) continue;
          A* line = sums + (row->at - top) * pitch;
          const T* values = data<T>(dy) + number * each + i * p.cols * channels;
          for (int j = 0; j < p.cols; ++j, values += channels) {
            const int count = cols.size(j);
            for (int k = 0; k < count; ++k) {
              entries[k] = {cols.begin(j)[k].at, cols.begin(j)[k].weight.value * row->weight.value};
            }
            for_count(count, [&](auto known) { spread(values, entries.get(), known, channels, line); });
          }
        }
      }
    }
  });
}

template <typename T>
void box_gradient(const Call& call) {
  using A = Acc<T>;
  const Tensor &dy = call.in[0], &x = call.in[1], &dboxes = call.out[0];
  const BoxSampler<A> sampler(call, call.in[2], x.shape[3]);
  const Params& p = sampler.p;
  const int64_t channels = sampler.channels;
  const Scratch<A> partial(sampler.count * p.rows * 4);
  sampler.parallel([&](int64_t begin, int64_t end) {
    const AxisSums<A> down(p, 0, true), across(p, 1, true);
    const Scratch<Steep<A, 4>> pixels(p.width);
    sampler.over_boxes(begin, end, [&](const A* box, int image, int64_t line, int64_t behind) {
      Bins<A> rows(static_cast<int>(behind - line)), cols(p.cols);
      if (image >= 0) {
        down.list(box, static_cast<int>(line % p.rows), static_cast<int>((behind - 1) % p.rows) + 1, sampler.pitch,
                  rows);
        across.list(box, channels, cols);
      }
      for (int64_t i = line; i < behind; ++i) {
        Vec<A> sums[4] = {};
        for (int row = 0; image >= 0 && row < rows.size(i - line); ++row) {
          const Pixel<A>& y = rows.begin(i - line)[row];
          const T* from = data<T>(x) + image * sampler.image + y.at;
          for (int j = 0; j < p.cols; ++j) {
            int count = 0;
            for (const Pixel<A>* found = cols.begin(j); found < cols.end(j); ++found) {
              const BinWeights<A>& across_weight = found->weight;
              const Steep<A, 4> pixel = {found->at,
                                         {y.weight.first * across_weight.value, y.weight.second * across_weight.value,
                                          y.weight.value * across_weight.first, y.weight.value * across_weight.second}};
              bool any = false;
              for (A weight : pixel.by) any |= weight != 0;
              if (any) pixels[count++] = pixel;
            }
            slopes(from, data<T>(dy) + (i * p.cols + j) * channels, pixels.get(), count, channels, sums);
          }
        }
        for (int k = 0; k < 4; ++k) partial[4 * i + k] = sum_of<A>(sums[k]);
      }
    });
  });
  for (int64_t number = 0; number < sampler.count; ++number) {
    A* out = data<A>(dboxes) + 5 * number;
    for (int k = 0; k < 5; ++k) out[k] = 0;
    for (int64_t i = number * p.rows; i < (number + 1) * p.rows; ++i) {
      for (int k = 0; k < 4; ++k) out[1 + k] += partial[4 * i + k];
    }
  }
}

}  // namespace

void box_sample(const Call& call) {
  if (call.out[0].size == 0) return;
  by_type(call.in[0].type, [&](auto zero) { forward<decltype(zero)>(call); });
}

void box_sample_grad(const Call& call) {
  if (call.out[0].size == 0) return;
  by_type(call.in[0].type, [&](auto zero) { adjoint<decltype(zero)>(call); });
}

void box_sample_grad_boxes(const Call& call) {
  if (call.out[0].size == 0) return;
  by_type(call.in[0].type, [&](auto zero) { box_gradient<decltype(zero)>(call); });
}

}  // namespace mpsf::MPSF_ISA
