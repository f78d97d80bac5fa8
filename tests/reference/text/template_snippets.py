"""One construct of the template language each; rendered with CONTEXT."""

CONTEXT = {
    "name": "w\u00f6rld", "text": "  a b  c\n d ", "n": 7, "neg": -3, "f": 2.5, "big": 1e20, "small": 1.5e-7, "t": True, "no": None,
    "xs": [3, 1, 2, 1], "words": ["Beta", "alpha", "Gamma", "beta"], "empty": [], "s": "abcdef", "u": "\u00e4\u4e2d\U0001f600z",
    "d": {"b": 1, "a": [1, "two", None], "items": "own", "C": {"x": 1.0}}, "quotes": "it's \"q\" \\ \n\t\u00e9\u0007\u200b",
    "people": [{"name": "Ann", "age": 30, "tags": ["x"]}, {"name": "bob", "age": 25}, {"name": "Cy", "age": 30, "ok": True}],
    "html": "<a href='x'>&\"</a>", "nested": [[1, 2], [3, [4]]], "zero": 0,
}

SNIPPETS = r"""
Hello {{ name }}!
{{ t }} {{ no }} {{ n }} {{ f }} {{ big }} {{ small }} {{ 1.0 }} {{ 100.0 }} {{ 1e16 }} {{ 123456789.123 }} {{ 0.1 + 0.2 }} {{ -0.0 }}
{{ xs }} {{ d }} {{ nested }} {{ (1, "a") }} {{ (1,) }} {{ () }} {{ {} }} {{ [] }} {{ people }}
{{ quotes }} {{ [quotes] }} {{ ["it's"] }} {{ ['"'] }} {{ ["\"'"] }}
{{ undefined_name }}|{{ undefined_name is defined }}|{{ d.missing }}|{{ d['missing'] is undefined }}|{{ xs[99] }}
{{ d.b }} {{ d['a'] }} {{ d.a[1] }} {{ d['items'] }} {{ d.C.x }} {{ xs[0] }} {{ xs[-1] }} {{ xs.0 }} {{ nested.1.0 }}
{{ s[0] }} {{ s[-1] }} {{ s[1:3] }} {{ s[::-1] }} {{ s[::2] }} {{ s[-2:] }} {{ s[:-2] }} {{ s[5:1:-2] }} {{ s[10:] }}| {{ s[:100] }}
{{ u[0] }} {{ u[2] }} {{ u[::-1] }} {{ u[1:3] }} {{ u|length }} {{ u|list }}
{{ xs[1:] }} {{ xs[::-1] }} {{ xs[:2] }} {{ xs[-1:] }} {{ xs[::-2] }} {{ (1,2,3)[1:] }} {{ xs[2:0:-1] }} {{ xs[none:2] }}
{{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 7 / 2 }} {{ 4 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ 2 ** 0.5 }}
{{ 1 + 2 * 3 - 4 }} {{ (1 + 2) * 3 }} {{ -n + 1 }} {{ +n }} {{ 'a' * 3 }} {{ 3 * 'ab' }} {{ [1] * 2 }} {{ [1] + [2] }} {{ true + 1 }} {{ - 2 ** 2 }}
{{ 'a' ~ 1 ~ none ~ true ~ 1.5 ~ [1] }} {{ 'x' + 'y' }} {{ 1 ~ 2 }}
{{ 1 < 2 }} {{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 'a' < 'b' }} {{ [1,2] < [1,3] }} {{ 1 == 1.0 }} {{ 1 == true }} {{ 'a' == 'a' }} {{ none == none }} {{ 1 != 2 }} {{ 2 >= 2 > 1 }} {{ [1] == [1] }} {{ {'a': 1} == {'a': 1.0} }} {{ (1,) == [1] }} {{ 1 == '1' }}
{{ 'b' in s }} {{ 'z' not in s }} {{ 1 in xs }} {{ 'b' in d }} {{ 5 not in xs }} {{ 'x' in undefined_name }} {{ not 1 in xs }} {{ '' in s }} {{ none in [none] }}
{{ t and n }} {{ no or 'x' }} {{ not t }} {{ 0 or [] or 'end' }} {{ 1 and 2 and 0 }} {{ not not t }} {{ no and x.y.z }} {{ (no or n) > 3 }}
{{ 'yes' if t else 'no' }} {{ 'yes' if no }}| {{ 1 if no else 2 if no else 3 }} {{ (1 if t else 2) + 1 }} {{ ('a' if t else 'b') ~ 'c' }}
{{ 'con' 'cat' "ed" }} {{ "esc \n \t \\ \" \' \x41 \u00e9 \U0001F600 \101 \q" }} {{ 'a\
b' }}
{{ 0x1F }} {{ 0b101 }} {{ 0o17 }} {{ 1_000 }} {{ 1_0.5_0 }} {{ 1e3 }} {{ 1.5E-3 }} {{ True }} {{ False }} {{ None }}
{{ text|trim }}| {{ text|trim(' a') }}| {{ 'xxaxx'|trim('x') }} {{ 5|trim }}
{{ words|length }} {{ words|count }} {{ 'abc'|length }} {{ d|length }} {{ undefined_name|length }} {{ d.items()|length }}
{{ words|join(', ') }} {{ words|join }} {{ xs|join('-') }} {{ people|join('+', attribute='name') }} {{ 'abc'|join('.') }} {{ d|join(',') }} {{ []|join }}
{{ words|first }} {{ words|last }} {{ empty|first }}| {{ empty|last is undefined }} {{ 'abc'|first }} {{ 'abc'|last }} {{ d|first }} {{ (xs|map('string')|list)|last }}
{{ name|upper }} {{ 'ABC \u00c4\u03a3'|lower }} {{ 'hello wOrld-foo (bar) it\'s'|title }} {{ 'hELLO World'|capitalize }} {{ 'stra\u00dfe'|upper }} {{ '\u039f\u0394\u039f\u03a3'|lower }}
{{ 'hello wOrld it\'s 3rd'.title() }} {{ 'hELLO'.capitalize() }} {{ 'aBc'.upper() }} {{ 'aBc'.lower() }} {{ 'aBc'.swapcase() }} {{ '\ufb01x'.upper() }}
{{ xs|sort }} {{ words|sort }} {{ words|sort(case_sensitive=true) }} {{ xs|sort(reverse=true) }} {{ people|sort(attribute='age')|map(attribute='name')|list }} {{ people|sort(attribute='age,name', reverse=true)|map(attribute='name')|list }}
{{ xs|unique|list }} {{ words|unique|list }} {{ words|unique(case_sensitive=true)|list }} {{ people|unique(attribute='age')|map(attribute='name')|join }}
{{ xs|reverse|list }} {{ 'abc'|reverse }} {{ xs|min }} {{ xs|max }} {{ words|min }} {{ people|max(attribute='age') }} {{ xs|sum }} {{ people|sum(attribute='age') }} {{ xs|sum(start=10) }} {{ [0.5, 1]|sum }}
{{ people|map(attribute='name')|list }} {{ people|map(attribute='ok', default='-')|list }} {{ words|map('upper')|list }} {{ words|map('replace', 'a', 'X')|join(' ') }} {{ people|map(attribute='tags.0', default='none')|list }} {{ xs|map('string')|join(',') }}
{{ people|selectattr('age', 'equalto', 30)|map(attribute='name')|list }} {{ people|rejectattr('age', 'gt', 26)|map(attribute='name')|list }} {{ people|selectattr('ok')|list|length }} {{ people|selectattr('tags', 'defined')|list|length }} {{ people|selectattr('name', 'in', ['Ann', 'Cy'])|map(attribute='age')|list }}
{{ xs|select('odd')|list }} {{ xs|reject('eq', 1)|list }} {{ [0, 1, '', 'a', none]|select|list }} {{ [0, 1, '']|reject|list }} {{ xs|select('>', 1)|list }} {{ xs|select('divisibleby', 2)|list }} {{ ['a', 1]|select('string')|list }}
{{ undefined_name|default('fallback') }} {{ no|default('x') }} {{ no|default('x', true) }} {{ ''|d('e', boolean=true) }} {{ undefined_name|default }}| {{ 0|default(5) }}
{{ 'aaa'|replace('a', 'b') }} {{ 'aaa'|replace('a', 'b', 2) }} {{ 'abc'|replace('', '-') }} {{ 'a.b'|replace('.', '') }} {{ 5|replace('5', 'x') }}
{{ d|tojson }} {{ people|tojson }} {{ quotes|tojson }} {{ html|tojson }} {{ u|tojson }} {{ [1.0, 1e22, 1.5e-7, true, none, [], {}]|tojson }} {{ 'x'|tojson }}
{{ d|tojson(indent=2) }}
{{ people|tojson(indent=4) }} {{ []|tojson(indent=2) }} {{ {}|tojson(indent=2) }} {{ {'a': {}}|tojson(indent=1) }} {{ [1]|tojson(indent=0) }}
{{ d|tojson(sort_keys=true) }} {{ u|tojson(ensure_ascii=true) }} {{ xs|tojson(separators=(',', ':')) }} {{ {1: 2, none: 3, true: 4}|tojson }} {{ (1, 2)|tojson }} {{ quotes|tojson(true) }}
{{ d.items()|list }} {{ d.keys()|list }} {{ d.values()|list }} {{ d.get('b') }} {{ d.get('q') }} {{ d.get('q', 'def') }} {{ d|items|list }} {{ d.items() }} {{ d.keys() }} {{ d.values() }}
{{ d|dictsort }} {{ d|dictsort(true) }} {{ {'x': 2, 'y': 1}|dictsort(by='value') }} {{ {'x': 2, 'y': 1}|dictsort(false, 'value', true) }} {{ d|list }}
{{ '42'|int }} {{ '42.9'|int }} {{ 'x'|int }} {{ 'x'|int(-1) }} {{ 3.99|int }} {{ -3.99|int }} {{ 'ff'|int(0, 16) }} {{ '0x1f'|int(base=16) }} {{ true|int }} {{ none|int }} {{ ' 7 '|int }} {{ '1_000'|int }}
{{ '2.5'|float }} {{ 3|float }} {{ 'x'|float }} {{ 'x'|float(1.5) }} {{ '1e3'|float }} {{ none|float }} {{ true|float }}
{{ 2.567|round }} {{ 2.567|round(2) }} {{ 2.5|round }} {{ 3.5|round }} {{ 2.1|round(0, 'ceil') }} {{ 2.9|round(method='floor') }} {{ 2.675|round(2) }} {{ 7|round }} {{ 1234.5|round(-2) }} {{ 2.345|round(1, 'floor') }}
{{ neg|abs }} {{ -2.5|abs }} {{ (-5)|abs }} {{ 5|string + 'x' }} {{ xs|string }} {{ none|string }} {{ html|e }} {{ html|escape|length }} {{ html|safe }}
{{ 'a\nb\n\nc'|indent }}|{{ 'a\nb'|indent(2, true) }}|{{ 'a\n\nb'|indent(2, blank=true) }}|{{ 'a\nb\n'|indent(width='> ') }}|{{ 'a'|indent(first=true) }}
{{ xs|batch(2)|list }} {{ xs|batch(3, 0)|list }} {{ 'the quick  fox'|wordcount }} {{ people|groupby('age')|list|length }} {% for age, group in people|groupby('age') %}{{ age }}:{{ group|map(attribute='name')|join(',') }};{% endfor %}
{{ '%s and %d, %05.2f %x %r %%'|format('a', 5, 2.345, 255, 'q') }} {{ '%s' % 'x' }} {{ '%s-%s' % (1, 2) }} {{ '%(a)s' % {'a': 1} }} {{ '%5s|%-5s|%+d|%05d|%.3s' % ('a', 'b', 3, 42, 'abcdef') }} {{ '%e %g %G' % (12345.678, 0.0001, 1e10) }}
{{ '{} {}'.format(1, 'a') }} {{ '{1}{0}'.format('a', 'b') }} {{ '{x}-{y}'.format(x=1, y=[2]) }} {{ '{:>5}|{:<5}|{:^5}|{:05d}|{:.2f}|{:,}|{:x}|{:*^7}'.format('a', 'b', 'c', 42, 2.345, 1234567, 255, 'mid') }} {{ '{{}} {!r}'.format('q') }} {{ '{0[a]} {0.b}'.format({'a': 1, 'b': 2}) }} {{ '{:+.1e} {:%} {:5.1f}|{}'.format(1234.5, 0.25, 2.25, 1.0) }}
{{ text.strip() }}| {{ text.lstrip() }}| {{ text.rstrip() }}| {{ 'xxaxx'.strip('x') }} {{ 'abcba'.lstrip('ab') }} {{ 'abcba'.rstrip('ab') }} {{ '\u3000a\u00a0'.strip() }} {{ '\u00e9a\u00e9'.strip('\u00e9') }}
{{ 'a,b,,c'.split(',') }} {{ text.split() }} {{ 'a b c'.split(' ', 1) }} {{ 'a b c d'.rsplit(' ', 1) }} {{ 'abc'.split('x') }} {{ ''.split() }} {{ ''.split(',') }} {{ '  a  b  c '.split(none, 1) }} {{ '  a  b  c '.rsplit(maxsplit=1) }} {{ 'a--b--c'.rsplit('--') }}
{{ s.startswith('ab') }} {{ s.endswith('ef') }} {{ s.startswith(('x', 'a')) }} {{ s.endswith(('x', 'y')) }} {{ s.startswith('cd', 2) }} {{ s.startswith('') }}
{{ s.replace('b', 'X') }} {{ 'aaa'.replace('a', 'b', 1) }} {{ s.find('d') }} {{ s.find('q') }} {{ u.find('z') }} {{ 'abab'.rfind('b') }} {{ 'abab'.count('ab') }} {{ s.index('c') }} {{ ','.join(['a', 'b']) }} {{ 'abab'.find('b', 2) }}
{{ 'a\nb\r\nc'.splitlines() }} {{ 'pre-x'.removeprefix('pre-') }} {{ 'x.txt'.removesuffix('.txt') }} {{ 'a=b=c'.partition('=') }} {{ 'a=b=c'.rpartition('=') }} {{ 'ab'.partition('-') }} {{ 'x'.center(5) }}| {{ 'xy'.center(5, '*') }} {{ 'x'.ljust(3) }}| {{ 'x'.rjust(3) }} {{ '-5'.zfill(4) }}
{{ '123'.isdigit() }} {{ 'abc'.isalpha() }} {{ 'a1'.isalnum() }} {{ ' '.isspace() }} {{ 'AB'.isupper() }} {{ 'ab1'.islower() }} {{ ''.isdigit() }} {{ '\u00e9'.isalpha() }} {{ '\u00b2'.isdigit() }} {{ '\u00bd'.isnumeric() }} {{ 'a'.isascii() }}
{{ xs.index(2) }} {{ xs.count(1) }} {{ (1, 2).index(2) }} {{ d.copy() == d }} {{ xs.copy() }}
{{ n is number }} {{ f is number }} {{ t is number }} {{ n is integer }} {{ t is integer }} {{ f is float }} {{ s is string }} {{ d is mapping }} {{ xs is sequence }} {{ d is sequence }} {{ s is sequence }} {{ n is iterable }} {{ s is iterable }} {{ no is none }} {{ t is true }} {{ t is boolean }} {{ zero is false }} {{ n is odd }} {{ n is even }} {{ n is divisibleby 7 }} {{ n is divisibleby(2) }}
{{ n is eq 7 }} {{ n is equalto(7) }} {{ n is gt 3 }} {{ n is lt(3) }} {{ n is ne 7 }} {{ 1 is in xs }} {{ 'a' is in 'abc' }} {{ n is not none }} {{ n is not string }} {{ s is lower }} {{ s is upper }} {{ d.get is callable }} {{ n is sameas n }} {{ 'upper' is filter }} {{ 'nope' is filter }} {{ 'defined' is test }} {{ not n is none }} {{ n is defined and n > 3 }} {{ undefined_name is iterable }} {{ undefined_name is none }}
{% for x in xs %}{{ loop.index }}/{{ loop.length }}:{{ x }}{% if not loop.last %}, {% endif %}{% endfor %}
{% for x in xs %}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle('a', 'b') }}{{ loop.depth }}{{ loop.changed(x) }} {% endfor %}
{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %} {% for k in d %}{{ k }}{% endfor %} {% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %} {% for c in 'h\u00e9' %}[{{ c }}]{% endfor %}
{% for x in empty %}never{% else %}nothing{% endfor %} {% for x in undefined_name %}never{% else %}undef{% endfor %} {% for x in xs if x > 5 %}never{% else %}none{% endfor %}
{% for x in xs if x != 1 %}{{ loop.index }}:{{ x }}{{ '' if loop.last else ',' }}{% endfor %} {% for x in xs if x is odd %}{{ loop.length }}{{ loop.revindex }} {% endfor %} {% for x in xs if x == 1 %}{{ loop.previtem }}|{{ loop.nextitem }};{% endfor %}
{% for x in xs %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %} {% for x in xs %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %} {% for x in xs %}{% for y in xs %}{% if y == 1 %}{% break %}{% endif %}{{ x }}{{ y }} {% endfor %}{% endfor %}
{% for row in nested %}{% set outer = loop %}{% for x in row %}{{ outer.index }}.{{ loop.index }} {% endfor %}{% endfor %}
{% set x = 1 %}{% for i in xs %}{% set x = x + 1 %}{{ x }}{% endfor %}{{ x }} {% if t %}{% set x = 9 %}{% endif %}{{ x }} {% set a, b = 1, 2 %}{{ a }}{{ b }} {% set (a, b) = (b, a) %}{{ a }}{{ b }} {% set z = 1, 2 %}{{ z }}
{% set ns = namespace(n=0, found=false) %}{% for i in xs %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }} {{ ns.missing }}| {% set ns.late = 'x' %}{{ ns.late }} {{ ns['n'] }} {% set m = namespace({'k': 1}, j=2) %}{{ m.k }}{{ m.j }} {{ ns is mapping }}
{% set ns = namespace(stop=false) %}{% for i in xs if not ns.stop %}{{ i }}{% if i == 1 %}{% set ns.stop = true %}{% endif %}{% endfor %}
{% set block %}in {{ n }}{% set inner = 1 %}{% endset %}{{ block }}{{ inner }} {% set block | upper | trim %}  abc {% endset %}{{ block }}|{% set ns = namespace() %}{% set ns.b %}x{% endset %}{{ ns.b }}
{% macro m(a, b=2, c=a) %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(b=5, a=4) }}{{ m('x', c='y') }}{{ m() }}{{ m(1)|length }}{{ m(1) ~ 'z' }}
{% macro outer() %}{% macro inner(x) %}<{{ x }}>{% endmacro %}{{ inner(1) }}{{ inner(2) }}{% endmacro %}{{ outer() }} {% macro rec(k) %}{{ k }}{% if k > 0 %}{{ rec(k - 1) }}{% endif %}{% endmacro %}{{ rec(5) }}
{% macro v() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ v(1, 2, x=3) }} {% macro w(a) %}{{ a }}{{ varargs|join('+') }}{% endmacro %}{{ w(1, 2, 3) }} {% set args = [1, 2] %}{{ w(*args) }} {% macro q(a, b) %}{{ a }}{{ b }}{% endmacro %}{{ q(**{'a': 1, 'b': 2}) }}
{% macro wrap() %}<b>{{ caller() }}</b>{% endmacro %}{% call wrap() %}text {{ n }}{% endcall %} {% macro each(items) %}{% for i in items %}{{ caller(i, loop.index) }}{% endfor %}{% endmacro %}{% call(i, k) each(xs) %}({{ i }}:{{ k }}){% endcall %}
{% set g = 1 %}{% macro reads() %}{{ g }}{% endmacro %}{{ reads() }}{% set g = 2 %}{{ reads() }}{% macro sets() %}{% set g = 7 %}{{ g }}{% endmacro %}{{ sets() }}{{ g }}
{% with a = 1, b = n %}{{ a }}{{ b }}{% set a = 5 %}{{ a }}{% endwith %}{{ a }} {% filter upper %}abc {{ name }}{% endfilter %} {% filter replace('a', 'b')|upper %}aa{% endfilter %}
{% if n > 5 and n < 10 %}in{% elif n == 10 %}ten{% else %}out{% endif %} {% if not empty %}empty{% endif %} {% if d %}d{% endif %} {% if '' %}{% else %}blank{% endif %} {% if undefined_name %}u{% endif %}
{# a comment {{ n }} {% if %} #}after {#- strips -#}  end
  {% if t %}
  line
  {% endif %}
last
  {%+ if t %}keep{%+ endif %}
x{%- if t -%}   y   {%- endif -%}  z
  {{- ' a ' -}}  b {{+ n }}
{% if t +%}
newline kept{% endif %}
{%- raw %}{{ not rendered }} {% if %}{# #}{% endraw -%}   tail {% raw -%}   x   {%- endraw %}
text
{% for x in xs -%}
  {{ x }}
{%- endfor %}

{% for x in xs %}
  - {{ x }}
{% endfor %}
end
{{ range(5)|list }} {{ range(2, 5)|list }} {{ range(5, 0, -2)|list }} {% for i in range(3) %}{{ i }}{% endfor %} {{ dict(a=1, b=2) }} {{ dict([('k', 1)]) }} {{ dict({'a': 1}, b=2) }} {{ range(0)|list }}
{{ {'a': 1, 'a': 2} }} {{ {1: 'x', 'y': [1, {'z': none}]} }} {{ [1, 2,] }} {{ {'a': 1,} }} {{ {'k': 1}['k'] }} {{ {1: 'one'}[1] }} {{ {'a': 1}.a }}
{{ xs|length > 3 }} {{ xs|length - 1 }} {{ (xs|length) * 2 }} {{ xs|map('int')|sum + 1 }} {{ not xs|length }} {{ 'a' in words|map('first')|list }} {{ words[0]|lower ~ '!' }}
{{ people|map(attribute='name')|map('upper')|join(' ') }} {{ people[0]['name'][0] }} {{ people[-1].name.upper()[:1] }} {{ (people|first).name }} {{ people|length == 3 and people[0].age is divisibleby 3 }}
{{ xs|select('gt', 1)|first }} {{ 'sel' if xs|select('gt', 100) else 'none' }} {{ 'sel' if xs|select('gt', 100)|list else 'none' }} {% set g = xs|map('string') %}{{ g|list }}{{ g|list }}
{{ "{{" }} {{ '}}' }} {{ "{%" }} {{ '%}' }} {{ {'a': {'b': 1}} }} {{ {'a': {'b': 1}}}} {{ '#}' }}
{% set x %}{% endset %}[{{ x }}] {{ ''|length }} {{ [[]]|length }} {{ [none]|first }} {{ '' ~ '' }}|
{{ strftime_now is defined }} {{ raise_exception is defined }} {{ namespace is callable }} {{ loop is defined }} {{ messages is defined }}
{{ undefined_name.attr }}
{{ d.missing.more }}
{{ undefined_name + 1 }}
{{ undefined_name() }}
{{ d.missing() }}
{{ 'a' + 1 }}
{{ 1 + 'a' }}
{{ 1 < 'a' }}
{{ none < 1 }}
{{ 1 / 0 }}
{{ 1 % 0 }}
{{ xs.append(4) }}
{{ d.update({'x': 1}) }}
{{ d.pop('b') }}
{{ ''.__class__.__mro__ }}
{{ 5|join(',') }}
{{ none|length }}
{% if t %}{{ 5|nosuchfilter }}{% endif %}
{% if t %}{{ 5 is nosuchtest }}{% endif %}
{{ undefined_name|tojson }}
{{ raise_exception('custom: ' ~ n) }}
{% for x in 5 %}{% endfor %}
{% for x in none %}{% endfor %}
{% for a, b in xs %}{% endfor %}
{% set d.x = 1 %}
{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}
{% macro m(a) %}{% endmacro %}{{ m(z=2) }}
{{ range(200000)|list }}
{{ 'x'.split('') }}
{{ ','.join([1]) }}
{{ 's'.index('q') }}
{{ xs|sort(attribute='x') }}
{{ [1, 'a']|sort }}
{{ '%d' % 'a' }}
{{ '%s' % (1, 2) }}
{{ '{}'.format() }}
{{ xs['a':] }}
{{ s[::0] }}
{{ 'a' in 5 }}
{{ 1 in 'abc' }}
{{ {[]: 1} }}
{{ -'a' }}
{{ 'abc'|round }}
{{ 5|items|list }}
{{ people|map('nosuch')|list }}
{{ [1]|map|list }}
{{
{{ 1 + }}
{{ (1 }}
{{ [1, 2 }}
{{ 'unclosed }}
{{ 1 2 }}
{{ a b }}
{% if %}{% endif %}
{% if x %}
{% endif %}
{% for x xs %}{% endfor %}
{% nosuchtag %}
{% set = 1 %}
{% set true = 1 %}
{% break %}
{# unclosed
{{ a.b. }}
{{ a| }}
{{ x is }}
{{ f(a=1, 2) }}
{{ f(**a, *b) }}
{{ ] }}
{{ $ }}
{% macro m(a=1, b) %}{% endmacro %}
{{ 1 is odd is even }}
{% endfor %}
{% else %}
{% for x in xs %}{% if t %}{% endfor %}{% endif %}
"""


