// Losses of images (n, pixels, classes): values, one an image or one an element, and gradients by y. Elements of all
// types but softmax cross-entropy stand for themselves; that one goes pixel by pixel.
#include "kernels/losses/elements.h"
#include "kernels/losses/few_classes.h"
#include "kernels/losses/job.h"
#include "kernels/losses/line_reduce.h"
#include "kernels/vector/channels.h"
#include "kernels/vector/simd.h"
#include "kernels/vector/vector_math.h"
#include "losses/params.h"
#include "runtime/parallel.h"

namespace mpsf::MPSF_ISA {
namespace {

// Calls f(image, begin, end, room, more) for the units [begin, end) of images, which have so many elements each, with
// two rooms for so many numbers, the first of which begins as zeros; it returns the sum of their losses. An image's
// value is the sum over all of its units, times a factor.
template <typename T, typename F>
void over_images(const Job<T>& job, int64_t units, int64_t elements, int64_t zeros, int64_t more, const F& f) {
  using A = Acc<T>;
  const int64_t together = 1 + (kChunkElements - 1) / elements, chunks = (units + together - 1) / together;
  const auto finish = [&](int64_t image, double sum) {
    if (job.values) job.values[image] = static_cast<A>(sum * static_cast<double>(job.factor));
  };
  const auto cleared = [&](A* room) {
    memset(static_cast<void*>(room), 0, static_cast<size_t>(zeros) * sizeof(A));
    return room;
  };
  if (chunks == 1) {
    parallel_groups(job.images, units * elements, units * elements, [&](int64_t begin, int64_t end) {
      const Scratch<A> first(zeros), second(more);
      cleared(first.get());
      for (int64_t image = begin; image < end; ++image) {
        finish(image, f(image, int64_t{0}, units, first.get(), second.get()));
      }
      stream_end();
    });
    return;
  }
  const Scratch<double> parts(job.images * chunks);
  parallel_for(job.images * chunks, [&](int64_t i) {
    const int64_t begin = i % chunks * together;
    const Scratch<A> first(zeros), second(more);
    parts[i] = f(i / chunks, begin, smaller(units, begin + together), cleared(first.get()), second.get());
    stream_end();
  });
  for (int64_t image = 0; image < job.images; ++image) {
    double sum = 0;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) sum += parts[image * chunks + chunk];
    finish(image, sum);
  }
}

// Element by element -----------------------------------------------------------------------------------------

// So many elements of an image from one on, with the targets `hot` or, without them, the job's. Apart, since it is long
// and its callers are alike.
template <int K, typename Target, typename T>
__attribute__((noinline)) double run_of(const Job<T>& job, int64_t from, int64_t length, const Target* t,
                                        const Acc<T>* w, Acc<T> scale) {
  using A = Acc<T>;
  constexpr int L = lanes<A>;
  const Job<T> told = job;  // whose numbers no store can change
  LaneSum<A> sum;
  along<A>(
      length, [&](int64_t i, int n) __attribute__((always_inline)) {
        Vec<A> target = load_some(t + i, n), element, slope;
        if constexpr (K == kSigmoid) target = target * told.kept + told.share;
        const Vec<A> weight = w ? load_some(w + i, n) : splat(told.weight);
        if constexpr (K == kTerms) {
          of_terms(load_some(told.y + from + i, n), target, weight, element, slope);
        } else {
          of_elements<K>(load_some(told.y + from + i, n), target, told, element, slope);
          element *= weight;
          slope *= weight;
        }
        if (told.values) sum.add(n == L ? element : filled_from<A>(element, n, A(0)));
        if (told.elements) store_result(told.elements + from + i, element, n, told.elements_streamed);
        if (told.gradient) store_result(told.gradient + from + i, slope * scale, n, told.gradient_streamed);
      });
  return sum.total();
}
template <int K, typename T>
double run(const Job<T>& job, int64_t from, int64_t length, const Acc<T>* hot, const Acc<T>* w, Acc<T> scale) {
  if constexpr (K == kCategorical) {  // the only one of these types that has labels
    if (hot) return run_of<K>(job, from, length, hot, w, scale);
  }
  return run_of<K>(job, from, length, job.target + from, w, scale);
}
template <typename T>
using Run = double (*)(const Job<T>&, int64_t from, int64_t length, const Acc<T>* hot, const Acc<T>* w, Acc<T> scale);

template <typename T>
void element_by_element(const Job<T>& job, Run<T> run) {
  using A = Acc<T>;
  const int64_t size = job.pixels * job.classes, room = smaller(size, kChunkElements);
  over_images(job, size, 1, job.labels ? room : 0, job.pixel_weights ? room : 0,
              [&](int64_t image, int64_t begin, int64_t end, A* hot, A* spread) {
                const int64_t from = image * size + begin, length = end - begin;
                const A scale = job.exact ? (job.scales ? job.scales[image] : A(1)) * job.factor : A(1);
                const A* w = job.weights ? job.weights + from : nullptr;
                if (job.pixel_weights) {
                  for (int64_t i = 0; i < length; ++i) spread[i] = job.pixel_weights[(from + i) / job.classes];
                  w = spread;
                }
                if (!job.labels) return run(job, from, length, nullptr, w, scale);
                const auto mark = [&](A target) {
                  for (int64_t pixel = from / job.classes; pixel * job.classes < from + length; ++pixel) {
                    const int64_t at = pixel * job.classes + job.labels[pixel] - from;
                    if (job.labels[pixel] < job.classes && at >= 0 && at < length) hot[at] = target;
                  }
                };
                mark(1);
                const double sum = run(job, from, length, hot, w, scale);
                mark(0);
                return sum;
              });
}

// Pixel by pixel ---------------------------------------------------------------------------------------------

// A pixel: its loss, element by element if they are asked for, and its gradient. `plus` is its targets' share.
template <bool Lost, bool Slopes, bool Exact, typename T, typename Target>
MPSF_INLINE double pixel(const Job<T>& job, int64_t from, const Target* t, Acc<T> plus, Acc<T> own, Acc<T> scale,
                         Acc<T>* room) {
  using A = Acc<T>;
  constexpr int L = lanes<A>;
  const T* y = job.y + from;
  const int64_t length = job.classes;
  const A* w = job.weights ? job.weights + from : nullptr;
  const bool kept = Slopes && length <= kKept;
  const A largest = largest_along<A>(y, length);
  const double total = exponentials<A>(y, length, largest, kept ? room : nullptr);
  const A less = static_cast<A>(__builtin_log(total)), times = job.kept;
  const auto weight = [&](int64_t i, int n) __attribute__((always_inline)) {
    return w ? load_some(w + i, n) : splat(own);
  };
  const auto smoothed = [&](int64_t i, int n) __attribute__((always_inline)) {
    return load_some(t + i, n) * times + plus;
  };
  LaneSum<A> sum, targets;
  if constexpr (Lost || Exact) {
    T* const elements = job.elements;
    const bool past_caches = job.elements_streamed;
    along<A>(
        length, [&](int64_t i, int n) __attribute__((always_inline)) {
          const Vec<A> v = weight(i, n), target = smoothed(i, n);
          if constexpr (Exact) {
            targets.add(n == L ? v * target : filled_from<A>(v * target, n, A(0)));
          } else {
            const Vec<A> element = -by<Vec<A>>(target, load_some(y + i, n) - largest - less) * v;
            sum.add(n == L ? element : filled_from<A>(element, n, A(0)));
            if (elements) store_result(elements + from + i, element, n, past_caches);
          }
        });
  }
  if constexpr (Slopes) {
    const A share = static_cast<A>(1 / total), all = Exact ? static_cast<A>(targets.total()) * share : share;
    T* const gradient = job.gradient + from;
    along_made(
        gradient, length, job.gradient_streamed, [&](int64_t i, int n, bool past) __attribute__((always_inline)) {
          const Vec<A> v = weight(i, n), target = smoothed(i, n);
          const Vec<A> p = (kept ? load(room + i) : exp_below(load_some(y + i, n) - largest)) * all;
          store_result(gradient + i, Exact ? (p - v * target) * scale : v * (p - target), n, past);
        });
  }
  return sum.total();
}

// One lane less so much; apart, since the vector goes through memory.
template <typename A>
__attribute__((noinline)) Vec<A> less_at(Vec<A> v, int64_t lane, A by) {
  A all[lanes<A>];
  store(all, v);
  all[lane] -= by;
  return load(all);
}

// The same of a label without smoothing, whose target is 1 there and 0 elsewhere.
template <bool Lost, bool Slopes, bool Exact, typename T>
MPSF_INLINE double hot_pixel(const Job<T>& job, int64_t from, int64_t label, Acc<T> own, Acc<T> scale, Acc<T>* room) {
  using A = Acc<T>;
  const T* y = job.y + from;
  const int64_t length = job.classes;
  const A* w = job.weights ? job.weights + from : nullptr;
  const bool kept = Slopes && length <= kKept, some = label < length;
  const A largest = largest_along<A>(y, length);
  const double total = exponentials<A>(y, length, largest, kept ? room : nullptr);
  const A at_label = some && w ? w[label] : own;
  double lost = 0;
  if (Lost && some) {
    A value[lanes<A>];
    store(value, load(y + label, 1));
    lost = -static_cast<double>((value[0] - largest - static_cast<A>(__builtin_log(total))) * at_label);
  }
  if constexpr (Slopes) {
    const A share = static_cast<A>(1 / total), all = !Exact ? share : some ? at_label * share : A(0);
    T* const gradient = job.gradient + from;
    along_made(
        gradient, length, job.gradient_streamed, [&](int64_t i, int n, bool past) __attribute__((always_inline)) {
          Vec<A> p = (kept ? load(room + i) : exp_below(load_some(y + i, n) - largest)) * all;
          const int64_t lane = label - i;
          if (lane >= 0 && lane < n) p = less_at<A>(p, lane, Exact ? at_label : A(1));
          store_result(gradient + i, p * (Exact ? splat(scale) : w ? load_some(w + i, n) : splat(own)), n, past);
        });
  }
  return lost;
}

template <bool Lost, bool Slopes, bool Exact, typename T>
void few_classes(const Job<T>& job) {
  using A = Acc<T>;
  const int64_t room_size = room_of_few<A>(job.classes);
  if (job.pixels > 1) {
    over_images(job, job.pixels, job.classes, 0, room_size,
                [&](int64_t image, int64_t begin, int64_t end, A*, A* room) {
                  double lost = 0;
                  for (int64_t i = begin; i < end; i += kBlockLines) {
                    const int64_t count = smaller(kBlockLines, end - i);
                    hot_block<Lost, Slopes, Exact>(job, image * job.pixels + i, count, room);
                    for (int64_t k = 0; Lost && k < count; ++k) lost += static_cast<double>(room[k]);
                  }
                  return lost;
                });
    return;
  }
  // Rows: each is an image, with a loss of its own.
  const int64_t blocks = (job.images + kBlockLines - 1) / kBlockLines, size = kBlockLines * job.classes;
  parallel_groups(blocks, size, size, [&](int64_t begin, int64_t end) {
    const Scratch<A> room(room_size);
    for (int64_t i = begin * kBlockLines; i < smaller(job.images, end * kBlockLines); i += kBlockLines) {
      const int64_t count = smaller(kBlockLines, job.images - i);
      hot_block<Lost, Slopes, Exact>(job, i, count, room.get());
      for (int64_t k = 0; job.values && k < count; ++k) job.values[i + k] = Lost ? room[k] * job.factor : A(0);
    }
    stream_end();
  });
}

template <bool Lost, bool Slopes, bool Exact, typename T>
void pixel_by_pixel(const Job<T>& job) {
  using A = Acc<T>;
  const int64_t classes = job.classes;
  const bool smooth = job.elements || job.share != 0 || job.kept != 1;
  if (job.labels && !job.elements && !job.weights && classes <= kFewEntries<A>) {
    return few_classes<Lost, Slopes, Exact>(job);
  }
  over_images(job, job.pixels, classes, job.labels && smooth ? classes : 0, smaller(classes, kKept) + lanes<A>,
              [&](int64_t image, int64_t begin, int64_t end, A* hot, A* room) {
                const A scale = (job.scales ? job.scales[image] : A(1)) * job.factor;
                double sum = 0;
                for (int64_t i = image * job.pixels + begin; i < image * job.pixels + end; ++i) {
                  const A own = job.pixel_weights ? job.pixel_weights[i] : job.weight;
                  if (!job.labels) {
                    const T* const t = job.target + i * classes;
                    sum += pixel<Lost, Slopes, Exact>(job, i * classes, t, job.share, own, scale, room);
                  } else if (!smooth) {
                    sum += hot_pixel<Lost, Slopes, Exact>(job, i * classes, job.labels[i], own, scale, room);
                  } else {
                    const bool some = job.labels[i] < classes;  // or nothing is shared among the classes
                    if (some) hot[job.labels[i]] = 1;
                    const A plus = some ? job.share : A(0);
                    sum += pixel<Lost, Slopes, Exact>(job, i * classes, hot, plus, own, scale, room);
                    if (some) hot[job.labels[i]] = 0;
                  }
                }
                return sum;
              });
}

template <typename T>
void pixels_of(const Job<T>& job) {
  if (job.exact) return pixel_by_pixel<false, true, true>(job);
  if (!job.values && !job.elements) return pixel_by_pixel<false, true, false>(job);
  job.gradient ? pixel_by_pixel<true, true, false>(job) : pixel_by_pixel<true, false, false>(job);
}

template <typename T>
void by_kind(int kind, const Job<T>& job) {
  switch (kind) {
    case kAbsolute:
      return element_by_element(job, run<kAbsolute, T>);
    case kSquared:
      return element_by_element(job, run<kSquared, T>);
    case kSoftmax:
      return pixels_of(job);
    case kSigmoid:
      return element_by_element(job, run<kSigmoid, T>);
    case kCategorical:
      return element_by_element(job, run<kCategorical, T>);
    case kHinge:
      return element_by_element(job, run<kHinge, T>);
    case kHuber:
      return element_by_element(job, run<kHuber, T>);
    case kCosine:
      return element_by_element(job, run<kCosine, T>);
    case kLog:
      return element_by_element(job, run<kLog, T>);
    case kDivergence:
      return element_by_element(job, run<kDivergence, T>);
    case kFocal:
      return element_by_element(job, run<kFocal, T>);
    case kTerms:
      return element_by_element(job, run<kTerms, T>);
  }
}

// What both operations are given: y, a target or labels, weights; and numbers.
template <typename T>
Job<T> job_of(const Call& call, bool labelled, bool weighted, const LossNumbers<double>& numbers) {
  using A = Acc<T>;
  const Tensor &y = call.in[0], &target = call.in[1];
  Job<T> job = {};
  job.images = y.shape[0], job.pixels = y.shape[1], job.classes = y.shape[2];
  job.y = data<T>(y);
  if (labelled) {
    job.labels = data<uint32_t>(target);
  } else {
    job.target = data<T>(target);
  }
  if (weighted) {
    const Tensor& weights = call.in[2];
    (weights.shape[2] == y.shape[2] ? job.weights : job.pixel_weights) = data<A>(weights);
  }
  job.kept = static_cast<A>(numbers.kept);
  job.share = static_cast<A>(numbers.share);
  job.epsilon = static_cast<A>(numbers.epsilon);
  job.delta = static_cast<A>(numbers.delta);
  job.weight = static_cast<A>(numbers.weight);
  job.factor = static_cast<A>(numbers.factor);
  return job;
}

// Whether an output can be stored past the caches: chunks and images begin with whole vectors. Gradients of pixels look
// for themselves.
template <typename T>
bool past_caches(const Call& call, int kind, const Tensor& out, bool by_itself) {
  const Tensor& y = call.in[0];
  const int64_t unit = kind == kSoftmax ? y.shape[2] : int64_t{y.shape[1]} * y.shape[2];
  return out.streamed && (by_itself || unit % lanes<Acc<T>> == 0);
}

}  // namespace

