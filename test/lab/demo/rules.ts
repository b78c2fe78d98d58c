/** Demo step: the rules in the kernel. */
import assert from 'node:assert/strict';
import type { DemoEnvironment } from './environment.ts';
import { heading, print } from './text.ts';

/** Shows the nftables elements and rules for one cluster IP. */
export async function showRules({ lab, pods, allPorts }: DemoEnvironment): Promise<void> {
  const [vip] = allPorts.vips;
  const list = async (kind: 'map' | 'chain', name: string) => {
    const { stdout } = await lab.node.exec('nft', ['list', kind, 'ip', 'portwide', name]);
    return stdout;
  };
  /** Elements for the VIP, as nft prints them. */
  const elements = async (map: string) => {
    const printed = (await list('map', map)).match(/elements = \{([^}]*)\}/)?.[1] ?? '';
    const all = printed.split(',').map((element) => element.trim().replaceAll(/\s+/g, ' '));
    return all.filter((element) => element.startsWith(`${vip} `));
  };
  const rules = async (chain: string) =>
    (await list('chain', chain))
      .split('\n')
      .slice(2, -2)
      .map((line) => line.trim());

  const lookup = (await rules('services')).filter((rule) => rule.endsWith(' vmap @service-ips'));
  assert.deepEqual(lookup, ['ip daddr vmap @service-ips'], 'no port, no protocol');
  const dispatch = await elements('service-ips');
  assert.equal(dispatch.length, 1, `one element for ${vip}`);
  const chain = dispatch[0]?.match(/ : goto (\S+)$/)?.[1] ?? '';
  const [fromOutside = '', draw = '', ...others] = await rules(chain);
  assert.match(fromOutside, /^ip saddr != \S+ meta mark set /);
  assert.equal(draw, `dnat to ip daddr . numgen random mod ${pods.length} map @endpoint-ips`);
  assert.equal(others.length, 1);
  const endpoints = await elements('endpoint-ips');
  const expected = pods.map(({ ipv4 }, index) => `${vip} . ${index} : ${ipv4}`);
  assert.deepEqual(endpoints.toSorted(), expected.toSorted(), 'an element for each pod');

  heading(`Rules in the kernel of the node for ${vip}`);
  const show = (...lines: readonly string[]) => print(...lines.map((line) => `  ${line}`));
  print('A rule shared by all Services looks up the destination address alone:');
  show(...lookup);
  print('Packets to this address, on any port and protocol, match:');
  show(...dispatch);
  print(
    `That chain is shared by all all-ports Services with ${pods.length} pods. If the sender is not a pod, the`,
    'packet is masqueraded, so that the answer returns through this node:',
  );
  show(fromOutside);
  print('Then a pod is selected at random. The rule sets no port, so the packet keeps its own:');
  show(draw);
  print('These are the pods:');
  show(...endpoints);
  const count = dispatch.length + endpoints.length;
  print(`These ${count} elements serve every port. No rule belongs to this Service alone.`);
}