def snippets():
    """Lines; a line that is continued belongs to the one before, see `group`."""
    return group(SNIPPETS.strip("\n").split("\n"))


# Snippets of several lines, by their first line and how many lines they have.
LONG = {"{{ 'con' 'cat'": 2, "  {% if t %}": 4, "x{%- if t -%}": 2, "{% if t +%}": 2, "text": 4, "{% for x in xs %}": 4,
        "{% if x %}": 1}


def group(lines):
    result, i = [], 0
    while i < len(lines):
        count = next((n for start, n in LONG.items() if lines[i].startswith(start) and
                      (start != "text" or lines[i] == "text") and
                      (start != "{% for x in xs %}" or lines[i] == start)), 1)
        if lines[i]:
            result.append("\n".join(lines[i:i + count]))
        i += count
    return result


EXTRA = [
    "", "\n", "a\n", "a\n\n", "a\r\nb\rc\n", "{{ n }}\n", "{{ n }}\n\n", "{% if t %}\nx\n{% endif %}\n", "  {# c #}\n  x",
    "\t{% if t %}\t\n\tx{% endif %}", "a {% if t %}\nb{% endif %}", "{% if t %}{% endif %}\n\n\nx", "x {{- n -}} y\n\n{%- if t %} z{% endif %}",
    "{{ n -}}\n\n  a", "a\n  {{- n }}", "a\n  {{ n }}", "a  {%- set b = 1 %}\n  c", "{%- for x in xs -%}\n  {{ x }},\n{%- endfor -%}\n",
    "\u3000{%- if t -%}\u00a0x{% endif %}", "{# a #}\n{# b #}\nc", "{#- a -#}\n\n{#- b +#}\nc", "{% raw %}\n  {{ x }}\n{% endraw %}\ny",
    "  {% raw %} a {% endraw %}", "{{ 'a\nb' }}", "{{ {\n'a': 1\n} }}", "{% set x = [\n  1,\n  2\n] %}\n{{ x }}",
]
