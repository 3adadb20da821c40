// Launches on NVIDIA GPUs that run ahead by bytes. MLX counts launches: a thousand may wait, whatever they hold.
#pragma once
#include <vector>

#include "mlx/array.h"
#include "mlx/stream.h"

namespace mpsf {

namespace mx = mlx::core;

// Lets launches that wait hold so large a share of the memory that the work needs; 0 leaves it to MLX. Called where MLX
// has been told to do without CUDA graphs. False where it has no CUDA backend that tells when the GPU is through with
// something.
bool set_run_ahead(double share);

// Whether MLX has been told to hand launches over as they come, without CUDA graphs.
bool launches_one_by_one();

// Whether kernels have to tell that they are launched.
bool counts_launches();

// Waits, before a kernel is launched that reads and writes these, while too much waits for the GPU.
void about_to_launch(mx::Stream stream, const std::vector<mx::array>& in, const std::vector<mx::array>& out);

}  // namespace mpsf
