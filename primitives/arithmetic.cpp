// Arithmetic.
#include "simd.h"

namespace mpsf::MPSF_ISA {

void arithmetic(const Call&) {}
void arithmetic_grad(const Call&) {}
void compare(const Call&) {}

}  // namespace mpsf::MPSF_ISA
