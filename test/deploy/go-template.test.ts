import assert from 'node:assert/strict';
import { isTrue } from './go-expression.ts';
import { Templates } from './go-template.ts';

const FUNCTIONS = {
  default: (fallback: unknown, value: unknown) => (isTrue(value) ? value : fallback),
  join: (...items: readonly unknown[]) => items.join('+'),
};

function render(source: string, dot: unknown = {}): string {
  const templates = new Templates(FUNCTIONS);
  templates.add('main', source);
  return templates.run('main', dot);
}

// Go's text/template has the same results.
describe('go-template', () => {
  const cases: readonly [string, unknown, string][] = [
    ['a {{ .b.c }} d', { b: { c: 'x' } }, 'a x d'],
    ['a \n{{- .n }} d', { n: 3 }, 'a3 d'],
    ['a {{ .n -}} \n d', { n: 3 }, 'a 3d'],
    ['a {{- /* {{ .n }} */ -}} b{{/* c */}}', {}, 'ab'],
    ['{{ "a\\n\\"b\\"" }}{{ join 1 -2 "c" }}', {}, 'a\n"b"1+-2+c'],
    ['{{ .a | default "x" | join "y" }}', { a: '' }, 'y+x'],
    ['{{ join (default "x" .a) .b }}', { b: 'z' }, 'x+z'],
    ['{{ if .a }}1{{ else if .b }}2{{ else }}3{{ end }}', { b: [0] }, '2'],
    ['{{ if .a }}1{{ else if .b }}2{{ else }}3{{ end }}', { a: {}, b: [] }, '3'],
    ['{{ range .a }}[{{ . }}{{ $.s }}]{{ end }}', { a: [1, 2], s: '!' }, '[1!][2!]'],
    ['{{ range $k, $v := .a }}{{ $k }}{{ $v }}{{ end }}', { a: { z: 1, b: 2 } }, 'b2z1'],
    ['{{ range $v := .a }}{{ $v }}{{ end }}', { a: ['x'] }, 'x'],
    ['{{ range .none }}a{{ end }}', {}, ''],
    ['{{ $x := 1 }}{{ if true }}{{ $x = 2 }}{{ end }}{{ $x }}', {}, '2'],
    ['{{ $x := 1 }}{{ if true }}{{ $x := 2 }}{{ end }}{{ $x }}', {}, '1'],
    ['{{ define "f" }}<{{ .a }}>{{ end }}{{ include "f" . | join "i" }}', { a: 'b' }, 'i+<b>'],
    ['{{ if and .a .a.b }}1{{ end }}{{ or "" .c "d" }}', { c: 'c' }, 'c'],
    ['{{ .f.get "a" }}', { f: { get: (text: string) => `got ${text}` } }, 'got a'],
  ];
  for (const [source, dot, expected] of cases) {
    it(`renders ${JSON.stringify(source)} as ${JSON.stringify(expected)}`, () => {
      assert.equal(render(source, dot), expected);
    });
  }

  const faults: readonly [string, RegExp][] = [
    ['{{ with .a }}{{ end }}', /unsupported function with/],
    ['{{ block "a" . }}{{ end }}', /unsupported function block/],
    ['{{ tpl "a" . }}', /unsupported function tpl/],
    ['{{ (.a).b }}', /unsupported action/],
    ['{{ `raw` }}', /unsupported action/],
    ['{{ join .a join }}', /unsupported operand: join/],
    ['{{ join (.a }}', /a parenthesis has no end/],
    ['{{ .a.b.c }}', /of undefined/],
    ['{{ .a }}', /printed undefined/],
    ['{{ . }}', /printed \[object/],
    ['{{ $x }}', /undefined variable \$x/],
    ['{{ include "none" . }}', /no template none/],
    ['{{ if .a }}', /a block has no end/],
    ['{{ end }}', /end without a block/],
    ['{{ range .a }}{{ else }}{{ end }}', /else outside if/],
    ['{{ "a" .b }}', /a value cannot have arguments/],
    ['{{ range "text" }}{{ end }}', /range over text/],
  ];
  for (const [source, message] of faults) {
    it(`fails for ${source}`, () => {
      assert.throws(() => render(source), message);
    });
  }
});
