import assert from 'node:assert/strict';
import { evaluate } from '../../preflight/checks.ts';
import { moduleState } from '../../preflight/node.ts';
import { reportOf, worstOf } from '../../preflight/result.ts';
import { CLUSTER_CASES } from './cluster-cases.ts';
import { HEALTHY, mode, problemsOf, sysctl } from './facts.ts';
import { NODE_CASES } from './node-cases.ts';

const CASES = [...CLUSTER_CASES, ...NODE_CASES];

describe('preflight: checks', () => {
  for (const [title, changes, ...expected] of CASES) {
    it(`${title}: ${expected.length === 0 ? 'ok' : expected.map((each) => each.source.slice(1, 5)).join(', ')}`, () => {
      const lines = problemsOf(changes);
      assert.equal(lines.length, expected.length, lines.join('\n'));
      for (const [index, pattern] of expected.entries()) assert.match(lines[index] ?? '', pattern);
    });
  }

  it('a module that is not loaded may exist where /lib/modules is not readable', () => {
    const files = { loaded: ['ip_vs'], builtin: '', dep: '' };
    assert.deepEqual(
      [moduleState('ip_vs', files), moduleState('dummy', files)],
      ['loaded', 'unknown'],
    );
    const unknown = { value: new Map([['dummy', 'unknown']] as const) };
    const lines = problemsOf({
      ...mode('ipvs'),
      ...sysctl('net.ipv4.vs.conntrack', '1'),
      modules: unknown,
    });
    assert.match(lines.join('\n'), /^warn IPVS modules dummy unknown -> modprobe -a dummy;[^\n]*$/);
  });

  it('every line that is not ok says what to do', () => {
    for (const [title, changes] of CASES) {
      for (const { status, action } of evaluate({ ...HEALTHY, ...changes })) {
        assert.equal(action === '', status === 'ok', title);
      }
    }
  });

  it('the report has the worst status and all checks', () => {
    const results = evaluate({ ...HEALTHY, hasNetAdmin: false });
    assert.deepEqual(reportOf(results), { status: 'fail', checks: results });
    assert.equal(worstOf(evaluate(HEALTHY)), 'ok');
    assert.equal(worstOf(evaluate({ ...HEALTHY, lockProblem: 'EROFS' })), 'warn');
  });

  it('finds modules by name, in files with dashes, and in the kernel itself', () => {
    const files = {
      loaded: ['ip_vs'],
      builtin: 'kernel/net/netfilter/ipset/ip_set.ko\n',
      dep: 'kernel/net/netfilter/ipvs/ip-vs-rr.ko.xz: a\nkernel/ip_vs_sh.ko.zst:\n',
    };
    assert.deepEqual(
      ['ip_vs', 'ip_set', 'ip_vs_rr', 'ip_vs_sh', 'ip_vs_mh', 'vs'].map((name) =>
        moduleState(name, files),
      ),
      ['loaded', 'loaded', 'available', 'available', 'missing', 'missing'],
    );
  });
});
