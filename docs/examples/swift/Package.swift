// swift-tools-version: 5.12
// Not built yet: no developer of this project has a Mac.
import PackageDescription

let package = Package(
  name: "DigitsTraining",
  platforms: [.macOS("14.0")],
  // 0.31.4 carries MLX 0.31.1, whose layout export_digits.py writes, and asks for no newer Swift than 5.12.
  dependencies: [.package(url: "https://github.com/ml-explore/mlx-swift", exact: "0.31.4")],
  targets: [
    .executableTarget(
      name: "DigitsTraining",
      dependencies: [.product(name: "MLX", package: "mlx-swift")]
    )
  ]
)
