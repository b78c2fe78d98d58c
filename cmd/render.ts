/** `portwide render`: prints the rules that a node would get. */
import { type Command, Option } from 'commander';
import { iptablesOptions } from '../agent/iptables-mode.ts';
import { ipvsOptions } from '../agent/ipvs-mode.ts';
import { DEFAULT_PROXY_MODE, modeLimits } from '../agent/mode.ts';
import { nftablesOptions } from '../agent/nftables-mode.ts';
import { effectiveNodeName, nodeIpOverride } from '../agent/node-setup.ts';
import { familyOf } from '../api/addresses.ts';
import { type IpFamily, SERVING_KINDS } from '../api/objects.ts';
import { loadOrWarn } from '../config/configuration.ts';
import { addFlags, type FlagTexts } from '../config/flags.ts';
import { NODE_SETTINGS, type ProxyMode } from '../config/node-settings.ts';
import { ALL_SETTINGS, type NodeOptions } from '../config/settings.ts';
import { baseOptions, iptablesRuleset } from '../iptables/backend.ts';
import { restoreInput } from '../iptables/restore.ts';
import { type Ruleset, TABLES } from '../iptables/ruleset.ts';
import { MarkAllocator } from '../ipvs/marks.ts';
import { IpvsPlan } from '../ipvs/plan.ts';
import { renderScript } from '../ipvs/render.ts';
import { NftPlan } from '../nftables/plan.ts';
import { tableScript } from '../nftables/table-script.ts';
import { RouteTable } from '../proxier/route-table.ts';
import { ServiceCidrs } from '../proxier/service-cidrs.ts';
import type { NodeAddresses } from '../services/node-port-addresses.ts';
import type { Route } from '../services/route.ts';
import { loadManifestDirectory } from '../sources/manifests/directory.ts';
import { formatProblem } from '../sources/manifests/problem.ts';
import { failsWithTwo } from './usage.ts';

interface RenderOptions extends NodeOptions {
  readonly manifests: string;
  readonly ipFamily: IpFamily;
}

export function addRenderCommand(program: Command): void {
  const command = failsWithTwo(program.command('render'))
    .description('print the rules that a node would get, without touching the kernel')
    .requiredOption(
      '--manifests <dir>',
      'directory of manifests (.yaml, .yml, .json; not recursive)',
    )
    .addOption(
      new Option('--ip-family <family>', 'IP family of the rules')
        .choices(['IPv4', 'IPv6'])
        .default('IPv4'),
    );
  const { config } = ALL_SETTINGS;
  addFlags(command, { config, ...NODE_SETTINGS }).action(
    async (texts: FlagTexts & Pick<RenderOptions, 'manifests' | 'ipFamily'>) => {
      const { manifests, ipFamily } = texts;
      const options = { ...(await loadOrWarn(texts)).options, manifests, ipFamily };
      process.stdout.write(render(options, (line) => process.stderr.write(`${line}\n`)));
    },
  );
}

/**
 * Renders the rules of one IP family of a node.
 * @param note called with each object of the manifests that is not served as written, and the reason.
 * @returns input for `iptables-restore --noflush` (IPv6: `ip6tables-restore`) in mode iptables, for `nft -f`
 *   in mode nftables; in mode ipvs, a shell script that runs ipset, ipvsadm, iptables-restore and ip.
 * @throws ManifestDirectoryError
 */
