// Trains the digits network on an Apple or an NVIDIA GPU from the files that export_digits.py writes.
//
//     mlx=$(python -c "import mlx.core; print(mlx.core.__file__.rpartition('/')[0])")
//     c++ -std=c++20 train_digits.cpp -I$mlx/include -L$mlx/lib -lmlx -Wl,-rpath,$mlx/lib -o train_digits
//     ./train_digits FOLDER [STEPS]
//     ./train_digits FOLDER --shapes    prints what the step returns, and needs no GPU
//
// For a Mac, MLX itself must be of the version that the files are for: those for MLX Swift are for 0.31.1.
#include <mlx/mlx.h>

#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>

namespace mx = mlx::core;

int main(int count, char** arguments) try {
  if (count < 2) throw std::invalid_argument("usage: train_digits FOLDER [STEPS | --shapes]");
  const std::string folder = arguments[1], option = count > 2 ? arguments[2] : "200";

  const auto files = mx::load_safetensors(folder + "/digits.safetensors").first;
  const mx::array images = files.at("train_images"), labels = files.at("train_labels");
  const auto step = mx::import_function(folder + "/step.mlxfn");
  const int batch = 64, digits = labels.size();
  const mx::array rate(0.1f);

  mx::array state = files.at("state");
  if (option == "--shapes") {
    const auto first = mx::arange(batch);
    for (const mx::array& result : step({state, mx::take(images, first, 0), mx::take(labels, first, 0), rate})) {
      std::cout << result.shape() << " " << result.dtype() << "\n";
    }
    return 0;
  }
  for (int number = 0; number < std::stoi(option); ++number) {
    const auto chosen = mx::random::randint(0, digits, {batch});
    const auto results = step({state, mx::take(images, chosen, 0), mx::take(labels, chosen, 0), rate});
    state = results[0];
    mx::array loss = results[1];
    mx::eval(state, loss);
    if (number % 20 == 0) std::cout << "step " << number + 1 << ": loss " << loss.item<float>() << std::endl;
  }
  mx::save_safetensors(folder + "/trained.safetensors", {{"state", state}});
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << "\n";
  return 1;
}
