#!/usr/bin/env python3
"""Checks ramjet.c and ramjet.h against the order and the rules that they are written by.

    ramjet_lint.py [--notes] [RAMJET_C RAMJET_H]

Prints `FILE:LINE: rule: text` for each breach. A breach is accepted when a comment on its line or directly above it says
`allow RULE: why`. Exit status 0 without breaches, 1 with some, 2 for wrong usage.
"""
import bisect
import os
import re
import sys

RULES = {
    'allow':     'an `allow RULE: why` comment names a rule and a reason',
    'atomic':    'every atomic operation names its memory order',
    'banner':    'a section opens with a complete banner, once',
    'bearssl':   'BearSSL is named only in the sections for cryptography and TLS',
    'braces':    'braces and brackets balance',
    'calls':     "a banner's Calls list equals the sections used, all of them below",
    'contents':  'the table of contents equals the banners, in order',
    'date':      'comments hold no dates and no issue numbers',
    'exit':      'only cli_ ends the process',
    'global':    'no mutable variable at file scope but rj and the thread-local worker pointer; no mutable static local',
    'header':    'ramjet.h holds no function bodies but one-line static inlines, and no prototypes but the public interface',
    'length':    'no function over 60 lines unless it is one flat switch or table, or a comment on it says why',
    'line':      'no tab, no trailing space, no line over 160 columns',
    'malloc':    'memory is allocated and freed only by mem_',
    'prefix':    "a function carries its section's prefix",
    'prototype': 'no prototypes but directly above a mutually recursive pair, with a comment',
    'section':   'no section over 1,500 lines',
    'sorted':    'a table whose comment says that it is sorted is sorted',
    'static':    'every function is static but the public interface',
    'typedef':   'no typedef of a struct, union or enum',
}
MAX_FUNCTION = 60
MAX_SECTION = 1500
MAX_COLUMNS = 160
TLS_SECTIONS = {'cry_', 'tls_', 't13_'}
SHIM = re.compile(r'__\w+_chk|fopen64')
LONG_BY_COMMENT = re.compile(r'\b(long because|over 60 lines|one flat|one table)\b', re.I)
ALLOCATORS = {'malloc', 'calloc', 'realloc', 'reallocarray', 'free', 'strdup', 'strndup', 'asprintf', 'vasprintf', 'aligned_alloc',
              'posix_memalign', 'memalign', 'valloc', 'getline'}
ATTRIBUTES = {'__attribute__', '_Alignas', 'alignas', '__asm__', 'asm', '__typeof__', 'typeof'}
EXITS = {'exit', '_exit', '_Exit', 'quick_exit'}
BARE_ATOMICS = re.compile(r'atomic_(load|store|exchange|compare_exchange_(weak|strong)|fetch_(add|sub|or|and|xor)|flag_test_and_set|flag_clear)|__sync_\w+')
TOKEN = re.compile(r'[A-Za-z_]\w*|0[xX][0-9a-fA-F]+\w*|\d[\w.]*|"|\'|[^\s\w]')
BANNER = re.compile(r'^ \* ((?:[a-z][a-z0-9]*_)(?:\s*/\s*[a-z][a-z0-9]*_)*) : (\S.*?)\s*$')
PREFIX = re.compile(r'(?<![\w])([a-z][a-z0-9]*_)(?![\w])')
DATE = re.compile(r'\b20[2-9]\d-[01]\d(-[0-3]\d)?\b(?!T\d)(?!-[0-3]\dT)|\b(January|February|March|April|May|June|July|August|September|October|November|December|'
                  r'Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\.? (\d{1,2},? )?20[2-9]\d\b|(?<![\w&/])#\d+\b|\bissues? #?\d+\b', re.I)
ALLOW = re.compile(r'\ballow ([a-z]+)\s*:\s*(.*)', re.S)


class Comment:
    def __init__(self, first, last, text):
        self.first, self.last, self.text = first, last, text


class Function:
    def __init__(self, name, first, last, body, static):
        self.name, self.first, self.last, self.body, self.static = name, first, last, body, static
        self.section = None


