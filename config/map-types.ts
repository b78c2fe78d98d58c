/** Value types that are maps or lists of maps. */
import { describeValue } from '../api/read-field.ts';
import { InvalidValueError, type ValueProblem } from './errors.ts';
import {
  boolean,
  invalid,
  isEmptyList,
  nonNegativeInt32,
  parsePairs,
  pathSegment,
  readItems,
  requireObject,
  textMatching,
  type ValueType,
} from './value-types.ts';

/** Feature gates by name: Portwide's own, and Kubernetes' gates that were set. */
export interface FeatureGates {
  readonly AllPorts: boolean;
  readonly [gate: string]: boolean;
}

/** Portwide's feature gates and their defaults. */
export const FEATURE_GATES: FeatureGates = { AllPorts: true };

/** Kubernetes' gates for the pages /flagz and /statusz, and their defaults. */
export const PAGE_GATES: Readonly<Record<string, boolean>> = {
  ComponentFlagz: true,
  ComponentStatusz: true,
};

/** Gates that kube-proxy reads and Portwide ignores. */
const IGNORED_GATES: readonly string[] = [
  'AllAlpha',
  'AllBeta',
  'ComponentSLIs',
  'ContextualLogging',
  'KubeProxyDrainingTerminatingNodes',
  'KubeProxyIPVS',
  'KubeProxyNFTablesLocalhostNodePorts',
  'LoadBalancerIPMode',
  'LoggingAlphaOptions',
  'LoggingBetaOptions',
  'MultiCIDRServiceAllocator',
  'NFTablesNetlink',
  'NFTablesProxyMode',
  'PreferSameTrafficDistribution',
  'ServiceTrafficDistribution',
  'TopologyAwareHints',
  'WatchListClient',
  'WinDSR',
  'WinOverlay',
];

/**
 * Accepts unknown gates and keeps them for a warning (`unknownGates`). kube-proxy accepts the gates of
 * every component of its Kubernetes version, and installers pass one list to all components.
 */
export const featureGates: ValueType<FeatureGates> = {
  argument: '<gates>',
  fromFlag: (given) =>
    gates(parsePairs(given).map(([name, value]) => [name, () => boolean.fromFlag(value)])),
  fromFile: (value, onUnknown) =>
    gates(
      requireObject(value).map(([name, each]) => [name, () => boolean.fromFile(each, onUnknown)]),
    ),
  // Omit gates at their default: kube-proxy may read this file, and rejects gates it does not know.
  toFile: (value) =>
    Object.fromEntries(
      Object.entries(value).filter(([name, isOn]) => isOn !== FEATURE_GATES[name]),
    ),
  isZero: () => false,
};

function gates(given: readonly [name: string, read: () => boolean][]): FeatureGates {
  const problems: ValueProblem[] = [];
  const values = new Map<string, boolean>(Object.entries(FEATURE_GATES));
  for (const [name, read] of given) {
    const at = pathSegment(name);
    if (!/^[A-Z][A-Za-z0-9]*$/.test(name)) {
      problems.push({ at, reason: `${describeValue(name)} is not a valid feature gate name` });
      continue;
    }
    try {
      values.set(name, read());
    } catch (error) {
      if (!(error instanceof InvalidValueError)) throw error;
      problems.push({ at, reason: `${name} ${error.message}` });
    }
  }
  if (problems.length > 0) throw new InvalidValueError(problems);
  return { ...FEATURE_GATES, ...Object.fromEntries(values) };
}

/** Gates that neither Portwide nor kube-proxy knows: typos, and gates of other components. */
export function unknownGates(given: FeatureGates): string[] {
  return Object.keys(given).filter(
    (name) =>
      !Object.hasOwn({ ...FEATURE_GATES, ...PAGE_GATES }, name) && !IGNORED_GATES.includes(name),
  );
}

/** Verbosity of the source files that match a pattern (klog's vmodule). */
interface ModuleLevel {
  readonly filePattern: string;
  readonly verbosity: number;
}

export const moduleLevels: ValueType<readonly ModuleLevel[]> = {
  argument: '<pattern=level>',
  fromFlag: (given) =>
    parsePairs(given).map(([filePattern, level]) => ({
      filePattern: pattern.fromFlag(filePattern),
      verbosity: nonNegativeInt32.fromFlag(level),
    })),
  fromFile: (value, onUnknown) => {
    if (!Array.isArray(value)) return invalid(`must be a list, not ${describeValue(value)}`);
    return readItems([...value.entries()], ([index, item]) => {
      const level = new Map(requireObject(item));
      for (const name of level.keys()) {
        if (name !== 'filePattern' && name !== 'verbosity') onUnknown(`[${index}].${name}`);
      }
      return {
        filePattern: pattern.fromFile(level.get('filePattern') ?? '', onUnknown),
        verbosity: nonNegativeInt32.fromFile(level.get('verbosity') ?? 0, onUnknown),
      };
    });
  },
  toFile: (value) => (value.length === 0 ? null : value),
  isZero: isEmptyList,
};

const pattern = textMatching(
  '<pattern>',
  /^[^=,]+$/,
  'a pattern of file names without "=" and ","',
);

/** Kubernetes' resource.Quantity, as text: `0`, `512`, `64Ki`. */
export const quantity: ValueType<string> = {
  ...textMatching(
    '<size>',
    /^[+-]?(\d+\.?\d*|\.\d+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?\d+)?$/,
    'a size such as 512, 1K or 2Mi',
  ),
  fromFile: (value) =>
    quantity.fromFlag(typeof value === 'number' ? String(value) : asString(value)),
  isZero: (value) => value === '' || value === 0,
};

function asString(value: unknown): string {
  return typeof value === 'string' ? value : invalid(`must be a size, not ${describeValue(value)}`);
}
