/** `portwide validate`: checks manifests. */
import { join } from 'node:path';
import type { Command } from 'commander';
import { PORTS_ANNOTATION } from '../api/all-ports.ts';
import { compareText } from '../api/collections.ts';
import { type ApiObject, POLICY_KINDS, SERVING_KINDS, type Service } from '../api/objects.ts';
import type { PolicyFault } from '../api/policy-objects.ts';
import { printableAscii } from '../api/read-field.ts';
import { loadOrWarn } from '../config/configuration.ts';
import type { FeatureGates } from '../config/feature-gates.ts';
import { addFlags, type FlagTexts } from '../config/flags.ts';
import { ALL_SETTINGS } from '../config/settings.ts';
import { RouteTable } from '../proxier/route-table.ts';
import { loadManifestDirectory } from '../sources/manifests/directory.ts';
import { formatProblem, type ManifestProblem } from '../sources/manifests/problem.ts';
import { ERROR_STATUS, failsWithTwo } from './usage.ts';

/** Maximum characters of a kind in the output; Kubernetes' kinds are shorter. */
const MAX_SHOWN_KIND = 80;

export function addValidateCommand(program: Command): void {
  const { config, featureGates } = ALL_SETTINGS;
  const command = failsWithTwo(program.command('validate'))
    .description(
      'check manifests: print faults (exit status 1), warnings (exit status 0) and skipped kinds',
    )
    .requiredOption(
      '--manifests <dir>',
      'directory of manifests (.yaml, .yml, .json; not recursive)',
    );
  addFlags(command, { config, featureGates }).action(
    async (texts: FlagTexts & { manifests: string }) => {
      // The status if an error is thrown below.
      process.exitCode = ERROR_STATUS;
      const { options } = await loadOrWarn(texts);
      const { problems, warnings, objects, skippedKinds } = validate(
        texts.manifests,
        options.featureGates,
      );
      for (const problem of problems) process.stdout.write(`${formatProblem(problem)}\n`);
      for (const warning of warnings) {
        process.stdout.write(`warning: ${formatProblem(warning)}\n`);
      }
      process.exitCode = problems.length > 0 ? 1 : 0;
      if (problems.length === 0) process.stdout.write(`${objects} objects, no faults\n`);
      if (skippedKinds.size > 0) process.stdout.write(skippedKindsLine(skippedKinds));
    },
  );
}

/**
 * Finds what an agent would not serve or enforce as written, and what an API server would reject. Node
 * addresses are unknown here, so VIPs are not compared with them. Network policies are always checked,
 * even if no agent enforces them.
 * @throws ManifestDirectoryError
 */
export function validate(directory: string, gates: FeatureGates) {
  const loaded = loadManifestDirectory(directory, [
    ...SERVING_KINDS,
    'ServiceCIDR',
    ...POLICY_KINDS,
  ]);
  const table = new RouteTable({
    nodeName: '',
    allPortsEnabled: gates.AllPorts,
    externalIPsEnabled: gates.AllowServiceExternalIPs,
    warnsOfMismatches: true,
    onChange: () => {},
  });
  const locations = new Map<string, { file: string; line: number }>();
  for (const { object, file, line } of loaded.objects) {
    table.upsert(object);
    locations.set(`${object.kind} ${object.key}`, { file: join(directory, file), line });
  }
  const { raised, warnings: raisedWarnings } = table.takeChanges().refusals;
  const problemOf = (object: string, problem: Pick<ManifestProblem, 'field' | 'reason'>) => {
    const location = locations.get(object);
    return location === undefined ? [] : [{ ...location, object, ...problem }];
  };
  const refused = raised.flatMap(({ serviceKey, field, message: reason }) =>
    problemOf(`Service ${serviceKey}`, { field, reason }),
  );
  const warnings = raisedWarnings.flatMap(({ serviceKey, sliceKey, message: reason }) =>
    problemOf(sliceKey === undefined ? `Service ${serviceKey}` : `EndpointSlice ${sliceKey}`, {
      reason,
    }),
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
    /** About objects that are served, but possibly not as intended. */
    warnings: [...loaded.warnings, ...warnings].sort(byPlace),
    /** Number of objects read. */
    objects: loaded.objects.length,
    /** Number of skipped objects by kind, spelt as in the manifests. */
    skippedKinds: loaded.skippedKinds,
  };
}

function byPlace(a: ManifestProblem, b: ManifestProblem): number {
  return compareText(a.file, b.file) || (a.line ?? 0) - (b.line ?? 0);
}

/** Formats `skipped kinds: 2 NetworkPolcy, 1 Deployment`, which shows a misspelt kind. */
function skippedKindsLine(kinds: ReadonlyMap<string, number>): string {
  const counts = [...kinds].map(([kind, count]) => `${count} ${kind.slice(0, MAX_SHOWN_KIND)}`);
  return `skipped kinds: ${printableAscii(counts.join(', '))}\n`;
}

function faultsOf(object: ApiObject): readonly PolicyFault[] {
  if (object.kind === 'Service') return lacksPorts(object) ? [NO_PORTS] : [];
  return 'faults' in object ? object.faults : [];
}

const NO_PORTS: PolicyFault = {
  field: 'spec.ports',
  reason: `must not be empty without spec.allPorts: true; with annotation ${PORTS_ANNOTATION}, add a placeholder port`,
};

/** Whether API servers reject the Service for lack of ports (Kubernetes' ValidateService, KEP-2610). */
function lacksPorts({ ports, allPorts, headless, type }: Service): boolean {
  return ports.length === 0 && allPorts !== true && !headless && type !== 'ExternalName';
}
