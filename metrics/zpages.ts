/**
 * `/statusz` and `/flagz` of Kubernetes components (KEP-4827, KEP-4828): plain text, or objects of
 * `config.k8s.io` if the `Accept` header requests them. Pure.
 */
import { type Page, TEXT } from './pages.ts';

/** API versions of the objects; all versions have the same fields. */
const VERSIONS = ['v1beta1', 'v1alpha1'];
const GROUP = 'config.k8s.io';

export interface Statusz {
  readonly component: string;
  /** Start of the process, in milliseconds since 1970. */
  readonly started: number;
  /** Milliseconds since 1970. */
  readonly now: number;
  readonly version: string;
  /** Paths of the server. */
  readonly paths: readonly string[];
}

/** @param accept the request's `Accept` header. */
export function statuszPage(status: Statusz, accept: string | undefined): Page {
  const { component, started, now, version } = status;
  const paths = status.paths.toSorted();
  const seconds = Math.max(0, Math.floor((now - started) / 1000));
  return negotiated('Statusz', component, accept, {
    text: () => [
      `Started: ${new Date(started).toUTCString()}`,
      `Up: ${duration(seconds)}`,
      `Node.js version: ${process.version}`,
      `Binary version: ${version}`,
      `Paths: ${paths.join(' ')}`,
    ],
    fields: () => ({
      startTime: new Date(started).toISOString().replace(/\.\d+Z$/, 'Z'),
      uptimeSeconds: seconds,
      // Required by the API.
      goVersion: '',
      binaryVersion: version,
      paths,
    }),
  });
}

/**
 * @param flags values by name, without dashes.
 * @param accept the request's `Accept` header.
 */
export function flagzPage(
  component: string,
  flags: Readonly<Record<string, string>>,
  accept: string | undefined,
): Page {
  const sorted = Object.entries(flags).sort(([a], [b]) => (a < b ? -1 : 1));
  return negotiated('Flagz', component, accept, {
    text: () => sorted.map(([name, value]) => `${name}=${value}`),
    fields: () => ({ flags: Object.fromEntries(sorted) }),
  });
}

function negotiated(
  kind: 'Statusz' | 'Flagz',
  component: string,
  accept: string | undefined,
  { text, fields }: { text: () => readonly string[]; fields: () => object },
): Page {
  for (const { type, parameters } of accepted(accept)) {
    const { as, g, v = '', charset = 'utf-8' } = parameters;
    if (['text/plain', 'text/*', '*/*'].includes(type) && charset.toLowerCase() === 'utf-8') {
      const title = `${component} ${kind === 'Flagz' ? 'flags' : 'statusz'}`;
      const lines = [
        '',
        title,
        'Not intended for programs: the format may change at any time.',
        '',
        ...text(),
      ];
      return { type: TEXT, body: `${lines.join('\n')}\n` };
    }
    const isObject = type === 'application/json' && as === kind && g === GROUP;
    if (isObject && VERSIONS.includes(v)) {
      const apiVersion = `${GROUP}/${v}`;
      const object = { kind, apiVersion, metadata: { name: component }, ...fields() };
      return { type: 'application/json', body: JSON.stringify(object) };
    }
  }
  const types = VERSIONS.map((v) => `application/json;as=${kind};g=${GROUP};v=${v}`);
  const body = `not acceptable; supported: text/plain, ${types.join(', ')}\n`;
  return { type: TEXT, body, code: 406 };
}

interface MediaType {
  readonly type: string;
  readonly parameters: Readonly<Record<string, string>>;
}

/** Media types of an `Accept` header in the order of the header; without a header, any type. */
function accepted(header: string | undefined): MediaType[] {
  if (header === undefined || header.trim() === '') return [{ type: '*/*', parameters: {} }];
  return header.split(',').map((item) => {
    const [type = '', ...rest] = item.split(';').map((part) => part.trim());
    const pairs = rest.map((part): [string, string] => {
      const [name = '', value = ''] = part.split('=');
      return [name.toLowerCase(), value.replaceAll('"', '')];
    });
    return { type: type.toLowerCase(), parameters: Object.fromEntries(pairs) };
  });
}

/** Formatted as in Kubernetes components. */
function duration(seconds: number): string {
  const two = (number: number) => String(number).padStart(2, '0');
  const [hours, minutes] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60];
  return `${hours} hr ${two(minutes)} min ${two(seconds % 60)} sec`;
}
