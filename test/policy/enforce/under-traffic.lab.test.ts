/** Traffic while the policy table changes or is replaced, and while the agent is killed. */
import assert from 'node:assert/strict';
import { fileURLToPath } from 'node:url';
import { IP_FAMILIES, type IpFamily } from '../../../api/objects.ts';
import { type Host, PATIENCE, waitFor } from '../../lab/lab.ts';
import { type Churn, changeTo, DENIED_PORT, stateOf } from '../kernel-churn.ts';
import { type FamilyLab, PolicyLab } from '../policy-lab.ts';

const FLOOD = fileURLToPath(new URL('../flood.ts', import.meta.url));
const CHURNER = fileURLToPath(new URL('../churner.ts', import.meta.url));
const KILLS = 6;

describe('under-traffic: enforcement without gaps while the policy table changes', function () {
  this.timeout(240_000 * PATIENCE);
  let policyLab: PolicyLab;
  let pod: Host;
  let never: Host;
  let network: Host;
  before(async () => {
    policyLab = await PolicyLab.create();
    pod = policyLab.pod(1);
    never = policyLab.pod(2);
    network = policyLab.pod(3);
  });
  after(async () => policyLab?.destroy());

  for (const family of IP_FAMILIES) {
    describe(family, () => {
      let here: FamilyLab;
      let churn: Churn;
      before(() => {
        here = policyLab.in(family);
        churn = {
          family,
          pod: here.address(pod),
          even: here.address(policyLab.remote(1)),
          odd: here.address(policyLab.remote(2)),
          always: here.address(policyLab.lab.client),
          never: here.address(never),
          network: here.address(network),
        };
      });
      afterEach(() => here.lift());

      /** Counts packets from the pod to the denied port that arrive at a host. */
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

      /** Sums a counter over all policy tables: a staging table may be in force. */
      async function deniedPackets(counter: string): Promise<number> {
        const { stdout } = await policyLab.lab.node.exec('nft', ['list', 'counters']);
        const values = stdout.matchAll(new RegExp(`counter ${counter} \\{\\s+packets (\\d+)`, 'g'));
        return [...values].reduce((sum, [, packets]) => sum + Number(packets), 0);
      }

      /** Asserts that none of the pod's denied packets arrives while `work` runs. */
      async function assertDenied(work: () => Promise<void>): Promise<void> {
        const counts = await Promise.all([arrivals(never), arrivals(network)]);
        const flood = pod.spawn(process.execPath, [
          FLOOD,
          String(DENIED_PORT),
          churn.never,
          churn.network,
        ]);
        try {
          await waitFor('packets are denied', async () => {
            const [byRule, isolated] = await Promise.all(
              ['deny-admin-egress', 'deny-network-policy-egress'].map(deniedPackets),
            );
            return Math.min(byRule ?? 0, isolated ?? 0) > 100;
          });
          await work();
        } finally {
          flood.kill('SIGKILL');
          await flood.catch(() => undefined);
        }
        assert.deepEqual(await Promise.all(counts.map((count) => count())), [0, 0]);
      }

      /** Asserts that none of the pod's allowed datagrams is lost while `work` runs. */
      async function assertAllowed(work: () => Promise<void>): Promise<void> {
        let working = true;
        const probing = (async () => {
          const lost: object[] = [];
          let count = 0;
          while (working || count === 0) {
            // The denied rule covers the same network, but another port.
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
        const refusal = await policyLab.agent.call(
          'policyReplaceAll',
          family,
          stateOf(step, churn),
        );
        assert.equal(refusal, undefined);
      };

      it('keeps denying and allowing while the table is replaced', async () => {
        await all(0);
        await assertDenied(() =>
          assertAllowed(async () => {
            for (let step = 1; step <= 60; step++) await all(step);
          }),
        );
      });

      it('keeps denying and allowing while changes are applied', async () => {
        await all(0);
        await assertDenied(() =>
          assertAllowed(async () => {
            for (let step = 1; step <= 100; step++) {
              const refusal = await policyLab.agent.call(
                'policyApply',
                family,
                changeTo(step, churn),
              );
              assert.equal(refusal, undefined);
            }
          }),
        );
        await here.reaches(pod, churn.even);
        await here.isDenied(pod, churn.odd);
      });

      it('keeps denying while a table of another version is replaced', async () => {
        await all(0);
        await assertDenied(async () => {
          for (let round = 0; round < 5; round++) {
            const old = oldTable(here, churn);
            await policyLab.agent.call('hold', old, 'nft', '-f', '-');
            await all(round);
          }
        });
        await here.reaches(pod, churn.always, 7000);
      });

      describe('takeover of tables with the names of an earlier release', () => {
        const start = (hasOldNames: boolean) =>
          policyLab.agent.call('policyStart', family, { family, hasOldNames });
        afterEach(() => start(false));

        const entry = () => ({
          name: 'www.example.com',
          address: churn.never,
          timeoutMs: 60_000,
        });
        /** Writes the first state and an entry of the FQDN cache. */
        const writeFirst = () => {
          const content = { elements: [], entries: [entry()] };
          return policyLab.agent.call('policyReplaceAll', family, stateOf(0, churn), content);
        };
        const cachedNames = async () =>
          (await policyLab.agent.call('policyFqdnEntries', family)).map(({ name }) => name);

        const takeOver = async () => {
          const names = await here.tableNames();
          assert.deepEqual([names.current, names.old.length >= 5], [[], true]);
          await assertDenied(() =>
            assertAllowed(async () => {
              await start(false);
              await all(1);
            }),
          );
          assert.deepEqual((await here.tableNames()).old, []);
          await here.reaches(pod, churn.odd);
          await here.isDenied(pod, churn.even);
        };

        it('has no gap when the policy table is in force', async () => {
          await start(true);
          await all(0);
          await takeOver();
        });

        it('has no gap when the earlier agent was killed while the staging table was in force', async () => {
          await start(true);
          await writeFirst();
          await policyLab.agent.call('policyFailAfter', family, 3);
          await assert.rejects(writeFirst(), /broken off/);
          const { stdout } = await policyLab.lab.node.exec('nft', ['list', 'tables', here.ip]);
          assert.match(stdout, /portwide-policy-guard/);
          await takeOver();
          assert.deepEqual(await cachedNames(), [entry().name]);
        });

        it('keeps counters and the FQDN cache', async () => {
          await start(true);
          await writeFirst();
          await here.isDenied(pod, never);
          const denied = await here.denied();
          assert.ok((denied['deny-network-policy egress'] ?? 0) > 0);
          await start(false);
          assert.deepEqual(await cachedNames(), [entry().name]);
          await all(1);
          assert.deepEqual(await cachedNames(), [entry().name]);
          assert.deepEqual(await here.denied(), denied);
        });
      });

      it('enforces the old or the new state when replacing the table is interrupted at any operation', async () => {
        await all(0);
        await assertDenied(async () => {
          for (let operations = 0; operations <= 6; operations++) {
            await all(0);
            await policyLab.agent.call('policyFailAfter', family, operations);
            const work = policyLab.agent.call('policyReplaceAll', family, stateOf(1, churn));
            if (operations < 6) await assert.rejects(work, /broken off/);
            else await work;
            await policyLab.agent.call('policyStart', family, { family });
            await here.reaches(pod, churn.always, 7000);
            await policyLab.lab.node.exec('conntrack', ['-F']);
            // The second operation commits the staging table.
            const [denied, allowed] =
              operations < 2 ? [churn.odd, churn.even] : [churn.even, churn.odd];
            await here.reaches(pod, allowed);
            await here.isDenied(pod, denied);
          }
          await all(1);
        });
      });

      for (const how of ['all', 'changes']) {
        it(`enforces the old or the new state when an agent that writes ${how} is killed`, async () => {
          await all(0);
          await assertDenied(async () => {
            for (let kill = 0; kill < KILLS; kill++) {
              await runAndKill(how, kill);
              await here.reaches(pod, churn.always, 7000);
              await policyLab.lab.node.exec('conntrack', ['-F']);
              const outcomes = await Promise.all(
                [churn.even, churn.odd].map((each) => pod.tcp(each, 80, { timeoutMs: 1500 })),
              );
              const results = outcomes.map(({ outcome }) => outcome).sort();
              assert.deepEqual(results, ['answered', 'timeout'], `kill ${kill}`);
            }
          });
          await all(1);
          const written = await policyLab.agent.call('policyState', family);
          await here.lift();
          await all(1);
          assert.deepEqual(await policyLab.agent.call('policyState', family), written);
        });
      }

      /** Starts an agent and kills it some time after its first write. */
      async function runAndKill(how: string, kill: number): Promise<void> {
        const args = [CHURNER, JSON.stringify(churn), how];
        const agent = policyLab.lab.node.spawn(process.execPath, args);
        let output = '';
        agent.stdout?.on('data', (text: Buffer) => {
          output += text.toString();
        });
        const phase = kill % 3 === 0 ? 'starts' : 'churns';
        await waitFor(`the agent ${phase}`, () => output.includes(phase));
        await new Promise((resolve) => setTimeout(resolve, (kill * 37) % 101));
        agent.kill('SIGKILL');
        await agent.catch(() => undefined);
      }
    });
  }
});

/** A policy table that denies the same traffic, with a set of an incompatible type. */
function oldTable({ ip, family }: { ip: string; family: IpFamily }, churn: Churn): string {
  return `delete table ${ip} portwide-policy
    table ${ip} portwide-policy {
      counter deny-admin-egress { }
      counter deny-network-policy-egress { }
      set hairpin-pods { type ${family === 'IPv4' ? 'ipv4' : 'ipv6'}_addr; }
      chain forward {
        type filter hook forward priority 3;
        ct state established,related accept;
        ${ip} saddr ${churn.pod} ${ip} daddr ${churn.never} counter name deny-network-policy-egress drop;
        ${ip} saddr ${churn.pod} ${ip} daddr ${churn.network} udp dport ${DENIED_PORT} drop;
      }
    }`;
}
