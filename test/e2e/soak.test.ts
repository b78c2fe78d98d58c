/**
 * A short soak test: 1,000 Services that change continuously, with an API server that fails in
 * every way, one after the other. In the end, the agent must use as much memory as after the first
 * round of faults, and the kernel must have the rules of a new agent.
 */
import assert from 'node:assert/strict';
import type { Fault } from '../api-server/faults.ts';
import type { RemoteDouble } from '../api-server/remote.ts';
import { createLab, iptablesRules, type Lab, removeRules, waitFor } from '../lab/lab.ts';
import { Agent, IPTABLES_FLAGS } from './agent.ts';
import { ApiFeed } from './feed.ts';
import { type Manifest, nodeManifest } from './manifests.ts';
import { Population } from './population.ts';

const PROBE = new URL('heap-probe.ts', import.meta.url).href;
/** No periodic resync, which would repair missed writes. */
const FLAGS = [...IPTABLES_FLAGS, '--iptables-variant=nft', '--iptables-sync-period=1h'];

/** Kinds that an agent without network policy watches. */
const WATCHED = ['services', 'endpointslices', 'nodes'];
const SERVICES = 1000;
const SEED = 20_261_121;
/** Changes during and after one fault. */
const CHANGES_PER_FAULT = 600;
/** Objects per call to the fake API server. */
const AT_A_TIME = 250;
const RECOVERY_MS = 60_000;
/**
 * Bytes that may remain per change: a quarter of the smallest object, so that a leak on every third
 * change would be detected. Optimized code of V8 uses some of this memory.
 */
const LEAK = 128;

const status = (code: number, reason: string, retryAfter?: number): Fault => ({
  kind: 'status',
  code,
  reason,
  ...(retryAfter !== undefined && { retryAfter }),
});

type FaultInjection = (double: RemoteDouble, change: () => Promise<void>) => Promise<unknown>;

/** Closes watches; the next request of each resource gets the fault. */
const onNext =
  (verb: 'list' | 'watch', fault: Fault): FaultInjection =>
  async (double, change) => {
    for (const name of WATCHED) await double.call('fail', { verb, resource: name, fault });
    await change();
    await double.call('breakWatches', verb === 'list' ? 'expire' : 'end');
  };

/** Faults, each with changes in between. */
const FAULTS: Readonly<Record<string, FaultInjection>> = {
  'watches closed in the middle of a line': async (double, change) => {
    await change();
    await double.call('breakWatches', 'cut half');
  },
  '410 in a watch': async (double, change) => {
    await change();
    await double.call('breakWatches', 'expire');
  },
  '410 at the start of a watch': async (double, change) => {
    await double.call('breakWatches', 'cut');
    await change();
    await double.call('compact');
  },
  'watches that become silent and break later': async (double, change) => {
    await double.call('breakWatches', 'silence');
    await change();
    await double.call('breakWatches', 'cut');
  },
  'changes that only a list reports': async (double, change) => {
    await double.call('dropChanges', 50);
    await change();
    await double.call('breakWatches', 'expire');
  },
  'a bookmark, and a new watch from it': async (double, change) => {
    await change();
    await double.call('bookmark');
    await double.call('breakWatches', 'end');
  },
  '500 for a watch': onNext('watch', status(500, 'InternalError')),
  '429 for a watch': onNext('watch', status(429, 'TooManyRequests', 1)),
  '500 for a list': onNext('list', status(500, 'InternalError')),
  '429 for a list': onNext('list', status(429, 'TooManyRequests', 1)),
  'a truncated list': onNext('list', { kind: 'cut' }),
  'a stale list': async (double, change) => {
    await double.call('takeSnapshot');
    await change();
    for (const name of WATCHED) {
      await double.call('fail', { verb: 'list', resource: name, fault: { kind: 'stale' } });
    }
    await double.call('breakWatches', 'expire');
  },
  'connection refused': async (double, change) => {
    await double.call('close');
    await change();
    await double.call('listen');
  },
};

