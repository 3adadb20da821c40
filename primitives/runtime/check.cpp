#include "runtime/check.h"

#include <initializer_list>
#include <stdexcept>
#include <string>

#define MPSF_POINTWISE inline  // of the activations only the numbers matter here
#define MPSF_NUMBER(digits) digits
#include "activation/activations.h"
#include "convolution/params.h"
#include "pooling/params.h"
#include "runtime/check_channels.h"
#include "runtime/check_convolution.h"
#include "runtime/check_elements.h"
#include "runtime/check_images.h"
#include "runtime/check_reductions.h"
#include "runtime/check_rows.h"
#include "runtime/requirements.h"

namespace mpsf {
namespace {

// Positions and sizes below this cannot overflow an int in geometry.h.
constexpr int64_t kLimit = int64_t{1} << 30;

class Check : public Requirements {
 public:
  using Requirements::Requirements;

  void counts(size_t inputs, size_t outputs) const {
    require(call_.inputs.size() == inputs, "another number of inputs");
    require(call_.shapes.size() == outputs && call_.dtypes.size() == outputs, "another number of outputs");
    for (const Array& a : call_.inputs) {
      const bool counting = call_.op == Op::bn_grad_by || call_.op == Op::bn_running;
      const bool scalar = call_.op == Op::power || (counting && a.dtype == Type::i64);
      require((scalar || a.shape.size() >= 1) && a.shape.size() <= 8, "inputs of rank 1 to 8");
      const bool laid_out = call_.op == Op::conv_laid_out && a.dtype == Type::u32;
      const bool placed = call_.op == Op::reduce_place && a.dtype == Type::u32;
      const bool boxes = call_.op == Op::nms && (a.dtype == Type::u32 || a.dtype == Type::i64);
      const bool numbers = scalar || boxes || maximum() || tables() || labelled(a) || laid_out || placed;
      require(numbers || is_floating(a.dtype), "floating inputs");
    }
    for (const Shape& shape : call_.shapes) {
      for (int length : shape) require(length >= 0, "shapes without negative lengths");
    }
  }

  const Shape& in(int i) const { return call_.inputs[i].shape; }
  const Shape& out(int i) const { return call_.shapes[i]; }
  Dtype image() const { return call_.inputs[0].dtype; }
  Dtype dtype(int i) const { return call_.inputs[i].dtype; }
  Dtype accumulator() const { return image() == Type::f64 ? Type::f64 : Type::f32; }

  void input(int i, const Shape& shape, Dtype dtype) const {
    require(in(i) == shape && call_.inputs[i].dtype == dtype, "inputs of matching shapes and dtypes");
  }
  void output(int i, const Shape& shape, Dtype dtype) const {
    require(out(i) == shape && call_.dtypes[i] == dtype, "outputs of matching shapes and dtypes");
  }

  // Whether this is one of the maximum pooling's, which know integers and one more edge.
  bool maximum() const {
    return call_.op == Op::max_pool || call_.op == Op::max_pool_grad || call_.op == Op::max_pool_gather;
  }

  // Whether tables say what is read.
  bool tables() const { return call_.op == Op::gather_pixels || call_.op == Op::resample; }

  // Classes of a loss's pixels.
  bool labelled(const Array& a) const {
    const bool of_classes = call_.op == Op::loss || call_.op == Op::loss_grad || call_.op == Op::dice_sums ||
                            call_.op == Op::dice_grad || call_.op == Op::dice_loss_grad;
    return of_classes && a.dtype == Type::u32;
  }

  // The axis leads from images of n_in to images of n_out.
  void axis(const Axis& a, int n_in, int n_out) const {
    require(a.n_in == n_in && a.n_out == n_out, "axes of the images' lengths");
    require(a.size >= 1 && a.stride >= 1 && a.dilation >= 1, "positive size, stride and dilation");
    require(0 <= a.begin && a.begin <= a.end && a.end <= a.n_out, "0 <= begin <= end <= n_out");
    // A tap of theirs that is moved to the edge needs one.
    const bool average = call_.op == Op::avg_pool || call_.op == Op::avg_pool_grad;
    require(n_in >= 1 || a.edge != 1 || average, "pixels at the edge");
    require(a.edge >= 0 && a.edge <= 4 && (a.edge != 2 || maximum()) && (a.edge != 4 || average),
            "an edge of the operation's");
    require(a.zero_pad >= (a.edge == 4 ? 1 : 0) && a.zero_pad_after >= 0, "no negative number of zeros, and a divisor");
    // The bounds of placement.py, below which geometry.h cannot overflow.
    int64_t extent = int64_t{a.size - 1} * a.dilation + 1, end = int64_t{a.n_out - 1} * a.stride - a.pad + extent;
    const int64_t zeros = max_int(a.zero_pad, a.zero_pad_after);
    for (int64_t distance :
         {a.n_in + zeros, int64_t{a.n_out}, int64_t{a.stride}, int64_t{a.dilation}, extent, int64_t{a.pad}, end}) {
      require(-kLimit < distance && distance < kLimit, "windows within 2^30 elements");
    }
    if (a.edge == 3) {
      require(n_in >= 1 && a.dilation == 1, "pixels, and taps side by side, where windows part the input");
      for (int o = 0; o < n_out; ++o) require(taps(a, o) <= a.size, "windows of at most the size");
    }
  }

