/** Reads the configuration file, a KubeProxyConfiguration. */
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

/** The options of a file, with defaults. */
export interface ParsedConfigFile {
  readonly options: RunOptions;
  readonly problems: readonly ConfigNotice[];
  /** Unknown and duplicate fields, and ignored documents. */
  readonly warnings: readonly ConfigNotice[];
  /** Options left at their default because the file's value is invalid. */
  readonly invalid: ReadonlySet<OptionName>;
}

/** Settings by field name; a section is a nested schema. */
type Schema = Map<string, OptionName | Schema>;

const SCHEMA: Schema = new Map();
for (const name of OPTION_NAMES) {
  const path = RUN_SETTINGS[name].field?.split('.') ?? [];
  const field = path.pop();
  if (field === undefined) continue;
  let schema = SCHEMA;
  for (const segment of path) {
    const section = schema.get(segment) ?? new Map();
    if (!(section instanceof Map)) throw new Error(`${segment} is both a field and a section`);
    schema.set(segment, section);
    schema = section;
  }
  schema.set(field, name);
}

/**
 * Reads a KubeProxyConfiguration as kube-proxy does. Unknown fields are ignored with a warning; so are
 * duplicate fields, except the last. Null means the default, and so does the zero value of a setting
 * without `keepsZero`.
 * @param subject name of the file in messages.
 * @throws ConfigurationError if the text is not a KubeProxyConfiguration.
 */
export function readConfigFile(text: string, subject: string): ParsedConfigFile {
  const { value, duplicates, extraDocuments } = parse(text, subject);
  const at = (path: string) => (path === '' ? subject : `${subject}: ${path}`);
  const problems: ConfigNotice[] = [];
  const warnings: ConfigNotice[] = [];
  const invalid = new Set<OptionName>();
  const values = new Map<OptionName, unknown>();

  const onUnknown = (path: string) =>
    warnings.push({ subject: at(path), message: 'unknown field; ignored' });

  const readValue = (name: OptionName, given: unknown, path: string) => {
    const { type, keepsZero } = RUN_SETTINGS[name];
    if (!keepsZero && type.isZero(given)) return;
    try {
      values.set(
        name,
        type.fromFile(given, (below) => onUnknown(joinPath(path, below))),
      );
    } catch (error) {
      if (!(error instanceof InvalidValueError)) throw error;
      invalid.add(name);
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
    warnings.push({ subject: at(path), message: 'duplicate field; the last value is used' });
  }
  if (extraDocuments > 0) {
    warnings.push({ subject, message: 'several YAML documents; only the first is used' });
  }
  const options = { ...DEFAULTS, ...Object.fromEntries(values) } as RunOptions;
  return { options: withServerAddresses(options, values), problems, warnings, invalid };
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
    const found = value === null ? 'an empty file' : describeValue(value);
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
  // The fields of another kind or version mean something else: report only the mismatch.
  if (problems.length > 0) throw new ConfigurationError(problems);
  return { ...document, value };
}

/** As in kube-proxy, an IPv6 `bindAddress` makes the default server addresses IPv6. */
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
