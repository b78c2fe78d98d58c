import assert from 'node:assert/strict';
import fc from 'fast-check';
import { IP_FAMILIES, type IpFamily, SERVING_KINDS } from '../../api/objects.ts';
import { nftFamily } from '../../nft/rule.ts';
import { MAP_NAMES } from '../../nftables/maps.ts';
import { NftPlan } from '../../nftables/plan.ts';
import { TABLE } from '../../nftables/static-chains.ts';
import { tableScript } from '../../nftables/table-script.ts';
import { loadManifestDirectory } from '../../sources/manifests/directory.ts';
import type { LocalDetector } from '../../traffic/options.ts';
import { endpoint, slice } from '../fixtures.ts';
import type { ClusterChange } from '../iptables/generated.ts';
import { createNamespace, type Namespace, type NetnsHelper } from '../netlink/namespace.ts';
import { change } from './generated.ts';
import { Node } from './node.ts';
import { allChains, type ModeOptions, modeOptions } from './options.ts';

/** nft adds a byteorder expression for the one-byte protocol before range lookups, without effect. */
const BYTEORDER_OF_PROTOCOL = /; byteorder 1=(\w+) 2=\1 3=00000001 4=00000001 5=00000002/g;
/** It swaps the bytes of a slot there, in rules and in elements. In maps of numbers the agent swaps neither. */
const BYTEORDER_OF_SLOT =
  /(?<=; numgen [^;]*); byteorder 1=(\w+) 2=\1 3=00000001 4=00000004 5=00000004/g;

const EXAMPLES = new URL('../../examples', import.meta.url).pathname;

/** Without ordered sets, which nft cannot write: it takes their keys for concatenations. */
function elementsOnly(state: Readonly<Record<string, readonly string[]>>) {
  return Object.fromEntries(MAP_NAMES.map((name) => [name, state[`set ${name}`]]));
}

/** Services of all kinds, each with an address of its own and with endpoints in both families. */
function generatedCluster(seed: number): ClusterChange[] {
  const services = fc
    .sample(change, { seed, numRuns: 400 })
    .flatMap((step) => ('upsert' in step && step.upsert.kind === 'Service' ? [step.upsert] : []));
  return services.flatMap((each, index) => {
    const name = `service-${index}`;
    const key = `${each.namespace}/${name}`;
    const clusterIPs = [`10.96.${index >> 8}.${index & 255}`, `fd00:10:96::${index.toString(16)}`];
    const ports = each.ports.map((port) => ({ ...port, port: 8080 }));
    const slices = IP_FAMILIES.map((family) => {
      const addresses = [1, 2, 3].slice(index % 3).map((last) => {
        return family === 'IPv4'
          ? `10.244.${index % 9}.${last}`
          : `fd00:10:244:${index % 9}::${last}`;
      });
      const endpoints = addresses.map((address) => endpoint(address, { nodeName: 'node-a' }));
      return slice(endpoints, { name: `${name}-${family}`, family, serviceKey: key, ports });
    });
    const balancers = [`203.0.114.${index & 255}`, `2001:db8:114::${index.toString(16)}`];
    const own = {
      ...{ name, key, clusterIPs, type: 'LoadBalancer' as const },
      loadBalancerIngress: balancers.map((ip) => ({ ip, ipMode: 'VIP' as const })),
    };
    return [{ ...each, ...own }, ...slices].map((upsert) => ({ upsert }));
  });
}

function withoutAffinity(step: ClusterChange): ClusterChange {
  if (!('upsert' in step) || step.upsert.kind !== 'Service') return step;
  return { upsert: { ...step.upsert, affinitySeconds: 0 } };
}

function rulesOnly(state: Readonly<Record<string, readonly string[]>>) {
  return Object.entries(state)
    .filter(([name]) => name.startsWith('chain '))
    .map(([name, rules]) => [
      name,
      rules.map((rule) =>
        withRelativeRegisters(
          rule.replaceAll(BYTEORDER_OF_PROTOCOL, '').replaceAll(BYTEORDER_OF_SLOT, ''),
        ),
      ),
    ]);
}

/** nft may choose other registers for the input of a hash and the data of an update, as long as they are contiguous. */
function withRelativeRegisters(rule: string): string {
  const data = /dynset 4=\w+ 5=(\w+)|hash 1=(\w+)/.exec(rule)?.slice(1).find(Boolean);
  if (data === undefined) return rule;
  const first = word(data);
  return rule.replaceAll(/(?<=(?:payload|meta|ct|hash) 1=|dynset 4=\w+ 5=)\w+/g, (register) =>
    word(register) < first ? register : `data + ${word(register) - first}`,
  );
}

