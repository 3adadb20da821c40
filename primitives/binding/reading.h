// What an array that is not evaluated yet is made of, where that is what our kernels compute faster than MLX's.
#pragma once
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mlx/array.h"
#include "mlx/primitives.h"

namespace mpsf {

namespace mx = mlx::core;

inline bool made_by(const mx::array& a, const char* name) {
  return a.status() == mx::array::Status::unscheduled && a.has_primitive() && std::string(a.primitive().name()) == name;
}

// Images and the numbers, one for each channel of each image or of all, whose product an array is: what MLX repeats
// such numbers for.
inline std::optional<std::pair<mx::array, mx::array>> channel_factors(const mx::array& a) {
  if (a.ndim() != 4 || !made_by(a, "Multiply") || a.inputs().size() != 2) return std::nullopt;
  for (int i = 0; i < 2; ++i) {
    const mx::array &images = a.inputs()[1 - i], &repeated = a.inputs()[i];
    if (!made_by(repeated, "Broadcast") || made_by(images, "Broadcast") || repeated.inputs().size() != 1) continue;
    const mx::array& numbers = repeated.inputs()[0];
    const bool fits = numbers.ndim() == 4 && (numbers.shape(0) == a.shape(0) || numbers.shape(0) == 1) &&
                      numbers.shape(1) == 1 && numbers.shape(2) == 1 && numbers.shape(3) == a.shape(3);
    if (fits && images.shape() == a.shape() && images.dtype() == numbers.dtype()) return std::pair(images, numbers);
  }
  return std::nullopt;
}

// Images and a vector with a number for each of their channels, whose product an array is.
inline std::optional<std::pair<mx::array, mx::array>> channel_scale(const mx::array& a) {
  if (!made_by(a, "Multiply") || a.inputs().size() != 2) return std::nullopt;
  for (int i = 0; i < 2; ++i) {
    const mx::array &images = a.inputs()[1 - i], &repeated = a.inputs()[i];
    if (!made_by(repeated, "Broadcast") || made_by(images, "Broadcast") || repeated.inputs().size() != 1) continue;
    const mx::array& numbers = repeated.inputs()[0];
    const bool fits = numbers.ndim() == 1 && a.ndim() >= 1 && numbers.shape(0) == a.shape(-1);
    if (fits && images.shape() == a.shape() && images.dtype() == numbers.dtype()) return std::pair(images, numbers);
  }
  return std::nullopt;
}

// The number that an array repeats, if that is a constant.
inline std::optional<double> repeated_number(const mx::array& a) {
  const mx::array* at = &a;
  while ((made_by(*at, "Broadcast") || made_by(*at, "AsType")) && at->inputs().size() == 1) at = &at->inputs()[0];
  if (at->size() != 1 || at->is_tracer() || !at->is_available()) return std::nullopt;
  if (at->dtype() == mx::float32) return *at->data<float>();
  if (at->dtype() == mx::bfloat16) return float(*at->data<mx::bfloat16_t>());
  if (at->dtype() == mx::float16) return float(*at->data<mx::float16_t>());
  if (at->dtype() == mx::int32) return *at->data<int32_t>();
  return std::nullopt;
}

// What an operation combines with that number, which stands behind it or, where the order does not matter, ahead.
inline const mx::array* combined_with(const mx::array* a, const char* name, double number, bool ordered = false) {
  if (a == nullptr || !made_by(*a, name) || a->inputs().size() != 2) return nullptr;
  const mx::array &first = a->inputs()[0], &second = a->inputs()[1];
  if (repeated_number(second) == number) return &first;
  return !ordered && repeated_number(first) == number ? &second : nullptr;
}

// What an array is the hard sigmoid of, as code that has none writes it: relu6(x + 3) / 6.
inline std::optional<mx::array> hard_sigmoid_of(const mx::array& a) {
  const mx::array* clipped = combined_with(&a, "Divide", 6, /* ordered = */ true);
  const mx::array* x = combined_with(combined_with(combined_with(clipped, "Minimum", 6), "Maximum", 0), "Add", 3);
  if (x == nullptr) x = combined_with(combined_with(combined_with(clipped, "Maximum", 0), "Minimum", 6), "Add", 3);
  return x != nullptr && x->shape() == a.shape() && x->dtype() == a.dtype() ? std::optional(*x) : std::nullopt;
}

// Whether an array is a constant that counts as 1 / count in its dtype.
inline bool is_inverse(const mx::array& a, double count) {
  if (a.size() != 1 || a.is_tracer() || !a.is_available()) return false;
  if (a.dtype() == mx::float32) return *a.data<float>() == static_cast<float>(1 / count);
  if (a.dtype() == mx::float64) return *a.data<double>() == 1 / count;
  if (a.dtype() == mx::float16) return float(*a.data<mx::float16_t>()) == float(mx::float16_t(float(1 / count)));
  if (a.dtype() == mx::bfloat16) return float(*a.data<mx::bfloat16_t>()) == float(mx::bfloat16_t(float(1 / count)));
  return false;
}

// The images (n, h, w, c) of whose pixels an array is the mean, as mx.mean makes it: a sum over axes 1 and 2, which may
// be gone, times a constant.
inline std::optional<mx::array> mean_of(const mx::array& a) {
  if (!made_by(a, "Multiply") || a.inputs().size() != 2 || !made_by(a.inputs()[1], "Broadcast")) return std::nullopt;
  const mx::array* sum = &a.inputs()[0];
  if (made_by(*sum, "Squeeze") && sum->inputs().size() == 1) sum = &sum->inputs()[0];
  if (!made_by(*sum, "Sum") || sum->inputs().size() != 1) return std::nullopt;
  const mx::array &images = sum->inputs()[0], &inverse = a.inputs()[1].inputs()[0];
  const std::vector<int> axes = static_cast<const mx::Reduce&>(sum->primitive()).state().second;
  const bool both = axes == std::vector<int>{1, 2} || axes == std::vector<int>{2, 1};
  if (images.ndim() != 4 || images.dtype() != a.dtype() || !both || a.shape(0) != images.shape(0)) return std::nullopt;
  if (a.size() != static_cast<size_t>(images.shape(0)) * images.shape(3)) return std::nullopt;
  return is_inverse(inverse, double(images.shape(1)) * images.shape(2)) ? std::optional(images) : std::nullopt;
}

}  // namespace mpsf
