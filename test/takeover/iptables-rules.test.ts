import assert from 'node:assert/strict';
import { cleanupInput } from '../../takeover/iptables-rules.ts';

describe('iptables-rules: input for iptables-restore', () => {
  const saved = [
    '*nat',
    ':PREROUTING ACCEPT [0:0]',
    ':KUBE-SERVICES - [0:0]',
    ':KUBE-LOAD-BALANCER - [0:0]',
    ':KUBE-FIREWALL - [0:0]',
    ':OTHER - [0:0]',
    '-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES',
    '-A PREROUTING -j OTHER',
    '-A PREROUTING -j KUBE-FIREWALL',
    '-A KUBE-SERVICES -j KUBE-LOAD-BALANCER',
    'COMMIT',
  ].join('\n');

  it("removes kube-proxy's chains of every mode and the jumps to them", () => {
    assert.deepEqual(cleanupInput('nat', saved, true)?.split('\n'), [
      '*nat',
      '-D PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES',
      'COMMIT',
      '*nat',
      ':KUBE-LOAD-BALANCER - [0:0]',
      ':KUBE-SERVICES - [0:0]',
      '-X KUBE-LOAD-BALANCER',
      '-X KUBE-SERVICES',
      'COMMIT',
      '',
    ]);
    assert.match(cleanupInput('nat', saved, false) ?? '', /-D PREROUTING -j KUBE-FIREWALL/);
    assert.equal(cleanupInput('nat', '*nat\n:OTHER - [0:0]\nCOMMIT', false), undefined);
  });
});
