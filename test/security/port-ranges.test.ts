/** Services of a tenant with many port ranges hold up no other Service, and a tenant gets so many ranges only. */
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { AGENT_FLAGS, Agent } from '../e2e/agent.ts';
import type { Manifest } from '../e2e/manifests.ts';
import { World } from '../e2e/scenarios/scenario.ts';
import { createLab, type Lab, waitFor } from '../lab/lab.ts';
import { PORTWIDE } from '../portwide.ts';
import { AdmittedFeed } from './admitted-feed.ts';

const NAMESPACE = 'evil';
const MOST_RANGES = 1024;
const WAIT = 120_000;
const vip = (index: number) => `10.96.1.${index}`;
const first = (shift: number) => 20_000 + shift;

for (const { mode, number, budget } of [
  { mode: 'nftables', number: 40, budget: undefined },
  { mode: 'iptables', number: 5, budget: 4096 },
])
  describe(`port ranges of a hostile tenant, mode ${mode}`, function () {
    this.timeout(2 * WAIT);
    let lab: Lab;
    let feed: AdmittedFeed;
    let agent: Agent;
    let world: World;
    let directory: string;
    let socket: string;

    before(async () => {
      directory = mkdtempSync(join(tmpdir(), 'portwide-ranges-'));
      socket = join(directory, 'agent.sock');
      lab = await createLab({ pods: 3, remotePods: 0 });
      await Promise.all(lab.pods.map((pod) => pod.serveEveryPort()));
      feed = await AdmittedFeed.start(lab);
      agent = new Agent(lab, { feed });
      world = new World(lab, agent, 4);
      await agent.start([...AGENT_FLAGS, `--proxy-mode=${mode}`, `--status-socket=${socket}`]);
    });
    after(async () => {
      await agent?.destroy();
      await lab?.destroy();
      rmSync(directory, { recursive: true, force: true });
    });

    /** Services with the most ranges, on pod-3; the last is the youngest. */
    const large = (shift: number): Manifest[] =>
      Array.from({ length: number }, (_, index) => {
        const ranges = Array.from(
          { length: MOST_RANGES },
          (_, range) => `${first(shift) + 2 * range}/UDP`,
        );
        return [
          world.service(`large-${index}`, {
            namespace: NAMESPACE,
            annotations: { 'portwide.dev/ports': ranges.join() },
            created: new Date(Date.UTC(2026, 0, 1, 0, index)).toISOString(),
            spec: { clusterIPs: [vip(index)] },
          }),
          world.slice(`large-${index}`, [world.pod(2)], { namespace: NAMESPACE }),
        ];
      }).flat();
    const ordinary = (pod: number): Manifest[] => [
      world.service('shop', {
        namespace: 'shop',
        spec: { clusterIPs: [vip(250)], ports: [{ name: '', port: 80, protocol: 'UDP' }] },
      }),
      world.slice('shop', [world.pod(pod)], {
        namespace: 'shop',
        ports: [{ name: '', port: 80, protocol: 'UDP' }],
      }),
    ];
    const hostAt = async (address: string, port: number) => {
      const outcome = await lab.client.udp(address, port, { timeoutMs: 100 });
      return outcome.outcome === 'answered' ? outcome.reply.host : undefined;
    };
    const isServed = async (index: number, shift: number) =>
      (await hostAt(vip(index), first(shift))) === 'pod-3';
    const changeOrdinary = async (pod: number) => {
      feed.write('ordinary', ordinary(pod));
      await feed.written();
      const name = `pod-${pod + 1}`;
      await waitFor(name, async () => (await hostAt(vip(250), 80)) === name, WAIT);
    };
    const writeLarge = async (objects: readonly Manifest[]) => {
      feed.write('large', objects);
      await feed.written();
    };

    if (budget === undefined)
      it('an ordinary change is in force before all of many large ones', async () => {
        const last = number - 1;
        await changeOrdinary(0);
        for (const [title, objects, shift, isThere, pod] of [
          ['created', large(0), 0, true, 1],
          ['changed', large(1), 1, true, 0],
          ['deleted', [], 1, false, 1],
        ] as const) {
          await writeLarge(objects);
          const reached = async (index: number) => (await isServed(index, shift)) === isThere;
          await waitFor(`the first is ${title}`, () => reached(0), WAIT);
          await changeOrdinary(pod);
          assert.equal(await reached(last), false, title);
          await waitFor(`all are ${title}`, () => reached(last), WAIT);
        }
      });
    else
      it('the youngest Service beyond the budget is refused with the reason, until there is room', async () => {
        const youngest = number - 1;
        const message = `1024 ranges and slices are more than older Services leave of the ${budget} for namespace evil on a node`;
        await changeOrdinary(0);
        await writeLarge(large(0));
        const served = (until: number) => async () =>
          (
            await Promise.all(Array.from({ length: until }, (_, index) => isServed(index, 0)))
          ).every((each) => each);
        await waitFor('the older Services are served', served(youngest), WAIT);
        await changeOrdinary(1);
        assert.equal(await isServed(youngest, 0), false);
        const describeService = async () =>
          (
            await lab.node.exec(
              PORTWIDE,
              ['describe', 'service', `${NAMESPACE}/large-${youngest}`, '--status-socket', socket],
              { reject: false },
            )
          ).stdout;
        assert.ok((await describeService()).includes(message), await describeService());
        const refusals = agent.logged('Service is not served');
        assert.ok(
          refusals.some((line) => line.reason === 'Budget'),
          JSON.stringify(refusals),
        );
        await waitFor(
          'an Event',
          async () =>
            (await feed.double.call('events')).some(
              ({ reason, note }) => reason === 'RefusedBudget' && String(note).includes(message),
            ),
          WAIT,
        );
        // Without the oldest there is room.
        await writeLarge(large(0).slice(2));
        await waitFor('the youngest is served', () => isServed(youngest, 0), WAIT);
      });
  });