  void image_axes(const Axis& rows, const Axis& cols, const Shape& source, const Shape& pooled) const {
    require(source.size() == 4 && pooled.size() == 4, "images of rank 4");
    require(source[0] == pooled[0], "as many images out as in");
    axis(rows, source[1], pooled[1]);
    axis(cols, source[2], pooled[2]);
  }

  void pooling(const Shape& source, const Shape& pooled) const {
    const PoolParams windows = params<PoolParams>();
    image_axes(windows.rows, windows.cols, source, pooled);
    require(source[3] == pooled[3], "as many channels out as in");
  }

  // A dtype that numbers the taps and has one number left.
  void winners(Dtype dtype) const {
    const PoolParams windows = params<PoolParams>();
    const int64_t taps = int64_t{windows.rows.size} * windows.cols.size;
    const int64_t most = dtype == Type::u8 ? 0xff : dtype == Type::u16 ? 0xffff : dtype == Type::u32 ? 0x7fffffff : 0;
    require(taps <= most, "winners of a dtype that numbers the taps");
  }

  void activation(const Activation<double>& act) const {
    require(act.kind >= kNone && act.kind <= kStep, "an activation, 0 to 26");
  }

  // Of all activations those that need no array.
  void fused(const Activation<double>& act) const {
    activation(act);
    require(act.kind != kPrelu, "an activation without slopes for channels");
  }

  // One whose slope follows from what it returns.
  void told(const Activation<double>& act) const {
    require(act.kind == kRelu && act.a >= 0, "an activation whose slope its result tells");
  }

  // Arrays of one shape and dtype, and where `slopes` of an activation of theirs one for each channel.
  void elements(size_t arrays, bool slopes) const {
    counts(arrays + (slopes ? 1 : 0), 1);
    for (size_t i = 1; i < arrays; ++i) input(static_cast<int>(i), in(0), image());
    if (slopes) input(static_cast<int>(arrays), {in(0).back()}, accumulator());
    output(0, in(0), image());
  }

  // Vectors of one shape and dtype, in and out.
  void vectors(size_t inputs, size_t outputs) const {
    counts(inputs, outputs);
    require(image() == accumulator(), "float32 or float64 vectors");
    for (size_t i = 1; i < inputs; ++i) {
      if (call_.inputs[i].dtype == Type::i64) {
        require(i + 1 == inputs && call_.inputs[i].shape.size() == 0, "a scalar count");
      } else {
        input(static_cast<int>(i), in(0), image());
      }
    }
    for (size_t i = 0; i < outputs; ++i) output(static_cast<int>(i), in(0), image());
  }

  // So many images that windows of one size go over.
  void windows(size_t images, int size) const {
    counts(images, 1);
    require(in(0).size() == 4, "images of rank 4");
    require(size >= 1, "windows of at least 1");
    for (size_t i = 1; i < images; ++i) input(static_cast<int>(i), in(0), image());
    output(0, in(0), image());
  }

  // An image, and tables of what the rows and columns of the result read in it; what they hold is looked at later.
  void resampling() const {
    const bool gathers = call_.op == Op::gather_pixels;
    no_params();
    counts(gathers ? 4 : 3, 1);
    require(in(0).size() == 4 && out(0).size() == 4, "images of rank 4");
    require(in(0)[0] == out(0)[0] && in(0)[3] == out(0)[3], "as many images and channels out as in");
    const Dtype dtype = image();
    const bool moves = dtype == Type::u8 || dtype == Type::u16 || dtype == Type::u32 || dtype == Type::u64;
    require((gathers && moves) || is_floating(dtype), "images that are floating, or unsigned to gather");
    for (int axis = 1; axis <= 2; ++axis) {
      require(call_.inputs[axis].shape.size() == 1 && call_.inputs[axis].dtype == Type::u32, "tables of uint32");
      const int64_t size = in(axis)[0], count = out(0)[axis];
      require(gathers ? size == count : size > count && (size - count - 1) % 3 == 0, "tables of the result's lengths");
    }
    if (gathers) input(3, {1}, dtype);
    output(0, out(0), dtype);
  }