void loss(const Call& call) {
  const LossParams<double> p = params_as<LossParams<double>>(call.params);
  by_type(call.in[0].type, [&](auto zero) {
    using T = decltype(zero);
    Job<T> job = job_of<T>(call, p.labelled, p.weighted, p.numbers);
    if (p.elements) {
      job.elements = data<T>(call.out[0]);
      job.elements_streamed = past_caches<T>(call, p.type, call.out[0], false);
    } else {
      job.values = data<Acc<T>>(call.out[0]);
    }
    if (call.out_count == 2) {
      job.gradient = data<T>(call.out[1]);
      job.gradient_streamed = past_caches<T>(call, p.type, call.out[1], p.type == kSoftmax);
    }
    by_kind(p.type, job);
  });
}

void loss_grad(const Call& call) {
  const LossGradParams<double> p = params_as<LossGradParams<double>>(call.params);
  by_type(call.in[0].type, [&](auto zero) {
    using T = decltype(zero);
    Job<T> job = job_of<T>(call, p.labelled, p.weighted, p.numbers);
    if (p.scaled) job.scales = data<Acc<T>>(call.in[p.weighted ? 3 : 2]);
    job.exact = p.exact;
    job.gradient = data<T>(call.out[0]);
    job.gradient_streamed = past_caches<T>(call, p.type, call.out[0], p.type == kSoftmax);
    by_kind(p.type, job);
  });
}

}  // namespace mpsf::MPSF_ISA
