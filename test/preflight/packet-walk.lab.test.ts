import assert from 'node:assert/strict';
import { iptablesChains } from '../../preflight/iptables-rules.ts';
import { type BaseChain, walk } from '../../preflight/packet-walk.ts';
import { createLab, type Host, type Lab } from '../lab/lab.ts';
import { type NetnsHelper, startNetnsHelper } from '../netlink/namespace.ts';
import { Random } from '../random.ts';

const PORT = 20_104;
const ROUNDS = 25;

/** iptables matches, and the same in nft; together they cover what the parsers read. */
const MATCHES = [
  ['', ''],
  ['-s 10.244.1.0/24', 'ip saddr 10.244.1.0/24'],
  ['! -s 10.244.1.0/24', 'ip saddr != 10.244.1.0/24'],
  ['! -s 10.99.0.0/16', 'ip saddr != { 10.99.0.0/16, 10.98.0.1 }'],
  ['-d 10.244.2.0/24', 'ip daddr { 10.244.2.0/24, 192.0.2.7 }'],
  ['-d 192.0.2.0/24', 'ip6 daddr fd00::/8'],
  [`-p tcp --dport ${PORT}`, `tcp dport ${PORT}`],
  [`-p tcp ! --dport ${PORT}`, `tcp dport != ${PORT}`],
  ['-p tcp -m multiport --dports 80,20000:20200', 'tcp dport { 80, 20000-20200 }'],
  ['-p udp', 'meta l4proto udp'],
  ['! -p udp', 'meta l4proto != udp'],
  ['-m conntrack --ctstate NEW', 'ct state new'],
  ['-m conntrack --ctstate INVALID', 'ct state invalid,established'],
  ['-m mark --mark 0x1/0x1', 'meta mark 0x1'],
  ['-m mark ! --mark 0x1/0x1', 'meta mark != 0x1'],
  ['-i lo', 'iifname "lo"'],
  ['! -o docker0', 'oifname != "docker0"'],
] as const;
const TARGETS = [
  ['ACCEPT', 'accept'],
  ['DROP', 'drop'],
  ['DROP', 'drop'],
  ['RETURN', 'return'],
  ['LOG', 'counter'],
] as const;

/** Random rules of three chains as iptables-restore and nft lines; a chain jumps only to later ones. */
function randomRules(random: Random) {
  const chains = ['FORWARD', 'FIRST', 'SECOND'];
  const rules = chains.flatMap((chain, index) =>
    Array.from({ length: random.integer(0, 4) }, () => {
      const [match, nftMatch] = random.pick(MATCHES);
      const later = chains.slice(index + 1);
      if (later.length > 0 && random.chance(0.4)) {
        const [option, verb] = random.pick([
          ['-j', 'jump'],
          ['-g', 'goto'],
        ] as const);
        const target = random.pick(later);
        return {
          iptables: `-A ${chain} ${match} ${option} ${target}`,
          nft: `add rule inet t ${chain} ${nftMatch} ${verb} ${target}`,
        };
      }
      const [target, statement] = random.pick(TARGETS);
      return {
        iptables: `-A ${chain} ${match} -j ${target}`,
        nft: `add rule inet t ${chain} ${nftMatch} ${statement}`,
      };
    }),
  );
  return { rules, policy: random.pick(['ACCEPT', 'DROP']) };
}

describe('preflight: evaluated rules and real packets', () => {
  let lab: Lab;
  let pod: Host;
  let remote: Host;
  let helper: NetnsHelper;

  before(async () => {
    lab = await createLab({ pods: 1, remotePods: 1 });
    assert.ok(lab.pods[0] && lab.remotePods[0]);
    [pod, remote] = [lab.pods[0], lab.remotePods[0]];
    await remote.serve({ protocol: 'TCP', port: PORT });
    helper = startNetnsHelper(lab.node.namespace);
  });
  after(async () => {
    await helper?.stop();
    await lab?.destroy();
  });

  /** Compares what happens to a new connection with the evaluation of the listed rules. */
  const compare = async (base: BaseChain | undefined, rules: string) => {
    assert.ok(base, rules);
    const endings = walk(base, { source: pod.ipv4, destination: remote.ipv4, port: PORT });
    const { outcome } = await pod.tcp(remote.ipv4, PORT, { timeoutMs: 250 });
    const expected = outcome === 'answered' ? ['accept'] : ['drop'];
    assert.deepEqual(
      endings.map(({ verdict }) => verdict),
      expected,
      `${outcome}\n${rules}`,
    );
  };

  it(`iptables: ${ROUNDS} random rulesets`, async () => {
    const random = new Random(20_104);
    for (let round = 0; round < ROUNDS; round++) {
      const { rules, policy } = randomRules(random);
      const input = [
        '*filter',
        `:FORWARD ${policy}`,
        ...[':FIRST -', ':SECOND -'],
        '-A FORWARD -m conntrack --ctstate ESTABLISHED -j ACCEPT',
        ...rules.map(({ iptables }) => iptables),
        ...['COMMIT', ''],
      ].join('\n');
      await lab.node.exec('iptables-nft-restore', [], { input });
      const { stdout } = await lab.node.exec('iptables-nft-save', ['-t', 'filter']);
      const bases = iptablesChains('filter', stdout, 'ip filter');
      await compare(
        bases.find(({ hook }) => hook === 'forward'),
        stdout,
      );
    }
    await lab.node.exec('iptables-nft', ['-P', 'FORWARD', 'ACCEPT']);
    await lab.node.exec('iptables-nft', ['-F']);
  });

  it(`nft: ${ROUNDS} random rulesets`, async () => {
    const random = new Random(20_105);
    for (let round = 0; round < ROUNDS; round++) {
      const { rules, policy } = randomRules(random);
      const hook = `type filter hook forward priority 0; policy ${policy.toLowerCase()};`;
      const input = [
        ...['add table inet t', 'delete table inet t', 'add table inet t'],
        `add chain inet t FORWARD { ${hook} }`,
        ...['add chain inet t FIRST', 'add chain inet t SECOND'],
        'add rule inet t FORWARD ct state vmap { established : accept, invalid : drop }',
        ...rules.map(({ nft }) => nft),
        '',
      ].join('\n');
      await lab.node.exec('nft', ['-f', '-'], { input });
      const bases = await helper.call('foreignChains');
      await compare(
        bases.find(({ table }) => table === 'inet t'),
        input,
      );
    }
  });
});