  void switches(std::initializer_list<int> params) const {
    for (int param : params) require(param == 0 || param == 1, "switches that are 0 or 1");
  }

  // The number of groups of neighbouring channels, as Python packed it.
  void groups() {
    const double count = params<BnGroupParams<double>>().groups;
    require(in(0).size() == 2 && count >= 1 && count <= in(0)[1], "rows of vectors and at most as many groups");
    require(in(0)[1] % static_cast<int>(count) == 0, "groups that divide the channels");
  }
};

}  // namespace

void check(const Signature& call) {
  Check c(call);
  switch (call.op) {
    case Op::avg_pool:
      c.counts(1, 1);
      c.pooling(c.in(0), c.out(0));
      return c.output(0, c.out(0), c.image());
    case Op::avg_pool_grad:
      c.counts(1, 1);
      c.pooling(c.out(0), c.in(0));
      return c.output(0, c.out(0), c.image());
    case Op::max_pool:
      c.counts(1, 2);
      c.require(c.image() == Type::i64 || c.image() == Type::u64 || is_floating(c.image()),
                "floating images or wide integers");
      c.pooling(c.in(0), c.out(0));
      c.output(0, c.out(0), c.image());
      c.output(1, c.out(0), call.dtypes[1]);
      return c.winners(call.dtypes[1]);
    case Op::max_pool_grad:
    case Op::max_pool_gather:
      c.counts(2, 1);
      c.require(is_floating(c.image()), "floating images");
      if (call.op == Op::max_pool_grad) {
        c.pooling(c.out(0), c.in(0));
        c.input(1, c.in(0), call.inputs[1].dtype);
      } else {
        c.pooling(c.in(0), c.out(0));
        c.input(1, c.out(0), call.inputs[1].dtype);
      }
      c.output(0, c.out(0), c.image());
      return c.winners(call.inputs[1].dtype);
    case Op::l2_pool:
      c.counts(1, 1);
      c.pooling(c.in(0), c.out(0));
      return c.output(0, c.out(0), c.accumulator());
    case Op::l2_pool_grad:
      c.counts(3, 1);
      c.pooling(c.in(1), c.in(0));
      c.input(1, c.in(1), c.image());
      c.input(2, c.in(0), c.accumulator());
      return c.output(0, c.in(1), c.image());
    case Op::l2_pool_jvp:
      c.counts(3, 1);
      c.pooling(c.in(0), c.in(2));
      c.input(1, c.in(0), c.image());
      c.input(2, c.in(2), c.accumulator());
      return c.output(0, c.in(2), c.accumulator());
    case Op::reduce_sum:
      return reduce_sum(c, call);
    case Op::reduce_weigh:
      return reduce_weigh(c);
    case Op::reduce_extreme:
      return reduce_extreme(c);
    case Op::reduce_place:
      return reduce_place(c);
    case Op::bn_stats:
      c.no_params();
      return channels(c, call, 1, 0, false);
    case Op::bn_normalize:
      c.fused(c.params<Activation<double>>());
      return channels(c, call, 1, 3, true);
    case Op::bn_normalize_add:
      c.fused(c.params<Activation<double>>());
      return channels(c, call, 2, 3, true);
    case Op::bn_stats_grad: {
      const auto act = c.params<Activation<double>>();
      c.fused(act);
      return channels(c, call, 2, act.kind == kNone ? 1 : 3, false);
    }
    case Op::bn_grad: {
      const auto act = c.params<Activation<double>>();
      c.fused(act);
      return channels(c, call, 2, act.kind == kNone ? 4 : 6, true);
    }
    case Op::bn_normalize_by:
      return by_state(c, call, 1, {4, 4}, true);
    case Op::bn_stats_grad_by:
      return by_state(c, call, 2, {4, 6}, false);
    case Op::bn_grad_by:
      return by_state(c, call, 2, {6, 7}, true);
    case Op::batch_norm:
      return whole(c, 1, false);
    case Op::batch_norm_add:
      return whole(c, 2, false);
    case Op::batch_norm_grad:
      return whole(c, 2, true);
    case Op::bn_slope:
      c.params<BnSlopeParams<double>>();
      return c.vectors(2, 1);
    case Op::bn_composed_factors:
      c.params<BnComposedFactorsParams<double>>();
      return c.vectors(6, 4);
    case Op::bn_running:
      c.params<BnRunningParams<double>>();
      c.require(call.inputs.size() == 5 && call.inputs[4].dtype == Type::i64, "an int64 count");
      return c.vectors(5, 2);
    case Op::group_moments:
    case Op::bn_group_sums:
      c.vectors(2, 2);
      return c.groups();
    case Op::layer_norm:
      return lines_of_groups(c, call, {1, 2, 1, 0});
    case Op::layer_norm_grad:
      return lines_of_groups(c, call, {2, 1, 1, 2});
    case Op::layer_norm_grad_grad:
      return lines_of_groups(c, call, {2, 1, 2, 1});
    case Op::conv:
    case Op::conv_grad_input:
      return conv(c, call.op == Op::conv);
    case Op::conv_layout:
      return conv_layout(c);
    case Op::conv_laid_out:
      return conv_laid_out(c, call.inputs.size() == 4);
    case Op::conv_grad_weights:
      return conv_grad_weights(c, call);
    case Op::conv_grad_bias:
      c.no_params();
      c.counts(1, 1);
      return c.output(0, {c.in(0).back()}, c.accumulator());
    case Op::gram_matrix:
    case Op::gram_matrix_grad:
      return gram_matrix(c, call.op == Op::gram_matrix);
    case Op::window_sum: {
      const auto p = c.params<WindowSumParams>();
      c.counts(1, 1);
      c.require(c.in(0).size() == 4 && c.image() == c.accumulator(), "float32 or float64 images of rank 4");
      c.require(p.axis >= 1 && p.axis <= 3, "an axis from 1 to 3");
      c.require(p.before >= 0 && p.after >= 0, "windows that hold their own position");
      return c.output(0, c.in(0), c.image());
    }
    case Op::power:
      c.params<PowerParams<double>>();
      c.counts(1, 1);
      c.require(c.image() == c.accumulator(), "float32 or float64");
      return c.output(0, c.in(0), c.image());
    case Op::cross_channel_norm:
    case Op::spatial_norm:
      return c.windows(1, c.params<SquaresNormParams<double>>().size);
    case Op::cross_channel_norm_grad:
    case Op::spatial_norm_grad:
      return c.windows(2, c.params<SquaresNormParams<double>>().size);
    case Op::local_contrast_norm:
      return c.windows(1, c.params<LocalContrastParams<double>>().size);
    case Op::local_contrast_norm_grad:
      return c.windows(2, c.params<LocalContrastParams<double>>().size);
    case Op::neuron_grad_from_output:
      c.told(c.params<Activation<double>>());
      return c.elements(2, false);
    case Op::neuron:
    case Op::neuron_grad: {
      const auto act = c.params<Activation<double>>();
      c.activation(act);
      return c.elements(call.op == Op::neuron ? 1 : 2, act.kind == kPrelu);
    }
    case Op::neuron_grad_grad:
      c.fused(c.params<Activation<double>>());
      return c.elements(3, false);
    case Op::glu:
      return halves(c, false);
    case Op::glu_grad:
      return halves(c, true);
    case Op::gather_pixels:
    case Op::resample:
      return c.resampling();
    case Op::grid_sample:
    case Op::grid_sample_grad:
    case Op::grid_sample_grad_grid:
      return grid_sample(c, call);
    case Op::local_correlation:
    case Op::local_correlation_grad:
      return local_correlation(c, call.op == Op::local_correlation);
    case Op::deform_columns:
    case Op::deform_columns_grad:
    case Op::deform_places_grad:
      return deform_columns(c, call);
    case Op::box_sample:
    case Op::box_sample_grad:
    case Op::box_sample_grad_boxes:
      return box_sample(c, call);
    case Op::softmax:
    case Op::log_softmax:
    case Op::softmin:
      c.no_params();
      return lines(c, 1);
    case Op::softmax_grad:
    case Op::log_softmax_grad: {
      const int derivative = c.params<SoftmaxGradParams>().derivative;
      c.require(derivative >= 0 && derivative <= 2, "a derivative");
      return lines(c, derivative == 1 ? 3 : 2);
    }
    case Op::loss:
      return loss(c, call, false);
    case Op::loss_grad:
      return loss(c, call, true);
    case Op::dice_sums:
      return dice(c, c.params<DiceParams>(), false, false);
    case Op::dice_grad:
      return dice(c, c.params<DiceParams>(), true, true);
    case Op::dice_loss_grad:
      return dice(c, c.params<DiceLossParams<double>>().sums, true, false);
    case Op::nms:
      return nms(c, call);
    case Op::dropout:
    case Op::dropout_mask:
    case Op::dropout_by_mask:
    case Op::arithmetic:
    case Op::arithmetic_grad:
    case Op::compare:
      return CheckElements(call).run();
  }
}

void check_laid_out(const Signature& call, const void* weights) { laid_out_for(Check(call), weights); }

}  // namespace mpsf
