/** Invariants of every object of network policy, whatever input it was read from. */
import assert from 'node:assert/strict';
import { canonicalAddress, canonicalCidr, cidrContains } from '../../api/addresses.ts';
import type {
  LabelSelector,
  PolicyObject,
  PolicyPeer,
  PolicyRule,
} from '../../api/policy-objects.ts';
import { isPort, isProtocol } from '../../api/ports.ts';

/** Checks that all values are safe to use in a rule. */
export function checkPolicyObject(object: PolicyObject): void {
  assert.match(object.key, /^[-a-z0-9./]+$/);
  if (object.kind === 'Namespace') return;
  if (object.kind === 'CIDRGroup') {
    assert.ok(object.cidrs.length <= 25);
    for (const cidr of object.cidrs) assert.equal(canonicalCidr(cidr), cidr);
  } else if (object.kind === 'Pod') {
    assert.ok(object.addresses.length <= 2);
    for (const address of object.addresses) assert.equal(canonicalAddress(address), address);
    for (const { name, protocol, port } of object.namedPorts) {
      assert.ok(name !== '' && isProtocol(protocol) && isPort(port));
    }
  } else {
    assert.ok(Number.isInteger(object.priority) && object.priority >= 0 && object.priority <= 1000);
    for (const { field, reason } of object.faults) {
      assert.match(`${field}: ${reason}`, /^[\x20-\x7e]+$/);
    }
    for (const rule of [...(object.ingress ?? []), ...(object.egress ?? [])]) checkRule(rule);
  }
}

function checkRule({ action, peers, ports }: PolicyRule): void {
  for (const peer of peers ?? []) checkPeer(peer);
  if (action !== 'Allow') assert.ok(!peers?.some((peer) => peer.kind === 'domainName'));
  for (const port of ports ?? []) {
    if ('name' in port) assert.notEqual(port.name, '');
    else {
      assert.ok(isProtocol(port.protocol));
      assert.ok(port.first >= 1 && port.first <= port.last && port.last <= 65_535);
    }
  }
}

function checkPeer(peer: PolicyPeer): void {
  if (peer.kind === 'network') {
    assert.equal(canonicalCidr(peer.cidr), peer.cidr);
    for (const part of peer.except) {
      assert.equal(canonicalCidr(part), part);
      assert.ok(cidrContains(peer.cidr, part.split('/')[0] ?? ''));
    }
  } else if (peer.kind === 'domainName') {
    assert.match(peer.pattern, /^(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)+$/);
  } else if (peer.kind === 'pods') {
    const { namespaces } = peer.selection;
    if (typeof namespaces !== 'string') checkSelector(namespaces);
    checkSelector(peer.selection.pods);
  } else checkSelector(peer.selector);
}

function checkSelector(requirements: LabelSelector): void {
  for (const { key, operator, values: each } of requirements) {
    assert.match(key, /^[A-Za-z0-9./_-]+$/);
    assert.equal(each.length > 0, operator === 'In' || operator === 'NotIn');
    assert.deepEqual(each, [...new Set(each)].sort());
  }
}
