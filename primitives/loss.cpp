// Loss.
#include "simd.h"

namespace mpsf::MPSF_ISA {

void loss(const Call&) {}
void loss_grad(const Call&) {}

}  // namespace mpsf::MPSF_ISA
