// What mx.export_function can write of a graph: its table has the kernels that MLX makes and no custom function. The
// graph itself stays as it is, since arrays of others may belong to it.
#pragma once
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "binding/vmap.h"
#include "mlx/array.h"
#include "mlx/fast_primitives.h"
#include "mlx/ops.h"
#include "mlx/primitives.h"

namespace mpsf {

// Values as MLX writes them: it takes the bytes of any array, at once, for those of one whose elements follow each
// other, even where there are no bytes.
inline mx::array as_written(mx::array a) {
  if (a.status() == mx::array::Status::unscheduled) {
    throw std::invalid_argument(
        "export: the function reads an array without values, which another traced function left behind; got one of " +
        std::to_string(a.ndim()) + " axes, expected an argument or an array with values");
  }
  a.wait();
  if (a.flags().row_contiguous || a.size() == 0) return a;
  mx::array copy = mx::contiguous(a);
  copy.eval();
  return copy;
}

// Whether what an operation computes depends on how its inputs lie in memory.
inline bool depends_on_layout(const mx::Primitive& primitive) {
  const std::string name = primitive.name();
  if (name == "AsStrided") return true;
  return name == "CustomKernel" && !std::get<5>(static_cast<const mx::fast::CustomKernel&>(primitive).state());
}

// The same values without custom functions, which only hand on what their function made, without copies that change
// the layout alone, and with MLX's own kernels in place of `GpuKernel`.
inline std::vector<mx::array> exportable(const std::vector<mx::array>& outputs, const std::vector<mx::array>& inputs) {
  std::unordered_map<std::uintptr_t, mx::array> made;
  std::unordered_set<std::uintptr_t> copies;  // by number, of what is no longer copied
  for (const mx::array& in : inputs) made.insert({in.id(), in});
  const auto rebuilt = [&](const mx::array& a) {
    std::vector<mx::array> inputs;
    bool changed = false;
    for (const mx::array& in : a.inputs()) {
      if (copies.count(in.id()) && depends_on_layout(a.primitive())) {
        throw std::invalid_argument(std::string("export: MLX cannot write Contiguous, which ") + a.primitive().name() +
                                    " depends on; got " + a.primitive().name() +
                                    " of a contiguous copy, expected operations that read an array however it lies");
      }
      inputs.push_back(made.at(in.id()));
      changed = changed || inputs.back().id() != in.id();
    }
    const std::vector<mx::array> results = a.outputs();
    const std::string name = a.primitive().name();
    std::vector<mx::array> instead;
    if (name == "CustomTransforms") {
      for (auto result = inputs.end() - results.size(); result != inputs.end(); ++result) {
        const bool cut = result->has_primitive() && std::string(result->primitive().name()) == "StopGradient";
        instead.push_back(cut ? result->inputs()[0] : *result);
      }
    } else if (name == "Contiguous") {
      copies.insert(a.id());
      instead = inputs;
    } else if (const auto* kernel = dynamic_cast<const GpuKernel*>(&a.primitive())) {
      instead = kernel->as_mlx_makes_it(inputs);
    } else if (changed) {
      std::vector<mx::Shape> shapes;
      std::vector<mx::Dtype> dtypes;
      for (const mx::array& result : results) {
        shapes.push_back(result.shape());
        dtypes.push_back(result.dtype());
      }
      instead = mx::array::make_arrays(std::move(shapes), dtypes, a.primitive_ptr(), inputs);
    } else {
      instead = results;
    }
    for (size_t i = 0; i < results.size(); ++i) made.insert({results[i].id(), instead[i]});
  };
  std::vector<mx::array> left(outputs);
  while (!left.empty()) {
    const mx::array a = left.back();
    const size_t before = left.size();
    if (!made.count(a.id())) {
      if (!a.has_primitive()) {
        made.insert({a.id(), as_written(a)});
      } else {
        for (const mx::array& in : a.inputs()) {
          if (!made.count(in.id())) left.push_back(in);
        }
        if (left.size() > before) continue;
        rebuilt(a);
      }
    }
    left.pop_back();
  }
  std::vector<mx::array> exported;
  for (const mx::array& output : outputs) exported.push_back(made.at(output.id()));
  return exported;
}

}  // namespace mpsf
