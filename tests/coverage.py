#!/usr/bin/env python3
"""Prints how many lines of each section of ramjet.c were run by the programs that left their counts in build/*.gcda.

    tests/coverage.py [--functions] [--ranges] [--goal PERCENT] [--floor PERCENT] [PREFIX...]

--functions adds the functions that never ran, --ranges every stretch of lines that never ran, with the function that it stands in; a
PREFIX (as `ur_`) limits both, and the table, to its section. With --goal the exit status is 1 when the whole file is below it, with
--floor when one section is. The same stretches go to build/uncovered.txt each time.
"""
import argparse
import bisect
import glob
import gzip
import json
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, 'tests', 'lint'))
import ramjet_lint  # noqa: E402


def counts():
    """Returns ({line: times run}, {first line: (last line, name, times run)}) of ramjet.c, added up over all programs."""
    lines, functions = {}, {}
    for name in sorted(glob.glob(os.path.join(ROOT, 'build', '*.gcda'))):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(['gcov', '--json-format', name], cwd=folder, capture_output=True, check=True)
            for path in glob.glob(os.path.join(folder, '*.gcov.json.gz')):
                with gzip.open(path, 'rt') as file:
                    data = json.load(file)
                for source in data['files']:
                    if os.path.basename(source['file']) != 'ramjet.c':
                        continue
                    for line in source['lines']:
                        lines[line['line_number']] = lines.get(line['line_number'], 0) + line['count']
                    for f in source['functions']:
                        last, label, times = functions.get(f['start_line'], (f['end_line'], f['name'], 0))
                        functions[f['start_line']] = (last, label, times + f['execution_count'])
    return lines, functions


def stretches(section, lines):
    """Yields (first, last) of each run of counted lines of the section that were not run; lines without code between them do not part it."""
    first = last = None
    for n in sorted(n for n in lines if section.first <= n <= section.last):
        if lines[n] == 0:
            first, last = (n if first is None else first), n
        elif first is not None:
            yield first, last
            first = None
    if first is not None:
        yield first, last


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('prefix', nargs='*')
    parser.add_argument('--functions', action='store_true')
    parser.add_argument('--ranges', action='store_true')
    parser.add_argument('--goal', type=float, default=0, metavar='PERCENT')
    parser.add_argument('--floor', type=float, default=0, metavar='PERCENT')
    options = parser.parse_args()
    lines, functions = counts()
    if not lines:
        print('coverage: no counts in build/*.gcda')
        return 1
    with open(os.path.join(ROOT, 'ramjet.c'), encoding='utf-8') as file:
        text = file.read()
    lint = ramjet_lint.Lint(text, '')
    lint.read_sections()
    source, starts = text.split('\n'), sorted(functions)
    rows, told, low = [], [], []

    def within(line):
        at = bisect.bisect_right(starts, line) - 1
        return functions[starts[at]][1] if at >= 0 and line <= functions[starts[at]][0] else '-'

    with open(os.path.join(ROOT, 'build', 'uncovered.txt'), 'w', encoding='utf-8') as out:
        for section in lint.sections:
            inside = [n for n in lines if section.first <= n <= section.last]
            rows.append((section.name, sum(lines[n] > 0 for n in inside), len(inside)))
            never = ['%s ramjet.c:%d: %s() never ran' % (section.name, n, functions[n][1])
                     for n in starts if section.first <= n <= section.last and functions[n][2] == 0]
            ranges = ['%s ramjet.c:%d-%d %s(): %s' % (section.name, a, b, within(a), source[a - 1].strip()) for a, b in stretches(section, lines)]
            out.writelines(line + '\n' for line in never + ranges)
            if not options.prefix or section.name in options.prefix:
                told += never * options.functions + ranges * options.ranges
    for name, run, total in rows:
        if total and 100.0 * run / total < options.floor:
            low.append('%s below %g %%' % (name, options.floor))
        if not options.prefix or name in options.prefix:
            print('%-6s %5d of %5d lines  %5.1f %%' % (name, run, total, 100.0 * run / total if total else 100))
    run, total = sum(r[1] for r in rows), sum(r[2] for r in rows)
    print('%-6s %5d of %5d lines  %5.1f %%' % ('all', run, total, 100.0 * run / total))
    if told:
        print('\n'.join(told))
    if 100.0 * run / total < options.goal:
        low.append('all below %g %%' % options.goal)
    print('not run: build/uncovered.txt' + ''.join('; ' + text for text in low))
    return 1 if low else 0


if __name__ == '__main__':
    sys.exit(main())
