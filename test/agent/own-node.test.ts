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
const WAITING = 'waiting for the Node object';
const HINT = 'check --hostname-override, or hostnameOverride in the configuration file';
const EFFECT =
  'traffic policy Local uses only endpoints with this nodeName; zone topology hints are ignored';
const NODE_PORTS =
  'NodePorts are served on all addresses of this node except loopback, not only on its primary addresses';
const FIVE_MINUTES = 5 * 60_000;

function build({ isRequired = true, limitsNodePorts = false } = {}) {
  const timers = new FakeTimers();
  const warned: [details: object, message: string][] = [];
  const informed: string[] = [];
  const infos: object[] = [];
  const missing: boolean[] = [];
  const node = new OwnNode({
    name: 'node-a',
    isRequired,
    limitsNodePorts: limitsNodePorts,
    log: {
      info: (details, message) => {
        infos.push(details);
        informed.push(message);
      },
      warn: (details, message) => warned.push([details, message]),
      error: assert.fail,
    },
    timers,
    onMissing: (isMissing) => missing.push(isMissing),
  });
  let isOver = false;
  void node.settled.then(() => {
    isOver = true;
  });
  const isSettled = async () => {
    await Promise.resolve();
    return isOver;
  };
  return { node, timers, warned, informed, infos, missing, isSettled };
}

describe('own-node: OwnNode', () => {
  it('does not wait for a Node that exists', async () => {
    const { node, timers, warned, missing, isSettled } = build({ limitsNodePorts: true });
    assert.equal(await isSettled(), false, 'before the first list');
    assert.equal(node.isAwaited, true);
    node.update(NODE);
    assert.equal(await isSettled(), true);
    assert.equal(node.isAwaited, false);
    assert.deepEqual([timers.pending, warned, missing], [0, [], [false]]);
  });

  it('waits 30 s for a missing Node, and then warns every five minutes', async () => {
    const { node, timers, warned, missing, isSettled } = build();
    node.update(undefined);
    timers.advance(29_999);
    // Each change of any object calls update again.
    node.update(undefined);
    assert.deepEqual([await isSettled(), warned, missing], [false, [], [true]]);
    timers.advance(1);
    assert.equal(await isSettled(), true);
    assert.deepEqual(warned, [
      [
        { node: 'node-a', effect: `${EFFECT}; /healthz returns 503`, hint: HINT },
        'Node object not found',
      ],
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

  it('stops waiting when the Node is added', async () => {
    const { node, timers, warned, informed, missing, isSettled } = build();
    node.update(undefined);
    timers.advance(10_000);
    node.update(NODE);
    assert.equal(await isSettled(), true);
    timers.advance(FIVE_MINUTES);
    assert.deepEqual([warned, informed, missing], [[], [WAITING], [true, false]]);
  });

  it('logs once a Node that is added after the warning', () => {
    const { node, timers, warned, informed, missing } = build();
    node.update(undefined);
    timers.advance(30_000);
    node.update(NODE);
    node.update({ ...NODE, taints: ['a'] });
    timers.advance(3 * FIVE_MINUTES);
    assert.equal(warned.length, 1);
    assert.deepEqual(informed, [WAITING, 'Node object is complete']);
    assert.deepEqual([timers.pending, missing], [0, [true, false]]);
  });

  it('waits for addresses of the Node for 30 s if node ports depend on them', () => {
    const { node, timers } = build({ limitsNodePorts: true });
    assert.equal(node.awaitsAddresses, false);
    node.update({ ...NODE, addresses: [] });
    assert.deepEqual([node.isAwaited, node.awaitsAddresses], [false, true]);
    timers.advance(30_000);
    assert.equal(node.awaitsAddresses, false);
  });

  it('warns about a deleted Node unless it is added again within 30 s', () => {
    const { node, timers, warned, missing } = build({ limitsNodePorts: true });
    node.update(NODE);
    node.update(undefined);
    timers.advance(29_999);
    node.update(NODE);
    timers.advance(FIVE_MINUTES);
    assert.deepEqual(warned, []);
    node.update(undefined);
    timers.advance(30_000);
    assert.deepEqual(warned, [
      [
        { node: 'node-a', effect: `${EFFECT}; ${NODE_PORTS}; /healthz returns 503` },
        'Node object not found',
      ],
    ]);
    assert.deepEqual(missing, [false, true, false, true]);
    assert.equal(node.isAwaited, false);
  });

  it('waits for addresses of the Node if NodePorts are served only on them', async () => {
    const { node, timers, warned, missing, isSettled } = build({ limitsNodePorts: true });
    node.update(undefined);
    timers.advance(20_000);
    node.update(NO_ADDRESSES);
    assert.equal(await isSettled(), false);
    timers.advance(10_000);
    assert.equal(await isSettled(), true);
    assert.deepEqual(warned, [
      [{ node: 'node-a', effect: NODE_PORTS }, 'Node object has no addresses'],
    ]);
    assert.deepEqual(missing, [true, false]);
    node.update(NODE);
    assert.equal(timers.pending, 0);

    const other = build();
    other.node.update(NO_ADDRESSES);
    assert.equal(await other.isSettled(), true);
  });

  it('neither waits nor warns with manifests, which may lack the Node', async () => {
    const { node, timers, warned, informed, infos, missing, isSettled } = build({
      isRequired: false,
    });
    assert.equal(node.isAwaited, false);
    node.update(undefined);
    node.update(undefined);
    assert.equal(await isSettled(), true);
    assert.deepEqual([warned, missing, timers.pending], [[], [], 0]);
    assert.deepEqual(informed, ['Node object not found']);
    assert.deepEqual(infos, [{ node: 'node-a', effect: EFFECT }]);
  });
});
