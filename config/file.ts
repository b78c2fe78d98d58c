/** The configuration file: a KubeProxyConfiguration. */
import { familyOf } from '../api/addresses.ts';
import { asError } from '../api/errors.ts';
import { describeValue, isRecord } from '../api/read-field.ts';
import { type ConfigDocument, parseConfigDocument } from './document.ts';
import { type ConfigNotice, ConfigurationError, InvalidValueError } from './errors.ts';
import {
  DEFAULTS,
  OPTION_NAMES,
  type OptionName,
  RUN_SETTINGS,
  type RunOptions,
} from './settings.ts';
import { joinPath, pathSegment } from './value-types.ts';

export const API_VERSION = 'kubeproxy.config.k8s.io/v1alpha1';
export const KIND = 'KubeProxyConfiguration';

/** What a file says, complete with defaults. */
export interface ParsedConfigFile {
  readonly options: RunOptions;
  readonly problems: readonly ConfigNotice[];
  /** Fields that are passed over. */
  readonly warnings: readonly ConfigNotice[];
  /** Options that have their default because the file's value is a problem. */
  readonly invalid: ReadonlySet<OptionName>;
}

/** Fields by name: one has a setting, or fields of its own. */
type Schema = Map<string, OptionName | Schema>;

const SCHEMA: Schema = new Map();
for (const name of OPTION_NAMES) {
  const path = RUN_SETTINGS[name].field?.split('.') ?? [];
  const field = path.pop();
  if (field === undefined) continue;
  let schema = SCHEMA;
  for (const step of path) {
    const below = schema.get(step) ?? new Map();
    if (!(below instanceof Map)) throw new Error(`${step} is a field and a section`);
    schema.set(step, below);
    schema = below;
  }
  schema.set(field, name);
}

/**
 * Reads a KubeProxyConfiguration as kube-proxy does: fields that nobody knows and fields that are
 * there twice are warned of and passed over; null and, where Go cannot tell it from a field that
 * is not set, the zero value stand for the default.
 * @param subject how messages name the file.
 * @throws ConfigurationError when it is no KubeProxyConfiguration at all.
 */
export function readConfigFile(text: string, subject: string): ParsedConfigFile {
  const { value, duplicates, extraDocuments: surplus } = parse(text, subject);
  const at = (path: string) => (path === '' ? subject : `${subject}: ${path}`);
  const problems: ConfigNotice[] = [];
  const warnings: ConfigNotice[] = [];
  const broken = new Set<OptionName>();
  const values = new Map<OptionName, unknown>();

  const onUnknown = (path: string) =>
    warnings.push({ subject: at(path), message: 'unknown field; it is ignored' });

  const readValue = (name: OptionName, given: unknown, path: string) => {
    const { type: kind, keepsZero } = RUN_SETTINGS[name];
    if (!keepsZero && kind.isZero(given)) return;
    try {
      values.set(
        name,
        kind.fromFile(given, (below) => onUnknown(joinPath(path, below))),
      );
    } catch (error) {
      if (!(error instanceof InvalidValueError)) throw error;
      broken.add(name);
      for (const { at: below, reason } of error.problems) {
        problems.push({ subject: at(joinPath(path, below)), message: reason });
      }
    }
  };

  const readSection = (schema: Schema, section: Record<string, unknown>, parent: string) => {
    for (const [key, given] of Object.entries(section)) {
      const path = joinPath(parent, pathSegment(key));
      const below = schema.get(key);
      if (below === undefined) onUnknown(path);
      else if (given === null) continue;
      else if (typeof below === 'string') readValue(below, given, path);
      else if (isRecord(given)) readSection(below, given, path);
      else
        problems.push({
          subject: at(path),
          message: `must be an object, not ${describeValue(given)}`,
        });
    }
  };

  const { apiVersion: _, kind: __, ...fields } = value;
  readSection(SCHEMA, fields, '');
  for (const path of duplicates) {
    warnings.push({ subject: at(path), message: 'is there more than once; the last one counts' });
  }
  if (surplus > 0) {
    warnings.push({ subject, message: 'only the first of several YAML documents counts' });
  }
  const options = { ...DEFAULTS, ...Object.fromEntries(values) } as RunOptions;
  return { options: withServerAddresses(options, values), problems, warnings, invalid: broken };
}

/** @throws ConfigurationError */
function parse(text: string, subject: string): ConfigDocument & { value: Record<string, unknown> } {
  let document: ConfigDocument;
  try {
    document = parseConfigDocument(text);
  } catch (error) {
    throw new ConfigurationError([{ subject, message: asError(error).message }], { cause: error });
  }
  const { value } = document;
  if (!isRecord(value)) {
    const found = value === null ? 'nothing' : describeValue(value);
    throw new ConfigurationError([{ subject, message: `must be a ${KIND}, not ${found}` }]);
  }
  const problems = [
    ['apiVersion', API_VERSION],
    ['kind', KIND],
  ].flatMap(([field = '', expected = '']) => {
    const given = value[field];
    if (given === expected) return [];
    const message =
      given === undefined
        ? `must be ${expected}`
        : `must be ${expected}, not ${describeValue(given)}`;
    return [{ subject: `${subject}: ${field}`, message }];
  });
  // Of something else, there is no point in going through the fields.
  if (problems.length > 0) throw new ConfigurationError(problems);
  return { ...document, value };
}

/** With an IPv6 `bindAddress`, servers listen on IPv6 by default. */
function withServerAddresses(
  options: RunOptions,
  given: ReadonlyMap<OptionName, unknown>,
): RunOptions {
  if (familyOf(options.bindAddress) === 'IPv4') return options;
  const { healthzBindAddress: healthz, metricsBindAddress: metrics } = options;
  const onIpv6 = (name: OptionName, address: typeof healthz, host: string) =>
    given.has(name) || address === undefined ? address : { ...address, host };
  return {
    ...options,
    healthzBindAddress: onIpv6('healthzBindAddress', healthz, '::'),
    metricsBindAddress: onIpv6('metricsBindAddress', metrics, '::1'),
  };
}
