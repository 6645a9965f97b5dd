/* All unit tests in one program: the proxy's source without main, then every test_*.c of this folder (the Makefile lists them). */
#include "proxy.h"

#include "unit.h"

#include "unit_tests.h"

int main(int argc, char **argv) { return ut_main(argc, argv); }