export function render(options: RenderOptions, note: (line: string) => void): string {
  const kinds = [...SERVING_KINDS, 'ServiceCIDR', 'Pod'] as const;
  const { objects, problems, warnings } = loadManifestDirectory(options.manifests, kinds);
  for (const problem of [...problems, ...warnings]) note(formatProblem(problem));

  const table = new RouteTable({
    nodeName: effectiveNodeName(options),
    allPortsEnabled: options.featureGates.AllPorts,
    externalIPsEnabled: options.featureGates.AllowServiceExternalIPs,
    ...modeLimits(options.proxyMode ?? DEFAULT_PROXY_MODE),
    warnsOfMismatches: true,
    onChange: () => {},
  });
  const serviceCidrs = new ServiceCidrs({
    nodeName: effectiveNodeName(options),
    given: options.serviceCidrs,
    clusterCidr: options.clusterCidr,
    onChange: () => {},
    onIgnored: ({ object, cidr, reason }) =>
      note(`ServiceCIDR ${object.key}: ${cidr} is not used: ${reason}`),
  });
  for (const { object } of objects) {
    table.upsert(object);
    serviceCidrs.upsert(object);
  }
  const addresses = nodeAddresses(options, table.node?.addresses ?? []);
  table.setNodeAddresses(new Set(addresses));
  const { routes, refusals } = table.takeChanges();
  for (const refusal of refusals.raised) {
    note(`Service ${refusal.serviceKey}: ${refusal.field}: ${refusal.message}`);
  }
  for (const { serviceKey, sliceKey, message } of refusals.warnings) {
    const object = sliceKey === undefined ? `Service ${serviceKey}` : `EndpointSlice ${sliceKey}`;
    note(`${object}: ${message}`);
  }

  const ofFamily = addresses.filter((address) => familyOf(address) === options.ipFamily);
  return RENDER[options.proxyMode ?? DEFAULT_PROXY_MODE]({
    options,
    podCidrs: table.node?.podCIDRs ?? [],
    addresses: { addresses: ofFamily, primary: ofFamily.slice(0, 1) },
    routes: routes.upserts.filter((route) => route.family === options.ipFamily),
    serviceCidrs: serviceCidrs.cidrs.filter((cidr) => familyOf(cidr) === options.ipFamily),
    note,
  });
}

/** The addresses of the Node, after the address of `--bind-address`, which is then primary in its family. */
function nodeAddresses(options: NodeOptions, addresses: readonly string[]): string[] {
  const nodeIp = nodeIpOverride(options);
  return nodeIp === undefined ? [...addresses] : [...new Set([nodeIp, ...addresses])];
}

interface Rendering {
  readonly options: RenderOptions;
  readonly podCidrs: readonly string[];
  readonly addresses: NodeAddresses;
  readonly routes: readonly Route[];
  readonly serviceCidrs: readonly string[];
  readonly note: (line: string) => void;
}

const RENDER: Readonly<Record<ProxyMode, (rendering: Rendering) => string>> = {
  nftables({ options, podCidrs, addresses, routes, serviceCidrs, note }) {
    const plan = new NftPlan(nftablesOptions(options, options.ipFamily, podCidrs, note));
    plan.setNodeAddresses(addresses);
    plan.setServiceCidrs(serviceCidrs);
    plan.update(routes, []);
    const elements = [...plan.snapshot()].flatMap((each) => each.elements);
    return tableScript(plan.chains(), elements, options.ipFamily);
  },
  iptables({ options, podCidrs, addresses, routes, note }) {
    const traits = { dropInvalid: true, randomFully: true, onWarning: warningTo(note) };
    const mode = iptablesOptions(options, options.ipFamily, podCidrs, traits);
    const ruleset = iptablesRuleset(baseOptions(mode, addresses));
    ruleset.update(routes, []);
    return allRules(ruleset);
  },
  ipvs({ options, podCidrs, addresses, routes, note }) {
    const traits = { randomFully: true, onWarning: warningTo(note) };
    const mode = ipvsOptions(options, options.ipFamily, podCidrs, traits);
    const plan = new IpvsPlan(mode, new MarkAllocator(mode.markRange, [], []));
    plan.setNodeAddresses(addresses);
    plan.update(routes, []);
    return renderScript(plan.desired.items(), allRules(plan.ruleset), options.ipFamily);
  },
};

/** Notes warnings of a backend as one line each: message and `key=value` fields. */
function warningTo(note: (line: string) => void) {
  return (details: object, message: string) => {
    const fields = Object.entries(details).map(
      ([key, value]) => ` ${key}=${JSON.stringify(value)}`,
    );
    note(message + fields.join(''));
  };
}

function allRules(ruleset: Ruleset): string {
  const empty = { chains: new Map(), foreign: new Set<string>() };
  return TABLES.map((each) => restoreInput(ruleset.diff(each, empty))).join('');
}