describe('an agent under continuous changes and faults', function () {
  this.timeout(300_000);

  let lab: Lab;
  let feed: ApiFeed;
  let agent: Agent;
  let population: Population;

  before(async () => {
    lab = await createLab({ pods: 3, remotePods: 1 });
    const pods = [...lab.pods, ...lab.remotePods];
    await Promise.all(pods.map((pod) => pod.serveEveryPort()));
    feed = await ApiFeed.start(lab);
    population = new Population(SERVICES, pods, SEED);
    await write(population.objects());
    const NODE_OPTIONS = `--expose-gc --import=${PROBE}`;
    agent = new Agent(lab, { feed, env: { NODE_OPTIONS } });
    await agent.start(FLAGS);
  });
  after(async () => {
    await agent?.destroy();
    await lab?.destroy();
  });

  const write = async (put: readonly Manifest[], remove: readonly Manifest[] = []) => {
    for (const [method, objects] of [['delete', remove] as const, ['put', put] as const]) {
      for (let at = 0; at < objects.length; at += AT_A_TIME) {
        await feed.double.call(method, ...objects.slice(at, at + AT_A_TIME));
      }
    }
  };
  let beats = 0;
  const change = async () => {
    const { put, remove } = population.change(CHANGES_PER_FAULT / 2);
    // A kubelet updates often, and a watch that ends without an event is retried later.
    const annotations = { beat: String(++beats) };
    const node = nodeManifest([lab.node.ipv4, lab.node.ipv6]);
    const annotated = { ...node, metadata: { ...(node.metadata as object), annotations } };
    await write([annotated, ...put], remove);
  };
  const watched = () =>
    waitFor(
      'all kinds are watched',
      async () => {
        const watches = WATCHED.map((name) => feed.double.call('watching', name));
        return (await Promise.all(watches)).every((count) => count === 1);
      },
      RECOVERY_MS,
    );
  /** Each fault once, with changes during it and after it. */
  const round = async () => {
    for (const act of Object.values(FAULTS)) {
      await act(feed.double, change);
      await watched();
      await change();
    }
  };
  /** Waits until no fault is left and the kernel has the state of the server. */
  const settle = async () => {
    await feed.double.call('recover');
    await watched();
    await agent.apply([]);
  };
  /** Live bytes on the agent's heap. */
  const usage = async () => {
    const { pid } = agent;
    assert.ok(pid !== undefined);
    const before = agent.logged('heap').length;
    process.kill(pid, 'SIGUSR2');
    const line = await waitFor('it reports its memory', () => agent.logged('heap')[before]);
    return Number(line.bytes);
  };
  const rules = async () => {
    const lines: string[] = [];
    for (const family of [4, 6] as const) {
      for (const table of ['mangle', 'nat', 'filter']) {
        const saved = await iptablesRules(lab.node, 'nft', family, table);
        lines.push(...saved.split('\n').map((line) => `IPv${family} ${table} ${line}`));
      }
    }
    return lines;
  };

  it('does not use more memory over time, and has the rules of a new agent', async () => {
    await round();
    await settle();
    const initialHeap = await usage();
    await round();
    await settle();
    const finalHeap = await usage();

    const changes = Object.keys(FAULTS).length * CHANGES_PER_FAULT;
    const grown = finalHeap - initialHeap;
    assert.ok(grown < LEAK * changes, `${grown} bytes more after ${changes} changes`);

    for (const { vip, port, pods } of population.served(20)) {
      const outcome = await lab.client.tcp(vip, port);
      assert.equal(outcome.outcome, 'answered', `${vip} ${port}`);
      const { host } = outcome.outcome === 'answered' ? outcome.reply : { host: '' };
      assert.ok(
        pods.some(({ name }) => name === host),
        `${vip} ${port} is ${host}`,
      );
    }

    const actual = await rules();
    await agent.kill();
    await removeRules(lab.node);
    await agent.start();
    const fresh = await rules();
    assert.ok(fresh.length > 10 * SERVICES);
    // Show only a few of thousands of differing lines.
    const only = (some: readonly string[], others: readonly string[]) => {
      const known = new Set(others);
      return some.filter((line) => !known.has(line)).slice(0, 10);
    };
    assert.deepEqual(
      { stale: only(actual, fresh), lost: only(fresh, actual) },
      { stale: [], lost: [] },
    );
    assert.ok(actual.join('\n') === fresh.join('\n'), 'the order of rules differs');
  });
});
