import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import fc from 'fast-check';
import { parse } from 'yaml';
import { formatVariables, isShellName } from '../../envvars/format.ts';
import type { EnvVar } from '../../envvars/variables.ts';

const SHELLS = ['sh', 'bash'];
const EVALUATE = 'eval "$1"; exec /usr/bin/env -0';

/** The exported variables after a shell with an empty environment evaluates the text. */
function exported(shell: string, text: string): Record<string, string> {
  const output = execFileSync('/usr/bin/env', ['-i', `/bin/${shell}`, '-euc', EVALUATE, 'x', text]);
  const entries = output.toString().split('\0').slice(0, -1);
  return Object.fromEntries(
    entries.map((entry) => {
      const at = entry.indexOf('=');
      return [entry.slice(0, at), entry.slice(at + 1)];
    }),
  );
}

const json = (variables: readonly EnvVar[]) =>
  JSON.parse(formatVariables(variables, 'json')) as Record<string, string>;

const ONE: readonly EnvVar[] = [
  { name: 'SIP_SERVICE_HOST', value: 'fd00:10:96::a' },
  { name: 'SIP_SERVICE_PORT', value: '5060' },
];

describe('format: formatVariables', () => {
  it('prints export lines for a shell', () => {
    assert.equal(
      formatVariables(ONE, 'shell'),
      "export SIP_SERVICE_HOST='fd00:10:96::a';\nexport SIP_SERVICE_PORT='5060';\n",
    );
  });

  it('prints a JSON object', () => {
    assert.equal(
      formatVariables(ONE, 'json'),
      '{\n  "SIP_SERVICE_HOST": "fd00:10:96::a",\n  "SIP_SERVICE_PORT": "5060"\n}\n',
    );
  });

  it('prints the env field of a container', () => {
    assert.equal(
      formatVariables(ONE, 'k8s'),
      'env:\n  - name: SIP_SERVICE_HOST\n    value: "fd00:10:96::a"\n' +
        '  - name: SIP_SERVICE_PORT\n    value: "5060"\n',
    );
  });

  it('prints an empty value of each format without variables', () => {
    assert.equal(formatVariables([], 'shell'), '');
    assert.equal(formatVariables([], 'json'), '{}\n');
    assert.equal(formatVariables([], 'k8s'), 'env: []\n');
  });

  it('quotes values so that YAML 1.1 and 1.2 read them as strings', () => {
    const variables = ['80', '1:2:3:4:5:6:7:8', '0x10', '1e3', 'no', '~', ''].map(
      (value, index) => ({ name: `A${index}_SERVICE_PORT`, value }),
    );
    const text = formatVariables(variables, 'k8s');
    for (const version of ['1.1', '1.2'] as const) {
      assert.deepEqual(parse(text, { version }), { env: variables });
    }
  });

  for (const shell of SHELLS) {
    describe(`evaluated by ${shell}`, () => {
      let own: Record<string, string>;
      before(() => {
        own = exported(shell, '');
      });

      it('sets the same values as the JSON', () => {
        assert.deepEqual(exported(shell, formatVariables(ONE, 'shell')), { ...own, ...json(ONE) });
      });

      it('sets the same values from one line, as with an unquoted command substitution', () => {
        const text = formatVariables(ONE, 'shell').replaceAll('\n', ' ');
        assert.deepEqual(exported(shell, text), { ...own, ...json(ONE) });
      });

      it('omits a name that starts with a digit, at which a shell would exit', () => {
        const variables = [{ name: '3COM_SERVICE_HOST', value: '10.0.0.1' }, ...ONE];
        const text = formatVariables(variables, 'shell');
        assert.deepEqual(exported(shell, text), { ...own, ...json(ONE) });
        assert.equal(json(variables)['3COM_SERVICE_HOST'], '10.0.0.1');
      });

      it('sets the same values as the JSON for any name and value', () => {
        const name = fc
          .stringMatching(/^[A-Z_][A-Z0-9_]{0,20}$/)
          .map((prefix) => `${prefix}_SERVICE_HOST`);
        const value = fc.oneof(
          fc.string({ unit: 'binary' }),
          fc.string({ unit: fc.constantFrom(...'\'"\\$`;&|*?~#!(){}[]<>= \t\n\r', 'a', '$(id)') }),
        );
        const variables = fc.uniqueArray(
          fc.record({ name, value: value.filter((text) => !text.includes('\0')) }),
          { selector: (each) => each.name, maxLength: 20 },
        );
        fc.assert(
          fc.property(variables, (drawn) => {
            const seen = exported(shell, formatVariables(drawn, 'shell'));
            assert.deepEqual(seen, { ...own, ...json(drawn) });
          }),
          { seed: 1, numRuns: 50 },
        );
      });
    });
  }

  it('isShellName accepts the names that a shell accepts', () => {
    for (const name of ['A', '_1', 'SIP_SERVICE_HOST', '_3COM_SERVICE_HOST']) {
      assert.ok(isShellName(name), name);
      execFileSync('/bin/sh', ['-euc', `export ${name}='x'`]);
    }
    for (const name of ['', '3COM_SERVICE_HOST', 'A-B', 'A.B', 'A\n']) {
      assert.ok(!isShellName(name), name);
    }
    const refused = () => execFileSync('/bin/sh', ['-euc', "export 3COM='x'"], { stdio: 'pipe' });
    assert.throws(refused, /bad variable name|not a valid identifier/);
  });
});