class Source:
    """One C file: lines, comments, tokens without preprocessor lines, and the items at file scope."""

    def __init__(self, name, text):
        self.name, self.text = name, text
        self.lines = text.split('\n')
        self.starts = [0]
        for m in re.finditer('\n', text):
            self.starts.append(m.end())
        self.comments, self.directives = [], []
        self.code = self.blank()
        self.tokens = self.tokenize()
        self.functions, self.prototypes, self.variables, self.typedefs, self.unbalanced = [], [], [], [], None
        self.split_items()

    def line_of(self, offset):
        return bisect.bisect_right(self.starts, offset)

    def blank(self):
        """Returns the text with comments and the insides of strings replaced by spaces; notes the comments."""
        out, text, i, n = list(self.text), self.text, 0, len(self.text)
        while i < n:
            c = text[i]
            if text.startswith('/*', i):
                end = text.find('*/', i + 2)
                end = n if end < 0 else end + 2
            elif text.startswith('//', i):
                end = text.find('\n', i)
                end = n if end < 0 else end
            elif c in '"\'':
                end = i + 1
                while end < n and text[end] != c and text[end] != '\n':
                    end += 2 if text[end] == '\\' else 1
                for k in range(i + 1, min(end, n)):
                    if out[k] != '\n':
                        out[k] = ' '
                i = end + 1
                continue
            else:
                i += 1
                continue
            self.comments.append(Comment(self.line_of(i), self.line_of(end - 1), text[i:end]))
            for k in range(i, end):
                if out[k] != '\n':
                    out[k] = ' '
            i = end
        return ''.join(out)

    def tokenize(self):
        """Returns (token, line) pairs. Preprocessor lines are left out, but an #else takes the brace depth back to its #if."""
        tokens, offset, directive, depth, stack = [], 0, False, 0, []
        for number, line in enumerate(self.code.split('\n'), 1):
            stripped = line.strip()
            if directive or stripped.startswith('#'):
                if not directive:
                    self.directives.append((number, stripped))
                    word = stripped[1:].strip().split(' ')[0].split('(')[0]
                    if word in ('if', 'ifdef', 'ifndef'):
                        stack.append(depth)
                    elif word in ('else', 'elif') and stack and depth != stack[-1]:
                        tokens.append(('#depth%d' % stack[-1], number))
                        depth = stack[-1]
                    elif word == 'endif' and stack:
                        stack.pop()
                directive = stripped.endswith('\\')
                continue
            for m in TOKEN.finditer(line):
                t = m.group()
                if t == '{':
                    depth += 1
                elif t == '}':
                    depth -= 1
                tokens.append((t, number))
            offset += len(line) + 1
        return tokens

    def split_items(self):
        item, depth, i, tokens = [], 0, 0, self.tokens
        while i < len(tokens):
            t, line = tokens[i]
            if t.startswith('#depth'):
                depth = int(t[6:])
                if depth == 0:
                    item = []
                i += 1
                continue
            item.append(tokens[i])
            if t == '{':
                depth += 1
            elif t == '}':
                depth -= 1
                if depth < 0:
                    self.unbalanced = line
                    depth, item = 0, []
                elif depth == 0 and self.is_function(item):
                    self.add_function(item)
                    item = []
            elif t == ';' and depth == 0:
                if len(item) > 1:
                    self.add_declaration(item)
                item = []
            i += 1
        if depth != 0:
            self.unbalanced = self.unbalanced or len(self.lines)

    @staticmethod
    def function_name(item):
        """Returns the name declared by `type name(...)`, or None. Attributes are looked over."""
        paren, k = 0, 0
        while k < len(item):
            t = item[k][0]
            if t in ('=', '{') and paren == 0:
                return None
            if (t in ATTRIBUTES or re.fullmatch(r'[A-Z][A-Z0-9_]+', t)) and paren == 0 and k + 1 < len(item) and item[k + 1][0] == '(':
                k += 1
                inner = 0
                while k < len(item):
                    inner += {'(': 1, ')': -1}.get(item[k][0], 0)
                    if inner == 0:
                        break
                    k += 1
            elif t == '(':
                if paren == 0 and k > 0 and re.match(r'[A-Za-z_]', item[k - 1][0]):
                    if k + 1 < len(item) and item[k + 1][0] == '*':
                        return None                     # a pointer to a function
                    return item[k - 1][0]
                paren += 1
            elif t == ')':
                paren -= 1
            k += 1
        return None

    def is_function(self, item):
        name = self.function_name(item)
        return name is not None and item[0][0] not in ('typedef',)

    def add_function(self, item):
        name = self.function_name(item)
        opening = next(k for k, (t, _) in enumerate(item) if t == '{')
        static = any(t == 'static' for t, _ in item[:opening])
        self.functions.append(Function(name, item[0][1], item[-1][1], item[opening:], static))
        self.functions[-1].head = item[:opening]

    def add_declaration(self, item):
        words = [t for t, _ in item]
        if words[0] in ('_Static_assert', 'static_assert'):
            return
        if words[0] == 'typedef':
            if any(w in ('struct', 'union', 'enum') for w in words) and '(' not in words:
                self.typedefs.append((item[0][1], words[-2]))
            return
        if words[1] == '(' and words[-2] == ')' and re.fullmatch(r'[A-Z][A-Z0-9_]+', words[0]) and self.is_macro_call(words):
            return
        name = self.function_name(item)
        if name is not None:
            self.prototypes.append((item[0][1], name, 'static' in words, item))
            return
        if words[0] in ('struct', 'union', 'enum'):
            depth, after = 0, []
            has_body = '{' in words
            for w in words:
                if w == '{':
                    depth += 1
                    after = []
                elif w == '}':
                    depth -= 1
                    after = []
                elif depth == 0:
                    after.append(w)
            if has_body and after == [';']:
                return
            if not has_body and len(words) == 3:
                return                                  # struct x;
            if has_body and re.match(r'__attribute__|__packed', after[0] if after else ''):
                return
        if words[0] == 'extern':
            self.variables.append((item[0][1], words[-2], True, False))
            return
        self.add_variable(item, words)

    @staticmethod
    def is_macro_call(words):
        depth = 0
        for k, w in enumerate(words[1:], 1):
            depth += {'(': 1, ')': -1}.get(w, 0)
            if depth == 0:
                return k == len(words) - 2
        return False

    def add_variable(self, item, words):
        flat, depth = [], 0
        for w in words:
            if w == '=' and depth == 0:
                break
            depth += {'{': 1, '[': 1, '}': -1, ']': -1}.get(w, 0)
            if depth == 0 and w not in '{}[];':
                flat.append(w)
        if not flat:
            return
        if '(' in flat:                                 # a pointer to a function: (*const name)(...)
            inner = flat[flat.index('(') + 1:]
            constant, name = 'const' in inner[:3], next((w for w in inner if re.match(r'[A-Za-z_]', w) and w != 'const'), '?')
        else:
            name = flat[-1]
            stars = [k for k, w in enumerate(flat) if w == '*']
            constant = 'const' in (flat[stars[-1]:] if stars else flat)
        self.variables.append((item[0][1], name, constant, '_Thread_local' in flat or '__thread' in flat))


