/**
 * Kills an agent in IPVS mode between two messages to the kernel. The next agent must leave the
 * same state as without the kill. The backend runs in this process, so that the message can be
 * chosen. The kill points are a seeded sample, each a separate test: all points would take many
 * minutes in this kernel. For a nightly run of more points: `UML_KILLS=200 mocha
 * test/uml/uml.test.ts --grep 'killed between'`.
 */
import assert from 'node:assert/strict';
import { execa } from 'execa';
import { iptablesCommands } from '../../../iptables/commands.ts';
import { type IpvsOptions, ipvsBackend } from '../../../ipvs/backend.ts';
import { IpvsKernel } from '../../../ipvs/kernel.ts';
import { NetlinkSocket } from '../../../netlink/core/socket.ts';
import type { Backend } from '../../../proxier/backend.ts';
import type { Route } from '../../../services/route.ts';
import { systemTimers } from '../../../sync/timers.ts';
import { route } from '../../fixtures.ts';
import { Random } from '../../random.ts';

const OPTIONS: IpvsOptions = {
  family: 'IPv4',
  masqueradeAll: false,
  masqueradeBit: 14,
  localDetector: undefined,
  nodePortSelection: ['all'],
  scheduler: 'rr',
  excludeCidrs: [],
  markRange: { first: 0x1000, last: 0x3fff },
  allPorts: 'fwmark',
  randomFully: true,
  onWarning: () => {},
};

const PODS = ['10.244.1.11', '10.244.1.12', '10.244.1.13'] as const;
type RouteFields = Pick<Route, 'match'> & Partial<Route>;

function service(number: number, pods: readonly string[], fields: RouteFields): Route {
  const name = `default/service-${number}`;
  const clusterIP = `10.96.0.${number}`;
  return route({ id: `${name} IPv4`, serviceKey: name, name, clusterIP, ...fields }, pods);
}

const ALL = { match: { kind: 'all' } } as const;
const LISTED = { match: { kind: 'port', protocol: 'TCP', port: 80 } } as const;
const ranges = (from: number, to: number): RouteFields => ({
  match: { kind: 'ranges', ranges: [{ protocol: 'TCP', from, to }] },
});

/** Two states that differ in every kind of object. */
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

/** A change from one set of Routes to another. */
interface UpdateCase {
  readonly title: string;
  /** Routes in the kernel before; undefined: none. */
  readonly from: readonly Route[] | undefined;
  readonly to: readonly Route[];
  /**
   * A new agent computes the change from the kernel's state, instead of the agent that wrote
   * `from`.
   */
  readonly restart: boolean;
}

/**
 * Each case starts where the one before ended, because restoring the start state takes as long as a
 * case.
 */
const UPDATE_CASES: readonly UpdateCase[] = [
  { title: 'the first sync', from: undefined, to: AFTER, restart: true },
  { title: 'the reverse change', from: AFTER, to: BEFORE, restart: false },
  { title: 'a change', from: BEFORE, to: AFTER, restart: false },
  { title: 'the reverse sync of a restarted agent', from: AFTER, to: BEFORE, restart: true },
  { title: 'the sync of a restarted agent', from: BEFORE, to: AFTER, restart: true },
];
/** Kills per case, one in each of as many equal parts of its messages. */
const KILLS = Number(process.env.UML_KILLS || 6);
const SEED = 26;

class Killed extends Error {}

/** With enough digits to distinguish the points. */
function percent(fraction: number): string {
  return (fraction * 100).toFixed(KILLS > 20 ? 2 : 0);
}

describe('an agent in IPVS mode that is killed between two messages', () => {
  const { batch } = NetlinkSocket.prototype;
  /** Number of messages and rule loads that still reach the kernel. */
  let left = Infinity;
  /** Number of messages that reached it. */
  let sent = 0;
  const kernels: IpvsKernel[] = [];
  const backends: Backend[] = [];
  /** State of the kernel and the agent that wrote it; undefined: unknown. */
  let present: { readonly routes: readonly Route[]; readonly backend: Backend } | undefined;
  const expected = new Map<readonly Route[], readonly string[]>();
  const messages = new Map<UpdateCase, number>();

  before(async () => {
    NetlinkSocket.prototype.batch = async function (this: NetlinkSocket, requests) {
      const some = requests.slice(0, left);
      left -= some.length;
      sent += some.length;
      const refusals = await batch.call(this, some);
      if (some.length < requests.length) throw new Killed();
      return refusals;
    };
    for (const routes of [BEFORE, AFTER]) {
      await clear();
      await start(routes);
      expected.set(routes, await state());
    }
    for (const updateCase of UPDATE_CASES) {
      await prepare(updateCase);
      sent = 0;
      await applyCase(updateCase);
      messages.set(updateCase, sent);
    }
  });
  after(async () => {
    NetlinkSocket.prototype.batch = batch;
    await closeKernels();
    await clear();
  });

  const closeKernels = async () => {
    for (const backend of backends.splice(0)) await backend.close();
    for (const kernel of kernels.splice(0)) await kernel.close();
  };

  async function agent() {
    const kernel = await IpvsKernel.open('IPv4');
    kernels.push(kernel);
    const commands = iptablesCommands('IPv4', 'legacy');
    const iptables = {
      ...commands,
      restore: async (input: Iterable<string>) => {
        if (left < 1) throw new Killed();
        left -= 1;
        sent += 1;
        await commands.restore(input);
      },
    };
    const backend = await ipvsBackend(kernel, iptables, OPTIONS, systemTimers);
    backends.push(backend);
    return backend;
  }

  /** A new agent writes the Routes, whatever the kernel has. */
  const start = async (routes: readonly Route[]) => {
    await closeKernels();
    present = undefined;
    const backend = await agent();
    backend.update(routes, []);
    await backend.apply(true);
    present = { routes, backend };
  };

  /** Brings the kernel to the start of the case. */
  const prepare = async ({ from }: UpdateCase) => {
    if (from === undefined) await clear();
    else if (present?.routes !== from) await start(from);
  };

  const applyCase = async ({ from = [], to, restart }: UpdateCase) => {
    if (restart || present === undefined) return await start(to);
    const { backend } = present;
    present = undefined;
    const removed = from.filter(({ id }) => !to.some((other) => other.id === id));
    backend.update(
      to,
      removed.map(({ id }) => id),
    );
    await backend.apply(false);
    present = { routes: to, backend };
  };

  const clear = async () => {
    present = undefined;
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

  const random = new Random(SEED);
  for (let kill = 0; kill < KILLS; kill++) {
    for (const updateCase of UPDATE_CASES) {
      const fraction = (kill + random.next()) / KILLS;
      it(`${updateCase.title}, after ${percent(fraction)} % of the messages`, async () => {
        await prepare(updateCase);
        const count = Math.floor(fraction * (messages.get(updateCase) ?? 0));
        left = count;
        try {
          await assert.rejects(applyCase(updateCase), Killed, `not killed after ${count} messages`);
        } finally {
          left = Infinity;
        }
        await start(updateCase.to);
        assert.deepEqual(
          await state(),
          expected.get(updateCase.to),
          `killed after ${count} of ${messages.get(updateCase)} messages`,
        );
      });
    }
  }
});
