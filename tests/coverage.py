#!/usr/bin/env python3
"""Prints how many lines of each section of ramjet.c were run by what left its counts in build/*.gcda, and writes the rest to build/uncovered.txt."""
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
    """Returns {line: times run} of ramjet.c, added up over all programs."""
    lines = {}
    for name in sorted(glob.glob(os.path.join(ROOT, 'build', '*.gcda'))):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(['gcov', '--json-format', name], cwd=folder, capture_output=True, check=True)
            for path in glob.glob(os.path.join(folder, '*.gcov.json.gz')):
                with gzip.open(path, 'rt') as file:
                    data = json.load(file)
                for source in data['files']:
                    if os.path.basename(source['file']) == 'ramjet.c':
                        for line in source['lines']:
                            lines[line['line_number']] = lines.get(line['line_number'], 0) + line['count']
    return lines


def main():
    lines = counts()
    if not lines:
        print('coverage: no counts in build/*.gcda')
        return 1
    with open(os.path.join(ROOT, 'ramjet.c'), encoding='utf-8') as file:
        text = file.read()
    lint = ramjet_lint.Lint(text, '')
    lint.read_sections()
    rows, source = [], text.split('\n')
    with open(os.path.join(ROOT, 'build', 'uncovered.txt'), 'w', encoding='utf-8') as out:
        for section in lint.sections:
            inside = [n for n in lines if section.first <= n <= section.last]
            run = [n for n in inside if lines[n]]
            rows.append((section.name, len(run), len(inside)))
            for n in sorted(set(inside) - set(run)):
                out.write('%s ramjet.c:%d: %s\n' % (section.name, n, source[n - 1].strip()))
    rows.append(('all', sum(r[1] for r in rows), sum(r[2] for r in rows)))
    for name, run, total in rows:
        print('%-6s %5d of %5d lines  %5.1f %%' % (name, run, total, 100.0 * run / total if total else 100))
    print('not run: build/uncovered.txt')
    return 0


if __name__ == '__main__':
    sys.exit(main())
