/**
 * An agent in IPVS mode that ends between any two messages to the kernel, and the next one. The
 * backend runs here, without a process around it, so that the message can be chosen.
 */
import assert from 'node:assert/strict';
import { execa } from 'execa';
import { iptablesCommands } from '../../../iptables/commands.ts';
import { type IpvsOptions, ipvsBackend } from '../../../ipvs/backend.ts';
import { IpvsKernel } from '../../../ipvs/kernel.ts';
import { NetlinkSocket } from '../../../netlink/socket.ts';
import type { Route } from '../../../services/route.ts';
import { route } from '../../fixtures.ts';

const OPTIONS: IpvsOptions = {
  family: 'IPv4',
  masqueradeAll: false,
  masqueradeBit: 14,
  localDetector: undefined,
  nodePortSelection: 'all',
  scheduler: 'rr',
  excludeCidrs: [],
  markRange: { first: 0x1000, last: 0x3fff },
  allPorts: 'fwmark',
  randomFully: true,
  onWarning: () => {},
};

const PODS = ['10.244.1.11', '10.244.1.12', '10.244.1.13'] as const;
type Shape = Pick<Route, 'match'> & Partial<Route>;

function service(number: number, pods: readonly string[], fields: Shape): Route {
  const name = `default/service-${number}`;
  const clusterIP = `10.96.0.${number}`;
  return route({ id: `${name} IPv4`, serviceKey: name, name, clusterIP, ...fields }, pods);
}

const ALL = { match: { kind: 'all' } } as const;
const LISTED = { match: { kind: 'port', protocol: 'TCP', port: 80 } } as const;
const ranges = (from: number, to: number): Shape => ({
  match: { kind: 'ranges', ranges: [{ protocol: 'TCP', from, to }] },
});

/** Two states that differ in every kind of thing. */
const BEFORE = [
  service(10, [PODS[0], PODS[1]], ALL),
  service(11, [PODS[0]], LISTED),
  service(12, [PODS[0]], ranges(8000, 8010)),
  service(13, [PODS[0]], {
    ...ALL,
    loadBalancerIPs: ['203.0.113.13'],
    sourceRanges: ['192.0.2.0/24'],
  }),
  service(14, [], ALL),
];
const AFTER = [
  service(10, [PODS[1], PODS[2]], { ...ALL, affinitySeconds: 600 }),
  service(11, [PODS[1]], LISTED),
  service(12, [PODS[0]], ranges(8005, 8020)),
  service(14, [PODS[2]], ALL),
  service(15, [PODS[1], PODS[2]], {
    ...LISTED,
    loadBalancerIPs: ['203.0.113.15'],
    externalLocal: true,
    healthCheckNodePort: 30_015,
  }),
];

class Killed extends Error {}

describe('an agent in IPVS mode that is killed between two messages', () => {
  const { batch } = NetlinkSocket.prototype;
  /** Messages, and loads of rules, that still reach the kernel. */
  let left = Infinity;
  const kernels: IpvsKernel[] = [];

  before(() => {
    NetlinkSocket.prototype.batch = async function (this: NetlinkSocket, requests) {
      const some = requests.slice(0, left);
      left -= some.length;
      const refusals = await batch.call(this, some);
      if (some.length < requests.length) throw new Killed();
      return refusals;
    };
  });
  after(async () => {
    NetlinkSocket.prototype.batch = batch;
    await clear();
  });
  afterEach(async () => {
    left = Infinity;
    for (const kernel of kernels.splice(0)) await kernel.close();
  });

  async function agent() {
    const kernel = await IpvsKernel.open('IPv4');
    kernels.push(kernel);
    const commands = iptablesCommands('IPv4', 'legacy');
    const iptables = {
      ...commands,
      restore: async (input: Iterable<string>) => {
        if (left < 1) throw new Killed();
        left -= 1;
        await commands.restore(input);
      },
    };
    return await ipvsBackend(kernel, iptables, OPTIONS);
  }

  /** What a new agent makes of the kernel as it is. */
  const start = async (routes: readonly Route[]) => {
    const backend = await agent();
    backend.update(routes, []);
    await backend.apply(true);
    return backend;
  };

  const clear = async () => {
    for (const table of ['mangle', 'nat', 'filter']) {
      const input = `*${table}\nCOMMIT\n`;
      await execa('iptables-legacy-restore', ['-T', table], { input });
    }
    await execa('ipset', ['destroy']);
    await execa('ipvsadm', ['-C']);
    await execa('ip', ['link', 'del', 'kube-ipvs0'], { reject: false });
  };

  const state = async () => {
    const [{ stdout: services }, { stdout: sets }, { stdout: addresses }, { stdout: rules }] =
      await Promise.all([
        execa('ipvsadm', ['-Sn']),
        execa('ipset', ['save']),
        execa('ip', ['-4', '-o', 'addr', 'show', 'dev', 'kube-ipvs0']),
        execa('iptables-legacy-save'),
      ]);
    return [
      ...[
        services,
        sets.replaceAll(/ (hashsize|bucketsize|initval) \S+/g, ''),
        addresses.replaceAll(/^\d+: /gm, ''),
      ].flatMap((text) =>
        text
          .split('\n')
          .map((line) => line.trim())
          .sort(),
      ),
      ...rules
        .replaceAll(/^#.*$/gm, '')
        .replaceAll(/\[\d+:\d+\]/g, '')
        .split('\n'),
    ];
  };

  /** What the kernel holds when nobody was killed. */
  const rightState = async (routes: readonly Route[]) => {
    await clear();
    await start(routes);
    return await state();
  };

  /** @returns whether the work was cut short, after so many messages. */
  const isKilled = async (sent: number, work: () => Promise<unknown>): Promise<boolean> => {
    left = sent;
    try {
      await work();
      return false;
    } catch (error) {
      if (!(error instanceof Killed)) throw error;
      return true;
    } finally {
      left = Infinity;
    }
  };

  it('in its first sync', async () => {
    const right = await rightState(AFTER);
    let sent = 1;
    for (; ; sent += 12) {
      await clear();
      if (!(await isKilled(sent, () => start(AFTER)))) break;
      await start(AFTER);
      assert.deepEqual(await state(), right, `killed after ${sent} messages`);
    }
    assert.ok(sent > 30, `${sent}`);
  });

  it('while it applies a change, or finds one at its start', async () => {
    const right = new Map([
      [BEFORE, await rightState(BEFORE)],
      [AFTER, await rightState(AFTER)],
    ]);
    // To and fro, now with some messages more; the agent that mends one change makes the next.
    const finished = new Set<string>();
    let [from, to] = [BEFORE, AFTER];
    let backend = await start(from);
    for (let round = 0; finished.size < 2; round++) {
      // Even numbers on the way to, odd ones on the way fro.
      const sent = 2 * round + (round % 2);
      const gone = from.filter(({ id }) => !to.some((other) => other.id === id));
      const isRestart = round % 4 >= 2;
      const target = to;
      const killed = await isKilled(sent, async () => {
        if (isRestart) return await start(target);
        backend.update(
          target,
          gone.map(({ id }) => id),
        );
        return await backend.apply(false);
      });
      if (!killed) finished.add(isRestart ? 'restart' : 'change');
      for (const kernel of kernels.splice(0)) await kernel.close();
      backend = await start(to);
      assert.deepEqual(await state(), right.get(to), `killed after ${sent} messages`);
      [from, to] = [to, from];
    }
  });
});
