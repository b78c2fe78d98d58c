/** Renders the Helm chart: what `helm template` prints, as objects. */
import { globSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { parse, parseAllDocuments, stringify } from 'yaml';
import { isTrue } from './go-expression.ts';
import { Templates } from './go-template.ts';
import { type RawObject, ROOT, readText } from './manifests.ts';

export const CHART = 'deploy/chart/portwide';
export const TEMPLATES: readonly string[] = globSync(`${CHART}/templates/*`, { cwd: ROOT }).sort();

/** Values as in values.yaml or of `--set`. */
export type Values = Readonly<Record<string, unknown>>;

/** Values.yaml of the chart. */
export const DEFAULT_VALUES: Values = parse(readText(`${CHART}/values.yaml`));

// Helm reads and writes YAML 1.1.
const toYaml = (value: unknown) => stringify(value, { version: '1.1', lineWidth: 0 }).trimEnd();

type Dictionary = Record<string, unknown>;

/** The functions that the templates use, as in Helm and its library sprig. */
const FUNCTIONS = {
  append: (list: readonly unknown[], item: unknown) => [...list, item],
  concat: (...lists: readonly unknown[][]) => lists.flat(1),
  default: (fallback: unknown, value: unknown) => (isTrue(value) ? value : fallback),
  dict: (...pairs: readonly unknown[]) =>
    Object.fromEntries(
      pairs.flatMap((key, index) => (index % 2 === 0 ? [[key, pairs[index + 1]]] : [])),
    ),
  eq: (a: unknown, b: unknown) => a === b,
  fail: (message: string) => {
    throw new Error(message);
  },
  fromYaml: (text: string) => parse(text, { version: '1.1' }),
  index: (dictionary: Dictionary, key: string) => dictionary[key],
  int: (text: string) => Number.parseInt(text, 10),
  last: (list: readonly unknown[]) => list.at(-1),
  list: (...items: readonly unknown[]) => items,
  not: (value: unknown) => !isTrue(value),
  printf: (format: string, ...values: readonly unknown[]) => {
    const rest = [...values];
    return format.replaceAll(/%./g, (verb) => {
      if (verb !== '%s') throw new Error(`unsupported format ${verb}`);
      return String(rest.shift());
    });
  },
  replace: (from: string, to: string, text: string) => text.replaceAll(from, () => to),
  set: (dictionary: Dictionary, key: string, value: unknown) => {
    dictionary[key] = value;
    return dictionary;
  },
  splitList: (separator: string, text: string) => text.split(separator),
  toYaml,
};

/** What `helm install` gives the templates besides values. */
export interface Installation {
  /** API versions of the cluster, such as `apps/v1/Deployment`. */
  readonly apiVersions?: readonly string[];
}

/** The text of a template. @throws Error of `fail`. */
function render(template: string, values: Values, { apiVersions = [] }: Installation = {}): string {
  const templates = new Templates(FUNCTIONS);
  for (const path of TEMPLATES) templates.add(path, readText(path));
  const { name, version, appVersion } = parse(readText(`${CHART}/Chart.yaml`));
  return templates.run(template, {
    Values: mergeValues(DEFAULT_VALUES, values),
    Release: { Name: 'test', Namespace: 'kube-system', Service: 'Helm' },
    Chart: { Name: name, Version: version, AppVersion: appVersion },
    Capabilities: { APIVersions: { Has: (version: string) => apiVersions.includes(version) } },
    Files: { Get: readFile },
  });
}

/** NOTES.txt, which `helm install` prints. */
export function renderNotes(values: Values = {}): string {
  return render(`${CHART}/templates/NOTES.txt`, values);
}

/** The objects of all templates. */
export function renderChart(values: Values = {}, installation?: Installation): RawObject[] {
  const manifests = TEMPLATES.filter((path) => path.endsWith('.yaml'));
  return manifests.flatMap((path) => {
    const documents = parseAllDocuments(render(path, values, installation), { version: '1.1' });
    return documents.flatMap((document) => {
      if (document.errors.length > 0) throw new Error(`${path}: ${document.errors.join('; ')}`);
      return (document.toJS() as RawObject | null) ?? [];
    });
  });
}

/** As Helm: objects merge, null removes a default. */
function mergeValues(defaults: Values, values: Values): Values {
  const result: Dictionary = structuredClone(defaults);
  for (const [key, value] of Object.entries(values)) {
    const below = result[key];
    if (value === null) delete result[key];
    else if (isObject(value) && isObject(below)) result[key] = mergeValues(below, value);
    else result[key] = structuredClone(value);
  }
  return result;
}

function isObject(value: unknown): value is Values {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/** Unlike Helm, which returns an empty text, fails for a file that the chart does not contain. */
function readFile(path: string): string {
  const file = join(ROOT, CHART, path);
  if (!statSync(file).isFile()) throw new Error(`${path} is not a file`);
  return readFileSync(file, 'utf8');
}
