/** Kinds of values that are maps or lists of maps. */
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

/** Whether each feature is on; of those of Kubernetes, those that were named. */
export interface FeatureGates {
  readonly AllPorts: boolean;
  readonly [gate: string]: boolean;
}

/** Gates that mean something here, and whether they are on by default. */
export const FEATURE_GATES: FeatureGates = { AllPorts: true };

/** Kubernetes' gates for pages of the metrics server, with their defaults. */
export const PAGE_GATES: Readonly<Record<string, boolean>> = {
  ComponentFlagz: true,
  ComponentStatusz: true,
};

/** Gates that kube-proxy looks at; they switch nothing here. */
export const IGNORED_GATES: readonly string[] = [
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
 * Gates that nobody here knows are kept, to be warned of (`unknownGates`): kube-proxy takes those of
 * every component of its Kubernetes version, and installers hand all components the same ones.
 */
export const featureGates: ValueType<FeatureGates> = {
  argument: '<gates>',
  fromFlag: (given) =>
    gates(parsePairs(given).map(([name, value]) => [name, () => boolean.fromFlag(value)])),
  fromFile: (value, onUnknown) =>
    gates(
      requireObject(value).map(([name, each]) => [name, () => boolean.fromFile(each, onUnknown)]),
    ),
  // Without what is so anyway: kube-proxy, which may be given the file, refuses gates of others.
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
      problems.push({ at, reason: `${describeValue(name)} cannot be the name of a feature gate` });
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

/** Gates that mean nothing to Portwide nor to kube-proxy: those of other components, and mistakes. */
export function unknownGates(given: FeatureGates): string[] {
  return Object.keys(given).filter(
    (name) =>
      !Object.hasOwn({ ...FEATURE_GATES, ...PAGE_GATES }, name) && !IGNORED_GATES.includes(name),
  );
}

/** Log levels of single source files (klog's vmodule). */
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
