import assert from 'node:assert/strict';
import { setImmediate as nextTurn } from 'node:timers/promises';
import type { IpvsServiceKey } from '../../netlink/ipvs/ipvs.ts';
import { ipvsCleanup } from '../../takeover/ipvs.ts';
import { Takeover } from '../../takeover/takeover.ts';
import { FakeTimers } from '../sync/fake-timers.ts';
import { NO_LEFTOVERS } from './no-leftovers.ts';

const service = (address: string): IpvsServiceKey => ({
  kind: 'address',
  family: 'IPv4',
  protocol: 'TCP',
  address,
  port: 80,
});
const [WEB, DNS] = [service('10.96.0.1'), service('10.96.0.2')];

/** A node with connections by service. At the first check, all services take new connections. */
function node() {
  const timers = new FakeTimers();
  const log = { debug() {}, info() {}, warn() {}, error() {} };
  const connections = new Map([WEB, DNS].map((key) => [key, 0]));
  const checks: (readonly IpvsServiceKey[])[] = [];
  let startedDraining = true;
  let isThere = true;
  const leftover = ipvsCleanup([], {
    hasDevice: async () => isThere,
    drainServices: async (_excluded, among = [WEB, DNS]) => {
      checks.push(among);
      const busy = among.filter((key) => connections.get(key) !== 0);
      const sum = busy.reduce((total, key) => total + (connections.get(key) ?? 0), 0);
      const check = { connections: sum, busy, startedDraining };
      startedDraining = false;
      return check;
    },
    clear: async () => {
      isThere = false;
    },
  });
  const options = { ipvsExcludeCidrs: [], networkPolicy: true };
  const takeover = new Takeover(
    { mode: 'iptables', families: ['IPv4'], options, log, timers },
    { ...NO_LEFTOVERS, ipvs: () => leftover },
  );
  void takeover.afterFirstSync('IPv4');
  return {
    connections,
    checks,
    isGone: () => !isThere,
    pass: async (milliseconds: number) => {
      await nextTurn();
      for (let passed = 0; passed < milliseconds; passed += 1000) {
        timers.advance(1000);
        await nextTurn();
      }
    },
  };
}

describe('ipvs: removal of IPVS state', () => {
  it('waits for handshakes that were in flight when services stopped taking connections', async () => {
    const { connections, pass, isGone } = node();
    await nextTurn();
    assert.equal(isGone(), false);
    connections.set(WEB, 1);
    await pass(60_000);
    assert.equal(isGone(), false, 'while the connection lasts');
    connections.set(WEB, 0);
    await pass(15_000);
    assert.equal(isGone(), true);
  });

  it('waits for handshakes with idle services while other services have connections', async () => {
    const { connections, pass, isGone, checks } = node();
    connections.set(WEB, 1);
    await nextTurn();
    connections.set(DNS, 1);
    await pass(15_000);
    connections.set(WEB, 0);
    await pass(60_000);
    assert.equal(isGone(), false, 'while the connection lasts');
    assert.deepEqual(checks.at(-1), [DNS], 'only services with connections are checked again');
    connections.set(DNS, 0);
    await pass(15_000);
    assert.equal(isGone(), true);
  });

  it('removes everything within seconds when there are no connections', async () => {
    const { isGone, pass } = node();
    await pass(2000);
    assert.equal(isGone(), true);
  });
});