class Section:
    def __init__(self, prefixes, title, first):
        self.prefixes, self.title, self.first, self.last = prefixes, title, first, first
        self.banner_end = first
        self.calls, self.keys = [], set()

    @property
    def name(self):
        return self.prefixes[0]


class Lint:
    def __init__(self, c_text, h_text, c_name='ramjet.c', h_name='ramjet.h'):
        self.c, self.h = Source(c_name, c_text), Source(h_name, h_text)
        self.found, self.notes = [], []
        self.sections = []
        self.allowed = self.read_allowances()

    # ---- reporting -------------------------------------------------------------------------------------------------------------
    def read_allowances(self):
        allowed = {}
        for source in (self.c, self.h):
            for comment in source.comments:
                m = ALLOW.search(comment.text)
                if m is None:
                    continue
                why = re.sub(r'[\s*/]+', ' ', m.group(2)).strip()
                if m.group(1) not in RULES or len(why) < 10:
                    self.found.append((source.name, comment.first, 'allow', 'want `allow RULE: why` with a known rule and a reason'))
                    continue
                alone = source.lines[comment.first - 1].lstrip().startswith(('/*', '//', '*'))
                last = comment.last + (1 if alone else 0)
                for line in range(comment.first, last + 1):
                    allowed.setdefault((source.name, line), set()).add(m.group(1))
        return allowed

    def report(self, source, line, rule, text):
        if rule not in self.allowed.get((source.name, line), ()):
            self.found.append((source.name, line, rule, text))

    def run(self):
        self.read_sections()
        self.check_contents()
        for source in (self.c, self.h):
            if source.unbalanced:
                self.report(source, source.unbalanced, 'braces', 'braces do not balance up to here')
            self.check_lines(source)
            self.check_comments(source)
            self.check_sorted(source)
            self.check_typedefs(source)
            self.check_variables(source)
        self.check_functions()
        self.check_header()
        self.check_prototypes()
        self.check_calls()
        self.check_words()
        self.found.sort(key=lambda f: (f[0], f[1], f[2]))
        return self.found

    # ---- sections --------------------------------------------------------------------------------------------------------------
    def read_sections(self):
        seen = {}
        for comment in self.c.comments:
            lines = comment.text.split('\n')
            if len(lines) < 3 or not lines[0].startswith('/* ====='):
                continue
            m = BANNER.match(lines[1])
            if m is None:
                self.report(self.c, comment.first + 1, 'banner', 'want ` * prefix_ : Title` in the second line of a banner')
                continue
            prefixes = re.split(r'\s*/\s*', m.group(1))
            section = Section(prefixes, m.group(2), comment.first)
            section.banner_end = comment.last
            key = None
            for line in lines[2:]:
                entry = re.match(r'^ \* ([A-Z][a-z]+):\s*(.*)$', line)
                if entry:
                    key = entry.group(1)
                    section.keys.add(key)
                    rest = entry.group(2)
                else:
                    rest = line[2:] if line.startswith(' *') else line
                if key == 'Calls':
                    section.calls += PREFIX.findall(rest)
            for key in ('Owns', 'Calls', 'Threads', 'Rules'):
                if key not in section.keys:
                    self.report(self.c, comment.first + 1, 'banner', 'the banner of %s has no `%s:`' % (section.name, key))
            if not lines[-1].strip().endswith('== */'):
                self.report(self.c, comment.last, 'banner', 'the banner of %s does not close with ` * ==== */`' % section.name)
            for prefix in prefixes:
                if prefix in seen:
                    self.report(self.c, comment.first + 1, 'banner', 'section %s opens twice, first in line %d' % (prefix, seen[prefix]))
                seen.setdefault(prefix, comment.first + 1)
            if seen[prefixes[0]] != comment.first + 1:
                continue
            if self.sections:
                self.sections[-1].last = comment.first - 1
            self.sections.append(section)
        if self.sections:
            self.sections[-1].last = len(self.c.lines)
        for section in self.sections:
            size = section.last - section.first + 1
            if size > MAX_SECTION:
                self.report(self.c, section.first + 1, 'section', '%s has %d lines, at most %d' % (section.name, size, MAX_SECTION))
        if not self.sections:
            self.report(self.c, 1, 'banner', 'no section banner in the file')

    def section_at(self, line):
        found = None
        for section in self.sections:
            if section.first <= line:
                found = section
        return found

    def check_contents(self):
        contents, where = [], 1
        for comment in self.c.comments:
            if self.sections and comment.first >= self.sections[0].first:
                break
            if not re.match(r'/\*\s*Contents\b', comment.text):
                continue
            where = comment.first
            for k, line in enumerate(comment.text.split('\n')):
                m = re.match(r'^ \*\s+((?:[a-z][a-z0-9]*_)(?:\s*/\s*[a-z][a-z0-9]*_)*)\s+(\S.*?)\s*$', line)
                if m:
                    contents.append((comment.first + k, re.sub(r'\s+', '', m.group(1)), m.group(2)))
        banners = [('/'.join(s.prefixes), s.title) for s in self.sections]
        if not contents:
            self.report(self.c, where, 'contents', 'no table of contents (a comment `/* Contents...`) above the first section')
            return
        for k in range(max(len(contents), len(banners))):
            entry = contents[k] if k < len(contents) else None
            banner = banners[k] if k < len(banners) else None
            if entry and banner and (entry[1], entry[2]) == banner:
                continue
            if entry is None:
                self.report(self.c, self.sections[k].first + 1, 'contents', 'section %s is missing in the table of contents' % banner[0])
            elif banner is None:
                self.report(self.c, entry[0], 'contents', 'the table lists %s, which has no section' % entry[1])
            else:
                self.report(self.c, entry[0], 'contents', 'the table says `%s %s` where the section is `%s %s`' % (entry[1:] + banner))
            break

    # ---- text ------------------------------------------------------------------------------------------------------------------
    def check_lines(self, source):
        for number, line in enumerate(source.lines, 1):
            if '\t' in line:
                self.report(source, number, 'line', 'a tab')
            if line != line.rstrip():
                self.report(source, number, 'line', 'space at the end of the line')
            if len(line) > MAX_COLUMNS:
                self.report(source, number, 'line', '%d columns, at most %d' % (len(line), MAX_COLUMNS))

    def check_comments(self, source):
        for comment in source.comments:
            for k, line in enumerate(comment.text.split('\n')):
                m = DATE.search(line)
                if m:
                    self.report(source, comment.first + k, 'date', 'the comment holds `%s`' % m.group())

    def check_sorted(self, source):
        for comment in source.comments:
            if not re.search(r'\bsorted\b', comment.text, re.I):
                continue
            opening = None
            for number in range(comment.last, min(comment.last + 3, len(source.lines) + 1)):
                text = source.lines[number - 1]
                if number == comment.last:                # only what follows the comment on its own last line
                    text = text[text.rfind('*/') + 2:] if '*/' in text else ''
                    if not text.strip() and comment.first == comment.last:
                        text = source.code.split('\n')[number - 1]
                if re.search(r'#\s*define\s+\w+\((X|\w+)\)\s*\\$', text) or re.search(r'=\s*\{\s*$', text) or re.search(r'\benum\b[^;]*\{\s*$', text):
                    opening = number
                    break
            if opening is None:
                continue
            macro = source.lines[opening - 1].rstrip().endswith('\\')
            previous = None
            for number in range(opening + 1, len(source.lines) + 1):
                text = source.lines[number - 1]
                if not macro and re.match(r'\s*\}', text):
                    break
                row = re.match(r'\s*(?:X\w*\(\s*|\{\s*)"?([^\s",()]+)|\s*\[?"?([A-Za-z_][\w./-]*)"?\]?\s*[,=]', text)
                if row:
                    key = row.group(1) or row.group(2)
                    if previous is not None and key < previous and key.lower() < previous.lower():
                        self.report(source, number, 'sorted', '`%s` stands after `%s` in a table that says it is sorted' % (key, previous))
                    previous = key
                if macro and not text.rstrip().endswith('\\'):
                    break

    # ---- declarations ----------------------------------------------------------------------------------------------------------
    def check_typedefs(self, source):
        for line, name in source.typedefs:
            self.report(source, line, 'typedef', '`%s` is a typedef of a struct, union or enum' % name)

    def check_variables(self, source):
        thread_local = 0
        for line, name, constant, per_thread in source.variables:
            if per_thread:
                thread_local += 1
                if thread_local > 1:
                    self.report(source, line, 'global', '`%s` is a second thread-local variable' % name)
            elif not constant and name != 'rj':
                self.report(source, line, 'global', '`%s` is a mutable variable at file scope' % name)
        for function in source.functions:
            body, k = function.body, 0
            while k < len(body):
                if body[k][0] == 'static':
                    statement = []
                    while k < len(body) and body[k][0] not in ';={':
                        statement.append(body[k][0])
                        k += 1
                    stars = [j for j, w in enumerate(statement) if w == '*']
                    if 'const' not in (statement[stars[-1]:] if stars else statement):
                        self.report(source, body[min(k, len(body) - 1)][1], 'global', '%s has a mutable static local' % function.name)
                k += 1

    def check_functions(self):
        for function in self.c.functions:
            section = self.section_at(function.first)
            function.section = section
            public = function.name.startswith('ramjet_') or function.name == 'main'
            if not function.static and not public and not SHIM.fullmatch(function.name):
                self.report(self.c, function.first, 'static', '%s is not static' % function.name)
            if section is None:
                self.report(self.c, function.first, 'prefix', '%s stands above the first section' % function.name)
            elif function.name.startswith('rj_') and section is self.sections[0]:
                pass                                    # what the assert macros of the header call
            elif not public and not SHIM.fullmatch(function.name) and not function.name.startswith(tuple(section.prefixes)):
                self.report(self.c, function.first, 'prefix', '%s stands in section %s' % (function.name, section.name))
            lines = function.last - function.first + 1
            if lines > MAX_FUNCTION:
                self.check_length(function, lines)

    def check_length(self, function, lines):
        head = ''
        for comment in self.c.comments:
            if comment.last == function.first - 1 or function.first <= comment.first <= function.first + 2:
                head += comment.text
        if self.is_flat(function):
            self.notes.append('%s:%d: note: %s has %d lines: one flat switch or table' % (self.c.name, function.first, function.name, lines))
        elif LONG_BY_COMMENT.search(re.sub(r'[\s*]+', ' ', head)):
            self.notes.append('%s:%d: note: %s has %d lines: its comment says why' % (self.c.name, function.first, function.name, lines))
        else:
            self.report(self.c, function.first, 'length', '%s has %d lines, at most %d' % (function.name, lines, MAX_FUNCTION))

    @staticmethod
    def is_flat(function):
        """One switch (or one initialised table) with at most 20 lines beside it, nested at most two blocks deep."""
        depth, start, blocks, deepest = 0, None, [], 0
        kind = None
        for k, (t, line) in enumerate(function.body):
            if t == '{':
                depth += 1
                if depth == 2 and start is None:
                    before = function.body[max(0, k - 1)][0]
                    opener = [w for w, l in function.body[max(0, k - 40):k]]
                    cut = max([j for j, w in enumerate(opener) if w in ';{}'], default=-1)
                    kind = 'switch' if 'switch' in opener[cut + 1:] else 'table' if before == '=' else None
                    start = line
                if start is not None:
                    deepest = max(deepest, depth)
            elif t == '}':
                depth -= 1
                if depth == 1 and start is not None:
                    blocks.append((line - start + 1, kind, deepest))
                    start, deepest = None, 0
            elif t == 'switch' and depth >= 2:
                return False
        if not blocks:
            return False
        size, kind, deepest = max(blocks, key=lambda b: b[0])
        total = function.last - function.first + 1
        return kind is not None and total - size <= 20 and deepest <= 4

    def check_header(self):
        for function in self.h.functions:
            if not function.static or 'inline' not in [t for t, _ in function.head]:
                self.report(self.h, function.first, 'header', '%s has a body and is not static inline' % function.name)
            elif function.last - function.body[0][1] > 0:
                self.report(self.h, function.first, 'header', '%s is not a one-line static inline' % function.name)
        for line, name, _, _ in self.h.prototypes:
            if not name.startswith('ramjet_'):
                self.report(self.h, line, 'header', '%s is a prototype outside the public interface' % name)

    # ---- calls -----------------------------------------------------------------------------------------------------------------
    def uses(self, function):
        return {t for t, _ in function.body if t in self.by_name and t != function.name}

    def check_prototypes(self):
        self.by_name = {f.name: f for f in self.c.functions}
        graph = {f.name: self.uses(f) for f in self.c.functions}
        for line, name, _, _ in self.c.prototypes:
            if SHIM.fullmatch(name):
                continue                                # the libraries call these: the compiler wants to see them declared
            target = self.by_name.get(name)
            after = next((f for f in self.c.functions if f.first > line), None)
            comment = any(c.last == line - 1 or c.first == line for c in self.c.comments)
            if target is None:
                self.report(self.c, line, 'prototype', '%s is declared and not defined' % name)
            elif not comment:
                self.report(self.c, line, 'prototype', 'the prototype of %s has no comment that says why' % name)
            elif after is None or after.name == name or name not in graph[after.name] or not self.reaches(graph, name, after.name):
                self.report(self.c, line, 'prototype', '%s and the function below its prototype are not mutually recursive' % name)

    @staticmethod
    def reaches(graph, start, goal):
        seen, todo = set(), [start]
        while todo:
            name = todo.pop()
            if goal in graph.get(name, ()):
                return True
            for callee in graph.get(name, ()):
                if callee not in seen:
                    seen.add(callee)
                    todo.append(callee)
        return False

    def check_calls(self):
        order = {}
        for k, section in enumerate(self.sections):
            for prefix in section.prefixes:
                order[prefix] = k
        owner = {}
        for function in self.c.functions + self.h.functions:
            prefix = re.match(r'[a-z][a-z0-9]*_', function.name)
            if function.section is not None:
                owner[function.name] = order[function.section.name]
            elif prefix and prefix.group() in order:
                owner[function.name] = order[prefix.group()]
        used = [dict() for _ in self.sections]
        loose = [set() for _ in self.sections]
        current = -1
        for token, line in self.c.tokens:
            while current + 1 < len(self.sections) and self.sections[current + 1].first <= line:
                current += 1
            if current < 0:
                continue
            k = owner.get(token)
            if k is not None and k != current and token not in ('main',):
                used[current].setdefault(k, (line, token))
            m = re.match(r'([A-Z][A-Z0-9]*_)', token) or re.match(r'([a-z][a-z0-9]*_)', token)
            if m and m.group(1).lower() in order:
                loose[current].add(order[m.group(1).lower()])
        # A macro defined in a section stands for calls made by that section.
        for k, section in enumerate(self.sections):
            listed = {}
            for prefix in section.calls:
                if prefix not in order:
                    self.report(self.c, section.first + 1, 'calls', '%s lists %s, which is no section' % (section.name, prefix))
                elif order[prefix] > k:
                    self.report(self.c, section.first + 1, 'calls', '%s lists %s, which stands above it' % (section.name, prefix))
                elif order[prefix] != k:
                    listed[order[prefix]] = prefix
            for other, (line, token) in sorted(used[k].items()):
                if other > k:
                    self.report(self.c, line, 'calls', '%s uses %s of a section above' % (section.name, token))
                elif other not in listed:
                    self.report(self.c, line, 'calls', '%s uses %s, and its banner does not list %s' % (section.name, token, self.sections[other].name))
            for other, prefix in sorted(listed.items()):
                if other not in used[k] and other not in loose[k] and not self.in_directives(section, prefix):
                    self.report(self.c, section.first + 1, 'calls', '%s lists %s and does not use it' % (section.name, prefix))

    def in_directives(self, section, prefix):
        text = '\n'.join(self.c.code.split('\n')[section.banner_end:section.last])
        return re.search(r'\b(%s|%s)\w' % (prefix, prefix.upper()), text) is not None

    # ---- words -----------------------------------------------------------------------------------------------------------------
    def check_words(self):
        for source in (self.c, self.h):
            tokens = source.tokens
            for k, (token, line) in enumerate(tokens):
                call = k + 1 < len(tokens) and tokens[k + 1][0] == '('
                member = k > 0 and tokens[k - 1][0] in ('.', '>')
                section = self.section_at(line) if source is self.c else None
                name = section.name if section else ''
                if re.match(r'br_[a-z0-9]', token) and not member and not (section and TLS_SECTIONS & set(section.prefixes)):
                    self.report(source, line, 'bearssl', '`%s` outside cry_, tls_ and t13_' % token)
                if not call or member:
                    continue
                if token in ALLOCATORS and name != 'mem_':
                    self.report(source, line, 'malloc', '`%s` outside mem_' % token)
                if token in EXITS and name != 'cli_':
                    self.report(source, line, 'exit', '`%s` outside cli_' % token)
                if BARE_ATOMICS.fullmatch(token):
                    self.report(source, line, 'atomic', '`%s` names no memory order; use the _explicit form' % token)


def main(argv):
    names = [a for a in argv if not a.startswith('--')]
    if len(names) not in (0, 2) or any(a not in ('--notes',) for a in argv if a.startswith('--')):
        sys.stderr.write(__doc__)
        return 2
    c_name, h_name = names or ('ramjet.c', 'ramjet.h')
    with open(c_name, encoding='utf-8') as c, open(h_name, encoding='utf-8') as h:
        lint = Lint(c.read(), h.read(), os.path.basename(c_name), os.path.basename(h_name))
    found = lint.run()
    for entry in found:
        print('%s:%d: %s: %s' % entry)
    if '--notes' in argv:
        for note in lint.notes:
            print(note)
        print('functions over %d lines: %d' % (MAX_FUNCTION, len(lint.notes)))
    return 1 if found else 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
