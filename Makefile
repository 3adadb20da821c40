# A fresh machine needs Python >= 3.10, a C++ compiler and make; everything else comes into .venv.
# BACKEND is what runs MLX on Linux: cpu, cuda12 or cuda13. macOS needs none. MLX is its version, by default the newest
# that mpsfunc/core/mlx_table.py knows.

PYTHON ?= python3
BACKEND ?= cpu
MLX ?= $(shell $(PYTHON) -c "import runpy; print(runpy.run_path('mpsfunc/core/mlx_table.py')['TABLE'][-1].mlx)")

VENV := .venv
BIN := $(VENV)/bin
# A process a core; ARGS=-n0 for one, which a debugger needs.
PYTEST := $(BIN)/python -m pytest -n auto
# What has tests beside PyTorch.
of_parity := tests/bench tests/windows/test_placement.py $(wildcard tests/*/test_*parity.py)
# What is marked programs, so that only these are looked through.
of_programs := $(shell grep -rl "mark.programs" tests --include="test_*.py")
beyond_cpu := --ignore=tests/metal_host --ignore=tests/native --ignore=tests/bench
# What asks nothing of a kernel that the definitions do not ask of it, or takes all instruction sets by itself.
same_everywhere := \
  exporting graph models saving soak support windows activation/test_cpu.py \
  $(foreach name,cpu routes weights winograd,convolution/test_$(name).py) \
  $(foreach name,building checkpoint_arguments checkpointing cuda_graphs environment exporting first_minute interpreters \
    interrupts memory native_module nvrtc nvrtc_compiles nvrtc_found operations processes releasing rules threads,core/test_$(name).py) \
  $(foreach name,bad_calls bad_input demo detect_shapes docs error_texts layers pictures site state_transforms states straighten tracing transforms types, \
    generic/test_$(name).py) \
  image/test_cpu.py losses/test_cpu.py \
  $(foreach name,checkpointing conversion named_pairs torch_weights,nn/test_$(name).py) \
  $(foreach name,cpu cpu_whole distributed oracle,normalization/test_$(name).py)
beyond_isas := $(beyond_cpu) $(addprefix --ignore=tests/,$(same_everywhere))
# A family's own tests, and those that have some for every operation.
of_family = tests/$(FAMILY) tests/metal_host/test_bodies.py tests/graph/test_filters.py \
  $(foreach name,bad_calls bad_input empty references selftest state_transforms tracing transforms,tests/generic/test_$(name).py)
backend := $(if $(filter Linux,$(shell uname -s)),[$(BACKEND)])
below = $(foreach name,$(2),$(shell find $(1) -name '$(name)'))
sources := pyproject.toml mpsfunc/core/mlx_table.py $(call below,primitives,*.cpp *.h CMakeLists.txt) $(call below,metal,*.h)
cxx := $(call below,primitives,*.cpp *.h) $(call below,metal,*.h) $(wildcard tests/metal_host/shim/* tests/native/*.cpp tests/native/*.h) tests/bench/flops.cpp

.PHONY: help demo smoke test check programs parity kernels nvrtc exported bench pictures docs lint format isas asan wheels offline window release models soak properties clean

help:  ## what can be made
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

demo: $(VENV)/demo  ## train a network on handwritten digits, about half a minute; writes digits.png
	$(BIN)/python docs/examples/train_digits.py $(ARGS)

smoke: $(VENV)/test  ## within a minute: each operation with its definition, its derivatives and its refusals
	$(PYTEST) -q -m smoke $(addprefix tests/generic/test_,references.py transforms.py bad_input.py) $(ARGS)

test: $(VENV)/test  ## the tests, and the examples in the docs; FAMILY=pooling for what concerns a family
	$(PYTEST) -m "not kernels and not programs" $(if $(FAMILY),--family=$(FAMILY) $(of_family)) $(ARGS)

check: test programs kernels parity nvrtc exported lint docs isas asan window offline  ## what CI runs, and all kernel cases

programs: $(VENV)/test  ## whole programs: training to the end, processes that work together or stop, random callers
	$(PYTEST) -n 4 -m programs $(of_programs) $(ARGS)

parity: $(VENV)/test  ## the same results as PyTorch
	$(PIP) install torch==2.13.0
	$(PYTEST) -m parity $(of_parity) $(ARGS)

kernels: $(VENV)/test  ## what make test leaves of kernels: compiled in every way, also for Metal without a Mac; needs clang
	MPSFUNC_REQUIRE_CLANG=1 $(PYTEST) -m kernels tests/metal_host tests/native tests/exporting $(ARGS)

nvrtc: $(VENV)/test  ## every kernel through NVIDIA's compiler, which needs no GPU
	$(PIP) install 'mpsfunc[nvrtc]'
	MPSFUNC_REQUIRE_NVRTC=1 $(BIN)/python -m pytest -q $(addprefix tests/core/test_nvrtc,.py _compiles.py) $(ARGS)

exported: $(VENV)/test  ## files for MLX Swift, imported by the MLX that is in it, which comes into build/exported
	test -d build/exported || $(PYTHON) -m venv build/exported
	build/exported/bin/python -m pip --disable-pip-version-check install --quiet 'mlx$(backend)==0.31.1'
	$(BIN)/python -m pytest -q tests/exporting/test_versions.py $(ARGS)

isas: $(VENV)/test  ## the CPU's tests with each slower instruction set of this machine
	@isas=$$($(BIN)/python -c 'from mpsfunc import _primitives; print(*_primitives.isas()[1:])') || exit 1; \
	for isa in $$isas; do \
	  echo "MPSFUNC_ISA=$$isa" && MPSFUNC_ISA=$$isa $(PYTEST) -q tests $(beyond_isas) -m "not parity" || exit 1; \
	done

asan: $(VENV)/built  ## the CPU kernels under the address sanitizer; needs GCC
	PYTHON=$(PYTHON) .ci/asan

wheels: OUT ?= dist
wheels: $(VENV)/built  ## what users get, with C++ and without, installed outside the checkout; kept in OUT=dist
	PYTHON=$(PYTHON) OUT=$(OUT) .ci/wheels

offline:  ## the source distribution, built and tested where no network is; Linux
	PYTHON=$(PYTHON) .ci/offline $(ARGS)

window: $(VENV)/built  ## what make wheels tries, with definitions and transformations beside each older MLX that mpsfunc works with
	PYTHON=$(PYTHON) TESTS="tests/generic/test_references.py tests/generic/test_transforms.py $(ARGS)" .ci/wheels

release: $(VENV)/built  ## VERSION=0.2.0: all files of a release, each tried, a commit and a tag; nothing is pushed
	$(PYTHON) .ci/release $(VERSION)

models: $(VENV)/test  ## whole networks that were converted, of mlx-image too, in an environment of their own
	PYTHON=$(PYTHON) .ci/models $(ARGS)

bench: $(VENV)/bench  ## speed and memory beside MLX and PyTorch
	$(BIN)/python -m tests.bench $(ARGS)
	$(if $(findstring --compare,$(ARGS)),,$(BIN)/python docs/draw_benchmarks.py)

pictures: $(VENV)/built  ## the pictures of windows, states and benchmarks, after a change of what they show
	$(BIN)/python docs/draw_windows.py
	$(BIN)/python docs/draw_state.py
	$(BIN)/python docs/draw_benchmarks.py

docs: $(VENV)/docs  ## the site, in build/site; a warning is an error
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going -b html docs build/site

lint: $(VENV)/dev  ## ruff, mypy, clang-format, and what mypy and pyright know of public functions
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/generic/test_types.py
	$(BIN)/clang-format --dry-run -Werror $(cxx)

format: $(VENV)/dev  ## let ruff and clang-format rewrite the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(cxx)

soak: $(VENV)/test  ## random callers for ten minutes each; ARGS="differential --minutes 60 --seed 3"
	-@$(PIP) install atheris
	$(BIN)/python -m tests.soak $(ARGS)

properties: $(VENV)/test  ## property tests with 5,000 examples each, threads for half a minute
	HYPOTHESIS_PROFILE=soak $(PYTEST) tests $(ARGS)

clean:  ## remove what was built
	rm -rf $(VENV) build dist .cache .hypothesis .mypy_cache .pytest_cache .ruff_cache

PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

# An editable install: Python and kernel texts are used where they lie, C++ is built again when it changes.
$(VENV)/built: $(sources)
	@test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	@echo "Building mpsfunc$(backend) into $(VENV); a few minutes the first time"
	@$(PIP) install 'mlx$(backend)==$(MLX)'
	@$(PIP) install --editable '.$(backend)'
	@touch $@

$(VENV)/demo: extras := demo
$(VENV)/test: extras := demo,test
$(VENV)/bench: extras := parity
$(VENV)/docs: extras := docs
$(VENV)/dev: extras := dev,demo,test
$(VENV)/demo $(VENV)/test $(VENV)/bench $(VENV)/docs $(VENV)/dev: $(VENV)/built
	@echo "Installing mpsfunc[$(extras)]"
	@$(PIP) install 'mpsfunc[$(extras)]'
	@$(if $(findstring test,$(extras)),$(BIN)/python tests/support/precompiled.py)
	@touch $@
