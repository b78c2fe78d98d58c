/** What becomes of packets under hand-made policy. */
import assert from 'node:assert/strict';
import { IP_FAMILIES } from '../../../api/objects.ts';
import type { CompiledRule, PolicyElement } from '../../../policy/compile/change.ts';
import type { Direction } from '../../../policy/model/terms.ts';
import type { Host } from '../../lab/lab.ts';
import { udpDatagram } from '../../lab/packets.ts';
import { chainRule, DENY_REST, peers, policySetChain, ports } from '../fixtures.ts';
import { type FamilyLab, HOST_PORT, PolicyLab } from '../policy-lab.ts';
import { send } from '../raw.ts';

const TCP = 6;
const UDP = 17;
const SCTP = 132;

describe('packets under network policy', function () {
  this.timeout(120_000);
  let world: PolicyLab;
  before(async () => {
    world = await PolicyLab.create();
  });
  after(async () => world?.destroy());

  for (const family of IP_FAMILIES) {
    describe(family, () => {
      let here: FamilyLab;
      /** On the node that judges, the first as subject; on the other node. */
      let pod: Host;
      let other: Host;
      let third: Host;
      let remote: Host;
      let far: Host;

      before(() => {
        here = world.in(family);
        pod = world.pod(1);
        other = world.pod(2);
        third = world.pod(3);
        remote = world.remote(1);
        far = world.remote(2);
      });
      afterEach(() => here.lift());

      const subject = (direction: Direction, host = pod, profile = 1): PolicyElement => ({
        set: `${direction}-pods`,
        address: here.address(host),
        profile,
      });
      const peer = (list: number, host: Host): PolicyElement => ({
        set: 'peers',
        list,
        address: here.address(host),
      });
      const port = (
        list: number,
        protocol: number,
        first: number,
        last = first,
      ): PolicyElement => ({
        set: 'ports',
        list,
        protocol,
        first,
        last,
      });
      /** Pod 1 is judged by these rules in one direction. */
      const judge = (
        direction: Direction,
        rest: readonly CompiledRule[],
        elements: readonly PolicyElement[] = [],
        admin: readonly CompiledRule[] = [],
      ) =>
        here.enforce({
          chains: [policySetChain(direction, 1, rest, admin)],
          elements: [subject(direction), ...elements],
        });

      it('passes without policy, and of pods that no policy is about', async () => {
        await here.reaches(pod, remote);
        await judge('egress', [DENY_REST]);
        await here.reaches(other, pod);
        await here.reaches(other, remote);
        await here.isDenied(pod, other);
        await here.isDenied(pod, remote);
      });

      for (const direction of ['egress', 'ingress'] as const) {
        describe(direction, () => {
          /** A connection in the direction that is judged. */
          const ends = (host: Host): [from: Host, to: Host] =>
            direction === 'egress' ? [pod, host] : [host, pod];
          const allowed = (host: Host, ...rest: [number?, ('TCP' | 'UDP' | 'SCTP')?]) =>
            here.reaches(...ends(host), ...rest);
          const denied = (host: Host, ...rest: [number?, ('TCP' | 'UDP' | 'SCTP')?]) =>
            here.isDenied(...ends(host), ...rest);

          it('is decided by the first rule that matches, in each tier', async () => {
            const admin = [
              chainRule({ outcome: 'allow', peers: peers(1) }),
              chainRule({ outcome: 'pass', peers: peers(2) }),
              chainRule({ outcome: 'deny-admin', peers: peers(3) }),
            ];
            const rest = [
              chainRule({ peers: peers(4) }),
              chainRule({ outcome: 'deny-network-policy', peers: peers(5) }),
            ];
            const lists = (host: Host, ...all: number[]) => all.map((each) => peer(each, host));
            await judge(
              direction,
              rest,
              [
                ...lists(other, 1, 3, 5),
                ...lists(third, 2, 3, 4, 5),
                ...lists(remote, 3, 4),
                ...lists(far, 2, 5),
              ],
              admin,
            );
            // Allowed by the first; passed on and allowed; denied though it would be allowed later on.
            await allowed(other);
            await allowed(third);
            await denied(remote);
            await denied(far);
            // Nothing matches, and nothing isolates.
            await allowed(world.lab.client, direction === 'egress' ? HOST_PORT : 80);
            const found = await here.denied();
            assert.deepEqual(Object.keys(found).sort(), [
              `deny-admin ${direction}`,
              `deny-network-policy ${direction}`,
            ]);
          });

          it('counts what each tier denies', async () => {
            const admin = [chainRule({ outcome: 'deny-admin', peers: peers(1) })];
            const rest = [
              chainRule({ outcome: 'deny-network-policy', peers: peers(2) }),
              chainRule({ outcome: 'deny-baseline', peers: peers(3) }),
            ];
            const elements = [peer(1, other), peer(2, third), peer(3, remote)];
            await judge(direction, rest, elements, admin);
            await denied(other, 80, 'UDP');
            await denied(third, 80, 'UDP');
            await denied(third, 81, 'UDP');
            await denied(remote, 80, 'UDP');
            assert.deepEqual(await here.denied(), {
              [`deny-admin ${direction}`]: 1,
              [`deny-network-policy ${direction}`]: 2,
              [`deny-baseline ${direction}`]: 1,
            });
          });

          it('knows peers by address, network, and learned address', async () => {
            const all = chainRule({ peers: peers(1, 'peers', 'networks', 'learned') });
            const state = {
              chains: [policySetChain(direction, 1, [all, DENY_REST])],
              elements: [
                subject(direction),
                peer(1, other),
                peer(2, third),
                // Up to the pod before `far`.
                {
                  set: 'networks',
                  list: 1,
                  first: family === 'IPv4' ? '10.244.2.0' : 'fd00:10:244:2::',
                  last: here.address(remote),
                },
                {
                  set: 'networks',
                  list: 2,
                  first: family === 'IPv4' ? '0.0.0.0' : '::',
                  last:
                    family === 'IPv4'
                      ? '255.255.255.255'
                      : 'ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff',
                },
              ] satisfies PolicyElement[],
            };
            await here.enforce(state);
            await allowed(other);
            await allowed(remote);
            await Promise.all([denied(third), denied(far)]);
            const learned = (list: number, timeoutMs: number) =>
              ({ set: 'learned', list, address: here.address(far), timeoutMs }) as const;
            await world.agent.call('policyLearn', family, [learned(2, 60_000)]);
            await denied(far);
            await world.agent.call('policyLearn', family, [learned(1, 60_000)]);
            await allowed(far);
          });

          it('knows ports, ranges, protocols, and ports of a name', async () => {
            const rule = chainRule({ ports: ports(1, 'ports', 'named-ports') });
            const destination = direction === 'egress' ? other : pod;
            const named = (host: Host): PolicyElement => ({
              set: 'named-ports',
              list: 1,
              address: here.address(host),
              protocol: TCP,
              port: 8080,
            });
            await judge(
              direction,
              [rule, DENY_REST],
              [
                port(1, TCP, 80),
                port(1, TCP, 5000, 5009),
                port(1, UDP, 53),
                port(1, SCTP, 1, 65_535),
                port(2, TCP, 1, 65_535),
                named(destination),
              ],
            );
            for (const number of [80, 5000, 5009, 8080]) await allowed(other, number);
            await allowed(other, 53, 'UDP');
            await allowed(other, 9999, 'SCTP');
            await Promise.all([
              denied(other, 79),
              denied(other, 81),
              denied(other, 4999),
              denied(other, 5010),
              denied(other, 53),
              denied(other, 80, 'UDP'),
              denied(other, 8080, 'UDP'),
            ]);
            const [from, to] = ends(other);
            await here.pingIsDenied(from, to);
            if (direction === 'egress') await denied(third, 8080);
          });

          it('takes rules without ports for all protocols', async () => {
            await judge(direction, [chainRule({ peers: peers(1) }), DENY_REST], [peer(1, other)]);
            await allowed(other, 1);
            await allowed(other, 65_535, 'UDP');
            await allowed(other, 5, 'SCTP');
            await here.pings(...ends(other));
            await here.pingIsDenied(...ends(third));
            await denied(third, 5, 'SCTP');
          });

          it('lets replies pass, and errors about what was let through', async () => {
            await judge(direction, [DENY_REST]);
            const [to, from] = ends(other);
            await here.reaches(from, to);
            await here.reaches(from, to, 80, 'UDP');
            await here.reaches(from, to, 80, 'SCTP');
            await here.pings(from, to);
            await to.stopServingEveryPort();
            try {
              const outcome = await from.udp(here.address(to), 81);
              assert.deepEqual(outcome, { outcome: 'refused', by: 'icmp' });
            } finally {
              await to.serveEveryPort();
            }
          });

          it('lets connections live on that are denied now', async () => {
            await here.enforce({ chains: [], elements: [] });
            const [from, to] = ends(remote);
            const held = await from.hold(here.address(to), 80);
            const refusal = await world.agent.call('policyAll', family, {
              chains: [policySetChain(direction, 1, [DENY_REST])],
              elements: [subject(direction)],
            });
            assert.equal(refusal, undefined);
            await denied(remote);
            assert.equal(await held.exchange('still there'), 'still there');
            await held.close();
          });
        });
      }

      it('has to be allowed at both ends, on the node and across', async () => {
        const allow = chainRule({ peers: peers(1) });
        const chains = [
          policySetChain('egress', 1, [allow, DENY_REST]),
          policySetChain('ingress', 2, [allow, DENY_REST]),
        ];
        const elements = [subject('egress'), subject('ingress', other, 2)];
        await here.enforce({ chains, elements: [...elements, peer(1, other)] });
        await here.isDenied(pod, other);
        assert.deepEqual(Object.keys(await here.denied()), ['deny-network-policy ingress']);
        await here.enforce({ chains, elements: [...elements, peer(1, pod)] });
        await here.isDenied(pod, other);
        assert.equal((await here.denied())['deny-network-policy ingress'], 1);
        await here.enforce({ chains, elements: [...elements, peer(1, pod), peer(1, other)] });
        await here.reaches(pod, other);
        // The node knows nothing of what the other one enforces.
        await here.isDenied(pod, remote);
        await here.isDenied(remote, other);
        await here.reaches(remote, third);
        await here.reaches(third, remote);
      });

      it('passes from the node to its own pods, and is judged from other nodes and outside', async () => {
        await judge('ingress', [DENY_REST]);
        for (const protocol of ['TCP', 'UDP', 'SCTP'] as const) {
          await here.reaches(world.lab.node, pod, 80, protocol);
        }
        await here.pings(world.lab.node, pod);
        await here.isDenied(world.lab.node2, pod);
        await here.isDenied(world.lab.client, pod);
      });

      it('is judged by egress where a pod speaks to its node', async () => {
        const allow = chainRule({ ports: ports(1) });
        await judge('egress', [allow, DENY_REST], [port(1, TCP, HOST_PORT)]);
        await here.reaches(pod, world.lab.node, HOST_PORT);
        await here.isDenied(pod, world.lab.node, HOST_PORT, 'UDP');
        await here.reaches(other, world.lab.node, HOST_PORT, 'UDP');
        await here.reaches(remote, world.lab.node, HOST_PORT);
        await here.pingIsDenied(pod, world.lab.node);
      });

      it('is judged by where it is translated to', async () => {
        const vip = family === 'IPv4' ? '10.96.0.10' : 'fd00:10:96::a';
        const rule = chainRule({ peers: peers(1), ports: ports(2) });
        await judge('egress', [rule, DENY_REST], [peer(1, other), port(2, TCP, 8080)]);
        const to = (host: Host) =>
          family === 'IPv4' ? `${here.address(host)}:8080` : `[${here.address(host)}]:8080`;
        const translate = (host: Host) =>
          world.agent.call(
            'hold',
            `table ${here.ip} translation {
              chain prerouting {
                type nat hook prerouting priority dstnat;
                ${here.ip} daddr ${vip} tcp dport 80 dnat to ${to(host)};
              }
            }`,
            'nft',
            '-f',
            '-',
          );
        const undo = () => world.lab.node.exec('nft', ['delete', 'table', here.ip, 'translation']);
        await translate(other);
        const reply = await here.reaches(pod, vip);
        assert.deepEqual([reply.host, reply.localPort], ['pod-2', 8080]);
        await undo();
        await translate(third);
        await here.isDenied(pod, vip);
        await undo();
      });

      it('passes from a pod to itself by way of a Service', async () => {
        const vip = family === 'IPv4' ? '10.96.0.11' : 'fd00:10:96::b';
        const own: PolicyElement = { set: 'own', address: here.address(pod) };
        const state = {
          chains: [
            policySetChain('egress', 1, [DENY_REST]),
            policySetChain('ingress', 1, [DENY_REST]),
          ],
          elements: [subject('egress'), subject('ingress')],
        };
        await here.enforce({ ...state, elements: [...state.elements, own] });
        const script = `table ${here.ip} translation {
          chain prerouting {
            type nat hook prerouting priority dstnat;
            ${here.ip} daddr ${vip} dnat to ${here.address(pod)};
          }
          chain postrouting {
            type nat hook postrouting priority srcnat;
            ct status dnat masquerade;
          }
        }`;
        await world.agent.call('hold', script, 'nft', '-f', '-');
        const reply = await here.reaches(pod, vip);
        assert.equal(reply.host, 'pod-1');
        await here.isDenied(other, vip);
        await here.enforce(state);
        await here.isDenied(pod, vip);
        await world.lab.node.exec('nft', ['delete', 'table', here.ip, 'translation']);
      });

      it('is judged on its way out where the node forwards what came in for it (IPVS)', async () => {
        const chains = [
          policySetChain('egress', 1, [chainRule({ peers: peers(1) }), DENY_REST]),
          policySetChain('ingress', 2, [DENY_REST]),
        ];
        const elements = [
          subject('egress'),
          peer(1, other),
          peer(1, third),
          subject('ingress', third, 2),
        ];
        await here.enforce({ chains, elements });
        /** The node sends a datagram with the pod's address as its source. */
        const leave = async (to: Host) => {
          const [source, destination] = [here.address(pod), here.address(to)];
          const from = { address: source, port: 1234 };
          const payload = udpDatagram(from, { ...from, address: destination }, Buffer.from('x'));
          await send(world.lab.node, { source, destination, protocol: UDP, payload });
        };
        await leave(other);
        assert.deepEqual(await here.denied(), {});
        await leave(remote);
        assert.deepEqual(await here.denied(), { 'deny-network-policy egress': 1 });
        await leave(third);
        assert.deepEqual(await here.denied(), {
          'deny-network-policy egress': 1,
          'deny-network-policy ingress': 1,
        });
      });
    });
  }
});
