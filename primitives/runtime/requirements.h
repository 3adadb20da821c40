// What checks of a call begin with: a refusal that names the operation, and its parameters as its struct.
#pragma once
#include <stdexcept>
#include <string>

#include "runtime/check.h"
#include "shared/base.h"

namespace mpsf {

class Requirements {
 public:
  explicit Requirements(const Signature& call) : call_(call) {}

  void require(bool holds, const char* rule) const {
    if (!holds) throw std::invalid_argument(std::string(op_name(call_.op)) + ": expected " + rule);
  }

  template <typename P>
  P params() const {
    require(call_.params.size() == sizeof(P) / sizeof(int), "another number of params");
    return params_as<P>(call_.params.data());
  }
  void no_params() const { require(call_.params.empty(), "another number of params"); }

 protected:
  const Signature& call_;
};

}  // namespace mpsf
