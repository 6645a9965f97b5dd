#!/usr/bin/env python3
"""The licence inside the header: `license_text.py LICENSE` prints the macro that holds the file's text as a string."""
import re
import sys

NAME = 'RJ_LICENSE_TEXT'


def render(text):
    rows = []
    for line in text.split('\n')[:-1]:
        rows.append('    "%s\\n"' % line.replace('\\', '\\\\').replace('"', '\\"').replace('??', '?\\?'))
    return '/* The text of LICENSE, which a static binary has to carry; a test compares the two. */\n#define %s \\\n%s\n' % (NAME, ' \\\n'.join(rows))


def extract(header):
    """Returns the text that the macro stands for, or None when the header has no such macro."""
    m = re.search(r'#define %s \\\n((?:[^\n]*\\\n)*[^\n]*\n)' % NAME, header)
    if m is None:
        return None
    parts = re.findall(r'"((?:[^"\\]|\\.)*)"', m.group(1))
    return re.sub(r'\\(.)', lambda e: {'n': '\n'}.get(e.group(1), e.group(1)), ''.join(parts))


if __name__ == '__main__':
    with open(sys.argv[1], encoding='utf-8') as file:
        sys.stdout.write(render(file.read()))
