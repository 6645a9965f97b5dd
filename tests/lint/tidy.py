#!/usr/bin/env python3
"""clang-tidy and cppcheck over ramjet.c and ramjet.h; .clang-tidy and .cppcheck in the root hold what is checked and why.

    tests/lint/tidy.py [--quick]

--quick leaves out clang's analyzer, which takes minutes. The last line is `N passed, N failed, N skipped`.
"""
import os
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ANALYZER = '-clang-analyzer-*'
# RJ_DEBUG: the invariants that RJ_CHECK holds in a debug build tell the analyzer which paths there are.
CLANG_FLAGS = ['--', '-std=gnu11', '-DRJ_DEBUG=1']
CPPCHECK = ['--enable=all', '--inconclusive', '--std=c11', '--platform=unix64', '--library=posix,gnu', '--suppressions-list=.cppcheck', '--error-exitcode=1',
            '--quiet', '--template={file}:{line}: {id}: {message}', '-I.']


def run(command):
    """Returns what the program complains of; empty when it has nothing to say."""
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if result.returncode == 0:
        return ''
    return (result.stdout + result.stderr).strip()[:8000] or 'exit status %d' % result.returncode


def clang_tidy(quick):
    return run(['clang-tidy', '--quiet', *(['--checks=' + ANALYZER] if quick else []), 'ramjet.c', *CLANG_FLAGS])


def cppcheck():
    return run(['cppcheck', *CPPCHECK, 'ramjet.c'])


def main(arguments):
    if set(arguments) - {'--quick'}:
        sys.stderr.write(__doc__)
        return 2
    passed, failed, skipped = 0, 0, 0
    for name, check in (('clang-tidy', lambda: clang_tidy('--quick' in arguments)), ('cppcheck', cppcheck)):
        if shutil.which(name) is None:
            skipped += 1
            print('SKIP no %s' % name)
            continue
        found = check()
        if found:
            failed += 1
            print('%s\nFAIL %s' % (found, name), flush=True)
        else:
            passed += 1
    print('%d passed, %d failed, %d skipped' % (passed, failed, skipped))
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
