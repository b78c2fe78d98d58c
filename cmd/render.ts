import { type Command, Option } from 'commander';
import { familyOf } from '../api/addresses.ts';
import type { IpFamily } from '../api/objects.ts';
import { baseOptions } from '../iptables/backend.ts';
import { restoreInput } from '../iptables/restore.ts';
import { Ruleset, TABLES } from '../iptables/ruleset.ts';
import { RouteTable } from '../proxier/route-table.ts';
import { loadManifestDirectory } from '../sources/manifests/directory.ts';
import { formatProblem } from '../sources/manifests/problem.ts';
import { UserError } from './errors.ts';
import { iptablesOptions } from './iptables-mode.ts';
import {
  addNodeOptions,
  contradiction,
  effectiveNodeName,
  type NodeOptions,
} from './node-options.ts';

interface RenderOptions extends NodeOptions {
  readonly manifests: string;
  readonly ipFamily: IpFamily;
}

export function addRenderCommand(program: Command): void {
  const command = program
    .command('render')
    .description('print the rules that a node would get, without touching the kernel')
    .requiredOption('--manifests <dir>', 'directory of YAML and JSON manifests')
    .addOption(
      new Option('--ip-family <family>', 'family of the rules; the commands load one at a time')
        .choices(['IPv4', 'IPv6'])
        .default('IPv4'),
    );
  addNodeOptions(command).action((options: RenderOptions) => {
    process.stdout.write(render(options, (line) => process.stderr.write(`${line}\n`)));
  });
}

/**
 * Input for `iptables-restore --noflush` (IPv6: `ip6tables-restore`).
 * @param note is told what of the manifests is not served, and why.
 * @throws UserError, ManifestDirectoryError
 */
export function render(options: RenderOptions, note: (line: string) => void): string {
  const conflict = contradiction(options);
  if (conflict !== undefined) throw new UserError(conflict);
  const { objects, problems } = loadManifestDirectory(options.manifests);
  for (const problem of problems) note(formatProblem(problem));

  const table = new RouteTable({
    nodeName: effectiveNodeName(options),
    allPortsEnabled: options.featureGates.AllPorts,
    onChange: () => {},
  });
  for (const { object } of objects) table.upsert(object);
  const addresses = table.node?.addresses ?? [];
  table.setNodeAddresses(new Set(addresses));
  const { routes, refusals } = table.takeChanges();
  for (const refusal of refusals.raised) {
    note(`Service ${refusal.serviceKey}: ${refusal.field}: ${refusal.message}`);
  }

  const own = addresses.filter((address) => familyOf(address) === options.ipFamily);
  const traits = { dropInvalid: true, randomFully: true, onWarning: note };
  const mode = iptablesOptions(options, options.ipFamily, table.node?.podCIDRs ?? [], traits);
  const ruleset = new Ruleset(baseOptions(mode, { addresses: own, primary: own[0] }));
  ruleset.update(
    routes.upserts.filter((route) => route.family === options.ipFamily),
    [],
  );
  const nothing = { chains: new Map(), foreign: new Set<string>() };
  return TABLES.map((each) => restoreInput(ruleset.difference(each, nothing))).join('');
}
