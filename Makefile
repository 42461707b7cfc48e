# meshrun. Bare `make` prints this.
SHELL := /bin/bash -o pipefail
comma := ,
GO ?= go
CXX ?= g++

CPPTEST_SRC := $(filter-out devicecgo/emulator/cpptest/bench_%.cpp, $(wildcard devicecgo/emulator/cpptest/*.cpp)) $(wildcard devicecgo/emulator/*.cpp)
CPPTEST_HDR := $(wildcard devicecgo/*.h devicecgo/emulator/*.h devicecgo/emulator/cpptest/*.h)
CPPFLAGS_TEST := -std=c++20 -g -Wall -Wextra -Werror -Idevicecgo -Idevicecgo/emulator
OBJ = $(patsubst %.cpp,build/$(1)/%.o,$(CPPTEST_SRC))

.PHONY: usage build test race lint verify bench cpptest cpptest-address cpptest-thread fmt seeds

usage:
	@echo 'usage: make TARGET'
	@echo '  build    bin/meshrun'
	@echo '  test     all Go tests (the emulator is built with them)'
	@echo '  race     the same under the race detector'
	@echo '  cpptest  the emulator'"'"'s own C++ tests (needs doctest: apt-get install doctest-dev)'
	@echo '  lint     formatting, vet, staticcheck, tidy go.mod'
	@echo '  verify   lint, test, race, cpptest under the address, undefined-behaviour and thread sanitizers, seeds'
	@echo '  seeds    no hazard and right numbers under SEEDS=100 seeds of skew, for each kind of operation'
	@echo '  bench    benchmarks: dispatch, collectives, kernels'

build:
	$(GO) build -o bin/meshrun ./cmd/meshrun

test:
	$(GO) test -timeout 10m ./...

race:
	$(GO) test -race -timeout 30m ./...

fmt:
	gofmt -w $$(git ls-files '*.go')

lint:
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -l $$(git ls-files '*.go'); echo 'not formatted: make fmt'; exit 1; }
	$(GO) vet ./...
	$(GO) mod tidy -diff
	$(GO) tool -modfile=tools/go.mod staticcheck ./...

# The C++ test program, plain and under sanitizers: build/KIND/tests.
define cpptest_kind
build/$(1)/%.o: %.cpp $$(CPPTEST_HDR)
	@mkdir -p $$(dir $$@)
	$$(CXX) $$(CPPFLAGS_TEST) $(2) -c -o $$@ $$<
build/$(1)/tests: $$(call OBJ,$(1))
	$$(CXX) $(2) -o $$@ $$^ -lpthread
endef
$(eval $(call cpptest_kind,plain,-O2))
$(eval $(call cpptest_kind,address,-O1 -fsanitize=address$(comma)undefined -fno-sanitize-recover=all))
$(eval $(call cpptest_kind,thread,-O1 -fsanitize=thread))

cpptest cpptest-address cpptest-thread: cpptest%:
	@$(MAKE) --no-print-directory -j$$(nproc) build/$(or $(patsubst -%,%,$*),plain)/tests
	build/$(or $(patsubst -%,%,$*),plain)/tests

# The emulator's checker over a hundred seeds of skew for each kind of operation; SEEDS=10000 for the whole proof.
SEEDS ?= 100
seeds:
	MESHRUN_SEEDS=$(SEEDS) $(GO) test -timeout 10h -run NoSeedShows ./cmd/meshrun

verify: lint test race cpptest-address cpptest-thread seeds

bench:
	$(GO) test -run '^$$' -bench . -benchmem ./actors ./tests/...
