// Trains the digits network on an Apple GPU from the files that export_digits.py writes.
//
//     DigitsTraining FOLDER [EPOCHS]
//     DigitsTraining FOLDER --check     compares the first losses with those of the machine that exported
//
// MLX is all that it links: the network, its gradients and the optimizer are in step.mlxfn, kernels included. A step
// takes its whole state as one array and returns the next: MLX Swift calls an imported function with arguments that are
// written out, and cannot pass a list of arrays.

import Foundation
import MLX

struct Failure: Error, CustomStringConvertible {
  let description: String
}

/// Images (n, 8, 8, 1) between 0 and 1, and their labels.
struct Digits {
  let images: MLXArray
  let labels: MLXArray

  var count: Int { labels.size }

  /// Those at some places, as one batch.
  subscript(places: [Int]) -> Digits {
    let chosen = MLXArray(places)
    return Digits(images: images[chosen], labels: labels[chosen])
  }
}

/// What export_digits.py wrote.
struct Files {
  let arrays: [String: MLXArray]
  let step: ImportedFunction
  let predict: ImportedFunction

  init(folder: URL) throws {
    arrays = try loadArrays(url: folder.appendingPathComponent("digits.safetensors"))
    step = try importFunction(from: folder.appendingPathComponent("step.mlxfn"))
    predict = try importFunction(from: folder.appendingPathComponent("predict.mlxfn"))
  }

  func array(_ name: String) throws -> MLXArray {
    guard let found = arrays[name] else { throw Failure(description: "digits.safetensors has no \(name)") }
    return found
  }

  func digits(_ part: String) throws -> Digits {
    Digits(images: try array("\(part)_images"), labels: try array("\(part)_labels"))
  }
}

/// The network in training: parameters, running averages and momentum in one array.
final class Trainer {
  /// Images in a batch: the shape that step.mlxfn was exported for.
  static let batch = 64

  private let files: Files
  private(set) var state: MLXArray

  init(_ files: Files) throws {
    self.files = files
    state = try files.array("state")
  }

  /// Takes a step and returns the loss before it.
  func step(_ digits: Digits, rate: Float) throws -> Float {
    let results = try files.step(state, digits.images, digits.labels, MLXArray(rate))
    state = results[0]
    eval(results)
    return results[1].item(Float.self)
  }

  /// The share of digits that are recognized; predict.mlxfn was exported for as many as are held out.
  func accuracy(_ digits: Digits) throws -> Float {
    let predicted = try files.predict(state, digits.images)[0]
    return (predicted .== digits.labels).asType(.float32).mean().item(Float.self)
  }
}

/// Trains on all digits in random order and prints the mean loss and the accuracy after each epoch.
func train(_ files: Files, epochs: Int) throws -> Trainer {
  let (digits, heldOut) = (try files.digits("train"), try files.digits("test"))
  let trainer = try Trainer(files)
  for epoch in 0 ..< epochs {
    let order = (0 ..< digits.count).shuffled()
    let rate = 0.1 * (1 - Float(epoch) / Float(epochs))
    var losses: [Float] = []
    for start in stride(from: 0, through: digits.count - Trainer.batch, by: Trainer.batch) {
      losses.append(try trainer.step(digits[Array(order[start ..< start + Trainer.batch])], rate: rate))
    }
    let loss = losses.reduce(0, +) / Float(losses.count)
    let accuracy = try trainer.accuracy(heldOut)
    print("epoch \(epoch + 1): loss \(loss), held-out accuracy \(accuracy)")
  }
  return trainer
}

/// Takes the steps whose losses are in the file, in its order, and compares.
func check(_ files: Files) throws {
  let (digits, expected) = (try files.digits("train"), try files.array("losses").asArray(Float.self))
  let trainer = try Trainer(files)
  for (number, right) in expected.enumerated() {
    let start = number * Trainer.batch % (digits.count - Trainer.batch + 1)
    let loss = try trainer.step(digits[Array(start ..< start + Trainer.batch)], rate: 0.1)
    print("step \(number + 1): loss \(loss), where it was exported \(right)")
    guard abs(loss - right) <= 1e-3 * abs(right) else { throw Failure(description: "the losses differ") }
  }
}

func run(_ arguments: [String]) throws {
  guard arguments.count > 1 else { throw Failure(description: "usage: DigitsTraining FOLDER [EPOCHS | --check]") }
  let folder = URL(fileURLWithPath: arguments[1], isDirectory: true)
  let files = try Files(folder: folder)
  if arguments.count > 2, arguments[2] == "--check" {
    try check(files)
  } else {
    let epochs = arguments.count > 2 ? Int(arguments[2]) ?? 0 : 10
    guard epochs > 0 else { throw Failure(description: "not a number of epochs: \(arguments[2])") }
    let trainer = try train(files, epochs: epochs)
    try save(arrays: ["state": trainer.state], url: folder.appendingPathComponent("trained.safetensors"))
  }
}

do {
  try run(CommandLine.arguments)
} catch {
  FileHandle.standardError.write(Data("\(error)\n".utf8))
  exit(1)
}
