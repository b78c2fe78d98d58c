/** Truncated packets, fragments, neighbour discovery, and logging of denied packets. */
import assert from 'node:assert/strict';
import { fileURLToPath } from 'node:url';
import { IP_FAMILIES } from '../../../api/objects.ts';
import type { CompiledRule, PolicyElement } from '../../../policy/compile/change.ts';
import type { Direction } from '../../../policy/model/terms.ts';
import { type Host, PATIENCE, waitFor } from '../../lab/lab.ts';
import { chainRule, DENY_REST, peers, policySetChain, ports } from '../fixtures.ts';
import { type FamilyLab, PolicyLab } from '../policy-lab.ts';
import { send } from '../raw.ts';

const PROTOCOLS = { TCP: 6, UDP: 17, SCTP: 132 } as const;
const ICMPV6 = 58;
/** A protocol for experiments (RFC 3692). */
const LAST = 253;
const NEIGHBOUR_SOLICITATION = 135;
const GROUP = 17;
const NFLOG = fileURLToPath(new URL('../nflog.ts', import.meta.url));

describe('odd-packets: rare packets under network policy', function () {
  this.timeout(120_000 * PATIENCE);
  let policyLab: PolicyLab;
  let pod: Host;
  let other: Host;
  let remote: Host;
  before(async () => {
    policyLab = await PolicyLab.create(GROUP);
    pod = policyLab.pod(1);
    other = policyLab.pod(2);
    remote = policyLab.remote(1);
  });
  after(async () => policyLab?.destroy());

  for (const family of IP_FAMILIES) {
    describe(family, () => {
      let here: FamilyLab;
      before(() => {
        here = policyLab.in(family);
      });
      afterEach(() => here.lift());

      const enforceRules = (
        direction: Direction,
        rest: readonly CompiledRule[],
        elements: readonly PolicyElement[] = [],
        admin: readonly CompiledRule[] = [],
      ) => {
        const subject = direction === 'egress' ? pod : other;
        const pods: PolicyElement = {
          set: `${direction}-pods`,
          address: here.address(subject),
          policySetId: 1,
        };
        return here.enforce({
          chains: [policySetChain(direction, 1, rest, admin)],
          elements: [pods, ...elements],
        });
      };
      const web: PolicyElement[] = Object.values(PROTOCOLS).map((protocol) => ({
        set: 'ports',
        list: 1,
        protocol,
        first: 80,
        last: 80,
      }));
      const peer = () =>
        [pod, other].map(
          (host): PolicyElement => ({ set: 'peers', list: 2, address: here.address(host) }),
        );

      for (const direction of ['egress', 'ingress'] as const) {
        describe(`with unparsable ports, ${direction}`, () => {
          /** One packet of each protocol with only the first bytes of its header. */
          const packets = (bytes: number) =>
            Object.values(PROTOCOLS).map((protocol) => ({
              ...ends(),
              protocol,
              payload: Buffer.from([0x12, 0x34, 0, 80]).subarray(0, bytes),
            }));
          const ends = () => ({ source: here.address(pod), destination: here.address(other) });

          /** Number of packets that arrive. */
          async function passing(bytes: number): Promise<number> {
            const table = `table ${here.ip} arrivals`;
            const script = `${table}
              delete ${table}
              ${table} {
                counter some { }
                counter last { }
                chain prerouting {
                  type filter hook prerouting priority -500;
                  meta l4proto { tcp, udp, sctp } counter name some;
                  meta l4proto ${LAST} counter name last;
                }
              }`;
            await other.exec('nft', ['-f', '-'], { input: script });
            const count = async (name: string) => {
              const args = ['list', 'counter', here.ip, 'arrivals', name];
              return Number(/packets (\d+)/.exec((await other.exec('nft', args)).stdout)?.[1]);
            };
            await send(pod, ...packets(bytes));
            const last = { ...ends(), protocol: LAST, payload: Buffer.alloc(0) };
            await send(pod, last);
            await waitFor('the last arrives', async () => (await count('last')) > 0);
            return await count('some');
          }

          it('pass when no rule has ports', async () => {
            await enforceRules(direction, []);
            assert.equal(await passing(2), 3);
            await enforceRules(direction, [chainRule({ peers: peers(2) }), DENY_REST], peer());
            assert.equal(await passing(2), 3);
          });

          it('are dropped by a deny rule with ports', async () => {
            const deny = chainRule({ ports: ports(1), verdict: 'deny-baseline' });
            await enforceRules(direction, [deny], web);
            assert.equal(await passing(3), 0);
            assert.deepEqual(await here.denied(), { [`deny-baseline ${direction}`]: 3 });
            await here.reaches(pod, other, 81);
            await here.isDenied(pod, other, 80);
            await here.pings(pod, other);
          });

          it('are dropped by a pass rule with ports', async () => {
            const admin = [
              chainRule({ ports: ports(1), verdict: 'pass' }),
              chainRule({ peers: peers(2) }),
            ];
            await enforceRules(direction, [DENY_REST], [...web, ...peer()], admin);
            assert.equal(await passing(3), 0);
            assert.deepEqual(await here.denied(), { [`deny-admin ${direction}`]: 3 });
            await here.reaches(pod, other, 81);
            await here.isDenied(pod, other, 80);
          });

          it('are not allowed by an allow rule with ports', async () => {
            await enforceRules(direction, [chainRule({ ports: ports(1) }), DENY_REST], web);
            await send(pod, ...packets(1));
            assert.deepEqual(await here.denied(), { [`deny-network-policy ${direction}`]: 3 });
            await here.reaches(pod, other, 80);
          });
        });
      }

      it('in fragments are evaluated by their ports', async () => {
        await enforceRules('egress', [chainRule({ ports: ports(1) }), DENY_REST], web);
        const payload = 'x'.repeat(4000);
        const allowed = await pod.udp(here.address(other), 80, { payload });
        assert.equal(allowed.outcome, 'answered');
        const denied = await pod.udp(here.address(other), 81, { payload, timeoutMs: 300 });
        assert.equal(denied.outcome, 'timeout');
        await enforceRules('egress', [chainRule({ ports: ports(1), verdict: 'deny-admin' })], web);
        const other80 = await pod.udp(here.address(other), 80, { payload, timeoutMs: 300 });
        assert.equal(other80.outcome, 'timeout');
        assert.equal((await pod.udp(here.address(other), 81, { payload })).outcome, 'answered');
      });

      it('are logged to NFLOG when they are denied', async () => {
        const log = policyLab.lab.node.spawn(process.execPath, [NFLOG, String(GROUP)]);
        let output = '';
        log.stdout?.on('data', (text: Buffer) => {
          output += text.toString();
        });
        await waitFor('the logger is ready', () => output.includes('ready'));
        await enforceRules('egress', [DENY_REST]);
        await here.isDenied(pod, other, 80, 'UDP');
        await enforceRules('ingress', [], peer(), [
          chainRule({ verdict: 'deny-admin', peers: peers(2) }),
        ]);
        await here.isDenied(pod, other, 80, 'UDP');
        await waitFor('two packets are logged', () => output.trim().split('\n').length >= 3);
        assert.deepEqual(
          output
            .trim()
            .split('\n')
            .map((line) => line.trim()),
          ['ready', 'portwide deny network-policy egress', 'portwide deny admin ingress'],
        );
        log.kill('SIGKILL');
        await log.catch(() => undefined);
      });
    });
  }

  describe('neighbour discovery', () => {
    let here: FamilyLab;
    before(() => {
      here = policyLab.in('IPv6');
    });
    afterEach(() => here.lift());
    const isolate = (elements: readonly PolicyElement[] = []) =>
      here.enforce({
        chains: [policySetChain('egress', 1, [chainRule({ peers: peers(1) }), DENY_REST])],
        elements: [{ set: 'egress-pods', address: pod.ipv6, policySetId: 1 }, ...elements],
      });

    it('is answered by a pod with default deny for egress', async () => {
      await isolate();
      await policyLab.lab.node.exec('ip', ['-6', 'neighbour', 'flush', 'dev', 'pw1']);
      await here.pings(policyLab.lab.node, pod);
      await here.reaches(other, pod);
      assert.deepEqual(await here.denied(), {});
    });

    it('resolves the gateway for a pod that may not send to the node', async () => {
      await isolate([{ set: 'peers', list: 1, address: remote.ipv6 }]);
      const gateway = ['fe80::1', 'dev', 'eth0'];
      await pod.exec('ip', ['-6', 'neighbour', 'delete', ...gateway]);
      try {
        await here.reaches(pod, remote);
        assert.deepEqual(await here.denied(), {});
      } finally {
        const permanent = ['lladdr', 'ee:ee:ee:ee:ee:ee', 'nud', 'permanent'];
        await pod.exec('ip', ['-6', 'neighbour', 'replace', ...gateway, ...permanent]);
      }
    });

    it('is evaluated when the packet is forwarded', async () => {
      await isolate();
      const payload = Buffer.alloc(24);
      payload[0] = NEIGHBOUR_SOLICITATION;
      const [source, destination] = [pod.ipv6, remote.ipv6];
      await send(pod, { source, destination, protocol: ICMPV6, payload, hopLimit: 255 });
      assert.deepEqual(await here.denied(), { 'deny-network-policy egress': 1 });
    });
  });
});
