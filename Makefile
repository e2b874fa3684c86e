# Two commands do all the set-up on a fresh machine:
#   make demo   installs edgedec into .venv and generates a story with the bundled model
#   make test   installs what the tests need (half a gigabyte), lints, type-checks, runs pytest
#   make test-all   all tests, also those that need torch and other large packages (7 GB)
# The C library:  make demo-c; in the browser:  make demo-web
# Soaks, sanitizers and exhaustive sweeps: make test-slow

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# Says what it downloads; of what a build does pip shows nothing, so the engine is compiled before, with progress, and the
# build finds its objects in the cache folder.
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check
COMPILE := test "$$EDGEDEC_OBJECT_CACHE" = 0 || test "$${EDGEDEC_NO_NATIVE:-0}" != 0 || { mkdir -p build && \
	$(BIN)/python kernels/cpu/build.py --out build/engine > /dev/null; } || true
# Whichever build the package index has for this machine: for Linux on x86-64 that is the one for CUDA, 4.5 GB. The extras
# accept it and then add nothing.
TORCH ?= torch==2.13.0
# Bytecode is kept, whatever the shell says: without it each Python process compiles all that it imports anew, pytest the
# tests too, which is half a minute of each of its processes.
export PYTHONDONTWRITEBYTECODE :=
# A product of small matrices takes three times the processor time when BLAS divides it, and the cores have other tests.
pytest test-all test-slow: export OPENBLAS_NUM_THREADS := 1
# As many tests at a time as there are cores, four at most: each process takes up to 1.7 GB.
JOBS ?= -n logical --maxprocesses 4

.PHONY: android demo demo-c demo-web lib-cross fuzz test test-all test-slow lint types pytest clients android clean

demo: $(VENV)/.base
	$(BIN)/edgedec run -p "Once upon a time"

# libedgedec: built, installed below build/, and a C program that uses it from there. No Python.
demo-c:
	cmake -S kernels/lib -B build/lib -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_LIBDIR=lib
	cmake --build build/lib --parallel
	cmake --install build/lib --prefix build/lib/installed > /dev/null
	$(CC) -std=c99 -Wall -Wextra examples/c/story.c -o build/lib/story \
		-I build/lib/installed/include $$(PKG_CONFIG_PATH=build/lib/installed/lib/pkgconfig pkg-config --libs edgedec 2>/dev/null || echo -L build/lib/installed/lib -ledgedec) -Wl,-rpath,'$$ORIGIN/installed/lib'
	build/lib/story models/nano/bundle

# libedgedec for other machines, by zig out of PyPI (90 MB), below build/cross.
lib-cross: $(VENV)/.base
	$(PIP) ziglang
	$(BIN)/python kernels/lib/cross.py

# The chat page of nano that decodes in the browser, and a server of its files.
demo-web: $(VENV)/bin/python
	$(PIP) "ziglang>=0.17"
	$(BIN)/python kernels/wasm/build.py --out runtimes/web
	$(PIP) .
	$(BIN)/edgedec web nano -o build/site --force
	@echo "open http://localhost:8000 (Ctrl+C ends the server)"
	$(BIN)/python -m http.server -d build/site 8000

# Lint and types run beside pytest, which leaves a core free at its beginning and its end; what they say comes after it.
test: $(VENV)/.dev
	@mkdir -p build
	@$(MAKE) --no-print-directory --keep-going lint types > build/checks.txt 2>&1 & checks=$$!; \
	trap "kill $$checks" INT TERM; \
	$(MAKE) --no-print-directory pytest; tested=$$?; \
	wait $$checks; checked=$$?; \
	cat build/checks.txt; \
	test $$tested = 0 && test $$checked = 0

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# The package is spread over top-level folders; a type checker sees it whole in a tree of links, made anew so that nothing
# deleted stays in it. Its cache stays.
types: $(VENV)/.dev
	rm -rf build/types/edgedec && mkdir -p build/types/edgedec && \
	ln -s $(CURDIR)/edgedec/* $(CURDIR)/export $(CURDIR)/runtimes $(CURDIR)/kernels $(CURDIR)/models build/types/edgedec && \
	mypy=$$(realpath -s $(BIN)/mypy) && cd build/types && $$mypy --config-file $(CURDIR)/pyproject.toml -p edgedec

pytest: $(VENV)/.dev
	$(BIN)/pytest $(JOBS) --dist loadfile --no-loadscope-reorder -m "not long"

# Coverage-guided fuzzing: make fuzz SECONDS=600, of each of TARGET="json pattern ..." (all by default).
SECONDS ?= 60
fuzz: $(VENV)/.dev
	$(PIP) "atheris>=3.0" || true
	$(BIN)/python tests/fuzz.py $(TARGET) --seconds $(SECONDS)

test-all: $(VENV)/.all
	EDGEDEC_ALL_TESTS=1 $(BIN)/pytest $(JOBS) --dist loadfile --no-loadscope-reorder

test-slow: $(VENV)/.all clients .venv-optimum
	EDGEDEC_SLOW_TESTS=1 $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

# What the slow tests run beside: packages that speak to the server (100 MB, and node's), a fuzzer.
clients: $(VENV)/.all
	$(PIP) --editable ".[dev,test-all,clients,fuzz]"
	command -v npm > /dev/null && cd examples/clients && npm install --silent --no-audit --no-fund || true
	$(PYTHON) -m venv examples/clients/.venv && examples/clients/.venv/bin/python -m pip install -q litellm || true

# The C++ of kernels/ too: an install compiles it.
SOURCES := pyproject.toml setup.py $(shell find edgedec export runtimes kernels models -type f \
	-not -path '*/__pycache__/*' -not -name '_native.*')

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.base: $(VENV)/bin/python $(SOURCES)
	@echo "the CPU engine: half a minute to two where it has to be compiled"
	@$(COMPILE)
	$(INSTALL) .
	touch $@

$(VENV)/.dev: $(VENV)/bin/python $(SOURCES)
	@echo "the CPU engine: half a minute to two where it has to be compiled"
	@$(COMPILE)
	$(INSTALL) --editable ".[dev]"
	touch $@

$(VENV)/.all: $(VENV)/.dev
	$(INSTALL) $(TORCH)
	$(INSTALL) --editable ".[dev,test-all]"
	command -v npm > /dev/null && cd tests/browser && npm install --silent --no-audit --no-fund || true
	touch $@

# A signed APK of the app in android_demo/, without the Android SDK; says where it is. With the tests of library and app:
# make android TESTS=--test
android: $(VENV)/bin/python
	$(PIP) "ziglang>=0.17" || echo "make android: no zig, which compiles libedgedec for phones"
	$(BIN)/python android_demo/build.py $(TESTS)

# optimum-onnx needs an older transformers than the tests: an environment beside the other, which lends it torch.
.venv-optimum: $(VENV)/.all
	$(PYTHON) -m venv .venv-optimum
	$(BIN)/python -c "import sysconfig; print(sysconfig.get_paths()['purelib'])" > \
		$$(.venv-optimum/bin/python -c "import sysconfig; print(sysconfig.get_paths()['purelib'])")/lent.pth
	.venv-optimum/bin/python -m pip install --quiet "optimum-onnx==0.1.*" "transformers==4.57.*"

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
