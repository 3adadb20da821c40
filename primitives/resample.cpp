// Resample.
#include "simd.h"

namespace mpsf::MPSF_ISA {

void resample(const Call&) {}
void resample_grad(const Call&) {}

}  // namespace mpsf::MPSF_ISA
