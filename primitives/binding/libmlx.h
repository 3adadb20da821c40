// What a library exports, looked up by name: MLX's headers of its CUDA backend need CUDA's, and builds for the CPU have
// neither.
#pragma once
#include <type_traits>

#if defined(__linux__)
#include <dlfcn.h>

#include "mlx/scheduler.h"
#endif

namespace mpsf {

struct CommandEncoder;  // of MLX, and the name of the function that gives a stream's
constexpr char kEncoderOf[] = "_ZN3mlx4core2cu19get_command_encoderENS0_6StreamE";

#if defined(__linux__)
class Library {
 public:
  // One that is loaded already; nothing is found in one that is not.
  explicit Library(const char* name) : library_(name ? dlopen(name, RTLD_LAZY | RTLD_NOLOAD) : nullptr) {}
  ~Library() {
    if (library_) dlclose(library_);  // others hold it
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  template <typename Function>
  void find(Function& function, const char* name) const {
    if (library_) function = reinterpret_cast<std::decay_t<Function>>(dlsym(library_, name));
  }

 private:
  void* library_;
};

inline const char* path_of_libmlx() {
  Dl_info info;
  return dladdr(reinterpret_cast<void*>(&mlx::core::scheduler::scheduler), &info) ? info.dli_fname : nullptr;
}
#else
struct Library {  // nothing is found elsewhere, where MLX has no CUDA backend
  explicit Library(const char*) {}
  template <typename Function>
  void find(Function&, const char*) const {}
};

inline const char* path_of_libmlx() { return nullptr; }
#endif

}  // namespace mpsf
