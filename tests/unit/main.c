/* All unit tests in one program: the proxy's source without main, then every test_*.c of this folder (the Makefile lists them). */
#ifndef RAMJET_NO_MAIN
#define RAMJET_NO_MAIN 1
#endif
#ifndef RJ_DEBUG
#define RJ_DEBUG 1
#endif
#ifndef RJ_FAULTS
#define RJ_FAULTS 1
#endif
#include "../../ramjet.c"

#include "unit.h"

#include "unit_tests.h"

int main(int argc, char **argv) { return ut_main(argc, argv); }
