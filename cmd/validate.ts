/** `portwide validate`: the faults of manifests. */
import { join } from 'node:path';
import type { Command } from 'commander';
import { PORTS_ANNOTATION } from '../api/all-ports.ts';
import { compareText } from '../api/collections.ts';
import { type ApiObject, POLICY_KINDS, SERVING_KINDS, type Service } from '../api/objects.ts';
import type { PolicyFault } from '../api/policy-objects.ts';
import { printableAscii } from '../api/read-field.ts';
import { loadOrWarn } from '../config/configuration.ts';
import { addFlags, type FlagTexts } from '../config/flags.ts';
import type { FeatureGates } from '../config/map-types.ts';
import { ALL_SETTINGS } from '../config/settings.ts';
import { RouteTable } from '../proxier/route-table.ts';
import { loadManifestDirectory } from '../sources/manifests/directory.ts';
import { formatProblem, type ManifestProblem } from '../sources/manifests/problem.ts';

/** Characters; those of Kubernetes are shorter. */
const MAX_SHOWN_KIND = 80;

export function addValidateCommand(program: Command): void {
  const { config, featureGates } = ALL_SETTINGS;
  const command = program
    .command('validate')
    .description(
      'check manifests: print each fault with file, line, object, field and reason (exit status 1), warnings (exit status 0), and the kinds that are not read',
    )
    .requiredOption(
      '--manifests <dir>',
      'directory of manifests: its .yaml, .yml and .json files, not those of directories in it',
    );
  addFlags(command, { config, featureGates }).action(
    async (texts: FlagTexts & { manifests: string }) => {
      const { options } = await loadOrWarn(texts);
      const { problems, warnings, objects, passedOver } = validate(
        texts.manifests,
        options.featureGates,
      );
      for (const problem of problems) process.stdout.write(`${formatProblem(problem)}\n`);
      for (const warning of warnings) {
        process.stdout.write(`warning: ${formatProblem(warning)}\n`);
      }
      if (problems.length > 0) process.exitCode = 1;
      else process.stdout.write(`${objects} objects, no faults\n`);
      if (passedOver.size > 0) process.stdout.write(ignoredKindsLine(passedOver));
    },
  );
}

/**
 * Everything in a manifest directory that the agent would not serve or enforce as written, or that an API
 * server would not take, in the order of files and lines. Node addresses are unknown here, so VIPs are not
 * held against them. Objects of network policy are checked whether or not an agent enforces it.
 * @throws ManifestDirectoryError
 */
export function validate(directory: string, gates: FeatureGates) {
  const loaded = loadManifestDirectory(directory, [...SERVING_KINDS, ...POLICY_KINDS]);
  const table = new RouteTable({
    nodeName: '',
    allPortsEnabled: gates.AllPorts,
    warnsOfMismatches: true,
    onChange: () => {},
  });
  const places = new Map<string, { file: string; line: number }>();
  for (const { object, file, line } of loaded.objects) {
    table.upsert(object);
    places.set(`${object.kind} ${object.key}`, { file: join(directory, file), line });
  }
  const { raised, warnings: raisedWarnings } = table.takeChanges().refusals;
  const of = (object: string, what: Pick<ManifestProblem, 'field' | 'reason'>) => {
    const place = places.get(object);
    return place === undefined ? [] : [{ ...place, object, ...what }];
  };
  const refused = raised.flatMap(({ serviceKey, field, message: reason }) =>
    of(`Service ${serviceKey}`, { field, reason }),
  );
  const warnings = raisedWarnings.flatMap(({ serviceKey, sliceKey, message: reason }) =>
    of(sliceKey === undefined ? `Service ${serviceKey}` : `EndpointSlice ${sliceKey}`, { reason }),
  );
  const faults = loaded.objects.flatMap(({ object, file, line }) =>
    faultsOf(object).map(({ field, reason }) => ({
      file: join(directory, file),
      line,
      object: `${object.kind} ${object.key}`,
      field,
      reason,
    })),
  );
  return {
    problems: [...loaded.problems, ...refused, ...faults].sort(byPlace),
    /** What is served, but perhaps not as it was meant; in the same order. */
    warnings: [...loaded.warnings, ...warnings].sort(byPlace),
    /** How many objects were read. */
    objects: loaded.objects.length,
    /** Kinds that nothing here reads, as written, and how many objects are of each. */
    passedOver: loaded.skippedKinds,
  };
}

function byPlace(a: ManifestProblem, b: ManifestProblem): number {
  return compareText(a.file, b.file) || (a.line ?? 0) - (b.line ?? 0);
}

/** `passed over: 2 NetworkPolcy, 1 Deployment`: a typo would hide among them otherwise. */
function ignoredKindsLine(kinds: ReadonlyMap<string, number>): string {
  const counts = [...kinds].map(([kind, count]) => `${count} ${kind.slice(0, MAX_SHOWN_KIND)}`);
  return `passed over: ${printableAscii(counts.join(', '))}\n`;
}

function faultsOf(object: ApiObject): readonly PolicyFault[] {
  if (object.kind === 'Service') return lacksPorts(object) ? [NO_PORTS] : [];
  return 'faults' in object ? object.faults : [];
}

const NO_PORTS: PolicyFault = {
  field: 'spec.ports',
  reason: `must not be empty without spec.allPorts: true; beside ${PORTS_ANNOTATION} a placeholder stands there`,
};

/**
 * What API servers refuse (Kubernetes' ValidateService, KEP-2610). The agent serves such a Service from a
 * manifest as far as it can: with the annotation all is said.
 */
function lacksPorts({ ports, allPorts, headless, type }: Service): boolean {
  return ports.length === 0 && allPorts !== true && !headless && type !== 'ExternalName';
}
