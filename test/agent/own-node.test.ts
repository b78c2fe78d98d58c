import assert from 'node:assert/strict';
import { OwnNode } from '../../agent/own-node.ts';
import type { Node } from '../../api/objects.ts';
import { FakeTimers } from '../sync/fake-timers.ts';

const NODE: Node = {
  kind: 'Node',
  key: 'node-a',
  name: 'node-a',
  labels: {},
  zone: undefined,
  podCIDRs: [],
  addresses: ['192.0.2.1'],
  deleting: false,
  taints: [],
};
const NO_ADDRESSES: Node = { ...NODE, addresses: [] };
const WAITING =
  'waiting up to 30 s for the Node object, and for its addresses if NodePorts need them';
const FIVE_MINUTES = 5 * 60_000;

function build({ isRequired = true, givesNodePorts = false } = {}) {
  const timers = new FakeTimers();
  const warned: string[] = [];
  const informed: string[] = [];
  const missing: boolean[] = [];
  const node = new OwnNode({
    name: 'node-a',
    isRequired,
    limitsNodePorts: givesNodePorts,
    log: {
      info: (_details, message) => informed.push(message),
      warn: (_details, message) => warned.push(message),
      error: assert.fail,
    },
    timers,
    onMissing: (isMissing) => missing.push(isMissing),
  });
  let settled = false;
  void node.settled.then(() => {
    settled = true;
  });
  const isSettled = async () => {
    await Promise.resolve();
    return settled;
  };
  return { node, timers, warned, informed, missing, isSettled };
}

describe('own-node: the Node of the agent', () => {
  it('that is there is not waited for', async () => {
    const { node, timers, warned, missing, isSettled } = build({ givesNodePorts: true });
    assert.equal(await isSettled(), false, 'before the first listing');
    assert.equal(node.isAwaited, true);
    node.update(NODE);
    assert.equal(await isSettled(), true);
    assert.equal(node.isAwaited, false);
    assert.deepEqual([timers.pending, warned, missing], [0, [], [false]]);
  });

  it('that is not there is waited for 30 s, and then warned of every five minutes', async () => {
    const { node, timers, warned, missing, isSettled } = build();
    node.update(undefined);
    timers.advance(29_999);
    // Each change of any object tells of the Node again.
    node.update(undefined);
    assert.deepEqual([await isSettled(), warned, missing], [false, [], [true]]);
    timers.advance(1);
    assert.equal(await isSettled(), true);
    assert.deepEqual(warned, [
      'there is no Node "node-a" (check --hostname-override, or hostnameOverride in the configuration file): ' +
        'for traffic policy Local, only endpoints whose nodeName is this name are local; ' +
        'topology hints for zones are ignored; /healthz answers 503',
    ]);
    timers.advance(FIVE_MINUTES - 1);
    node.update(undefined);
    assert.equal(warned.length, 1);
    timers.advance(1);
    assert.equal(warned.length, 2);
    timers.advance(3 * FIVE_MINUTES);
    assert.equal(warned.length, 5);
    assert.deepEqual([timers.pending, missing, node.isAwaited], [1, [true], true]);
  });

  it('that comes while it is waited for ends the wait', async () => {
    const { node, timers, warned, informed, missing, isSettled } = build();
    node.update(undefined);
    timers.advance(10_000);
    node.update(NODE);
    assert.equal(await isSettled(), true);
    timers.advance(FIVE_MINUTES);
    assert.deepEqual([warned, informed, missing], [[], [WAITING], [true, false]]);
  });

  it('that comes later is told of once, and no warning follows', () => {
    const { node, timers, warned, informed, missing } = build();
    node.update(undefined);
    timers.advance(30_000);
    node.update(NODE);
    node.update({ ...NODE, taints: ['a'] });
    timers.advance(3 * FIVE_MINUTES);
    assert.equal(warned.length, 1);
    assert.deepEqual(informed, [WAITING, 'the Node object exists and is complete']);
    assert.deepEqual([timers.pending, missing], [0, [true, false]]);
  });

  it('that goes is warned of if it does not come back within 30 s', () => {
    const { node, timers, warned, missing } = build({ givesNodePorts: true });
    node.update(NODE);
    node.update(undefined);
    timers.advance(29_999);
    node.update(NODE);
    timers.advance(FIVE_MINUTES);
    assert.deepEqual(warned, []);
    node.update(undefined);
    timers.advance(30_000);
    assert.deepEqual(warned, [
      'there is no Node "node-a": ' +
        'for traffic policy Local, only endpoints whose nodeName is this name are local; ' +
        'topology hints for zones are ignored; ' +
        'NodePorts are served on all addresses of this node instead of its primary ones; ' +
        '/healthz answers 503',
    ]);
    assert.deepEqual(missing, [false, true, false, true]);
    assert.equal(node.isAwaited, false);
  });

  it('without addresses is waited for where NodePorts are served on these', async () => {
    const { node, timers, warned, missing, isSettled } = build({ givesNodePorts: true });
    node.update(undefined);
    timers.advance(20_000);
    node.update(NO_ADDRESSES);
    assert.equal(await isSettled(), false);
    timers.advance(10_000);
    assert.equal(await isSettled(), true);
    assert.deepEqual(warned, [
      'Node "node-a" has no addresses: NodePorts are served on all addresses of this node instead of its primary ones',
    ]);
    assert.deepEqual(missing, [true, false]);
    node.update(NODE);
    assert.equal(timers.pending, 0);

    const other = build();
    other.node.update(NO_ADDRESSES);
    assert.equal(await other.isSettled(), true);
  });

  it('of manifests need not be there: nobody waits, and nobody warns', async () => {
    const { node, timers, warned, informed, missing, isSettled } = build({ isRequired: false });
    assert.equal(node.isAwaited, false);
    node.update(undefined);
    node.update(undefined);
    assert.equal(await isSettled(), true);
    assert.deepEqual([warned, missing, timers.pending], [[], [], 0]);
    assert.deepEqual(informed, [
      'there is no Node "node-a": ' +
        'for traffic policy Local, only endpoints whose nodeName is this name are local; ' +
        'topology hints for zones are ignored',
    ]);
  });
});