/** Registers 1 to 4 have 16 bytes; registers from 8 on are the same memory in units of 4 bytes. */
function word(register: string): number {
  const number = Number.parseInt(register, 16);
  return number < 8 ? (number - 1) * 4 : number - 8;
}

describe('forms: rules written by nft and by the agent', () => {
  let namespace: Namespace;
  let helper: NetnsHelper;
  beforeEach(async () => {
    namespace = await createNamespace();
    helper = namespace.helper();
  });
  afterEach(() => namespace[Symbol.asyncDispose]());

  const load = (script: string) => helper.call('hold', script, 'nft', '-f', '-');

  async function check(options: ModeOptions, withAffinity: boolean): Promise<void> {
    const { family } = options;
    const chains = allChains(options, withAffinity);
    await load(tableScript(chains, [], family));
    const fromText = rulesOnly(await helper.call('modeState', family));
    await namespace.run('nft', 'delete', 'table', nftFamily(family), 'portwide');
    await helper.call('modeRules', options, withAffinity);
    const fromBytes = rulesOnly(await helper.call('modeState', family));
    assert.equal(fromBytes.length, chains.length);
    assert.deepEqual(fromBytes, fromText);
  }

  // For a prefix of whole bytes nft compares these bytes without a mask; the agent always masks.
  const cidrs: Readonly<Record<IpFamily, string>> = {
    IPv4: '10.244.0.0/15',
    IPv6: 'fd00:10:244::/47',
  };
  for (const family of IP_FAMILIES) {
    // nft 1.0.6 aborts on session affinity rules with IPv6 ("Assertion dreg < ctx->reg_low").
    const withAffinity = family === 'IPv4';
    const detectors: readonly (readonly [string, LocalDetector | undefined])[] = [
      ['CIDR', { kind: 'cidr', cidr: cidrs[family] }],
      ['interface', { kind: 'interface', name: 'cni0' }],
      ['prefix of interfaces', { kind: 'interface', name: 'cali+' }],
      ['nothing', undefined],
    ];
    for (const [detector, localDetector] of detectors) {
      it(`nft and netlink write equal rules (${family}, pods detected by ${detector})`, () =>
        check({ family, localDetector, serviceCidrs: [cidrs[family]] }, withAffinity));
    }
    const addresses = ['192.168.77.10', 'fd00:77::10'];
    const example = loadManifestDirectory(EXAMPLES, [...SERVING_KINDS, 'Pod']);
    const clusters: Readonly<Record<string, readonly ClusterChange[]>> = {
      'the examples': example.objects.map(({ object }) => ({ upsert: object })),
      'a generated cluster': generatedCluster(5),
      'another generated cluster': generatedCluster(6),
    };
    for (const [title, steps] of Object.entries(clusters))
      it(`the output of render and the agent have equal rules and elements (${family}, ${title})`, async () => {
        const options: ModeOptions = {
          family,
          localDetector: { kind: 'cidr', cidr: cidrs[family] },
          serviceCidrs: [cidrs[family]],
          nodePortSelection: ['all'],
        };
        const node = await Node.start(family, helper, options);
        await node.feed([
          ...steps.map((step) => (withAffinity ? step : withoutAffinity(step))),
          { nodeAddresses: addresses },
        ]);
        await node.apply(true);
        const byAgent = await node.state();
        await namespace.run('nft', 'delete', 'table', nftFamily(family), TABLE);
        const plan = new NftPlan(modeOptions(options));
        plan.setNodeAddresses(node.nodeAddresses);
        plan.update(node.routes, []);
        const elements = [...plan.snapshot()].flatMap((each) => each.elements);
        await load(tableScript(plan.chains(), elements, family));
        const byNft = await node.state();
        await node.stop();
        assert.deepEqual(rulesOnly(byAgent), rulesOnly(byNft));
        assert.deepEqual(elementsOnly(byAgent), elementsOnly(byNft));
        const empty = MAP_NAMES.filter((name) => elementsOnly(byAgent)[name]?.length === 0);
        const isGenerated = title !== 'the examples';
        assert.ok(empty.length < (isGenerated ? 8 : 20), `empty: ${empty.join()}`);
      });
    it(`nft and netlink write equal rules for any masquerade bit (${family})`, async () => {
      for (const masqueradeBit of [0, 31]) {
        const others = {
          masqueradeAll: true,
          localDetector: undefined,
          serviceCidrs: [],
          resetsTcp: true,
          rejectsOnLocalhost: true,
        };
        await check({ family, masqueradeBit, ...others }, withAffinity);
        await namespace.run('nft', 'flush', 'ruleset');
      }
    });
  }
});
