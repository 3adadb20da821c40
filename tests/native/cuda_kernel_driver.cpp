// Kernels launched directly, over functions of MLX and CUDA that only tell what they were asked. Each case is a line:
// whether it launched, then the kernel, blocks, threads, addresses of arrays behind their buffers, numbers, and how
// often machine code was loaded, room was made and arrays were announced.
#include <cstdio>
#include <string>
#include <vector>

#include "binding/cuda_kernel.h"
#include "mlx/allocator.h"
#include "mlx/ops.h"

namespace mx = mlx::core;

namespace {

char memory[3][64];
struct Buffer {
  void* data;
} buffers[3] = {{memory[0]}, {memory[1]}, {memory[2]}};

std::string told;
int loads, rooms, read, written, arrays, numbers;
size_t gpu = 1;
bool loads_fail, unknown;

// MLX 0.32.3 takes a buffer and what lets go of it, 0.32.4 both as one.
template <typename Array>
void hold(Array& a, int which) {
  const mx::allocator::Buffer buffer(&buffers[which]);
  const auto kept = [](mx::allocator::Buffer) {};
  if constexpr (requires { a.set_data(buffer, kept); }) {
    a.set_data(buffer, kept);
  } else {
    a.set_data({buffer, kept});
  }
}

void tell(const char* format, auto... values) {
  char text[80];
  snprintf(text, sizeof text, format, values...);
  told += text;
}

mpsf::CommandEncoder& encoder_of(mx::Stream) { return *reinterpret_cast<mpsf::CommandEncoder*>(memory); }
void reads(mpsf::CommandEncoder*, const mx::array&) { read++; }
void writes(mpsf::CommandEncoder*, const mx::array&) { written++; }
void make_room(mx::Stream, std::vector<mx::array>& out) {
  rooms++;
  for (mx::array& a : out) hold(a, 2);
}
int context(CUctx_st** found) {
  *found = reinterpret_cast<CUctx_st*>(gpu);
  return 0;
}
int load(CUmod_st** module, const void* code) {
  loads++;
  *module = static_cast<CUmod_st*>(const_cast<void*>(code));
  return loads_fail;
}
int function(CUfunc_st** found, CUmod_st* module, const char* name) {
  *found = reinterpret_cast<CUfunc_st*>(module);  // the fake code is what says which kernel it is
  return *name == '?';
}
int attribute(void*, int, unsigned long long) { return unknown; }
void add_kernel(mpsf::CommandEncoder*, CUfunc_st* kernel, mpsf::Dim3 blocks, mpsf::Dim3 threads, mpsf::Dim3 cluster,
                unsigned shared, void** arguments) {
  tell(" %s %u,%u,%u %u,%u,%u", reinterpret_cast<const char*>(kernel), blocks.x, blocks.y, blocks.z, threads.x,
       threads.y, threads.z);
  for (int i = 0; i < arrays; i++) {
    const char* address = *static_cast<char**>(arguments[i]);
    for (int k = 0; k < 3; k++) {
      if (address >= memory[k] && address < memory[k] + 64) tell(" %d+%d", k, int(address - memory[k]));
    }
  }
  for (int i = 0; i < numbers; i++) tell(" %d", *static_cast<int*>(arguments[arrays + i]));
  if (cluster.x || shared) tell(" cluster");
}

mpsf::CudaFunctions functions{encoder_of, reads, writes, add_kernel, make_room, context, load, function, attribute};

mx::array in_buffer(int which) {
  mx::array a({4, 3}, mx::float32, nullptr, {});
  hold(a, which);
  return a;
}

mx::array later(const mx::array& a, int bytes) {  // a part of it that begins so far in
  mx::array part({1, 3}, mx::float32, nullptr, {});
  part.copy_shared_buffer(a, {3, 1}, {true, true, false}, 3, bytes / 4);
  return part;
}

mx::array transposed(const mx::array& a) {
  mx::array view({3, 4}, mx::float32, nullptr, {});
  view.copy_shared_buffer(a, {1, 3}, {true, false, true}, 12);
  return view;
}

void run(const char* name, int kernel, const std::vector<mx::array>& in) {
  told.clear();
  loads = rooms = read = written = 0;
  arrays = int(in.size()) + 1;
  numbers = 2;
  std::vector<mx::array> out{mx::array({4, 3}, mx::float32, nullptr, {})};
  const mpsf::CudaLaunch launch{kernel, {7, -9}, {300, 5, 1}, {128, 8, 1}};
  const bool launched = mpsf::launch_directly(launch, mx::Stream(0, mx::Device::gpu), in, out, functions);
  printf("%s: %d%s; loads %d rooms %d reads %d writes %d\n", name, launched, told.c_str(), loads, rooms, read, written);
}

}  // namespace

int main() {
  const int one = mpsf::keep_cuda_kernel("k", "first"), other = mpsf::keep_cuda_kernel("k", "other");
  const int nameless = mpsf::keep_cuda_kernel("?", "nameless"), foreign = mpsf::keep_cuda_kernel("k", "foreign");
  const int broken = mpsf::keep_cuda_kernel("k", "broken");
  const mx::array a = in_buffer(0), b = in_buffer(1);
  run("first", one, {a, later(b, 12)});
  run("again", one, {a, b});
  run("another kernel", other, {a});
  gpu = 2;
  run("another GPU", one, {a});
  run("gaps", one, {a, transposed(b)});
  run("no kernel", -1, {a});
  run("no such function", nameless, {a});
  run("no such function, again", nameless, {a});
  loads_fail = true;
  run("does not load", broken, {a});
  loads_fail = false;
  run("does not load, again", broken, {a});
  unknown = true;
  run("no buffer", foreign, {a});
  unknown = false;
  run("no buffer, again", foreign, {a});
  functions.attribute = nullptr;
  run("no CUDA", one, {a});
}
