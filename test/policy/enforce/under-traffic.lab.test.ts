/** Policy that changes, is written anew, and whose agent is killed, while packets pass. */
import assert from 'node:assert/strict';
import { fileURLToPath } from 'node:url';
import { IP_FAMILIES, type IpFamily } from '../../../api/objects.ts';
import { type Host, waitFor } from '../../lab/lab.ts';
import { type Churn, changeTo, DENIED_PORT, stateOf } from '../kernel-churn.ts';
import { type FamilyLab, PolicyLab } from '../policy-lab.ts';

const FLOOD = fileURLToPath(new URL('../flood.ts', import.meta.url));
const CHURNER = fileURLToPath(new URL('../churner.ts', import.meta.url));
const KILLS = 6;

describe('life: the life of network policy under traffic', function () {
  this.timeout(240_000);
  let world: PolicyLab;
  let pod: Host;
  let never: Host;
  let network: Host;
  before(async () => {
    world = await PolicyLab.create();
    pod = world.pod(1);
    never = world.pod(2);
    network = world.pod(3);
  });
  after(async () => world?.destroy());

  for (const family of IP_FAMILIES) {
    describe(family, () => {
      let here: FamilyLab;
      let churn: Churn;
      before(() => {
        here = world.in(family);
        churn = {
          family,
          pod: here.address(pod),
          even: here.address(world.remote(1)),
          odd: here.address(world.remote(2)),
          always: here.address(world.lab.client),
          never: here.address(never),
          network: here.address(network),
        };
      });
      afterEach(() => here.lift());

      /** Has a host count what comes from the pod to the port. */
      async function arrivals(at: Host): Promise<() => Promise<number>> {
        const table = `table ${here.ip} arrivals`;
        const script = `${table}
          delete ${table}
          ${table} {
            counter arrived { }
            chain prerouting {
              type filter hook prerouting priority -500;
              ${here.ip} saddr ${here.address(pod)} udp dport ${DENIED_PORT} counter name arrived;
            }
          }`;
        await at.exec('nft', ['-f', '-'], { input: script });
        return async () => {
          const args = ['list', 'counter', here.ip, 'arrivals', 'arrived'];
          return Number(/packets (\d+)/.exec((await at.exec('nft', args)).stdout)?.[1]);
        };
      }

      /** While `work` runs, the pod floods those that it may not reach; none of it arrives. */
      async function closed(work: () => Promise<void>): Promise<void> {
        const counts = await Promise.all([arrivals(never), arrivals(network)]);
        const flood = pod.spawn(process.execPath, [
          FLOOD,
          String(DENIED_PORT),
          churn.never,
          churn.network,
        ]);
        try {
          await waitFor('packets are denied', async () => {
            const { 'deny-admin egress': byRule = 0, 'deny-network-policy egress': isolated = 0 } =
              await here.denied();
            return byRule > 100 && isolated > 100;
          });
          await work();
        } finally {
          flood.kill('SIGKILL');
          await flood.catch(() => undefined);
        }
        assert.deepEqual(await Promise.all(counts.map((count) => count())), [0, 0]);
      }

      /** While `work` runs, the pod reaches whom it may; one lost datagram would show. */
      async function open(work: () => Promise<void>): Promise<void> {
        let working = true;
        const probing = (async () => {
          const lost: object[] = [];
          let count = 0;
          while (working || count === 0) {
            // Of a port that is denied in the network.
            const tally = await pod.burst(churn.always, 7000, 20, {
              protocol: 'UDP',
              concurrency: 4,
            });
            const other = await pod.burst(churn.network, DENIED_PORT - 1, 20, {
              protocol: 'UDP',
              concurrency: 4,
            });
            if (tally.answered.client !== 20) lost.push(tally);
            if (other.answered['pod-3'] !== 20) lost.push(other);
            count += 1;
          }
          return lost;
        })();
        try {
          await work();
        } finally {
          working = false;
        }
        assert.deepEqual(await probing, []);
      }

      const all = async (step: number) => {
        const refusal = await world.agent.call('policyAll', family, stateOf(step, churn));
        assert.equal(refusal, undefined);
      };

      it('lets nothing through and keeps nothing back while it is written anew', async () => {
        await all(0);
        await closed(() =>
          open(async () => {
            for (let step = 1; step <= 60; step++) await all(step);
          }),
        );
      });

      it('nor while it changes', async () => {
        await all(0);
        await closed(() =>
          open(async () => {
            for (let step = 1; step <= 100; step++) {
              const refusal = await world.agent.call('policyApply', family, changeTo(step, churn));
              assert.equal(refusal, undefined);
            }
          }),
        );
        await here.reaches(pod, churn.even);
        await here.isDenied(pod, churn.odd);
      });

      it('lets nothing through while a table of another version is replaced', async () => {
        await all(0);
        await closed(async () => {
          for (let round = 0; round < 5; round++) {
            const old = oldTable(here, churn);
            await world.agent.call('hold', old, 'nft', '-f', '-');
            await all(round);
          }
        });
        await here.reaches(pod, churn.always, 7000);
      });

      it('is as before or as after, wherever writing everything is broken off', async () => {
        await all(0);
        await closed(async () => {
          for (let operations = 0; operations <= 7; operations++) {
            await all(0);
            await world.agent.call('policyBreakOff', family, operations);
            const work = world.agent.call('policyAll', family, stateOf(1, churn));
            if (operations < 7) await assert.rejects(work, /broken off/);
            else await work;
            await world.agent.call('policyStart', family, { family });
            await here.reaches(pod, churn.always, 7000);
            await world.lab.node.exec('conntrack', ['-F']);
            // The third operation is that by which the guard takes over.
            const [gone, come] = operations < 3 ? [churn.odd, churn.even] : [churn.even, churn.odd];
            await here.reaches(pod, come);
            await here.isDenied(pod, gone);
          }
          await all(1);
        });
      });

      for (const how of ['all', 'changes']) {
        it(`is as before or as after, whenever an agent is killed that writes ${how}`, async () => {
          await all(0);
          await closed(async () => {
            for (let kill = 0; kill < KILLS; kill++) {
              await runAndKill(how, kill);
              await here.reaches(pod, churn.always, 7000);
              await world.lab.node.exec('conntrack', ['-F']);
              const outcomes = await Promise.all(
                [churn.even, churn.odd].map((each) => pod.tcp(each, 80, { timeoutMs: 1500 })),
              );
              const fates = outcomes.map(({ outcome }) => outcome).sort();
              assert.deepEqual(fates, ['answered', 'timeout'], `kill ${kill}`);
            }
          });
          await all(1);
          const written = await world.agent.call('policyState', family);
          await here.lift();
          await all(1);
          assert.deepEqual(await world.agent.call('policyState', family), written);
        });
      }

      /** Some time from its first write on. */
      async function runAndKill(how: string, kill: number): Promise<void> {
        const args = [CHURNER, JSON.stringify(churn), how];
        const agent = world.lab.node.spawn(process.execPath, args);
        let told = '';
        agent.stdout?.on('data', (text: Buffer) => {
          told += text.toString();
        });
        const last = kill % 3 === 0 ? 'starts' : 'churns';
        await waitFor(`it ${last}`, () => told.includes(last));
        await new Promise((resolve) => setTimeout(resolve, (kill * 37) % 101));
        agent.kill('SIGKILL');
        await agent.catch(() => undefined);
      }
    });
  }
});

/** A table that denies the same and has another kind of set. */
function oldTable({ ip, family }: { ip: string; family: IpFamily }, churn: Churn): string {
  return `delete table ${ip} portwide-policy
    table ${ip} portwide-policy {
      counter deny-admin-egress { }
      counter deny-network-policy-egress { }
      set own { type ${family === 'IPv4' ? 'ipv4' : 'ipv6'}_addr; }
      chain forward {
        type filter hook forward priority 3;
        ct state established,related accept;
        ${ip} saddr ${churn.pod} ${ip} daddr ${churn.never} counter name deny-network-policy-egress drop;
        ${ip} saddr ${churn.pod} ${ip} daddr ${churn.network} udp dport ${DENIED_PORT} drop;
      }
    }`;
}
