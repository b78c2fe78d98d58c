/** Traffic of pods with hand-written rules. */
import assert from 'node:assert/strict';
import { IP_FAMILIES } from '../../../api/objects.ts';
import type { CompiledRule, PolicyElement } from '../../../policy/compile/change.ts';
import type { Direction } from '../../../policy/model/terms.ts';
import { type Host, PATIENCE } from '../../lab/lab.ts';
import { udpDatagram } from '../../lab/packets.ts';
import { chainRule, DENY_REST, peers, policySetChain, ports } from '../fixtures.ts';
import { type FamilyLab, HOST_PORT, PolicyLab } from '../policy-lab.ts';
import { send } from '../raw.ts';

const TCP = 6;
const UDP = 17;
const SCTP = 132;

describe('packets: traffic under network policy', function () {
  this.timeout(120_000 * PATIENCE);
  let policyLab: PolicyLab;
  before(async () => {
    policyLab = await PolicyLab.create();
  });
  after(async () => policyLab?.destroy());

  for (const family of IP_FAMILIES) {
    describe(family, () => {
      let here: FamilyLab;
      /** The subject and another pod on the enforcing node, and pods on the other node. */
      let pod: Host;
      let other: Host;
      let third: Host;
      let remote: Host;
      let far: Host;

      before(() => {
        here = policyLab.in(family);
        pod = policyLab.pod(1);
        other = policyLab.pod(2);
        third = policyLab.pod(3);
        remote = policyLab.remote(1);
        far = policyLab.remote(2);
      });
      afterEach(() => here.lift());

      const subject = (direction: Direction, host = pod, policySetId = 1): PolicyElement => ({
        set: `${direction}-pods`,
        address: here.address(host),
        policySetId,
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
      /** Enforces these rules for pod 1 in one direction. */
      const enforceRules = (
        direction: Direction,
        rest: readonly CompiledRule[],
        elements: readonly PolicyElement[] = [],
        admin: readonly CompiledRule[] = [],
      ) =>
        here.enforce({
          chains: [policySetChain(direction, 1, rest, admin)],
          elements: [subject(direction), ...elements],
        });

      it('is allowed without policy, and for pods that no policy selects', async () => {
        await here.reaches(pod, remote);
        await enforceRules('egress', [DENY_REST]);
        await here.reaches(other, pod);
        await here.reaches(other, remote);
        await here.isDenied(pod, other);
        await here.isDenied(pod, remote);
      });

      for (const direction of ['egress', 'ingress'] as const) {
        describe(direction, () => {
          /** The ends of a connection in the enforced direction. */
          const ends = (host: Host): [from: Host, to: Host] =>
            direction === 'egress' ? [pod, host] : [host, pod];
          const allowed = (host: Host, ...rest: [number?, ('TCP' | 'UDP' | 'SCTP')?]) =>
            here.reaches(...ends(host), ...rest);
          const denied = (host: Host, ...rest: [number?, ('TCP' | 'UDP' | 'SCTP')?]) =>
            here.isDenied(...ends(host), ...rest);

          it('is decided by the first matching rule of each tier', async () => {
            const admin = [
              chainRule({ verdict: 'allow', peers: peers(1) }),
              chainRule({ verdict: 'pass', peers: peers(2) }),
              chainRule({ verdict: 'deny-admin', peers: peers(3) }),
            ];
            const rest = [
              chainRule({ peers: peers(4) }),
              chainRule({ verdict: 'deny-network-policy', peers: peers(5) }),
            ];
            const lists = (host: Host, ...all: number[]) => all.map((each) => peer(each, host));
            await enforceRules(
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
            // Allowed by Admin; passed and allowed; denied by Admin; passed and denied.
            await allowed(other);
            await allowed(third);
            await denied(remote);
            await denied(far);
            // No rule matches, and there is no default deny.
            await allowed(policyLab.lab.client, direction === 'egress' ? HOST_PORT : 80);
            const found = await here.denied();
            assert.deepEqual(Object.keys(found).sort(), [
              `deny-admin ${direction}`,
              `deny-network-policy ${direction}`,
            ]);
          });

          it('is counted for each tier when denied', async () => {
            const admin = [chainRule({ verdict: 'deny-admin', peers: peers(1) })];
            const rest = [
              chainRule({ verdict: 'deny-network-policy', peers: peers(2) }),
              chainRule({ verdict: 'deny-baseline', peers: peers(3) }),
            ];
            const elements = [peer(1, other), peer(2, third), peer(3, remote)];
            await enforceRules(direction, rest, elements, admin);
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

          it('matches peers by address, network and FQDN address', async () => {
            const all = chainRule({ peers: peers(1, 'peers', 'networks', 'fqdn-peers') });
            const state = {
              chains: [policySetChain(direction, 1, [all, DENY_REST])],
              elements: [
                subject(direction),
                peer(1, other),
                peer(2, third),
                // The last address is before `far`.
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
            const fqdnPeer = (list: number, timeoutMs: number) =>
              ({ set: 'fqdn-peers', list, address: here.address(far), timeoutMs }) as const;
            await policyLab.agent.call('policyAddFqdn', family, [fqdnPeer(2, 60_000)]);
            await denied(far);
            await policyLab.agent.call('policyAddFqdn', family, [fqdnPeer(1, 60_000)]);
            await allowed(far);
          });

          it('matches ports, port ranges, protocols and named ports', async () => {
            const rule = chainRule({ ports: ports(1, 'ports', 'named-ports') });
            const destination = direction === 'egress' ? other : pod;
            const named = (host: Host): PolicyElement => ({
              set: 'named-ports',
              list: 1,
              address: here.address(host),
              protocol: TCP,
              port: 8080,
            });
            await enforceRules(
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

          it('matches all protocols with rules without ports', async () => {
            await enforceRules(
              direction,
              [chainRule({ peers: peers(1) }), DENY_REST],
              [peer(1, other)],
            );
            await allowed(other, 1);
            await allowed(other, 65_535, 'UDP');
            await allowed(other, 5, 'SCTP');
            await here.pings(...ends(other));
            await here.pingIsDenied(...ends(third));
            await denied(third, 5, 'SCTP');
          });

          it('allows replies and related ICMP errors', async () => {
            await enforceRules(direction, [DENY_REST]);
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

          it('keeps established connections when a new policy denies them', async () => {
            await here.enforce({ chains: [], elements: [] });
            const [from, to] = ends(remote);
            const held = await from.hold(here.address(to), 80);
            const refusal = await policyLab.agent.call('policyReplaceAll', family, {
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

      it('must be allowed at both ends, on one node and between nodes', async () => {
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
        // Ingress of the remote pod is enforced on the other node only.
        await here.isDenied(pod, remote);
        await here.isDenied(remote, other);
        await here.reaches(remote, third);
        await here.reaches(third, remote);
      });

      it('is allowed from the node to its own pods, and evaluated from other nodes and from outside', async () => {
        await enforceRules('ingress', [DENY_REST]);
        for (const protocol of ['TCP', 'UDP', 'SCTP'] as const) {
          await here.reaches(policyLab.lab.node, pod, 80, protocol);
        }
        await here.pings(policyLab.lab.node, pod);
        await here.isDenied(policyLab.lab.node2, pod);
        await here.isDenied(policyLab.lab.client, pod);
      });

      it('is evaluated by egress rules from a pod to its own node', async () => {
        const allow = chainRule({ ports: ports(1) });
        await enforceRules('egress', [allow, DENY_REST], [port(1, TCP, HOST_PORT)]);
        await here.reaches(pod, policyLab.lab.node, HOST_PORT);
        await here.isDenied(pod, policyLab.lab.node, HOST_PORT, 'UDP');
        await here.reaches(other, policyLab.lab.node, HOST_PORT, 'UDP');
        await here.reaches(remote, policyLab.lab.node, HOST_PORT);
        await here.pingIsDenied(pod, policyLab.lab.node);
      });

      it('is evaluated after DNAT', async () => {
        const vip = family === 'IPv4' ? '10.96.0.10' : 'fd00:10:96::a';
        const rule = chainRule({ peers: peers(1), ports: ports(2) });
        await enforceRules('egress', [rule, DENY_REST], [peer(1, other), port(2, TCP, 8080)]);
        const to = (host: Host) =>
          family === 'IPv4' ? `${here.address(host)}:8080` : `[${here.address(host)}]:8080`;
        const translate = (host: Host) =>
          policyLab.agent.call(
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
        const undo = () =>
          policyLab.lab.node.exec('nft', ['delete', 'table', here.ip, 'translation']);
        await translate(other);
        const reply = await here.reaches(pod, vip);
        assert.deepEqual([reply.host, reply.localPort], ['pod-2', 8080]);
        await undo();
        await translate(third);
        await here.isDenied(pod, vip);
        await undo();
      });

      it('is allowed from a pod to itself through a Service (hairpin)', async () => {
        const vip = family === 'IPv4' ? '10.96.0.11' : 'fd00:10:96::b';
        const own: PolicyElement = { set: 'hairpin-pods', address: here.address(pod) };
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
        await policyLab.agent.call('hold', script, 'nft', '-f', '-');
        const reply = await here.reaches(pod, vip);
        assert.equal(reply.host, 'pod-1');
        await here.isDenied(other, vip);
        await here.enforce(state);
        await here.isDenied(pod, vip);
        await policyLab.lab.node.exec('nft', ['delete', 'table', here.ip, 'translation']);
      });

      it('is evaluated in output when IPVS forwards packets to a local VIP', async () => {
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
        /** Sends a datagram from the node with the pod's source address. */
        const leave = async (to: Host) => {
          const [source, destination] = [here.address(pod), here.address(to)];
          const from = { address: source, port: 1234 };
          const payload = udpDatagram(from, { ...from, address: destination }, Buffer.from('x'));
          await send(policyLab.lab.node, { source, destination, protocol: UDP, payload });
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
